// Rows of a table by token, and the table's gradient. Contract: kernels/src/embedding/mod.rs. Bound by memory.
//
// A table holds the rows of the tokens from `first` on, `held` of them. A token that is not below `vocab` is noted in the status word, and
// nothing is written for it. `packed`: columns are a multiple of what 16 bytes hold, and all arrays begin at multiples of 16 bytes.
#include "element.cuh"
#include "fault.cuh"
#include "sort.cuh"

// Launch: blockDim.x threads a row, blockDim.y rows a block. `positions` (tokens rows are used) may be null. With `add` rows are added.
template <class T>
__device__ inline void forward(const uint32_t* ids, const T* table, const T* positions, T* y, uint32_t rows, uint32_t columns, uint32_t tokens, uint32_t first,
                               uint32_t held, uint32_t vocab, bool add, bool packed, uint64_t* word, uint64_t number) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  uint32_t id = ids[row];
  // Of a row's threads, and of all rows, one notes it.
  if (id >= vocab) return note_fault(word, number, row, id, vocab);
  // Tokens below `first` wrap around to beyond `held`.
  uint32_t entry = id - first;
  y += size_t(row) * columns;
  if (entry >= held) {
    if (!add) {
      for_row<T>(columns, packed, [&](uint32_t at, auto count) {
        Run<T, count.VALUE> zeros;
        for (uint32_t i = 0; i < count.VALUE; i++) zeros.of[i] = from_f32<T>(0.0f);
        store(y + at, zeros);
      });
    }
    return;
  }
  table += size_t(entry) * columns;
  const T* more = add ? y : positions ? positions + size_t(row % tokens) * columns : nullptr;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(table + at);
    if (more) {
      auto other = load<count.VALUE>(more + at);
      for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(to_f32(run.of[i]) + to_f32(other.of[i]));
    }
    store(y + at, run);
  });
}

// The sum of rows of dy in f64, added to a row of a gradient and rounded once: N columns a thread. `row` is the first one, `next` gives the
// number of the next or false. `packed` here: columns are a multiple of four, which 16 bytes hold of the gradient; it begins at a multiple
// of 16 bytes, and dy at one of four elements.
template <uint32_t N, class T, class Next> __device__ inline void add_rows(const T* dy, f32* gradient, uint32_t columns, uint32_t row, Next next) {
  uint32_t at = (blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (at >= columns) return;
  double sum[N] = {};
  do {
    auto run = load<N>(dy + size_t(row) * columns + at);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) sum[i] += double(to_f32(run.of[i]));
  } while (next(row));
  auto run = load<N>(gradient + at);
#pragma unroll
  for (uint32_t i = 0; i < N; i++) run.of[i] = float(double(run.of[i]) + sum[i]);
  store(gradient + at, run);
}

// keys, rows: the tokens' places in the table, sorted, and where they stand. Grid: rows, columns by blockDim.x runs. The first of equal
// tokens sums them all, in their order.
template <uint32_t N, class T>
__device__ inline void backward_table(const uint32_t* keys, const uint32_t* rows, const T* dy, f32* gradient, uint32_t len, uint32_t columns, uint32_t held) {
  uint32_t at = blockIdx.x, key = keys[at];
  if (key >= held || (at > 0 && keys[at - 1] == key)) return;
  add_rows<N>(dy, gradient + size_t(key) * columns, columns, rows[at], [&](uint32_t& row) {
    if (++at >= len || keys[at] != key) return false;
    row = rows[at];
    return true;
  });
}

// Grid: tokens, columns by blockDim.x runs. Position t is that of rows t, t + tokens and so on.
template <uint32_t N, class T> __device__ inline void backward_positions(const T* dy, f32* gradient, uint32_t rows, uint32_t columns) {
  add_rows<N>(dy, gradient + size_t(blockIdx.x) * columns, columns, blockIdx.x, [&](uint32_t& row) {
    row += gridDim.x;
    return row < rows;
  });
}

#define ENTRIES(T)                                                                                                                             \
  extern "C" __global__ void embedding_forward_##T(const uint32_t* ids, const T* table, const T* positions, T* y, uint32_t rows,               \
                                                   uint32_t columns, uint32_t tokens, uint32_t first, uint32_t held, uint32_t vocab,           \
                                                   uint32_t add, uint32_t packed, uint64_t* word, uint64_t number) {                           \
    forward<T>(ids, table, positions, y, rows, columns, tokens, first, held, vocab, add, packed, word, number);                                \
  }                                                                                                                                            \
  extern "C" __global__ void embedding_backward_table_##T(const uint32_t* keys, const uint32_t* rows, const T* dy, f32* gradient,              \
                                                          uint32_t len, uint32_t columns, uint32_t held, uint32_t packed) {                    \
    if (packed) {                                                                                                                              \
      backward_table<4>(keys, rows, dy, gradient, len, columns, held);                                                            \
    } else {                                                                                                                                   \
      backward_table<1>(keys, rows, dy, gradient, len, columns, held);                                                                         \
    }                                                                                                                                          \
  }                                                                                                                                            \
  extern "C" __global__ void embedding_backward_positions_##T(const T* dy, f32* gradient, uint32_t rows, uint32_t columns, uint32_t packed) {  \
    if (packed) {                                                                                                                              \
      backward_positions<4>(dy, gradient, rows, columns);                                                                         \
    } else {                                                                                                                                   \
      backward_positions<1>(dy, gradient, rows, columns);                                                                                      \
    }                                                                                                                                          \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
SORT_ENTRIES(embedding)

// A token's place in the table, `held` where it has none.
extern "C" __global__ void embedding_keys(const uint32_t* ids, uint32_t* keys, uint32_t rows, uint32_t first, uint32_t held, uint32_t vocab, uint64_t* word,
                                          uint64_t number) {
  uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  uint32_t id = ids[row];
  if (id >= vocab) note_fault(word, number, row, id, vocab);
  keys[row] = id < vocab ? min(id - first, held) : held;
}
