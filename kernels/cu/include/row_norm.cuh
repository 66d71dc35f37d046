// What LayerNorm (CENTRED) and RMSNorm share. Contracts: kernels/src/layernorm/mod.rs, kernels/src/rmsnorm/mod.rs.
//
// Launch of the row kernels: blockDim.x threads a row (32, or up to 1024 in whole warps), blockDim.y rows a block (1 unless blockDim.x
// is 32). `packed`: columns are a multiple of what 16 bytes hold, and all rows begin at multiples of 16 bytes. `staged`: dynamic shared
// memory holds blockDim.y rows of each input, so that global memory is read once. Sums are f32: of each thread in turn, then over threads
// in a fixed tree. Bound by memory.
#pragma once
#include "element.cuh"
#include "partials.cuh"
#include "reduce.cuh"

// Where `branch` is given, the row is x + branch, rounded to T, and is written to `sum`.
template <bool CENTRED, class T>
__device__ inline void norm_forward(const T* x, const T* branch, T* sum, const T* w, const T* b, T* y, f32* means, f32* rstds, uint32_t rows, uint32_t columns,
                                    float eps, bool packed, bool staged) {
  extern __shared__ __align__(16) unsigned char staging[];
  __shared__ float scratch[2][32];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  x += begin, y += begin;
  if (branch) branch += begin, sum += begin;
  T* kept = reinterpret_cast<T*>(staging) + size_t(threadIdx.y) * columns;
  float own = 0.0f;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at);
    if (branch) {
      auto more = load<count.VALUE>(branch + at);
      for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(to_f32(run.of[i]) + to_f32(more.of[i]));
      store(sum + at, run);
    }
    if (staged) store(kept + at, run);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float value = to_f32(run.of[i]);
      own = CENTRED ? own + value : fmaf(value, value, own);
    }
  });
  // Each thread reads what it has kept or written itself: no barrier is needed.
  const T* again = staged ? kept : branch ? sum : x;
  float total = reduce_row<Sum>(own, scratch[0]), mean = 0.0f;
  if (CENTRED) {
    mean = total / columns;
    own = 0.0f;
    for_row<T>(columns, packed, [&](uint32_t at, auto count) {
      auto run = load<count.VALUE>(again + at);
      for (uint32_t i = 0; i < count.VALUE; i++) {
        float off = to_f32(run.of[i]) - mean;
        own = fmaf(off, off, own);
      }
    });
    total = reduce_row<Sum>(own, scratch[1]);
  }
  float rstd = 1.0f / sqrtf(total / columns + eps);
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(again + at), weight = load<count.VALUE>(w + at);
    if (CENTRED) {
      auto bias = load<count.VALUE>(b + at);
      for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(fmaf((to_f32(run.of[i]) - mean) * rstd, to_f32(weight.of[i]), to_f32(bias.of[i])));
    } else {
      for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] = from_f32<T>(to_f32(run.of[i]) * rstd * to_f32(weight.of[i]));
    }
    store(y + at, run);
  });
  if (threadIdx.x == 0) {
    rstds[row] = rstd;
    if (CENTRED) means[row] = mean;
  }
}

template <bool CENTRED, class T>
__device__ inline void norm_backward_input(const T* dy, const T* x, const T* w, const f32* means, const f32* rstds, T* dx, uint32_t rows, uint32_t columns,
                                           bool add, bool packed, bool staged) {
  extern __shared__ __align__(16) unsigned char staging[];
  __shared__ float scratch[2][32];
  uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  size_t begin = size_t(row) * columns;
  dy += begin, x += begin, dx += begin;
  T* kept_dy = reinterpret_cast<T*>(staging) + size_t(threadIdx.y) * columns;
  T* kept_x = kept_dy + size_t(blockDim.y) * columns;
  float mean = CENTRED ? means[row] : 0.0f, rstd = rstds[row], own = 0.0f, own_x = 0.0f;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto from = load<count.VALUE>(dy + at), in = load<count.VALUE>(x + at), weight = load<count.VALUE>(w + at);
    if (staged) store(kept_dy + at, from), store(kept_x + at, in);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float g = to_f32(from.of[i]) * to_f32(weight.of[i]), off = CENTRED ? to_f32(in.of[i]) - mean : to_f32(in.of[i]);
      if (CENTRED) own += g;
      own_x = fmaf(g, off * rstd, own_x);
    }
  });
  float average = CENTRED ? reduce_row<Sum>(own, scratch[0]) / columns : 0.0f, average_x = reduce_row<Sum>(own_x, scratch[1]) / columns;
  for_row<T>(columns, packed, [&](uint32_t at, auto count) {
    auto from = load<count.VALUE>((staged ? kept_dy : dy) + at), in = load<count.VALUE>((staged ? kept_x : x) + at), weight = load<count.VALUE>(w + at);
    auto to = from;
    if (add) to = load<count.VALUE>(dx + at);
    for (uint32_t i = 0; i < count.VALUE; i++) {
      float g = to_f32(from.of[i]) * to_f32(weight.of[i]), off = CENTRED ? to_f32(in.of[i]) - mean : to_f32(in.of[i]);
      float gradient = rstd * fmaf(off * rstd, -average_x, CENTRED ? g - average : g);
      to.of[i] = from_f32<T>(add ? to_f32(to.of[i]) + gradient : gradient);
    }
    store(dx + at, to);
  });
}

// The partial sums of dw, and with CENTRED of db. Launch: partials.cuh.
template <bool CENTRED, uint32_t N, class T>
__device__ inline void norm_backward_weight(const T* dy, const T* x, const f32* means, const f32* rstds, f32* partials, uint32_t rows, uint32_t columns) {
  __shared__ float mean[PART], rstd[PART];
  uint32_t begin = blockIdx.x * PART, thread = threadIdx.y * 32 + threadIdx.x;
  if (begin + thread < min(rows, begin + PART)) {
    rstd[thread] = rstds[begin + thread];
    if (CENTRED) mean[thread] = means[begin + thread];
  }
  __syncthreads();
  sum_part<CENTRED ? 2 : 1, N>(rows, columns, partials, [&](uint32_t at, uint32_t row) {
    auto from = load<N>(dy + size_t(row) * columns + at), in = load<N>(x + size_t(row) * columns + at);
    Terms<CENTRED ? 2 : 1, N> terms;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
      float off = CENTRED ? to_f32(in.of[i]) - mean[row - begin] : to_f32(in.of[i]);
      terms.of[0][i] = to_f32(from.of[i]) * (off * rstd[row - begin]);
      if (CENTRED) terms.of[CENTRED][i] = to_f32(from.of[i]);
    }
    return terms;
  });
}
