//! matmul: exact on small integers, within derived bounds of the f64 reference, and independent of rows and threads.
#![forbid(unsafe_code)]

mod common;

use common::{
    On, U, assert_gradient, assert_within, dot, f64s, finite_differences, integers, normal, same_bits_for_threads,
};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, reference};

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::SwiGlu];

const SHAPES: [(usize, usize, usize); 12] = [
    (0, 4, 2),
    (3, 0, 2),
    (3, 2, 0),
    (1, 2, 1),
    (1, 70, 33),
    (70, 2, 300),
    (5, 6, 7),
    (65, 130, 257),
    (300, 16, 20),
    (16, 300, 20),
    (259, 518, 40),
    (40, 20, 600),
];

/// What [`Case::forward`] is given beside x and w.
#[derive(Clone, Copy, Debug)]
struct With {
    bias: bool,
    activation: Activation,
    pre: bool,
    residual: bool,
}

const PLAIN: With = With { bias: false, activation: Activation::None, pre: false, residual: false };

struct Case<T> {
    shape: Shape,
    x: Vec<T>,
    w: Vec<T>,
    bias: Vec<T>,
    dy: Vec<T>,
}

impl<T: Float> Case<T> {
    fn new((m, n, k): (usize, usize, usize), numbers: impl Fn(usize, u64) -> Vec<T>) -> Self {
        let shape = Shape { m, n, k };
        Self { shape, x: numbers(m * k, 1), w: numbers(n * k, 2), bias: numbers(n, 3), dy: numbers(m * n, 4) }
    }

    /// y and pre (empty where it is not asked for). The residual is the first elements of dy.
    fn forward(&self, on: &On, with: With) -> (Vec<T>, Vec<T>) {
        let Shape { m, n, .. } = self.shape;
        let outputs = m * with.activation.outputs(n);
        let (x, w, bias, residual) = (on.up(&self.x), on.up(&self.w), on.up(&self.bias), on.up(&self.dy[..outputs]));
        let (mut y, mut pre) = (on.garbage(outputs), on.garbage(m * n));
        let epilogue = Epilogue {
            bias: with.bias.then(|| bias.as_view()),
            activation: with.activation,
            pre: with.pre.then(|| pre.as_view_mut()),
            residual: with.residual.then(|| residual.as_view()),
        };
        matmul::forward(&on.stream, self.shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut()).unwrap();
        (on.down(&y), if with.pre { on.down(&pre) } else { Vec::new() })
    }

    fn backward_input(&self, on: &On, write: Write, before: T) -> Vec<T> {
        let (dy, w) = (on.up(&self.dy), on.up(&self.w));
        let mut dx = on.up(&vec![before; self.x.len()]);
        matmul::backward_input(&on.stream, self.shape, dy.as_view(), w.as_view(), write, dx.as_view_mut()).unwrap();
        on.down(&dx)
    }

    fn backward_weight(&self, on: &On, before: f32) -> Vec<f32> {
        let (dy, x) = (on.up(&self.dy), on.up(&self.x));
        let mut dw = on.up(&vec![before; self.w.len()]);
        matmul::backward_weight(&on.stream, self.shape, x.as_view(), dy.as_view(), dw.as_view_mut()).unwrap();
        on.down(&dw)
    }

    fn backward_bias(&self, on: &On, before: f32) -> Vec<f32> {
        let dy = on.up(&self.dy);
        let mut db = on.up(&vec![before; self.shape.n]);
        matmul::backward_bias(&on.stream, self.shape, dy.as_view(), db.as_view_mut()).unwrap();
        on.down(&db)
    }
}

fn magnitudes(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

fn shape((m, n, k): (usize, usize, usize)) -> Shape {
    Shape { m, n, k }
}

fn backward_activation<T: Float>(on: &On, shape: Shape, activation: Activation, pre: &[T], dy: &[T]) -> Vec<T> {
    let (pre, dy, mut dpre) = (on.up(pre), on.up(dy), on.garbage(pre.len()));
    let (stream, dpre_view) = (&on.stream, dpre.as_view_mut());
    matmul::backward_activation(stream, shape, activation, pre.as_view(), dy.as_view(), dpre_view).unwrap();
    on.down(&dpre)
}

#[test]
fn small_integers_are_bitwise_exact() {
    // Products of integers up to 7 in sums of up to 600 terms stay below 2^24.
    fn check<T: Float>() {
        for sizes in SHAPES {
            let case = Case::<T>::new(sizes, integers);
            let (x, w, bias, dy) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias), f64s(&case.dy));
            let on = On::threads(2);
            let rounded = |exact: Vec<f64>| -> Vec<T> { exact.into_iter().map(T::from_f64).collect() };
            let with = With { bias: true, residual: true, ..PLAIN };
            let expected = reference::forward(case.shape, &x, &w, Some(&bias), Activation::None, Some(&dy));
            assert_eq!(case.forward(&on, with).0, rounded(expected), "{sizes:?}");

            let dx = reference::backward_input(case.shape, &dy, &w);
            assert_eq!(case.backward_input(&on, Write::Set, T::from_f32(f32::NAN)), rounded(dx.clone()), "{sizes:?}");
            let added = dx.into_iter().map(|dx| dx + 3.0).collect();
            assert_eq!(case.backward_input(&on, Write::Add, T::from_f32(3.0)), rounded(added), "{sizes:?}");

            let dw = reference::backward_weight(case.shape, &x, &dy).into_iter().map(|dw| dw + 5.0);
            assert_eq!(f64s(&case.backward_weight(&on, 5.0)), dw.collect::<Vec<_>>(), "{sizes:?}");
            let db = reference::backward_bias(case.shape, &dy).into_iter().map(|db| db + 5.0);
            assert_eq!(f64s(&case.backward_bias(&on, 5.0)), db.collect::<Vec<_>>(), "{sizes:?}");
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

fn logistic(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Twice the argument of GELU's tanh form, where it still tells the logistic function from 0 and 1.
fn twice_argument(x: f64) -> f64 {
    ((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).clamp(-1000.0, 1000.0)
}

/// The error of the logistic function in f32 where its argument z has `roundings`: its slope s (1 - s) times theirs, and
/// 6 U relative for e^z (2 U), the sum and the division.
fn logistic_error(z: f64, roundings: f64) -> f64 {
    let s = logistic(z);
    s * (1.0 - s) * roundings * z.abs() * U + 6.0 * U * s
}

/// The error of an activation's own arithmetic in f32 at an exact argument, by its roundings. GELU's tanh form and SwiGLU
/// are products with a logistic function. In the erf form, x/2 (1 + erf), erf is within 2 units, its argument within 2 U,
/// and the sum rounds once more, all relative to 1.
fn own_error(activation: Activation, x: f64, y: f64) -> f64 {
    match activation {
        Activation::None | Activation::Relu => 0.0,
        Activation::GeluTanh => x.abs() * logistic_error(twice_argument(x), 4.0) + 2.0 * U * y.abs(),
        Activation::GeluErf => 4.0 * U * x.abs(),
        Activation::SwiGlu => y.abs() * (x.abs() + 8.0) * U,
    }
}

/// The bound of y's error: pre's error `e` (at most K + 4 roundings of the terms' magnitudes) times the activation's
/// largest slope, 1.13 for GELU and 1.1 for silu, its own arithmetic, and the residual's addition.
fn forward_bounds<T: Float>(case: &Case<T>, with: With) -> (Vec<f64>, Vec<f64>) {
    let Shape { m, n, k } = case.shape;
    let (x, w, bias) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias));
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

#[test]
fn forward_agrees_with_the_reference_with_every_epilogue() {
    fn check<T: Float>() {
        let on = On::threads(2);
        for sizes in [(70, 48, 130), (5, 6, 300), (1, 2, 1), (260, 520, 9)] {
            let case = Case::<T>::new(sizes, normal);
            for activation in ACTIVATIONS {
                for (bias, residual, pre) in
                    [(false, false, false), (true, false, true), (true, true, true), (true, true, false)]
                {
                    let with = With { bias, activation, pre: pre && activation != Activation::None, residual };
                    let (x, w, b) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias));
                    let outputs = sizes.0 * activation.outputs(sizes.1);
                    let residual = f64s(&case.dy[..outputs]);
                    let (b, residual) = (bias.then_some(&b[..]), with.residual.then_some(&residual[..]));
                    let expected = reference::forward(case.shape, &x, &w, b, activation, residual);
                    let (y, pre) = case.forward(&on, with);
                    let (bound, pre_bound) = forward_bounds(&case, with);
                    let what = format!("{} {sizes:?} {with:?}", T::DTYPE);
                    assert_within(&what, &y, &expected, |i| bound[i]);
                    if with.pre {
                        assert_within(&what, &pre, &reference::linear(case.shape, &x, &w, b), |i| pre_bound[i]);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn gradients_of_the_products_agree_with_the_reference() {
    fn check<T: Float>() {
        let on = On::threads(3);
        for sizes in [(300, 48, 130), (5, 6, 300), (130, 520, 70)] {
            let case = Case::<T>::new(sizes, normal);
            let Shape { m, n, .. } = case.shape;
            let (x, w, dy) = (f64s(&case.x), f64s(&case.w), f64s(&case.dy));
            let (ax, aw, ady) = (magnitudes(&x), magnitudes(&w), magnitudes(&dy));
            // A sum of L products has at most L + 1 roundings, and one more where it is added to what is there.
            let roundings = |length: usize| (length as f64 + 2.0) * U;
            let sums = reference::backward_input(case.shape, &ady, &aw);
            let dx = case.backward_input(&on, Write::Set, T::ZERO);
            assert_within("dx", &dx, &reference::backward_input(case.shape, &dy, &w), |i| roundings(n) * sums[i]);
            let sums = reference::backward_weight(case.shape, &ax, &ady);
            let dw = case.backward_weight(&on, 0.0);
            assert_within("dw", &dw, &reference::backward_weight(case.shape, &x, &dy), |i| roundings(m) * sums[i]);
            let sums = reference::backward_bias(case.shape, &ady);
            let db = case.backward_bias(&on, 0.0);
            assert_within("db", &db, &reference::backward_bias(case.shape, &dy), |i| roundings(m) * sums[i]);
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// The error of an activation's gradient in f32 at an exact argument, counted as in [`own_error`]: the logistic function
/// enters the tanh form's product twice, and the f64 reference cancels in 1 + tanh and 1 - tanh²; the erf form has x φ(x), whose exponent x²/2 has 2 roundings.
fn derivative_error(activation: Activation, x: f64, up: f64, dy: f64) -> [f64; 2] {
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

#[test]
fn activations_gradients_agree_with_the_reference_at_ordinary_and_extreme_arguments() {
    const EXTREMES: [f32; 16] =
        [0.0, -0.0, 1e-30, -1e-30, 9.9, -9.9, 10.1, -10.1, 30.0, -30.0, 100.0, -100.0, 1e20, -1e20, 3e38, -3e38];
    fn check<T: Float>() {
        let on = On::threads(2);
        for activation in ACTIVATIONS {
            let (m, n) = (300, 34);
            let shape = shape((m, n, 0));
            let mut pre: Vec<T> = normal(m * n, 7);
            for (i, extreme) in EXTREMES.iter().enumerate() {
                pre[i] = T::from_f32(*extreme);
            }
            // Those that a 16-bit type makes infinite belong to the test of patterns.
            for pre in &mut pre {
                if pre.to_f32().is_infinite() {
                    *pre = T::from_f32(60_000.0);
                }
            }
            let outputs = activation.outputs(n);
            let dy: Vec<T> = normal(m * outputs, 8);
            let (exact_pre, exact_dy) = (f64s(&pre), f64s(&dy));
            let expected = reference::backward_activation(shape, activation, &exact_pre, &exact_dy);
            let dpre = backward_activation(&on, shape, activation, &pre, &dy);
            // What is below the smallest normal number may be flushed in between.
            let smallest = f64::from(f32::MIN_POSITIVE) * 4.0;
            assert_within(&format!("{activation:?} {}", T::DTYPE), &dpre, &expected, |i| {
                let (row, column) = (i / n, i % n);
                let first = row * n + column % outputs;
                let up = if activation == Activation::SwiGlu { exact_pre[first + outputs] } else { 0.0 };
                let errors =
                    derivative_error(activation, exact_pre[first], up, exact_dy[row * outputs + column % outputs]);
                errors[column / outputs] + smallest
            });
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn nan_and_infinity_come_out_where_the_formulas_have_them() {
    let on = On::threads(2);
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, -1.0, 0.0, 3e38, -3e38];
    for activation in ACTIVATIONS {
        // K = 1 and w = 1: pre is x.
        let n = if activation == Activation::SwiGlu { 2 } else { 1 };
        let case = Case::<f32> {
            shape: shape((8, n, 1)),
            x: specials.to_vec(),
            w: vec![1.0; n],
            bias: vec![0.0; n],
            dy: vec![1.0; 8 * n],
        };
        let (y, pre) = case.forward(&on, With { activation, pre: activation != Activation::None, ..PLAIN });
        let expected = reference::forward(case.shape, &f64s(&case.x), &f64s(&case.w), None, activation, None);
        for (y, expected) in y.iter().zip(&expected) {
            // As f32, in which silu(3e38)² overflows.
            let expected = *expected as f32;
            assert!(
                *y == expected || y.is_nan() && expected.is_nan() || y.is_finite() && expected.is_finite(),
                "{activation:?}: {y}, not {expected}"
            );
        }
        if activation != Activation::None {
            let exact = reference::backward_activation(case.shape, activation, &f64s(&pre), &[1.0; 8]);
            let dpre = backward_activation(&on, case.shape, activation, &pre, &[1.0; 8]);
            for (given, expected) in dpre.iter().zip(&exact) {
                assert_eq!(given.is_nan(), expected.is_nan(), "{activation:?}: {dpre:?}, not {exact:?}");
                assert_eq!(
                    given.is_infinite(),
                    (*expected as f32).is_infinite(),
                    "{activation:?}: {dpre:?}, not {exact:?}"
                );
            }
        }
    }
    // A NaN of x reaches its row only, one of w its column only.
    let mut case = Case::<f32>::new((40, 30, 20), normal);
    case.x[7 * 20 + 3] = f32::NAN;
    case.w[11 * 20 + 4] = f32::NAN;
    let (y, _) = case.forward(&on, PLAIN);
    for (i, y) in y.iter().enumerate() {
        assert_eq!(y.is_nan(), i / 30 == 7 || i % 30 == 11, "{i}");
    }
}

#[test]
fn the_references_gradients_are_the_finite_differences() {
    for activation in [Activation::None, Activation::GeluTanh, Activation::GeluErf, Activation::SwiGlu] {
        let shape = shape((3, 4, 5));
        let numbers = |len: usize, seed: u64| f64s(&normal::<f32>(len, seed));
        let (x, w, bias) = (numbers(15, 1), numbers(20, 2), numbers(4, 3));
        let dy = numbers(3 * activation.outputs(4), 4);
        let loss = |x: &[f64], w: &[f64], bias: &[f64]| {
            dot(&reference::forward(shape, x, w, Some(bias), activation, None), &dy)
        };
        let pre = reference::linear(shape, &x, &w, Some(&bias));
        let dpre = reference::backward_activation(shape, activation, &pre, &dy);
        assert_gradient(
            "dx",
            &reference::backward_input(shape, &dpre, &w),
            &finite_differences(&x, |x| loss(x, &w, &bias)),
        );
        assert_gradient(
            "dw",
            &reference::backward_weight(shape, &x, &dpre),
            &finite_differences(&w, |w| loss(&x, w, &bias)),
        );
        assert_gradient(
            "db",
            &reference::backward_bias(shape, &dpre),
            &finite_differences(&bias, |bias| loss(&x, &w, bias)),
        );
    }
}

#[test]
fn a_rows_bits_depend_on_neither_its_neighbours_nor_its_place() {
    fn check<T: Float>() {
        for (n, k) in [(48, 600), (520, 33), (34, 257)] {
            for activation in ACTIVATIONS {
                let all = Case::<T>::new((147, n, k), normal);
                let with = With { bias: true, activation, pre: false, residual: true };
                let on = On::threads(2);
                let (y, dx) = (all.forward(&on, with).0, all.backward_input(&on, Write::Set, T::ZERO));
                let outputs = activation.outputs(n);
                for rows in [0..1, 5..6, 146..147, 3..20, 16..80, 100..147] {
                    for threads in 1..=3 {
                        let on = On::threads(threads);
                        let dy = all.dy[rows.start * n..rows.end * n].to_vec();
                        let mut some = Case {
                            shape: Shape { m: rows.len(), n, k },
                            x: all.x[rows.start * k..rows.end * k].to_vec(),
                            w: all.w.clone(),
                            bias: all.bias.clone(),
                            dy,
                        };
                        assert!(
                            some.backward_input(&on, Write::Set, T::ZERO) == dx[rows.start * k..rows.end * k],
                            "{rows:?} {threads}"
                        );
                        // The residual of these rows.
                        some.dy = all.dy[rows.start * outputs..rows.end * outputs].to_vec();
                        let expected = &y[rows.start * outputs..rows.end * outputs];
                        assert!(
                            some.forward(&on, with).0 == expected,
                            "{activation:?} {n} {k} {rows:?} {threads} threads"
                        );
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
}

fn activate<T: Float>(on: &On, shape: Shape, activation: Activation, pre: &[T]) -> Vec<T> {
    let (pre, mut y) = (on.up(pre), on.garbage(shape.m * activation.outputs(shape.n)));
    matmul::activate(&on.stream, shape, activation, pre.as_view(), y.as_view_mut()).unwrap();
    on.down(&y)
}

#[test]
fn an_activation_by_itself_gives_the_bits_of_an_epilogue() {
    for sizes in [(1, 2, 3), (147, 70, 300), (33, 1200, 40), (1030, 34, 20), (0, 4, 4), (4, 0, 4)] {
        let case = Case::<f32>::new(sizes, normal);
        for activation in ACTIVATIONS.into_iter().filter(|activation| *activation != Activation::None) {
            for threads in [1, 3] {
                let on = On::threads(threads);
                let (y, pre) = case.forward(&on, With { bias: true, activation, pre: true, residual: false });
                assert_eq!(activate(&on, case.shape, activation, &pre), y, "{activation:?} {sizes:?}");
            }
            // In a narrower type those of the rounded argument, rounded once.
            let on = On::threads(1);
            let rounded: Vec<bf16> = case.dy.iter().map(|pre| bf16::from_f32(*pre)).collect();
            let wide: Vec<f32> = rounded.iter().map(|pre| pre.to_f32()).collect();
            let expected: Vec<bf16> =
                activate(&on, case.shape, activation, &wide).iter().map(|y| bf16::from_f32(*y)).collect();
            assert_eq!(activate(&on, case.shape, activation, &rounded), expected, "{activation:?} {sizes:?}");
        }
    }
}

#[test]
fn threads_change_no_bit() {
    fn check<T: Float>() {
        for sizes in [(147, 70, 300), (33, 1200, 40), (1030, 34, 20)] {
            let case = Case::<T>::new(sizes, normal);
            for activation in ACTIVATIONS {
                let with = With { bias: true, activation, pre: activation != Activation::None, residual: true };
                same_bits_for_threads(|on| case.forward(on, with).0);
                same_bits_for_threads(|on| case.forward(on, with).1);
                let dy = &case.dy[..sizes.0 * activation.outputs(sizes.1)];
                same_bits_for_threads(|on| backward_activation(on, case.shape, activation, &case.dy, dy));
            }
            same_bits_for_threads(|on| case.backward_input(on, Write::Add, T::from_f32(0.3)));
            same_bits_for_threads(|on| case.backward_weight(on, 0.3));
            same_bits_for_threads(|on| case.backward_bias(on, 0.3));
        }
    }
    check::<f32>();
    check::<bf16>();
}
