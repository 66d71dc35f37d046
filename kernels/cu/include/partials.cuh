// Sums over rows: each block of threads sums PART rows of some columns to partial sums, which a second kernel adds up. Both orders are
// fixed by the shape alone.
#pragma once
#include "element.cuh"

// Rows of a partial sum, and the warps that share them; a warp has 32 neighbours, or 32 runs of 16 bytes.
constexpr uint32_t PART = 128, PART_WARPS = 8;

// Writes the sums over the rows of part blockIdx.x of K values of each column: partials [parts, K, columns]. `work(at, row)` gives
// those of N neighbours of a row from column `at`. Grid: parts, columns by 32 N; block: 32 x PART_WARPS.
template <uint32_t K, uint32_t N> struct Terms {
  float of[K][N];
};

template <uint32_t K, uint32_t N, class Work> __device__ inline void sum_part(uint32_t rows, uint32_t columns, float* partials, Work work) {
  // So wide that neither lanes nor columns that lie side by side share a bank.
  __shared__ float sums[PART_WARPS][K][N][32 + (N > 1 ? 32 / N : 0)];
  uint32_t lane = threadIdx.x, warp = threadIdx.y, begin = blockIdx.x * PART, end = min(rows, begin + PART);
  uint32_t at = (blockIdx.y * 32 + lane) * N;
  Terms<K, N> own = {};
  if (at < columns) {
    for (uint32_t row = begin + warp; row < end; row += PART_WARPS) {
      Terms<K, N> terms = work(at, row);
#pragma unroll
      for (uint32_t k = 0; k < K; k++) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) own.of[k][i] += terms.of[k][i];
      }
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < K; k++) {
#pragma unroll
    for (uint32_t i = 0; i < N; i++) sums[warp][k][i][lane] = own.of[k][i];
  }
  __syncthreads();
  // Each warp adds up a share of the K * N times 32 neighbours.
#pragma unroll
  for (uint32_t first = 0; first < K * N; first += PART_WARPS) {
    uint32_t value = first + warp, k = value / N, within = value % N * 32 + lane, column = blockIdx.y * 32 * N + within;
    if ((K * N % PART_WARPS != 0 && value >= K * N) || column >= columns) continue;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t other = 0; other < PART_WARPS; other++) sum += sums[other][k][within % N][within / N];
    partials[(size_t(blockIdx.x) * K + k) * columns + column] = sum;
  }
}

// Adds the sums over all parts of K * columns values to K gradients, in f64 and rounded once. A warp has 32 columns, the 8 warps of a
// block share the parts.
template <uint32_t K>
__device__ inline void add_parts(const float* partials, uint32_t parts, uint32_t columns, f32* const (&gradients)[K]) {
  __shared__ double sums[PART_WARPS][32];
  uint32_t lane = threadIdx.x, warp = threadIdx.y, column = blockIdx.x * 32 + lane, k = blockIdx.y;
  double own = 0.0;
  if (column < columns) {
    for (uint32_t part = warp; part < parts; part += PART_WARPS) own += partials[(size_t(part) * K + k) * columns + column];
  }
  sums[warp][lane] = own;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  double sum = 0.0;
#pragma unroll
  for (uint32_t other = 0; other < PART_WARPS; other++) sum += sums[other][lane];
  f32* gradient = gradients[0];
#pragma unroll
  for (uint32_t other = 1; other < K; other++) gradient = k == other ? gradients[other] : gradient;
  gradient[column] = float(double(gradient[column]) + sum);
}
