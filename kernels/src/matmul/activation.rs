//! The activations and their derivatives in f32, for loops that vectorise, and the activations by themselves.

use std::f32::consts::FRAC_1_SQRT_2;

use warpweft_device::{CpuPool, Float};

use super::{Activation, LEAST_ELEMENTS, Shape};
use crate::elementary::{clamp, erf, exp, sigmoid};
use crate::rows;
use crate::simd::vectorised;

/// 2 sqrt(2/pi): twice the factor of the tanh form, because (1 + tanh u) / 2 is the logistic function of 2u.
const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;
/// 1 / sqrt(2 pi), the normal density at 0.
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Twice the tanh's argument.
#[inline(always)]
fn twice_argument(x: f32) -> f32 {
    TWICE_SQRT_2_OVER_PI * (x * x * x).mul_add(CUBIC, x)
}

#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    x * sigmoid(twice_argument(x))
}

#[inline(always)]
pub(super) fn gelu_tanh_derivative(x: f32) -> f32 {
    // At the limits the derivative is 0 and 1 to far below f32's precision, and nothing overflows between them.
    let inside = clamp(x, -10.0, 10.0);
    let e = exp(-twice_argument(inside));
    let s = 1.0 / (1.0 + e);
    let slope = TWICE_SQRT_2_OVER_PI * (inside * inside).mul_add(3.0 * CUBIC, 1.0);
    // 1 - s is e s, without the cancellation. 0 x is NaN where x is infinite, as the formula has it.
    (inside * slope).mul_add(s * (e * s), x.mul_add(0.0, s))
}

#[inline(always)]
pub(super) fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

#[inline(always)]
pub(super) fn gelu_erf_derivative(x: f32) -> f32 {
    let density = DENSITY_AT_ZERO * exp(-0.5 * x * x);
    x.mul_add(density, 0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)))
}

#[inline(always)]
pub(super) fn relu(x: f32) -> f32 {
    // Not `max`, which would turn a NaN into 0.
    if x <= 0.0 { 0.0 } else { x }
}

#[inline(always)]
pub(super) fn relu_derivative(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { 1.0 }
}

#[inline(always)]
pub(super) fn swiglu(gate: f32, up: f32) -> f32 {
    gate * sigmoid(gate) * up
}

/// The gradients of gate and up for the output's gradient `dy`.
#[inline(always)]
pub(super) fn swiglu_gradients(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    let s = sigmoid(gate);
    let derivative = s * gate.mul_add(1.0 - s, 1.0);
    (dy * up * derivative, dy * (gate * s))
}

/// y = activation(pre), row by row: the bits that a product's epilogue gives for the same argument.
pub(super) fn forward<T: Float>(pool: &CpuPool, shape: Shape, activation: Activation, pre: &[T], y: &mut [T]) {
    let Shape { m, n, .. } = shape;
    if m == 0 || n == 0 {
        return;
    }
    let outputs = activation.outputs(n);
    let block = rows::block(m, pool, 2, LEAST_ELEMENTS.div_ceil(n));
    pool.for_each(pre.chunks(block * n).zip(y.chunks_mut(block * outputs)).collect(), |(pre, y)| {
        vectorised(
            #[inline(always)]
            || match activation {
                Activation::None => y.copy_from_slice(pre),
                Activation::GeluTanh => each(pre, y, gelu_tanh),
                Activation::GeluErf => each(pre, y, gelu_erf),
                Activation::Relu => each(pre, y, relu),
                Activation::SwiGlu => {
                    for (pre, y) in pre.chunks_exact(n).zip(y.chunks_exact_mut(outputs)) {
                        let (gate, up) = pre.split_at(outputs);
                        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                            *y = T::from_f32(swiglu(gate.to_f32(), up.to_f32()));
                        }
                    }
                }
            },
        );
    });
}

/// y = function(pre).
#[inline(always)]
fn each<T: Float>(pre: &[T], y: &mut [T], function: impl Fn(f32) -> f32) {
    for (y, pre) in y.iter_mut().zip(pre) {
        *y = T::from_f32(function(pre.to_f32()));
    }
}
