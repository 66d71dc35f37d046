// A step of AdamW, Adam with L2 or SGD over a list of tensors. Contract: kernels/src/optimizer/mod.rs. Bound by memory.
//
// Grid: a block a chunk; 256 threads, four elements each at a time: 16 bytes of what is f32. An entry has the parameter, its master, the
// gradient, the mean of gradients and that of squares, as its flags and the rule say. Every operation is the CPU path's, rounded alike, so
// that both give the same bits. A noted fault (`word`) or `skip` leaves everything as it is.
#include "control.cuh"
#include "element.cuh"
#include "fault.cuh"
#include "list.cuh"
#include "philox.cuh"

// Of an entry; above 32 bits is the number of the tensor. Entry::number: the number of its first element.
constexpr uint64_t DECAY = 2, MASTER = 4, MEAN = 8, SHORT_MEAN = 16, STOCHASTIC = 32;

// kernels/src/optimizer/coefficients.rs says what each is.
struct Coefficients {
  uint32_t skip, first, step, nesterov;
  float grad_scale, keep, step_size, root_correction;
  float l2, beta2, one_minus_beta1, one_minus_beta2;
  float eps, momentum, one_minus_dampening;
};

__device__ inline float adam(const Coefficients& with, float keep, float w, float grad, float& m, float& v) {
  m = __fmaf_rn(__fsub_rn(grad, m), with.one_minus_beta1, m);
  v = __fmaf_rn(__fmul_rn(grad, grad), with.one_minus_beta2, __fmul_rn(v, with.beta2));
  float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), with.root_correction), with.eps);
  return __fmaf_rn(__fdiv_rn(m, denominator), -with.step_size, __fmul_rn(w, keep));
}

__device__ inline float sgd(const Coefficients& with, bool momentum, float w, float grad, float& m) {
  float sum = __fmaf_rn(grad, with.one_minus_dampening, __fmul_rn(m, with.momentum));
  m = with.first ? grad : sum;
  float direction = with.nesterov ? __fmaf_rn(m, with.momentum, grad) : m;
  return __fmaf_rn(momentum ? direction : grad, -with.step_size, w);
}

// Rounded by chance: random bits are added to those that are cut off. What is infinite, or the NaN of an operation, stays so.
__device__ inline bf16 stochastic(float w, uint32_t word) {
  return __ushort_as_bfloat16((__float_as_uint(w) + (isfinite(w) ? word & 0xffff : 0)) >> 16);
}

// A block of random numbers. Called, for it is long and has many callers.
__device__ __noinline__ uint4 words_of(uint64_t seed, uint64_t position, uint32_t step, uint32_t tensor) {
  return philox({uint32_t(position), uint32_t(position >> 32), step, tensor}, {uint32_t(seed), uint32_t(seed >> 32)});
}

// The neighbours from `element` on, one or four, which then lie in one block of random numbers.
template <uint32_t N> __device__ inline Run<bf16, N> stochastic(Run<f32, N> w, uint64_t element, uint32_t step, uint32_t tensor, uint64_t seed) {
  uint4 words = words_of(seed, element / 4, step, tensor);
  Run<bf16, N> out;
  if constexpr (N == 1) {
    uint32_t within = element % 4, low = within & 1 ? words.y : words.x, high = within & 1 ? words.w : words.z;
    out.of[0] = stochastic(w.of[0], within & 2 ? high : low);
  } else {
    uint32_t all[4] = {words.x, words.y, words.z, words.w};
    for (uint32_t i = 0; i < N; i++) out.of[i] = stochastic(w.of[i], all[i]);
  }
  return out;
}

template <uint32_t N, class T> __device__ inline Run<f32, N> widened(const T* from) {
  auto run = load<N>(from);
  Run<f32, N> wide;
  for (uint32_t i = 0; i < N; i++) wide.of[i] = to_f32(run.of[i]);
  return wide;
}

template <class T, uint32_t N> __device__ inline Run<T, N> narrowed(Run<f32, N> from) {
  Run<T, N> run;
  for (uint32_t i = 0; i < N; i++) run.of[i] = from_f32<T>(from.of[i]);
  return run;
}

template <class T> constexpr bool IS_BF16 = false;
template <> constexpr bool IS_BF16<bf16> = true;

// As one vector where it is one: of what is stored twice, here and to the master, or rounded by chance, the compiler makes single stores.
template <class T, uint32_t N> __device__ inline void store_whole(T* to, Run<T, N> run) {
  if constexpr (N * sizeof(T) == 16) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(run.of);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  } else if constexpr (N == 4 && IS_BF16<T>) {
    const uint16_t* parts = reinterpret_cast<const uint16_t*>(run.of);
    asm volatile("st.global.v4.u16 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "h"(parts[0]), "h"(parts[1]), "h"(parts[2]), "h"(parts[3]) : "memory");
  } else {
    store(to, run);
  }
}

template <bool ADAM, class T>
__device__ inline void step(const Entry* list, uint32_t tensors, const Coefficients* coefficients, uint64_t seed, const uint64_t* word) {
  Coefficients with = *coefficients;
  if (with.skip || *word != 0) return;
  Chunk chunk = chunk_of(list, tensors);
  T* param = chunk.of<T>(0);
  f32 *master = chunk.of<f32>(1), *m = chunk.of<f32>(3), *v = chunk.of<f32>(4);
  bf16* short_m = chunk.of<bf16>(3);
  const f32* grad = chunk.of<f32>(2);
  bool mean = ADAM || chunk.has(MEAN);
  float keep = chunk.has(DECAY) ? with.keep : 1.0f, l2 = chunk.has(DECAY) ? with.l2 : 0.0f;
  for_row<f32>(chunk.count, chunk.has(PACKED), [&](uint32_t at, auto count) {
    constexpr uint32_t N = count.VALUE;
    auto g = load<N>(grad + at), w = chunk.has(MASTER) ? load<N>(master + at) : widened<N>(param + at);
    Run<f32, N> first = {}, second;
    if (mean) first = chunk.has(SHORT_MEAN) ? widened<N>(short_m + at) : load<N>(m + at);
    if (ADAM) second = load<N>(v + at);
    for (uint32_t i = 0; i < N; i++) {
      float own = __fmul_rn(g.of[i], with.grad_scale), decayed = __fmaf_rn(w.of[i], l2, own);
      // An infinite weight makes a NaN of no decay.
      own = l2 != 0.0f ? decayed : own;
      if (ADAM) w.of[i] = adam(with, keep, w.of[i], own, first.of[i], second.of[i]);
      else w.of[i] = sgd(with, mean, w.of[i], own, first.of[i]);
    }
    if (mean) {
      if (chunk.has(SHORT_MEAN)) store(short_m + at, narrowed<bf16>(first));
      else store(m + at, first);
    }
    if (ADAM) store(v + at, second);
    if (chunk.has(MASTER)) {
      store(master + at, w);
    } else if constexpr (IS_BF16<T>) {
      if (chunk.has(STOCHASTIC)) {
        store_whole(param + at, stochastic(w, chunk.number + chunk.begin + at, with.step, chunk.flags >> 32, seed));
        return;
      }
    }
    store_whole(param + at, narrowed<T>(w));
  });
}

#define ENTRIES(T)                                                                                                                         \
  extern "C" __global__ void optimizer_adam_##T(const Entry* list, uint32_t tensors, const Coefficients* coefficients, uint64_t seed,         \
                                                const uint64_t* word) {                                                                    \
    step<true, T>(list, tensors, coefficients, seed, word);                                                                                \
  }                                                                                                                                        \
  extern "C" __global__ void optimizer_sgd_##T(const Entry* list, uint32_t tensors, const Coefficients* coefficients, uint64_t seed,          \
                                               const uint64_t* word) {                                                                     \
    step<false, T>(list, tensors, coefficients, seed, word);                                                                               \
  }

ENTRIES(f32)
ENTRIES(bf16)
ENTRIES(f16)

// One thread.
extern "C" __global__ void optimizer_begin(double lr, double step, double grad_scale, Control* control) {
  *control = {lr, step, grad_scale, 0.0, 0.0};
}

// base^exponent by squares, as the CPU has it; the exponent is above 0.
__device__ inline double power(double base, uint64_t exponent) {
  double result = 1.0;
#pragma unroll 1
  do {
    if (exponent & 1) result = __dmul_rn(result, base);
    base = __dmul_rn(base, base);
    exponent >>= 1;
  } while (exponent > 0);
  return result;
}

// Puts the coefficients that the control decides in place of those that are there. `decay`: that of AdamW. One thread.
extern "C" __global__ void optimizer_prepare(const Control* control, double beta1, double beta2, double decay, Coefficients* coefficients,
                                             uint64_t* word, uint64_t no_step, uint64_t no_rate) {
  double lr = control->lr, number = control->step, grad_scale = control->grad_scale;
  // A NaN is none of these.
  bool step = (number >= 1.0) & (number < 0x1p53) & (number == floor(number)), rate = (lr >= 0.0) & (lr < INFINITY);
  uint64_t t = step ? uint64_t(number) : 1;
  if (!(step & rate)) note_fault(word, step ? no_rate : no_step, step ? 0 : 1, 0, 0);
  coefficients->skip = !(step & rate & (control->skip == 0.0) & (fabs(grad_scale) < INFINITY));
  coefficients->first = t == 1;
  coefficients->step = uint32_t(t);
  coefficients->grad_scale = float(grad_scale);
  coefficients->keep = float(__dsub_rn(1.0, __dmul_rn(lr, decay)));
  coefficients->step_size = float(__ddiv_rn(lr, __dsub_rn(1.0, power(beta1, t))));
  coefficients->root_correction = float(__dsqrt_rn(__dsub_rn(1.0, power(beta2, t))));
}
