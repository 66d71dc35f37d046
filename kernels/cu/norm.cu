// The sum of the squares of a list of tensors, the factor that clips them, and their product with a number. Contract: kernels/src/norm/mod.rs.
//
// Grid: a block a chunk; 256 threads. Squares of f32 are exact in f64, sums are f64: of each thread in turn, then over threads in a fixed
// tree, then over chunks by one block.
#include "control.cuh"
#include "element.cuh"
#include "list.cuh"
#include "reduce.cuh"

extern "C" __global__ void norm_squares(const Entry* list, uint32_t tensors, double* sums) {
  __shared__ double scratch[32];
  Chunk chunk = chunk_of(list, tensors);
  const f32* x = chunk.of<f32>(0);
  double own = 0.0;
  for_row<f32>(chunk.count, chunk.has(PACKED), [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at);
    for (uint32_t i = 0; i < count.VALUE; i++) own += double(run.of[i]) * double(run.of[i]);
  });
  double sum = reduce_block<Sum>(own, scratch);
  // All threads have the same sum.
  sums[blockIdx.x] = sum;
}

extern "C" __global__ void norm_add(const double* sums, uint32_t chunks, double* sum) {
  __shared__ double scratch[32];
  double own = 0.0;
  for (uint32_t at = threadIdx.x; at < chunks; at += blockDim.x) own += sums[at];
  *sum = reduce_block<Sum>(own, scratch);
}

// One thread; every operation is the CPU path's, rounded alike.
extern "C" __global__ void norm_clip(const double* sum, double max_norm, Control* control) {
  double scale = control->grad_scale, norm = __dmul_rn(__dsqrt_rn(*sum), fabs(scale));
  double coefficient = __ddiv_rn(max_norm, __dadd_rn(norm, 1e-6));
  // Not a minimum, which would turn a NaN into 1.
  control->grad_scale = __dmul_rn(scale, coefficient > 1.0 ? 1.0 : coefficient);
  control->norm = norm;
  if (!isfinite(norm)) control->skip = 1.0;
}

extern "C" __global__ void norm_scale(const Entry* list, uint32_t tensors, float factor) {
  Chunk chunk = chunk_of(list, tensors);
  f32* x = chunk.of<f32>(0);
  for_row<f32>(chunk.count, chunk.has(PACKED), [&](uint32_t at, auto count) {
    auto run = load<count.VALUE>(x + at);
    for (uint32_t i = 0; i < count.VALUE; i++) run.of[i] *= factor;
    store(x + at, run);
  });
}
