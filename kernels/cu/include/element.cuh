// Elements of f32, bf16 and f16 storage: conversions, and 16 bytes at a time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

using f32 = float;
using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float to_f32(f32 x) { return x; }
__device__ inline float to_f32(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_f32(f16 x) { return __half2float(x); }

// Rounds to the nearest, ties to even.
template <class T> __device__ T from_f32(float x);
template <> __device__ inline f32 from_f32<f32>(float x) { return x; }
template <> __device__ inline bf16 from_f32<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline f16 from_f32<f16>(float x) { return __float2half_rn(x); }

// Neighbours that one access moves, or several of 16 bytes each.
template <class T, uint32_t N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Run {
  T of[N];
};

template <uint32_t N, class T> __device__ inline Run<T, N> load(const T* from) { return *reinterpret_cast<const Run<T, N>*>(from); }
template <uint32_t N, class T> __device__ inline void store(T* to, Run<T, N> run) { *reinterpret_cast<Run<T, N>*>(to) = run; }

// A number that the compiler knows, as an argument.
template <uint32_t N> struct Count {
  static constexpr uint32_t VALUE = N;
};

// Calls work(at, Count<N>) for the elements below `to` that this thread has: for 16 bytes of T at a time where `packed` (then every
// row begins at a multiple of 16 bytes), and one by one for the rest.
template <class T, class Work> __device__ inline void for_row(uint32_t to, bool packed, Work work) {
  constexpr uint32_t N = 16 / sizeof(T);
  uint32_t whole = packed ? to / N * N : 0;
  for (uint32_t at = threadIdx.x * N; at < whole; at += blockDim.x * N) work(at, Count<N>());
  for (uint32_t at = whole + threadIdx.x; at < to; at += blockDim.x) work(at, Count<1>());
}
