//! matmul: exact on small integers, within derived bounds of the f64 reference, and independent of rows and threads.
#![forbid(unsafe_code)]

mod common;

use common::products::{
    ACTIVATIONS, Case, PLAIN, With, activate, backward_activation, derivative_error, forward_bounds, magnitudes, shape,
};
use common::{
    On, U, assert_gradient, assert_within, dot, f64s, finite_differences, integers, normal, same_bits_for_threads,
};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{Activation, Shape, reference};

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
                    let with =
                        With { scale: 1.0, bias, activation, pre: pre && activation != Activation::None, residual };
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
            offset: 0,
            beside: 0,
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
                let with = With { scale: 1.0, bias: true, activation, pre: false, residual: true };
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
                            offset: 0,
                            beside: 0,
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

#[test]
fn an_activation_by_itself_gives_the_bits_of_an_epilogue() {
    for sizes in [(1, 2, 3), (147, 70, 300), (33, 1200, 40), (1030, 34, 20), (0, 4, 4), (4, 0, 4)] {
        let case = Case::<f32>::new(sizes, normal);
        for activation in ACTIVATIONS.into_iter().filter(|activation| *activation != Activation::None) {
            for threads in [1, 3] {
                let on = On::threads(threads);
                let (y, pre) =
                    case.forward(&on, With { scale: 1.0, bias: true, activation, pre: true, residual: false });
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
                let with =
                    With { scale: 1.0, bias: true, activation, pre: activation != Activation::None, residual: true };
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
