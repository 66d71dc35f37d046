// Fills with random numbers. Contract: kernels/src/philox/mod.rs. Uniform: bound by memory; normal: by f64 arithmetic.
//
// A thread has as many neighbours as 16 bytes hold, which lie in whole blocks of the generator. `packed`: `out` begins at a multiple of 16
// bytes, and the first index is a multiple of that many. Grid: blocks of 256 threads; indices wrap at 2^64.
#include "element.cuh"
#include "philox.cuh"

// The generator: key and stream of kernels/src/philox/generator.rs.
struct Generator {
  uint64_t seed, stream;
};

// Called, for it is long and has many callers.
__device__ __noinline__ uint4 block_at(Generator of, uint64_t position) {
  return philox({uint32_t(position), uint32_t(position >> 32), uint32_t(of.stream), uint32_t(of.stream >> 32)}, {uint32_t(of.seed), uint32_t(of.seed >> 32)});
}

struct Uniform {
  static constexpr uint32_t IN_BLOCK = 4;
  float low, span;

  template <class T> __device__ void numbers(uint4 block, T (&out)[4]) const {
    uint32_t words[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) out[i] = from_f32<T>(__fmaf_rn(__fmul_rn(float(words[i] >> 8), 0x1p-24f), span, low));
  }
};

// The upper 53 bits of `high` and `low` as a fraction.
__device__ inline double fraction(uint32_t low, uint32_t high) {
  return __dmul_rn(double((uint64_t(high) << 32 | low) >> 11), 0x1p-53);
}

// Box and Muller's transform.
__device__ __noinline__ double2 normal_pair(uint4 block) {
  double radius = __dsqrt_rn(__dmul_rn(-2.0, log(__dsub_rn(1.0, fraction(block.x, block.y))))), sine, cosine;
  sincospi(__dmul_rn(2.0, fraction(block.z, block.w)), &sine, &cosine);
  return {__dmul_rn(radius, cosine), __dmul_rn(radius, sine)};
}

// Rounded once. By way of an f32 that is odd where it is not exact: it lies on the same side of every tie.
template <class T> __device__ inline T from_f64(double x) {
  if constexpr (sizeof(T) == 4) return __double2float_rn(x);
  float cut = __double2float_rz(x);
  return from_f32<T>(double(cut) == x ? cut : __uint_as_float(__float_as_uint(cut) | 1));
}

struct Normal {
  static constexpr uint32_t IN_BLOCK = 2;
  double mean, std;

  template <class T> __device__ void numbers(uint4 block, T (&out)[2]) const {
    double2 pair = normal_pair(block);
    out[0] = from_f64<T>(__fma_rn(pair.x, std, mean));
    out[1] = from_f64<T>(__fma_rn(pair.y, std, mean));
  }
};

template <class T, class Numbers> __device__ inline void fill(const Generator& of, uint64_t first, const Numbers& numbers, T* out, size_t len, bool packed) {
  constexpr uint32_t N = 16 / sizeof(T), K = Numbers::IN_BLOCK;
  size_t begin = size_t(blockIdx.x) * blockDim.x * N;
  out += begin, first += begin;
  uint32_t own = min(len - begin, size_t(blockDim.x * N)), whole = packed ? own / N * N : 0, at = threadIdx.x * N;
  if (at < whole) {
    Run<T, N> run;
    uint64_t position = (first + at) / K;
#pragma unroll
    for (uint32_t k = 0; k < N; k += K) {
      T of_block[K];
      numbers.numbers(block_at(of, position + k / K), of_block);
#pragma unroll
      for (uint32_t i = 0; i < K; i++) run.of[k + i] = of_block[i];
    }
    store(out + at, run);
  }
#pragma unroll 1
  for (at = whole + threadIdx.x; at < own; at += blockDim.x) {
    uint64_t index = first + at;
    T of_block[K];
    numbers.numbers(block_at(of, index / K), of_block);
    T number = of_block[0];
#pragma unroll
    for (uint32_t i = 1; i < K; i++) number = index % K == i ? of_block[i] : number;
    out[at] = number;
  }
}

#define ENTRIES(T)                                                                                                                      \
  extern "C" __global__ void philox_uniform_##T(uint64_t seed, uint64_t stream, uint64_t first, float low, float span, T* out,          \
                                                uint64_t len, uint32_t packed) {                                                        \
    fill<T>(Generator{seed, stream}, first, Uniform{low, span}, out, len, packed);                                                      \
  }                                                                                                                                     \
  extern "C" __global__ void philox_normal_##T(uint64_t seed, uint64_t stream, uint64_t first, double mean, double std, T* out,         \
                                               uint64_t len, uint32_t packed) {                                                         \
    fill<T>(Generator{seed, stream}, first, Normal{mean, std}, out, len, packed);                                                       \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
