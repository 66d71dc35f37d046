// Activations and their derivatives in f32, by the formulas of kernels/src/matmul/activation.rs. Products that are rounded by name
// are so that no sum after them is fused with them: the same bits wherever they are used.
#pragma once
#include <stdint.h>

// The numbers by which kernels are told (kernels/src/matmul/gpu.rs).
enum Activation : uint32_t { NONE, GELU_TANH, GELU_ERF, RELU, SWIGLU };

__device__ inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// 2 sqrt(2/pi): the logistic function of twice tanh's argument u is (1 + tanh u) / 2.
constexpr float TWICE_SQRT_2_OVER_PI = 1.5957691f, CUBIC = 0.044715f, DENSITY_AT_ZERO = 0.3989423f, SQRT_HALF = 0.70710678f;

__device__ inline float twice_argument(float x) { return TWICE_SQRT_2_OVER_PI * fmaf(x * x * x, CUBIC, x); }

// One of GELU_TANH, RELU and GELU_ERF.
__device__ inline float activated(uint32_t activation, float x) {
  if (activation == GELU_TANH) return __fmul_rn(x, logistic(twice_argument(x)));
  // Not a maximum, which would turn a NaN into 0.
  if (activation == RELU) return x <= 0.0f ? 0.0f : x;
  return __fmul_rn(0.5f * x, 1.0f + erff(__fmul_rn(x, SQRT_HALF)));
}

__device__ inline float derivative(uint32_t activation, float x) {
  if (activation == GELU_TANH) {
    // At the limits the derivative is 0 and 1 to far below f32's precision, and nothing overflows between them.
    float inside = fminf(fmaxf(x, -10.0f), 10.0f);
    float e = expf(-twice_argument(inside)), s = 1.0f / (1.0f + e);
    float slope = TWICE_SQRT_2_OVER_PI * fmaf(inside * inside, 3.0f * CUBIC, 1.0f);
    // 1 - s is e s, without the cancellation. 0 x is NaN where x is infinite, as the formula has it.
    return fmaf(inside * slope, s * (e * s), fmaf(x, 0.0f, s));
  }
  if (activation == RELU) return x <= 0.0f ? 0.0f : 1.0f;
  return fmaf(x, DENSITY_AT_ZERO * expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * SQRT_HALF)));
}

__device__ inline float swiglu(float gate, float up) { return __fmul_rn(gate * logistic(gate), up); }

// The gradients of gate and up for the output's gradient dy, in their places.
__device__ inline void swiglu_gradients(float& gate, float& up, float dy) {
  float s = logistic(gate), derivative = s * fmaf(gate, 1.0f - s, 1.0f);
  float of_up = dy * (gate * s);
  gate = dy * up * derivative;
  up = of_up;
}
