// Sums and maxima over the threads of a row, in an order that the block's size fixes alone.
//
// A row has the blockDim.x threads of one threadIdx.y; blockDim.y is above 1 only where a row has 32 threads, one warp.
#pragma once
#include <stdint.h>

struct Max {
  static constexpr float NEUTRAL = -INFINITY;
  // A NaN is passed over: the sum that follows finds it.
  __device__ static float of(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
  static constexpr float NEUTRAL = 0.0f;
  template <class V> __device__ static V of(V a, V b) { return a + b; }
};

template <class Op, class V> __device__ inline V reduce_warp(V value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}

// Every thread of a block of several whole warps gets the result. `scratch` is 32 values of shared memory of this call's own: no
// barrier follows the last read of it.
template <class Op, class V> __device__ inline V reduce_block(V value, V* scratch) {
  value = reduce_warp<Op>(value);
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // All lanes have the same value, but for what a NaN of 64 bits carries.
  scratch[warp] = sizeof(V) > sizeof(float) ? __shfl_sync(0xffffffffu, value, 0) : value;
  __syncthreads();
  return reduce_warp<Op>(lane < blockDim.x / 32 ? scratch[lane] : V(Op::NEUTRAL));
}

// Every thread of the row gets the result; `scratch` as above.
template <class Op, class V> __device__ inline V reduce_row(V value, V* scratch) {
  return blockDim.x == 32 ? reduce_warp<Op>(value) : reduce_block<Op>(value, scratch);
}

// The sum over the threads of a row for its first thread; the others get something less. `scratch` as above. WARPS: how many the row has,
// where the kernel knows it.
template <uint32_t WARPS = 0, class V> __device__ inline V sum_to_first(V value, V* scratch) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_down_sync(0xffffffffu, value, lanes);
  if (WARPS == 0 && blockDim.x == 32) return value;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < (WARPS ? WARPS : blockDim.x / 32) ? scratch[lane] : V(0);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_down_sync(0xffffffffu, value, lanes);
  return value;
}
