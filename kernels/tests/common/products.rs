//! A linear layer with numbers in it, what its kernels make of it, and the bounds of their errors.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, reference};

use super::{On, U, f64s, normal};

pub(crate) const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::SwiGlu];

/// What [`Case::forward`] is given beside x and w.
#[derive(Clone, Copy, Debug)]
pub(crate) struct With {
    pub(crate) scale: f32,
    pub(crate) bias: bool,
    pub(crate) activation: Activation,
    pub(crate) pre: bool,
    pub(crate) residual: bool,
}

pub(crate) const PLAIN: With =
    With { scale: 1.0, bias: false, activation: Activation::None, pre: false, residual: false };

pub(crate) struct Case<T> {
    pub(crate) shape: Shape,
    pub(crate) x: Vec<T>,
    pub(crate) w: Vec<T>,
    pub(crate) bias: Vec<T>,
    pub(crate) dy: Vec<T>,
    /// How far inside their buffers the arguments begin, behind NaN.
    pub(crate) offset: usize,
    /// How much further those beside x and w do.
    pub(crate) beside: usize,
}

/// A region at the end of a buffer of NaN; behind it is nothing.
pub(crate) struct Inside<T: Float> {
    buffer: Buffer<T>,
    offset: usize,
    len: usize,
}

impl<T: Float> Inside<T> {
    pub(crate) fn new(on: &On, values: &[T], offset: usize) -> Self {
        let around = vec![T::from_f32(f32::NAN); offset];
        let buffer = on.up(&[&around, values].concat());
        Self { buffer, offset, len: values.len() }
    }

    pub(crate) fn view(&self) -> View<'_, T> {
        self.buffer.view(self.offset..self.offset + self.len).unwrap()
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.buffer.view_mut(self.offset..self.offset + self.len).unwrap()
    }

    /// The values, before which nothing may have been written.
    pub(crate) fn down(&self, on: &On) -> Vec<T> {
        let mut all = on.down(&self.buffer);
        let values = all.split_off(self.offset);
        assert!(all.iter().all(|before| before.to_f32().is_nan()), "written outside");
        values
    }
}

impl<T: Float> Case<T> {
    pub(crate) fn new((m, n, k): (usize, usize, usize), numbers: impl Fn(usize, u64) -> Vec<T>) -> Self {
        let shape = Shape { m, n, k };
        let (x, w, bias, dy) = (numbers(m * k, 1), numbers(n * k, 2), numbers(n, 3), numbers(m * n, 4));
        Self { shape, x, w, bias, dy, offset: 0, beside: 0 }
    }

    fn up<E: Float>(&self, on: &On, values: &[E]) -> Inside<E> {
        Inside::new(on, values, self.offset)
    }

    /// y and pre (empty where it is not asked for). The residual is the first elements of dy.
    pub(crate) fn forward(&self, on: &On, with: With) -> (Vec<T>, Vec<T>) {
        let Shape { m, n, .. } = self.shape;
        let outputs = m * with.activation.outputs(n);
        let nan = T::from_f32(f32::NAN);
        let [x, w] = [&self.x, &self.w].map(|values| self.up(on, values));
        let beside = |values: &[T]| Inside::new(on, values, self.offset + self.beside);
        let [bias, residual] = [&self.bias, &self.dy[..outputs]].map(beside);
        let [mut y, mut pre] = [outputs, m * n].map(|len| beside(&vec![nan; len]));
        let epilogue = Epilogue {
            scale: with.scale,
            bias: with.bias.then(|| bias.view()),
            activation: with.activation,
            pre: with.pre.then(|| pre.view_mut()),
            residual: with.residual.then(|| residual.view()),
        };
        matmul::forward(&on.stream, self.shape, x.view(), w.view(), epilogue, y.view_mut()).unwrap();
        (y.down(on), if with.pre { pre.down(on) } else { Vec::new() })
    }

    pub(crate) fn backward_input(&self, on: &On, write: Write, before: T) -> Vec<T> {
        let (dy, w) = (self.up(on, &self.dy), self.up(on, &self.w));
        let mut dx = self.up(on, &vec![before; self.x.len()]);
        matmul::backward_input(&on.stream, self.shape, dy.view(), w.view(), write, dx.view_mut()).unwrap();
        dx.down(on)
    }

    pub(crate) fn backward_weight(&self, on: &On, before: f32) -> Vec<f32> {
        let (dy, x) = (self.up(on, &self.dy), self.up(on, &self.x));
        let mut dw = self.up(on, &vec![before; self.w.len()]);
        matmul::backward_weight(&on.stream, self.shape, x.view(), dy.view(), dw.view_mut()).unwrap();
        dw.down(on)
    }

    pub(crate) fn backward_bias(&self, on: &On, before: f32) -> Vec<f32> {
        let (dy, mut db) = (self.up(on, &self.dy), self.up(on, &vec![before; self.shape.n]));
        matmul::backward_bias(&on.stream, self.shape, dy.view(), db.view_mut()).unwrap();
        db.down(on)
    }
}

pub(crate) fn magnitudes(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

pub(crate) fn shape((m, n, k): (usize, usize, usize)) -> Shape {
    Shape { m, n, k }
}

pub(crate) fn backward_activation<T: Float>(
    on: &On,
    shape: Shape,
    activation: Activation,
    pre: &[T],
    dy: &[T],
) -> Vec<T> {
    let (pre, dy, mut dpre) = (on.up(pre), on.up(dy), on.garbage(pre.len()));
    let (stream, dpre_view) = (&on.stream, dpre.as_view_mut());
    matmul::backward_activation(stream, shape, activation, pre.as_view(), dy.as_view(), dpre_view).unwrap();
    on.down(&dpre)
}

pub(crate) fn logistic(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Twice the argument of GELU's tanh form, where it still tells the logistic function from 0 and 1.
pub(crate) fn twice_argument(x: f64) -> f64 {
    ((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).clamp(-1000.0, 1000.0)
}

/// The error of the logistic function in f32 where its argument z has `roundings`: its slope s (1 - s) times theirs, and
/// 6 U relative for e^z (2 U), the sum and the division.
pub(crate) fn logistic_error(z: f64, roundings: f64) -> f64 {
    let s = logistic(z);
    s * (1.0 - s) * roundings * z.abs() * U + 6.0 * U * s
}

/// The error of an activation's own arithmetic in f32 at an exact argument, by its roundings. GELU's tanh form and SwiGLU
/// are products with a logistic function. In the erf form, x/2 (1 + erf), erf is within 2 units, its argument within 2 U,
/// and the sum rounds once more, all relative to 1.
pub(crate) fn own_error(activation: Activation, x: f64, y: f64) -> f64 {
    match activation {
        Activation::None | Activation::Relu => 0.0,
        Activation::GeluTanh => x.abs() * logistic_error(twice_argument(x), 4.0) + 2.0 * U * y.abs(),
        Activation::GeluErf => 4.0 * U * x.abs(),
        Activation::SwiGlu => y.abs() * (x.abs() + 8.0) * U,
    }
}

/// The bound of y's error: pre's error `e` (at most K + 4 roundings of the terms' magnitudes) times the activation's
/// largest slope, 1.13 for GELU and 1.1 for silu, its own arithmetic, and the residual's addition.
pub(crate) fn forward_bounds<T: Float>(case: &Case<T>, with: With) -> (Vec<f64>, Vec<f64>) {
    let Shape { m, n, k } = case.shape;
    let (x, w, bias) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias));
    let x: Vec<f64> = x.iter().map(|x| x * f64::from(with.scale)).collect();
    let pre = reference::linear(case.shape, &x, &w, with.bias.then_some(&bias));
    let sums = reference::linear(case.shape, &magnitudes(&x), &magnitudes(&w), Some(&magnitudes(&bias)));
    let residual = f64s(&case.dy);
    let outputs = with.activation.outputs(n);
    let (mut y, mut e) = (Vec::new(), Vec::new());
    for i in 0..m {
        let error =
            |j: usize| (k as f64 + 4.0) * U * (sums[i * n + j] + residual[(i * outputs + j) % residual.len()].abs());
        e.extend((0..n).map(error));
        for j in 0..outputs {
            let at = pre[i * n + j];
            let (propagated, exact) = match with.activation {
                Activation::SwiGlu => {
                    let up = pre[i * n + outputs + j];
                    let silu = reference::silu(at);
                    (1.1 * up.abs() * error(j) + silu.abs() * error(outputs + j), silu * up)
                }
                Activation::GeluTanh => (1.13 * error(j), reference::gelu_tanh(at)),
                Activation::GeluErf => (1.13 * error(j), reference::gelu_erf(at)),
                Activation::None | Activation::Relu => (error(j), at),
            };
            let added = U * (exact.abs() + residual[i * outputs + j].abs());
            y.push(propagated + own_error(with.activation, at, exact) + 2.0 * added);
        }
    }
    (y, e)
}

/// The error of an activation's gradient in f32 at an exact argument, counted as in [`own_error`]: the logistic function
/// enters the tanh form's product twice, and the f64 reference cancels in 1 + tanh and 1 - tanh²; the erf form has x φ(x), whose exponent x²/2 has 2 roundings.
pub(crate) fn derivative_error(activation: Activation, x: f64, up: f64, dy: f64) -> [f64; 2] {
    match activation {
        Activation::None | Activation::Relu => [0.0; 2],
        Activation::GeluTanh => {
            let (z, inside) = (twice_argument(x), x.clamp(-10.0, 10.0));
            let s = logistic(z);
            let slope = (8.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * inside * inside);
            let product = (inside * slope * s * (1.0 - s)).abs();
            let cancelled = 2f64.powi(-52) * (1.0 + inside.abs() * slope);
            [dy.abs() * (logistic_error(z, 4.0) + product * (8.0 * z.abs() + 20.0) * U + cancelled), 0.0]
        }
        Activation::GeluErf => {
            let density = (-0.5 * x * x).exp() * 0.4;
            [dy.abs() * U * (5.0 + (x * x + 8.0) * x.abs() * density), 0.0]
        }
        Activation::SwiGlu => {
            // 1 - s has the absolute error of s.
            let s = logistic(x);
            [
                (dy * up).abs() * s * (2.0 * x.abs() + 12.0) * (1.0 + x.abs()) * U,
                (dy * x).abs() * s * (x.abs() + 8.0) * U,
            ]
        }
    }
}

pub(crate) fn activate<T: Float>(on: &On, shape: Shape, activation: Activation, pre: &[T]) -> Vec<T> {
    let (pre, mut y) = (on.up(pre), on.garbage(shape.m * activation.outputs(shape.n)));
    matmul::activate(&on.stream, shape, activation, pre.as_view(), y.as_view_mut()).unwrap();
    on.down(&y)
}

/// Ordinary arguments, and extreme ones that the type holds.
pub(crate) fn arguments<T: Float>(len: usize) -> Vec<T> {
    const EXTREMES: [f32; 16] =
        [0.0, -0.0, 1e-30, -1e-30, 9.9, -9.9, 10.1, -10.1, 30.0, -30.0, 100.0, -100.0, 1e20, -1e20, 3e38, -3e38];
    let mut pre: Vec<T> = normal(len, 7);
    for (pre, extreme) in pre.iter_mut().zip(EXTREMES) {
        let extreme = T::from_f32(extreme);
        *pre = if extreme.to_f32().is_finite() { extreme } else { T::from_f32(60_000.0) };
    }
    pre
}
