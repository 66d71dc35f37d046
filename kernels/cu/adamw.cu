// AdamW over a list of tensors. Contract: kernels/src/adamw/mod.rs.
//
// Grid: a block a chunk; 256 threads. An entry has the parameter, its master (where the flag says so), gradient, mean and mean square. Every operation is the
// CPU path's, rounded alike, so that both give the same bits. A noted fault (`word`) skips the step: nothing is written.
#include "element.cuh"
#include "list.cuh"

constexpr uint64_t DECAY = 2, MASTER = 4;

struct Coefficients {
  float grad_scale, beta2, one_minus_beta1, one_minus_beta2, keep, step_size, root_correction, eps;
};

__device__ inline float update(const Coefficients& with, float keep, float w, float grad, float& m, float& v) {
  grad = __fmul_rn(grad, with.grad_scale);
  m = __fmaf_rn(__fsub_rn(grad, m), with.one_minus_beta1, m);
  v = __fmaf_rn(__fmul_rn(grad, grad), with.one_minus_beta2, __fmul_rn(v, with.beta2));
  float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), with.root_correction), with.eps);
  return __fmaf_rn(__fdiv_rn(m, denominator), -with.step_size, __fmul_rn(w, keep));
}

template <class T> __device__ inline void step(const Entry* list, uint32_t tensors, const Coefficients& with, const uint64_t* word) {
  if (*word != 0) return;
  Chunk chunk = chunk_of(list, tensors);
  T* param = chunk.of<T>(0);
  f32 *master = chunk.of<f32>(1), *m = chunk.of<f32>(3), *v = chunk.of<f32>(4);
  const f32* grad = chunk.of<f32>(2);
  float keep = chunk.has(DECAY) ? with.keep : 1.0f;
  for_row<T>(chunk.count, chunk.has(PACKED), [&](uint32_t at, auto count) {
    constexpr uint32_t N = count.VALUE;
    auto g = load<N>(grad + at), mean = load<N>(m + at), square = load<N>(v + at);
    Run<f32, N> w;
    Run<T, N> rounded;
    if (chunk.has(MASTER)) {
      w = load<N>(master + at);
    } else {
      rounded = load<N>(param + at);
      for (uint32_t i = 0; i < N; i++) w.of[i] = to_f32(rounded.of[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
      w.of[i] = update(with, keep, w.of[i], g.of[i], mean.of[i], square.of[i]);
      rounded.of[i] = from_f32<T>(w.of[i]);
    }
    store(m + at, mean), store(v + at, square), store(param + at, rounded);
    if (chunk.has(MASTER)) store(master + at, w);
  });
}

#define ENTRIES(T)                                                                                                                      \
  extern "C" __global__ void adamw_step_##T(const Entry* list, uint32_t tensors, __grid_constant__ const Coefficients with,             \
                                            const uint64_t* word) {                                                                     \
    step<T>(list, tensors, with, word);                                                                                                 \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)
