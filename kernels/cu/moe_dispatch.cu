// Rows to experts and back: assignments sorted by expert, the rows in that order, their weighted sums. Contract:
// kernels/src/moe/dispatch/mod.rs. Bound by memory.
//
// Numbers that an array must not hold are noted in the status word, and nothing is written for them. Row kernels: blockDim.x threads a row,
// blockDim.y rows a block (1 unless blockDim.x is 32); `packed`: columns are a multiple of what 16 bytes hold, and all rows begin at
// multiples of 16 bytes.
#include "element.cuh"
#include "fault.cuh"
#include "reduce.cuh"
#include "sort.cuh"

constexpr uint32_t NONE = 0xffffffffu;

SORT_ENTRIES(moe_dispatch)

// An assignment's expert, or `experts` where it goes to none.
extern "C" __global__ void moe_dispatch_keys(const uint32_t* chosen, const uint32_t* keep, uint32_t* keys, uint32_t len, uint32_t experts, uint32_t top_k,
                                             uint64_t* word, uint64_t number) {
  uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= len) return;
  uint32_t expert = chosen[at];
  if (expert >= experts) note_fault(word, number, at / top_k, expert, experts);
  keys[at] = expert < experts && (!keep || keep[at] != 0) ? expert : experts;
}

// keys, sorted: the experts of the assignments `sorted`. Those that go to none are the last ones.
extern "C" __global__ void moe_dispatch_places(const uint32_t* keys, const uint32_t* sorted, uint32_t* order, uint32_t* places, uint32_t len,
                                               uint32_t experts) {
  uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= len) return;
  bool there = keys[at] < experts;
  order[at] = there ? sorted[at] : NONE;
  places[sorted[at]] = there ? at : NONE;
}

// Where the sorted keys that are not below `key` begin; there is at least one.
__device__ inline uint32_t begin_of(const uint32_t* keys, uint32_t len, uint32_t key) {
  uint32_t low = 0, high = len;
#pragma unroll 1
  do {
    uint32_t middle = low + (high - low) / 2;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  } while (low < high);
  return low;
}

extern "C" __global__ void moe_dispatch_counts(const uint32_t* keys, uint32_t* counts, uint32_t len, uint32_t experts) {
  uint32_t expert = blockIdx.x * blockDim.x + threadIdx.x;
  if (expert < experts) counts[expert] = begin_of(keys, len, expert + 1) - begin_of(keys, len, expert);
}

// keys, sorted as for places: an expert's assignments lie in their own order, so one has `capacity` of its sequence before it where the one
// that lies so far before it is of the same expert and sequence. `dropped` counts those.
extern "C" __global__ void moe_dispatch_capacity(const uint32_t* keys, const uint32_t* sorted, uint32_t* keep, uint32_t len, uint32_t experts,
                                                 uint32_t of_a_sequence, uint32_t capacity, uint32_t* dropped) {
  uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  bool over = false;
  if (at < len && keys[at] < experts) {
    uint32_t before = at - capacity;
    over = at >= capacity && keys[before] == keys[at] && sorted[before] / of_a_sequence == sorted[at] / of_a_sequence;
    keep[sorted[at]] = !over;
  }
  // A sum of whole numbers, the same in any order.
  int number = __syncthreads_count(over);
  if (threadIdx.x == 0) atomicAdd(dropped, uint32_t(number));
}

// The row of the assignment at each place, times its weight where `weights` is not null.
template <class T>
__device__ inline void permute(const uint32_t* order, const f32* weights, const T* x, T* y, uint32_t len, uint32_t columns, uint64_t assignments,
                               uint32_t top_k, bool packed, uint64_t* word, uint64_t number) {
  uint32_t at = blockIdx.x * blockDim.y + threadIdx.y;
  if (at >= len) return;
  uint32_t assignment = order[at];
  if (assignment >= assignments) return note_fault(word, number, at, assignment, assignments);
  float weight = weights ? weights[assignment] : 1.0f;
  x += size_t(assignment / top_k) * columns, y += size_t(at) * columns;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at);
    for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(weight * to_f32(run.of[i]));
    store(y + at, run);
  });
}

// Waits for the other threads of a row.
__device__ inline void wait_for_row() {
  if (blockDim.x == 32) __syncwarp();
  else __syncthreads();
}

// Of each row the sum of the rows at its places, times their weights where `weights` is not null; with `add` onto what is there. Dynamic
// shared memory: top_k places and weights for each of blockDim.y rows.
template <class T>
__device__ inline void combine(const uint32_t* places, const f32* weights, const T* x, T* y, uint32_t rows, uint32_t columns, uint32_t top_k, uint32_t len,
                               bool add, bool packed, uint64_t* word, uint64_t number) {
  extern __shared__ uint2 assignments[];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  uint2* own = assignments + size_t(threadIdx.y) * top_k;
#pragma unroll 1
  for (uint32_t k = threadIdx.x; k < top_k; k += blockDim.x) {
    size_t at = size_t(row) * top_k + k;
    own[k] = {places[at], weights ? __float_as_uint(weights[at]) : __float_as_uint(1.0f)};
  }
  wait_for_row();
#pragma unroll 1
  for (uint32_t k = 0; k < top_k; k++) {
    if (own[k].x >= len && own[k].x != NONE) return note_fault(word, number, row, own[k].x, len);
  }
  y += size_t(row) * columns;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    float sums[count.VALUE] = {};
    Run<T, count.VALUE> run;
    if (add) {
      run = load<count.VALUE>(y + at);
      for (uint32_t i = 0; i < count.VALUE; i++) sums[i] = to_f32(run.of[i]);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < top_k; k++) {
      uint2 one = own[k];
      if (one.x == NONE) continue;
      run = load<count.VALUE>(x + size_t(one.x) * columns + at);
      for (uint32_t i = 0; i < count.VALUE; i++) sums[i] = fmaf(__uint_as_float(one.y), to_f32(run.of[i]), sums[i]);
    }
    for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(sums[i]);
    store(y + at, run);
  });
}

// Of each row the products of dy's with those at its places, 0 without a place: f32 in each thread, then over threads in a fixed tree.
// `staged`: dynamic shared memory holds blockDim.y rows of dy.
template <class T>
__device__ inline void backward_weights(const uint32_t* places, const T* x, const T* dy, f32* dweights, uint32_t rows, uint32_t columns, uint32_t top_k,
                                        uint32_t len, bool packed, bool staged, uint64_t* word, uint64_t number) {
  extern __shared__ __align__(16) unsigned char staging[];
  __shared__ float scratch[2][32];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  dy += size_t(row) * columns, places += size_t(row) * top_k, dweights += size_t(row) * top_k;
  if (staged) {
    T* kept = reinterpret_cast<T*>(staging) + size_t(threadIdx.y) * columns;
    for_row<T>(columns, packed, [&](uint32_t at, auto count) { store(kept + at, load<count.VALUE>(dy + at)); });
    // Each thread reads what it has kept itself: no barrier is needed.
    dy = kept;
  }
  for (uint32_t k = 0; k < top_k; k++) {
    uint32_t place = places[k];
    float own = 0.0f;
    if (place < len) {
      const T* from = x + size_t(place) * columns;
      for_row<T>(columns, packed, [&](uint32_t at, auto count) {
        auto a = load<count.VALUE>(from + at), b = load<count.VALUE>(dy + at);
        for (uint32_t i = 0; i < count.VALUE; i++) own = fmaf(to_f32(a.of[i]), to_f32(b.of[i]), own);
      });
    }
    // The barrier inside is also what parts this use of one half of the scratch from the next but one.
    float sum = sum_to_first(own, scratch[k % 2]);
    if (threadIdx.x > 0) continue;
    if (place >= len && place != NONE) note_fault(word, number, row, place, len);
    else dweights[k] = sum;
  }
}

#define ENTRIES(T)                                                                                                                             \
  extern "C" __global__ void moe_dispatch_permute_##T(const uint32_t* order, const f32* weights, const T* x, T* y, uint32_t len,               \
                                                      uint32_t columns, uint64_t assignments, uint32_t top_k, uint32_t packed,                 \
                                                      uint64_t* word, uint64_t number) {                                                       \
    permute<T>(order, weights, x, y, len, columns, assignments, top_k, packed, word, number);                                                  \
  }                                                                                                                                            \
  extern "C" __global__ void moe_dispatch_combine_##T(const uint32_t* places, const f32* weights, const T* x, T* y, uint32_t rows,             \
                                                      uint32_t columns, uint32_t top_k, uint32_t len, uint32_t add, uint32_t packed,           \
                                                      uint64_t* word, uint64_t number) {                                                       \
    combine<T>(places, weights, x, y, rows, columns, top_k, len, add, packed, word, number);                                                   \
  }                                                                                                                                            \
  extern "C" __global__ void moe_dispatch_backward_weights_##T(const uint32_t* places, const T* x, const T* dy, f32* dweights, uint32_t rows,  \
                                                               uint32_t columns, uint32_t top_k, uint32_t len, uint32_t packed,                \
                                                               uint32_t staged, uint64_t* word, uint64_t number) {                             \
    backward_weights<T>(places, x, dy, dweights, rows, columns, top_k, len, packed, staged, word, number);                                     \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
