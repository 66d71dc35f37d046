//! Softmax: the reference against finite differences, the fast path against the reference within bounds derived from
//! its operations, masks, and what degenerate and wrong arguments do.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::softmax::{self, Options, Shape, reference};

#[test]
fn the_reference_gradient_is_that_of_finite_differences() {
    for (columns, causal) in [(1, None), (4, None), (5, Some(3)), (2, Some(3)), (3, Some(6))] {
        let shape = Shape { rows: 6, columns };
        let options = Options { scale: 0.7, causal };
        let [x, dy] = [1, 2].map(|seed| f64s(&normal::<f32>(6 * columns, seed)));
        let y = reference::forward(shape, options, &x);
        let dx = reference::backward(shape, options, &dy, &y);
        let loss = |x: &[f64]| dot(&dy, &reference::forward(shape, options, x));
        assert_gradient("dx", &dx, &finite_differences(&x, loss));
    }
}

fn forward<T: Float>(on: &On, shape: Shape, options: Options, x: &[T]) -> Vec<T> {
    let mut y = on.garbage::<T>(x.len());
    softmax::forward(&on.stream, shape, options, on.up(x).as_view(), y.as_view_mut()).unwrap();
    on.down(&y)
}

fn backward<T: Float>(on: &On, case: (Shape, Options), dy: &[T], y: &[T], write: Write, before: &[T]) -> Vec<T> {
    let (dy, y, mut dx) = (on.up(dy), on.up(y), on.up(before));
    softmax::backward(&on.stream, case.0, case.1, dy.as_view(), y.as_view(), write, dx.as_view_mut()).unwrap();
    on.down(&dx)
}

/// The roundings of `e^(scale x - max)` relative to it: of the product (with a scale other than 1), of the difference,
/// 2 U for an exponential within a unit in the last place.
fn exponent_error(options: Options, x: f64, max: f64) -> f64 {
    let z = x * f64::from(options.scale);
    let product = if options.scale == 1.0 { 0.0 } else { 2.0 * U * z.abs() };
    // A term so small that it is 0 has no relative error to speak of; the bounds have an absolute one for it.
    if z - max < -110.0 { 0.0 } else { product + U * (z - max).abs() + 2.0 * U }
}

fn check_forward<T: Float>(shape: Shape, options: Options, x: &[T]) -> Vec<T> {
    let y = same_bits_for_threads(|on| forward(on, shape, options, x));
    let (columns, x) = (shape.columns, f64s(x));
    let exact = reference::forward(shape, options, &x);
    let visible = |row: usize| match options.causal {
        Some(queries) => (row % queries + 1 + columns).saturating_sub(queries).min(columns),
        None => columns,
    };
    let mut row_errors = Vec::new();
    for row in 0..shape.rows {
        let seen = row * columns..row * columns + visible(row);
        let max = x[seen.clone()].iter().map(|x| x * f64::from(options.scale)).fold(f64::NEG_INFINITY, f64::max);
        // The sum's error is the average of its terms'.
        let sum = seen.filter(|&i| exact[i] > 0.0).map(|i| exact[i] * exponent_error(options, x[i], max)).sum::<f64>();
        row_errors.push((max, sum));
    }
    // And the reciprocal of the sum and the product with it. Where the exponential is subnormal, 1.5 * 2^-149 is off.
    assert_within("y", &y, &exact, |i| {
        let (max, sum_error) = row_errors[i / columns];
        if exact[i] == 0.0 {
            return 2f64.powi(-148);
        }
        exact[i] * (exponent_error(options, x[i], max) + sum_error + 2.0 * U) + 2f64.powi(-148)
    });
    y
}

fn check_backward<T: Float>(shape: Shape, options: Options, y: &[T]) {
    let (columns, case) = (shape.columns, (shape, options));
    let (dy, before) = (normal::<T>(y.len(), 2), normal::<T>(y.len(), 3));
    let (dy64, y64) = (f64s(&dy), f64s(y));
    let exact = reference::backward(shape, options, &dy64, &y64);
    let scale = f64::from(options.scale.abs());
    let sums: Vec<f64> = (0..shape.rows)
        .map(|row| (row * columns..(row + 1) * columns).map(|i| (y64[i] * dy64[i]).abs()).sum::<f64>())
        .collect();
    // Rounded: the terms of the sum, the sum, the difference, and two products; a subnormal `scale * y` by 2^-150.
    let bound = |i: usize| {
        let (dy, sum) = (dy64[i].abs(), sums[i / columns]);
        scale * y64[i] * U * (3.0 * dy + 5.0 * sum) + 2f64.powi(-150) * (dy + sum)
    };
    let set = same_bits_for_threads(|on| backward(on, case, &dy, y, Write::Set, &before));
    assert_within("dx", &set, &exact, bound);
    let added = same_bits_for_threads(|on| backward(on, case, &dy, y, Write::Add, &before));
    let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
    assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());
}

fn check<T: Float>(rows: usize, columns: usize, options: Options, spread: f64) {
    let shape = Shape { rows, columns };
    let x: Vec<T> = normal::<T>(rows * columns, 1).iter().map(|x| T::from_f64(x.to_f64() * spread)).collect();
    let y = check_forward(shape, options, &x);
    check_backward(shape, options, &y);
}

#[test]
fn every_shape_and_storage_is_within_its_bound_and_the_same_for_every_thread_count() {
    let scaled = Options { scale: 0.125, causal: None };
    let causal = |queries| Options { scale: 0.3, causal: Some(queries) };
    for (rows, columns) in [(1, 1), (3, 2), (300, 65), (40, 2048), (7, 5000), (2, 65_537), (1, 1_048_576)] {
        check::<f32>(rows, columns, Options::default(), 3.0);
        check::<f32>(rows, columns, scaled, 300.0);
    }
    for (rows, columns, queries) in [(6, 5, 3), (6, 2, 3), (256, 64, 64), (100, 4099, 50)] {
        check::<f32>(rows, columns, causal(queries), 3.0);
    }
    check::<f32>(5, 300, Options { scale: -2.0, causal: None }, 3.0);
    for (rows, columns) in [(5, 1), (33, 70), (3, 5000)] {
        check::<bf16>(rows, columns, scaled, 10.0);
        check::<f16>(rows, columns, causal(1), 10.0);
    }
}

#[test]
fn a_single_column_and_equal_columns_are_exact() {
    let on = On::threads(1);
    assert_eq!(forward(&on, Shape { rows: 3, columns: 1 }, Options::default(), &[1e30f32, -5.0, 0.0]), [1.0; 3]);
    assert_eq!(
        forward(&on, Shape { rows: 1, columns: 4096 }, Options::default(), &[1e30f32; 4096]),
        [1.0 / 4096.0; 4096]
    );
}

#[test]
fn what_is_masked_is_not_read() {
    let (shape, options) = (Shape { rows: 4, columns: 3 }, Options { scale: 1.0, causal: Some(4) });
    // Queries 0..4 see 0, 1, 2, 3 columns.
    let nan = f32::NAN;
    let x = [nan, nan, nan, 5.0, nan, nan, 1.0, 1.0, nan, 2.0, 2.0, f32::NEG_INFINITY];
    let y = forward(&On::threads(1), shape, options, &x);
    assert_eq!(y, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0]);
    let dy = [nan, nan, nan, 3.0, nan, nan, 1.0, 3.0, nan, 1.0, 3.0, 7.0];
    let dx = backward(&On::threads(1), (shape, options), &dy, &y, Write::Set, &[nan; 12]);
    assert_eq!(dx, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5, 0.0, -0.5, 0.5, 0.0]);
}

#[test]
fn infinities_and_nan_do_what_the_contract_says() {
    let (low, high, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
    let shape = Shape { rows: 5, columns: 3 };
    let x = [low, low, low, low, 1e38, -3e38, 1.0, high, 2.0, low, nan, low, f32::MAX, f32::MIN, f32::MAX];
    let y = forward(&On::threads(1), shape, Options::default(), &x);
    assert_eq!(y[..6], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert!(y[6..12].iter().all(|y| y.is_nan()), "{y:?}");
    assert_eq!(y[12..], [0.5, 0.0, 0.5]);
    // A NaN that comes after a whole block of -inf, and one before a larger number.
    let mut x = vec![low; 5000];
    x[4000] = nan;
    let shape = Shape { rows: 1, columns: 5000 };
    assert!(forward(&On::threads(1), shape, Options::default(), &x).iter().all(|y| y.is_nan()));
    x[4500] = 1.0;
    assert!(forward(&On::threads(1), shape, Options::default(), &x).iter().all(|y| y.is_nan()));
}

#[test]
fn nothing_to_do_is_done() {
    for (rows, columns) in [(0, 5), (5, 0), (0, 0)] {
        let shape = Shape { rows, columns };
        assert_eq!(forward::<f32>(&On::threads(2), shape, Options::default(), &[]), []);
        assert_eq!(backward::<f32>(&On::threads(2), (shape, Options::default()), &[], &[], Write::Add, &[]), []);
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let (x, mut y) = (on.up(&[1.0f32; 6]), on.up(&[7.0f32; 6]));
    let mut forward = |rows, columns, options| {
        let shape = Shape { rows, columns };
        softmax::forward(&on.stream, shape, options, x.as_view(), y.as_view_mut()).unwrap_err().to_string()
    };
    let plain = Options::default();
    assert_eq!(forward(2, 4, plain), "softmax forward: `x` has 6 elements; its shape 2 x 4 needs 8");
    let causal = |queries| Options { causal: Some(queries), ..plain };
    let text = "it must be at least 1 and a divisor of the 2 rows";
    assert_eq!(forward(2, 3, causal(0)), format!("softmax forward: `causal` is 0; {text}"));
    assert_eq!(forward(2, 3, causal(4)), format!("softmax forward: `causal` is 4; {text}"));
    let scale = Options { scale: f32::NAN, ..plain };
    assert_eq!(forward(2, 3, scale), "softmax forward: `scale` is NaN; it must be finite");
    let error = forward(usize::MAX, 3, plain);
    assert_eq!(
        error,
        format!("softmax forward: the shape {} x 3 of `x` has more elements than memory can address", usize::MAX)
    );
    let (shape, short) = (Shape { rows: 2, columns: 3 }, on.up(&[1.0f32; 5]));
    let (dy, short) = (x.as_view(), short.as_view());
    let error = softmax::backward(&on.stream, shape, plain, dy, short, Write::Set, y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "softmax backward: `y` has 5 elements; its shape 2 x 3 needs 6");
    assert_eq!(on.down(&y), [7.0; 6]);
}
