// x + branch + bias, and the same with dropout of branch + bias. Contract: kernels/src/residual/mod.rs. Bound by memory.
//
// Launch: blockDim.x threads a row, blockDim.y rows a block. `bias` may be null. `packed`: columns are a multiple of what 16 bytes hold, and
// all arrays begin at multiples of 16 bytes.
//
// With dropout `packed` also says that rows begin at multiples of 8 elements of the whole: a block of random numbers is for 8 neighbours.
#include "element.cuh"
#include "philox.cuh"

template <class T>
__device__ inline void forward(const T* x, const T* branch, const T* bias, T* out, uint32_t rows, uint32_t columns, bool packed) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  x += begin, branch += begin, out += begin;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at), more = load<count.VALUE>(branch + at);
    auto own = run;
    if (bias) own = load<count.VALUE>(bias + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float value = to_f32(run.of[i]);
      if (bias) value += to_f32(own.of[i]);
      run.of[i] = from_f32<T>(value + to_f32(more.of[i]));
    }
    store(out + at, run);
  });
}

struct Dropout {
  uint64_t seed, sequence, first;
  // 16-bit numbers below it are dropped.
  uint32_t threshold;
  // Of what is kept.
  float factor;
};

// Which of the eight neighbours of a block of random numbers are kept: a bit each. Called, for it is long and has many callers.
__device__ __noinline__ uint32_t kept_of_eight(uint64_t seed, uint64_t sequence, uint64_t position, uint32_t threshold) {
  uint4 block = philox({uint32_t(position), uint32_t(position >> 32), uint32_t(sequence), uint32_t(sequence >> 32)}, {uint32_t(seed), uint32_t(seed >> 32)});
  uint32_t words[4] = {block.x, block.y, block.z, block.w}, bits = 0;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    bits |= ((words[i] & 0xffff) >= threshold) << (2 * i);
    bits |= ((words[i] >> 16) >= threshold) << (2 * i + 1);
  }
  return bits;
}

// The same from `element` on.
__device__ inline uint32_t kept(const Dropout& of, uint64_t element) {
  return kept_of_eight(of.seed, of.sequence, element / 8, of.threshold) >> (element % 8);
}

template <class T>
__device__ inline void dropout(const Dropout& of, const T* x, const T* branch, const T* bias, T* out, uint32_t rows, uint32_t columns, bool packed) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  x += begin, branch += begin, out += begin;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at), more = load<count.VALUE>(branch + at);
    auto own = run;
    if (bias) own = load<count.VALUE>(bias + at);
    uint32_t bits = kept(of, of.first + begin + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float sum = __fadd_rn(to_f32(more.of[i]), bias ? to_f32(own.of[i]) : 0.0f), value = to_f32(run.of[i]);
      run.of[i] = from_f32<T>(bits >> i & 1 ? __fmaf_rn(sum, of.factor, value) : value);
    }
    store(out + at, run);
  });
}

template <class T>
__device__ inline void dropout_backward(const Dropout& of, const T* dout, T* dbranch, uint32_t rows, uint32_t columns, bool packed) {
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  dout += begin, dbranch += begin;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(dout + at);
    uint32_t bits = kept(of, of.first + begin + at);
    for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(bits >> i & 1 ? __fmul_rn(to_f32(run.of[i]), of.factor) : 0.0f);
    store(dbranch + at, run);
  });
}

#define ENTRIES(T)                                                                                                                   \
  extern "C" __global__ void residual_forward_##T(const T* x, const T* branch, const T* bias, T* out, uint32_t rows,                 \
                                                  uint32_t columns, uint32_t packed) {                                              \
    forward<T>(x, branch, bias, out, rows, columns, packed);                                                                         \
  }                                                                                                                                  \
  extern "C" __global__ void residual_dropout_##T(const T* x, const T* branch, const T* bias, T* out, uint64_t seed, uint64_t sequence, \
                                                  uint64_t first, uint32_t threshold, float factor, uint32_t rows, uint32_t columns, \
                                                  uint32_t packed) {                                                                 \
    dropout<T>(Dropout{seed, sequence, first, threshold, factor}, x, branch, bias, out, rows, columns, packed);                      \
  }                                                                                                                                  \
  extern "C" __global__ void residual_dropout_backward_##T(const T* dout, T* dbranch, uint64_t seed, uint64_t sequence, uint64_t first, \
                                                           uint32_t threshold, float factor, uint32_t rows, uint32_t columns,        \
                                                           uint32_t packed) {                                                        \
    dropout_backward<T>(Dropout{seed, sequence, first, threshold, factor}, dout, dbranch, rows, columns, packed);                    \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
