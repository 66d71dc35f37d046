// Conversion between storage types. Contract: kernels/src/cast/mod.rs. Bound by memory.
//
// As many neighbours a thread as 16 bytes of the wider type hold; `packed`: both arrays begin at multiples of 16 bytes.
#include "element.cuh"

template <class A, class B> __device__ inline void convert(const A* from, B* to, size_t len, bool packed) {
  constexpr uint32_t N = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
  size_t begin = size_t(blockIdx.x) * blockDim.x * N;
  from += begin, to += begin;
  uint32_t own = min(len - begin, size_t(blockDim.x * N)), whole = packed ? own / N * N : 0, at = threadIdx.x * N;
  if (at < whole) {
    auto run = load<N>(from + at);
    Run<B, N> out;
    for (uint32_t i = 0; i < N; i++) out.of[i] = from_f32<B>(to_f32(run.of[i]));
    store(to + at, out);
  }
#pragma unroll 1
  for (at = whole + threadIdx.x; at < own; at += blockDim.x) to[at] = from_f32<B>(to_f32(from[at]));
}

#define ENTRY(A, B)                                                                                                    \
  extern "C" __global__ void cast_##A##_##B(const A* from, B* to, uint64_t len, uint32_t packed) {                     \
    convert<A, B>(from, to, len, packed);                                                                              \
  }

ENTRY(f32, f32)
ENTRY(f32, bf16)
ENTRY(f32, f16)
ENTRY(bf16, f32)
ENTRY(bf16, bf16)
ENTRY(bf16, f16)
ENTRY(f16, f32)
ENTRY(f16, bf16)
ENTRY(f16, f16)
