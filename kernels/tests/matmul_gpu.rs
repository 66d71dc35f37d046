//! The matrix products of the kernels on the software device, under every check and in every way of running.
#![forbid(unsafe_code)]

mod common;

use common::products::{ACTIVATIONS, Case, Inside, PLAIN, With, forward_bounds, magnitudes};
use common::ways::{same_bits_in_every_way, same_bits_in_every_way_on_one, same_bits_in_two_ways};
use common::{On, U, assert_like_the_cpu, assert_within, columns_error, f64s, integers, normal};
use warpweft_device::{DType, Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Shape, Through, reference};

/// A device of one multiprocessor, which gets large tiles wherever the operands allow them.
fn one_multiprocessor() -> On {
    On::open("software?check=all&multiprocessors=1&divergence=independent&async=latest&schedule=random&seed=1")
}

const ALL: With = With { scale: 0.5, bias: true, residual: true, ..PLAIN };

/// Shapes for each kind of tile: units whole, K no multiple of a step, K and rows odd, one row, one column, nothing.
const SHAPES: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 8, 239),
    (64, 64, 32),
    (72, 136, 40),
    (65, 130, 100),
    (128, 128, 8),
    (136, 200, 328),
    (33, 16, 129),
    (130, 7, 16),
    (4, 4, 0),
    (0, 4, 4),
    (4, 0, 8),
];

fn rounded<T: Float>(exact: Vec<f64>) -> Vec<T> {
    exact.into_iter().map(T::from_f64).collect()
}

#[test]
fn small_integers_are_bitwise_exact_with_every_tile() {
    fn check<T: Float>() {
        for on in [On::software(), one_multiprocessor()] {
            for sizes in SHAPES {
                for offset in [0, 1] {
                    let case = Case::<T> { offset, ..Case::new(sizes, integers) };
                    let what = format!("{} {sizes:?} {offset}", T::DTYPE);
                    let (x, w, bias, dy) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias), f64s(&case.dy));
                    let halves: Vec<f64> = x.iter().map(|x| x * 0.5).collect();
                    let expected =
                        reference::forward(case.shape, &halves, &w, Some(&bias), Activation::None, Some(&dy));
                    assert_eq!(case.forward(&on, ALL).0, rounded(expected), "{what}");
                    let dx = reference::backward_input(case.shape, &dy, &w);
                    let set = case.backward_input(&on, Write::Set, T::from_f32(0.0));
                    assert_eq!(set, rounded(dx.clone()), "{what}");
                    let added = dx.into_iter().map(|dx| dx + 3.0).collect();
                    assert_eq!(case.backward_input(&on, Write::Add, T::from_f32(3.0)), rounded(added), "{what}");
                    let dw = reference::backward_weight(case.shape, &x, &dy).into_iter().map(|dw| dw + 5.0);
                    assert_eq!(f64s(&case.backward_weight(&on, 5.0)), dw.collect::<Vec<_>>(), "{what}");
                    let db = reference::backward_bias(case.shape, &dy).into_iter().map(|db| db + 5.0);
                    assert_eq!(f64s(&case.backward_bias(&on, 5.0)), db.collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// Roundings of a sum of `length` products, relative to the sum of their magnitudes. In f32 one a term. Tensor cores add 8
/// exact products to the sum so far at a time, all cut off 24 bits below the largest, and cut off the result.
fn roundings<T: Float>(length: usize) -> f64 {
    if T::DTYPE == DType::F32 { length as f64 + 4.0 } else { 11.0 * (length.div_ceil(8) as f64 + 4.0) + 4.0 }
}

/// With numbers that look real: some columns of x are a hundred times the others (in f16 less, whose range SwiGLU leaves).
fn with_outliers<T: Float>(sizes: (usize, usize, usize)) -> Case<T> {
    let factor = if T::DTYPE == DType::F16 { 8.0 } else { 100.0 };
    let mut case = Case::<T>::new(sizes, normal);
    for (i, x) in case.x.iter_mut().enumerate() {
        if i % sizes.2 % 97 == 5 {
            *x = T::from_f32(x.to_f32() * factor);
        }
    }
    case
}

type Ways<T> = fn(&dyn Fn(&On) -> Vec<T>) -> Vec<T>;

fn check_forward<T: Float>(sizes: (usize, usize, usize), with: With, ways: Ways<T>) {
    let case = with_outliers::<T>(sizes);
    let Shape { m, n, k } = case.shape;
    let outputs = with.activation.outputs(n);
    let both = ways(&|on| {
        let (y, pre) = case.forward(on, with);
        [y, pre].concat()
    });
    let (y, pre) = both.split_at(m * outputs);
    let x: Vec<f64> = case.x.iter().map(|x| x.to_f64() * f64::from(with.scale)).collect();
    let (w, b, residual) = (f64s(&case.w), f64s(&case.bias), f64s(&case.dy[..m * outputs]));
    let (b, residual) = (with.bias.then_some(&b[..]), with.residual.then_some(&residual[..]));
    let what = format!("{} {sizes:?} {with:?}", T::DTYPE);
    // The CPU's bounds are of sums with K + 4 roundings.
    let more = roundings::<T>(k) / (k as f64 + 4.0);
    let (bound, pre_bound) = forward_bounds(&case, with);
    let exact = reference::forward(case.shape, &x, &w, b, with.activation, residual);
    assert_within(&what, y, &exact, |i| bound[i] * more.max(1.0));
    assert_like_the_cpu(&what, y, &case.forward(&On::threads(1), with).0, &exact, 2.0);
    if with.pre {
        assert_within(&what, pre, &reference::linear(case.shape, &x, &w, b), |i| pre_bound[i] * more.max(1.0));
    }
}

#[test]
fn tiles_with_every_epilogue_are_right_in_every_way() {
    fn check<T: Float>() {
        for (at, activation) in ACTIVATIONS.into_iter().enumerate() {
            let pre = activation != Activation::None;
            let (small, odd) = ((20, 24, 40), (7, 10, 33));
            let with = With { scale: 1.5, bias: at % 2 == 0, activation, pre, residual: at != 2 };
            check_forward::<T>(small, with, |work| same_bits_in_every_way(work));
            if at % 2 == 0 {
                check_forward::<T>(odd, with, |work| same_bits_in_every_way(work));
            }
        }
        let with = With { bias: true, activation: Activation::SwiGlu, pre: true, residual: true, ..PLAIN };
        check_forward::<T>((68, 72, 72), with, |work| same_bits_in_every_way_on_one(work));
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn larger_products_are_right() {
    fn check<T: Float>() {
        for activation in ACTIVATIONS {
            let with = With { scale: 1.0, bias: true, activation, pre: activation != Activation::None, residual: true };
            check_forward::<T>((70, 136, 520), with, |work| same_bits_in_two_ways(work));
        }
        check_forward::<T>((1, 239, 799), PLAIN, |work| same_bits_in_two_ways(work));
        check_forward::<T>((127, 66, 203), PLAIN, |work| same_bits_in_two_ways(work));
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

fn check_gradients<T: Float>(sizes: (usize, usize, usize), ways: Ways<T>, ways_f32: Ways<f32>) {
    let case = with_outliers::<T>(sizes);
    let Shape { m, n, .. } = case.shape;
    let (x, w, dy) = (f64s(&case.x), f64s(&case.w), f64s(&case.dy));
    let what = format!("{} {sizes:?}", T::DTYPE);
    let cpu = On::threads(1);
    let before = T::from_f32(0.5);
    let exact = reference::backward_input(case.shape, &dy, &w);
    let sums = reference::backward_input(case.shape, &magnitudes(&dy), &magnitudes(&w));
    let dx = ways(&|on| case.backward_input(on, Write::Set, before));
    assert_within(&what, &dx, &exact, |i| roundings::<T>(n) * U * sums[i]);
    assert_like_the_cpu(&what, &dx, &case.backward_input(&cpu, Write::Set, before), &exact, 3.0);
    let added = ways(&|on| case.backward_input(on, Write::Add, before));
    let exact: Vec<f64> = exact.iter().map(|dx| dx + 0.5).collect();
    assert_within(&what, &added, &exact, |i| roundings::<T>(n) * U * (sums[i] + 0.5));
    let exact: Vec<f64> = reference::backward_weight(case.shape, &x, &dy).iter().map(|dw| dw + 0.25).collect();
    let sums = reference::backward_weight(case.shape, &magnitudes(&x), &magnitudes(&dy));
    let dw = ways_f32(&|on| case.backward_weight(on, 0.25));
    assert_within(&what, &dw, &exact, |i| roundings::<T>(m) * U * (sums[i] + 0.25));
    let exact: Vec<f64> = reference::backward_bias(case.shape, &dy).iter().map(|db| db + 0.25).collect();
    let sums = reference::backward_bias(case.shape, &magnitudes(&dy));
    let db = ways_f32(&|on| case.backward_bias(on, 0.25));
    assert_within(&what, &db, &exact, |i| columns_error() * (sums[i] + 0.25) + U * exact[i].abs());
}

#[test]
fn gradients_are_right() {
    fn check<T: Float>() {
        for sizes in [(16, 40, 8), (9, 33, 7)] {
            check_gradients::<T>(sizes, |work| same_bits_in_every_way(work), |work| same_bits_in_every_way(work));
        }
        let one: (Ways<T>, Ways<f32>) =
            (|work| same_bits_in_every_way_on_one(work), |work| same_bits_in_every_way_on_one(work));
        check_gradients::<T>((40, 72, 72), one.0, one.1);
        for sizes in [(136, 200, 72), (239, 65, 130)] {
            check_gradients::<T>(sizes, |work| same_bits_in_two_ways(work), |work| same_bits_in_two_ways(work));
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// A layer's `w [N, K]` behind an activation whose argument is `pre`.
fn through<T: Float>(on: &On, case: &Case<T>, through: (f32, Activation, &[T]), write: Write, before: &[T]) -> Vec<T> {
    let (scale, activation, pre) = through;
    let [dy, w, pre] = [&case.dy, &case.w, pre].map(|values| Inside::new(on, values, case.offset));
    let mut dx = Inside::new(on, before, case.offset);
    let (shape, pre) = (case.shape, (activation != Activation::None).then(|| pre.view()));
    let through = Through { scale, activation, pre, db: None };
    matmul::backward_input_through(&on.stream, shape, dy.view(), w.view(), through, write, dx.view_mut()).unwrap();
    dx.down(on)
}

#[test]
fn a_gradient_through_an_activation_is_that_of_two_calls() {
    for activation in ACTIVATIONS {
        for (m, n, k) in [(20, 24, 40), (33, 16, 9), (130, 8, 72)] {
            let case = Case::<f32>::new((m, n, k), normal);
            let width = if activation == Activation::SwiGlu { 2 * k } else { k };
            let (pre, before) = (normal::<f32>(m * width, 7), normal::<f32>(m * width, 8));
            for on in [On::threads(2), On::software(), one_multiprocessor()] {
                let dx = case.backward_input(&on, Write::Set, 0.0);
                let shape = Shape { m, n: width, k: 0 };
                let expected = common::products::backward_activation(&on, shape, activation, &pre, &dx);
                let set = through(&on, &case, (1.0, activation, &pre), Write::Set, &before);
                assert_eq!(set, expected, "{activation:?} {m} {n} {k} {}", on.device);
                let twice = through(&on, &case, (2.0, activation, &pre), Write::Set, &before);
                let close = |a: &f32, b: &f32| (a - 2.0 * b).abs() <= 1e-6 * a.abs() + 1e-30;
                assert!(twice.iter().zip(&set).all(|(twice, once)| close(twice, once)), "{activation:?} {}", on.device);
                let added = through(&on, &case, (1.0, activation, &pre), Write::Add, &before);
                let sum: Vec<f32> = set.iter().zip(&before).map(|(dx, before)| dx + before).collect();
                assert_eq!(added, sum, "{activation:?} {}", on.device);
            }
            // In a narrower type within a rounding of the same numbers' gradient in f32.
            let narrow = Case::<bf16> { offset: 1, ..Case::new((m, n, k), normal) };
            let narrow_pre = normal::<bf16>(m * width, 7);
            let wide = Case::<f32> {
                shape: case.shape,
                x: Vec::new(),
                w: narrow.w.iter().map(|w| w.to_f32()).collect(),
                bias: Vec::new(),
                dy: narrow.dy.iter().map(|dy| dy.to_f32()).collect(),
                offset: 0,
                beside: 0,
            };
            let wide_pre: Vec<f32> = narrow_pre.iter().map(|pre| pre.to_f32()).collect();
            let exact = through(&On::threads(1), &wide, (1.0, activation, &wide_pre), Write::Set, &before);
            for on in [On::threads(2), On::software()] {
                let garbage = vec![bf16::from_f32(0.0); m * width];
                let given = through(&on, &narrow, (1.0, activation, &narrow_pre), Write::Set, &garbage);
                assert_within("through", &given, &f64s(&exact), |i| 1e-4 * f64::from(exact[i].abs()) + 1e-5);
            }
        }
    }
}

#[test]
fn a_rows_bits_depend_on_neither_its_neighbours_nor_its_place_nor_the_tile() {
    fn check<T: Float>() {
        let all = Case::<T>::new((150, 72, 264), normal);
        let Shape { n, k, .. } = all.shape;
        let with = With { bias: true, activation: Activation::GeluTanh, ..PLAIN };
        let (small, large) = (On::software(), one_multiprocessor());
        let (y, dx) = (all.forward(&large, with).0, all.backward_input(&large, Write::Set, T::from_f32(0.0)));
        assert!(all.forward(&small, with).0 == y && all.backward_input(&small, Write::Set, T::from_f32(0.0)) == dx);
        for (rows, offset) in [(0..1, 0), (149..150, 1), (63..66, 0), (3..133, 3)] {
            let some = Case::<T> {
                shape: Shape { m: rows.len(), n, k },
                x: all.x[rows.start * k..rows.end * k].to_vec(),
                w: all.w.clone(),
                bias: all.bias.clone(),
                dy: all.dy[rows.start * n..rows.end * n].to_vec(),
                offset,
                beside: 0,
            };
            for on in [&small, &large] {
                assert!(some.forward(on, with).0 == y[rows.start * n..rows.end * n], "{rows:?} {offset}");
                let given = some.backward_input(on, Write::Set, T::from_f32(0.0));
                assert!(given == dx[rows.start * k..rows.end * k], "{rows:?} {offset}");
            }
        }
    }
    check::<f32>();
    check::<bf16>();
}

#[test]
fn nan_and_infinity_stay_in_their_row_and_column() {
    fn check<T: Float>() {
        let on = On::software_with_nans();
        let mut case = Case::<T>::new((70, 40, 24), normal);
        case.x[7 * 24 + 3] = T::from_f32(f32::NAN);
        case.w[11 * 24 + 4] = T::from_f32(f32::NAN);
        case.x[66 * 24 + 5] = T::from_f32(f32::INFINITY);
        let (y, _) = case.forward(&on, PLAIN);
        for (i, y) in y.iter().enumerate() {
            assert_eq!(y.to_f32().is_nan(), i / 40 == 7 || i % 40 == 11, "{i}");
            assert_eq!(y.to_f32().is_infinite(), i / 40 == 66 && i % 40 != 11, "{i}");
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}
