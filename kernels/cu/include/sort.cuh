// A stable sort of (key, row) pairs by counting, 8 bits of the keys a pass: count, scan, scatter. Integers alone, so the same everywhere.
//
// Keys without rows stand for the rows 0, 1, 2 and so on. counts: [256, blocks], first how many a block has, then where they go.
#pragma once
#include <stdint.h>

// Threads of a block, items of a block.
constexpr uint32_t SORT_BUCKETS = 256, SORT_WARPS = SORT_BUCKETS / 32, SORT_ROUNDS = 8, SORT_TILE = SORT_BUCKETS * SORT_ROUNDS;

// Block: SORT_BUCKETS threads, one for each value of the digit.
__device__ inline void sort_count(const uint32_t* keys, uint32_t len, uint32_t shift, uint32_t* counts) {
  __shared__ uint32_t own[SORT_BUCKETS];
  own[threadIdx.x] = 0;
  __syncthreads();
  uint32_t begin = blockIdx.x * SORT_TILE, end = min(len, begin + SORT_TILE);
#pragma unroll 1
  for (uint32_t at = begin + threadIdx.x; at < end; at += SORT_BUCKETS) atomicAdd(&own[keys[at] >> shift & (SORT_BUCKETS - 1)], 1);
  __syncthreads();
  counts[size_t(threadIdx.x) * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

// Replaces each of `len` numbers by the sum of those before it. One block of 1024 threads.
__device__ inline void sort_scan(uint32_t* counts, uint32_t len) {
  __shared__ uint32_t ends[32];
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, carry = 0;
#pragma unroll 1
  for (uint32_t begin = 0; begin < len; begin += blockDim.x) {
    uint32_t at = begin + threadIdx.x, own = at < len ? counts[at] : 0, sum = own;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
      uint32_t other = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += other;
    }
    if (lane == 31) ends[warp] = sum;
    __syncthreads();
    uint32_t before = carry;
#pragma unroll
    for (uint32_t other = 0; other < 32; other++) {
      if (other < warp) before += ends[other];
      carry += ends[other];
    }
    if (at < len) counts[at] = before + sum - own;
    __syncthreads();
  }
}

// Launched as sort_count. `rows` may be null.
__device__ inline void sort_scatter(const uint32_t* keys, const uint32_t* rows, uint32_t len, uint32_t shift, const uint32_t* counts, uint32_t* keys_to,
                                    uint32_t* rows_to) {
  __shared__ uint32_t seen[SORT_WARPS][SORT_BUCKETS];
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (uint32_t other = 0; other < SORT_WARPS; other++) seen[other][threadIdx.x] = 0;
  __syncthreads();
  // A warp has neighbours, 32 at a time, and numbers those of a digit in their order.
  uint32_t begin = blockIdx.x * SORT_TILE + warp * (SORT_ROUNDS * 32) + lane, key[SORT_ROUNDS], rank[SORT_ROUNDS];
#pragma unroll
  for (uint32_t round = 0; round < SORT_ROUNDS; round++) {
    uint32_t at = begin + round * 32;
    bool there = at < len;
    key[round] = there ? keys[at] : 0;
    uint32_t digit = key[round] >> shift & (SORT_BUCKETS - 1);
    // Who is beyond the end has a digit that nobody else has.
    uint32_t alike = __match_any_sync(0xffffffffu, there ? digit : SORT_BUCKETS), earlier = alike & ((1u << lane) - 1);
    uint32_t before = seen[warp][digit];
    __syncwarp();
    if (there && earlier == 0) seen[warp][digit] = before + __popc(alike);
    __syncwarp();
    rank[round] = before + __popc(earlier);
  }
  __syncthreads();
  uint32_t to = counts[size_t(threadIdx.x) * gridDim.x + blockIdx.x];
#pragma unroll
  for (uint32_t other = 0; other < SORT_WARPS; other++) {
    uint32_t own = seen[other][threadIdx.x];
    seen[other][threadIdx.x] = to;
    to += own;
  }
  __syncthreads();
#pragma unroll
  for (uint32_t round = 0; round < SORT_ROUNDS; round++) {
    uint32_t at = begin + round * 32;
    if (at >= len) return;
    uint32_t place = seen[warp][key[round] >> shift & (SORT_BUCKETS - 1)] + rank[round];
    keys_to[place] = key[round];
    rows_to[place] = rows ? rows[at] : at;
  }
}

#define SORT_ENTRIES(OP)                                                                                                                  \
  extern "C" __global__ void OP##_sort_count(const uint32_t* keys, uint32_t len, uint32_t shift, uint32_t* counts) {                      \
    sort_count(keys, len, shift, counts);                                                                                                 \
  }                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(1024) OP##_sort_scan(uint32_t* counts, uint32_t len) { sort_scan(counts, len); }           \
  extern "C" __global__ void OP##_sort_scatter(const uint32_t* keys, const uint32_t* rows, uint32_t len, uint32_t shift,                  \
                                               const uint32_t* counts, uint32_t* keys_to, uint32_t* rows_to) {                            \
    sort_scatter(keys, rows, len, shift, counts, keys_to, rows_to);                                                                       \
  }
