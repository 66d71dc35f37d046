//! The formulas of a linear layer in f64, one loop a sum. Slow and obvious: what the fast paths are tested against.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use super::{Activation, Shape};

/// x wᵀ + bias: `[M, N]`.
pub fn linear(shape: Shape, x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let Shape { m, n, k } = shape;
    let mut y = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k).map(|l| x[i * k + l] * w[j * k + l]).sum();
            y[i * n + j] = sum + bias.map_or(0.0, |bias| bias[j]);
        }
    }
    y
}

/// The activation of `pre` `[M, N]`: `[M, N]`, or `[M, N/2]` for SwiGLU.
pub fn activate(shape: Shape, activation: Activation, pre: &[f64]) -> Vec<f64> {
    let (m, n, f) = (shape.m, shape.n, shape.n / 2);
    match activation {
        Activation::None => pre.to_vec(),
        Activation::GeluTanh => pre.iter().map(|&x| gelu_tanh(x)).collect(),
        Activation::GeluErf => pre.iter().map(|&x| gelu_erf(x)).collect(),
        Activation::Relu => pre.iter().map(|&x| if x <= 0.0 { 0.0 } else { x }).collect(),
        Activation::SwiGlu => {
            let at = |i: usize, j: usize| pre[i * n + j];
            (0..m).flat_map(|i| (0..f).map(move |j| silu(at(i, j)) * at(i, f + j))).collect()
        }
    }
}

/// y = activation(x wᵀ + bias) + residual.
pub fn forward(
    shape: Shape,
    x: &[f64],
    w: &[f64],
    bias: Option<&[f64]>,
    activation: Activation,
    residual: Option<&[f64]>,
) -> Vec<f64> {
    let mut y = activate(shape, activation, &linear(shape, x, w, bias));
    for (y, r) in y.iter_mut().zip(residual.unwrap_or_default()) {
        *y += r;
    }
    y
}

/// dy w: `[M, K]`.
pub fn backward_input(shape: Shape, dy: &[f64], w: &[f64]) -> Vec<f64> {
    let Shape { m, n, k } = shape;
    let mut dx = vec![0.0; m * k];
    for i in 0..m {
        for l in 0..k {
            dx[i * k + l] = (0..n).map(|j| dy[i * n + j] * w[j * k + l]).sum();
        }
    }
    dx
}

/// dyᵀ x: `[N, K]`.
pub fn backward_weight(shape: Shape, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let Shape { m, n, k } = shape;
    let mut dw = vec![0.0; n * k];
    for j in 0..n {
        for l in 0..k {
            dw[j * k + l] = (0..m).map(|i| dy[i * n + j] * x[i * k + l]).sum();
        }
    }
    dw
}

/// The sums of dy's columns: `[N]`.
pub fn backward_bias(shape: Shape, dy: &[f64]) -> Vec<f64> {
    (0..shape.n).map(|j| (0..shape.m).map(|i| dy[i * shape.n + j]).sum()).collect()
}

/// The gradient of `pre` `[M, N]` for the gradient of the activation's output.
pub fn backward_activation(shape: Shape, activation: Activation, pre: &[f64], dy: &[f64]) -> Vec<f64> {
    let (m, n, f) = (shape.m, shape.n, shape.n / 2);
    let each = |derivative: fn(f64) -> f64| pre.iter().zip(dy).map(|(&x, dy)| dy * derivative(x)).collect();
    match activation {
        Activation::None => dy.to_vec(),
        Activation::GeluTanh => each(gelu_tanh_derivative),
        Activation::GeluErf => each(gelu_erf_derivative),
        Activation::Relu => each(|x| if x <= 0.0 { 0.0 } else { 1.0 }),
        Activation::SwiGlu => {
            let mut dpre = vec![0.0; m * n];
            for i in 0..m {
                for j in 0..f {
                    let (gate, up, dy) = (pre[i * n + j], pre[i * n + f + j], dy[i * f + j]);
                    dpre[i * n + j] = dy * up * silu_derivative(gate);
                    dpre[i * n + f + j] = dy * silu(gate);
                }
            }
            dpre
        }
    }
}

/// GELU, tanh form.
pub fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + gelu_tanh_argument(x).tanh())
}

fn gelu_tanh_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
}

/// The derivative of [`gelu_tanh`].
pub fn gelu_tanh_derivative(x: f64) -> f64 {
    let t = gelu_tanh_argument(x).tanh();
    let slope = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
}

/// GELU, erf form.
pub fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / SQRT_2))
}

/// The derivative of [`gelu_erf`].
pub fn gelu_erf_derivative(x: f64) -> f64 {
    0.5 * (1.0 + erf(x / SQRT_2)) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// x times the logistic function of x.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The derivative of [`silu`].
pub fn silu_derivative(x: f64) -> f64 {
    let s = 1.0 / (1.0 + (-x).exp());
    s * (1.0 + x * (1.0 - s))
}

/// The error function by a series of terms of one sign: 2/sqrt(pi) e^(-x²) Σ 2^n x^(2n+1) / (1 · 3 · 5 ⋯ (2n+1))
/// (Abramowitz and Stegun 7.1.6). Beyond 6 it is 1 to the last bit of f64.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
