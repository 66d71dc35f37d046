// Softmax of rows, and its gradient. Contract: kernels/src/softmax/mod.rs.
//
// Launch: blockDim.x threads a row (32, or up to 1024 in whole warps), blockDim.y rows a block (1 unless blockDim.x is 32).
// `packed`: columns are a multiple of what 16 bytes hold, and all rows begin at multiples of 16 bytes.
// `staged`: dynamic shared memory holds blockDim.y rows of each input, so that global memory is read once.
// `queries`: 0, or the rows of one sequence under a causal mask. What that masks is never read.
// `hidden`: null, or bytes of which any but 0 masks an element; `sharing` rows of x one behind another have `hidden_rows` rows of it in
// turn. If `packed`, its rows begin at multiples of as many bytes as 16 bytes of T are elements; if `staged`, shared memory holds the
// bytes of blockDim.y rows too. Elements that it masks are read with others and not used. The gradient needs no mask: y is 0 there.
// Sums are f32: of each thread in turn, then over threads in a fixed tree.
#include "element.cuh"
#include "reduce.cuh"

struct Row {
  uint32_t number;
  size_t begin;
  uint32_t visible;
  bool there;
};

__device__ inline Row row_of(uint32_t rows, uint32_t columns, uint32_t queries) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  // The last of the queries sees every column, those before it one less each.
  uint32_t hidden = queries ? queries - 1 - row % queries : 0;
  return {row, size_t(row) * columns, columns - min(columns, hidden), row < rows};
}

// e^(x - shift) for the online sum; -inf below a maximum of -inf is 0, not NaN.
__device__ inline float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }

// The largest scaled element so far, and the sum of exponentials below it.
struct Online {
  float max = -INFINITY, sum = 0.0f;

  __device__ void add(float x) {
    if (x > max) {
      sum *= expf(max - x);
      max = x;
    }
    sum += expf(x - shift_of(max));
  }
};

// The bytes of a mask, or zeros where there is none.
template <uint32_t N> __device__ inline Run<uint8_t, N> load_mask(bool there, const uint8_t* from) {
  Run<uint8_t, N> mask = {};
  if (there) mask = load<N>(from);
  return mask;
}

template <class T>
__device__ inline void forward(const T* x, const uint8_t* hidden, T* y, uint32_t rows, uint32_t columns, uint32_t queries, uint32_t sharing, uint32_t hidden_rows, float scale, bool packed, bool staged) {
  extern __shared__ __align__(16) unsigned char staging[];
  __shared__ float scratch[2][32];
  Row row = row_of(rows, columns, queries);
  if (!row.there) return;
  x += row.begin, y += row.begin;
  T* kept = reinterpret_cast<T*>(staging) + size_t(threadIdx.y) * columns;
  uint8_t* kept_hidden = staging + (size_t(blockDim.y) * sizeof(T) + threadIdx.y) * columns;
  bool masked = hidden != nullptr;
  if (masked) hidden += size_t(row.number / sharing * hidden_rows + row.number % hidden_rows) * columns;
  Online own;
  for_row<T>(row.visible, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at);
    auto mask = load_mask<count.VALUE>(masked, hidden + at);
    if (staged) store(kept + at, run);
    if (staged && masked) store(kept_hidden + at, mask);
    for (uint32_t i = 0; i < count.VALUE; i++) own.add(mask.of[i] ? -INFINITY : to_f32(run.of[i]) * scale);
  });
  float max = reduce_row<Max>(own.max, scratch[0]);
  float sum = reduce_row<Sum>(own.sum * expf(own.max - shift_of(max)), scratch[1]);
  // Of -inf alone the sum is 0, and so is the row.
  float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  const T* again = staged ? kept : x;
  const uint8_t* hidden_again = staged ? kept_hidden : hidden;
  // Each thread reads what it has kept itself: no barrier is needed.
  for_row<T>(row.visible, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(again + at);
    auto mask = load_mask<count.VALUE>(masked, hidden_again + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float of_sum = expf(to_f32(run.of[i]) * scale - shift_of(max)) * factor;
      run.of[i] = from_f32<T>(mask.of[i] ? 0.0f : of_sum);
    }
    store(y + at, run);
  });
  for (uint32_t at = row.visible + threadIdx.x; at < columns; at += blockDim.x) y[at] = from_f32<T>(0.0f);
}

template <class T>
__device__ inline void backward(const T* dy, const T* y, T* dx, uint32_t rows, uint32_t columns, uint32_t queries, float scale, bool add, bool packed, bool staged) {
  extern __shared__ __align__(16) unsigned char staging[];
  __shared__ float scratch[32];
  Row row = row_of(rows, columns, queries);
  if (!row.there) return;
  dy += row.begin, y += row.begin, dx += row.begin;
  T* kept_dy = reinterpret_cast<T*>(staging) + size_t(threadIdx.y) * columns;
  T* kept_y = kept_dy + size_t(blockDim.y) * columns;
  float own = 0.0f;
  for_row<T>(row.visible, packed, [&](uint32_t at, auto count) {
    auto from = load<count.VALUE>(dy + at), out = load<count.VALUE>(y + at);
    if (staged) store(kept_dy + at, from), store(kept_y + at, out);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      // What is 0 has no part in the row, whatever its dy: so it is behind a given mask.
      float p = to_f32(out.of[i]);
      if (p != 0.0f) own += to_f32(from.of[i]) * p;
    }
  });
  float dot = reduce_row<Sum>(own, scratch);
  for_row<T>(row.visible, packed, [&](uint32_t at, auto count) {
    auto from = load<count.VALUE>((staged ? kept_dy : dy) + at), out = load<count.VALUE>((staged ? kept_y : y) + at);
    auto to = from;
    if (add) to = load<count.VALUE>(dx + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float p = to_f32(out.of[i]), gradient = p == 0.0f ? 0.0f : scale * p * (to_f32(from.of[i]) - dot);
      to.of[i] = from_f32<T>(add ? to_f32(to.of[i]) + gradient : gradient);
    }
    store(dx + at, to);
  });
  if (add) return;
  for (uint32_t at = row.visible + threadIdx.x; at < columns; at += blockDim.x) dx[at] = from_f32<T>(0.0f);
}

// Two blocks of the longest rows fit into a multiprocessor.
#define ENTRIES(T)                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(1024, 2)                                                                                \
      softmax_forward_##T(const T* x, const uint8_t* hidden, T* y, uint32_t rows, uint32_t columns, uint32_t queries,                  \
                          uint32_t sharing, uint32_t hidden_rows, float scale, uint32_t packed, uint32_t staged) {                     \
    forward<T>(x, hidden, y, rows, columns, queries, sharing, hidden_rows, scale, packed, staged);                                     \
  }                                                                                                                                    \
  extern "C" __global__ void softmax_backward_##T(const T* dy, const T* y, T* dx, uint32_t rows, uint32_t columns, uint32_t queries,   \
                                                  float scale, uint32_t add, uint32_t packed, uint32_t staged) {                       \
    backward<T>(dy, y, dx, rows, columns, queries, scale, add, packed, staged);                                                        \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
