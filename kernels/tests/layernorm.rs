//! LayerNorm: the reference against finite differences, the fast path against the reference within bounds derived from
//! its operations, and what degenerate and wrong arguments do.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::layernorm::{self, Shape, reference};

#[test]
fn the_reference_gradients_are_those_of_finite_differences() {
    for channels in [1, 2, 7] {
        let shape = Shape { rows: 3, channels };
        let (x, dy) = (normal::<f32>(3 * channels, 1), normal::<f32>(3 * channels, 2));
        let (w, b) = (normal::<f32>(channels, 3), normal::<f32>(channels, 4));
        let [x, dy, w, b] = [x, dy, w, b].map(|values| f64s(&values));
        let eps = 0.5;
        let saved = reference::forward(shape, eps, &x, &w, &b);
        let (mean, rstd) = (&saved.mean, &saved.rstd);
        let loss = |x: &[f64], w: &[f64], b: &[f64]| dot(&dy, &reference::forward(shape, eps, x, w, b).y);
        let dx = reference::backward_input(shape, &dy, &x, &w, mean, rstd);
        assert_gradient("dx", &dx, &finite_differences(&x, |x| loss(x, &w, &b)));
        let (dw, db) = reference::backward_weight(shape, &dy, &x, mean, rstd);
        assert_gradient("dw", &dw, &finite_differences(&w, |w| loss(&x, w, &b)));
        assert_gradient("db", &db, &finite_differences(&b, |b| loss(&x, &w, b)));
    }
}

/// Inputs, outputs and gradients of one shape in one storage type.
struct Case<T> {
    shape: Shape,
    eps: f32,
    x: Vec<T>,
    w: Vec<T>,
    b: Vec<T>,
    dy: Vec<T>,
}

impl<T: Float> Case<T> {
    fn new(rows: usize, channels: usize) -> Self {
        let len = rows * channels;
        // Rows off zero and outliers in some channels, as activations have them.
        let mut x: Vec<T> = normal(len, 1);
        for (i, x) in x.iter_mut().enumerate() {
            let outlier = if i % channels.max(1) == 5 { 100.0 } else { 1.0 };
            *x = T::from_f64(x.to_f64() * outlier + 3.0);
        }
        let shape = Shape { rows, channels };
        Self { shape, eps: 1e-5, x, w: normal(channels, 2), b: normal(channels, 3), dy: normal(len, 4) }
    }

    fn forward(&self, on: &On) -> (Vec<T>, Vec<f32>, Vec<f32>) {
        let (x, w, b) = (on.up(&self.x), on.up(&self.w), on.up(&self.b));
        let mut y = on.garbage::<T>(x.len());
        let (mut mean, mut rstd) = (on.garbage(self.shape.rows), on.garbage(self.shape.rows));
        let (mean_view, rstd_view) = (mean.as_view_mut(), rstd.as_view_mut());
        let (x, w, b) = (x.as_view(), w.as_view(), b.as_view());
        layernorm::forward(&on.stream, self.shape, self.eps, x, w, b, y.as_view_mut(), mean_view, rstd_view).unwrap();
        (on.down(&y), on.down(&mean), on.down(&rstd))
    }

    fn backward_input(&self, on: &On, mean: &[f32], rstd: &[f32], write: Write, before: &[T]) -> Vec<T> {
        let (dy, x, w) = (on.up(&self.dy), on.up(&self.x), on.up(&self.w));
        let (mean, rstd, mut dx) = (on.up(mean), on.up(rstd), on.up(before));
        let (dy, x, w, saved) = (dy.as_view(), x.as_view(), w.as_view(), (mean.as_view(), rstd.as_view()));
        layernorm::backward_input(&on.stream, self.shape, dy, x, w, saved.0, saved.1, write, dx.as_view_mut()).unwrap();
        on.down(&dx)
    }

    /// `dw` and then `db`, added to `before`.
    fn backward_weight(&self, on: &On, mean: &[f32], rstd: &[f32], before: &[f32]) -> Vec<f32> {
        let (dy, x, mean, rstd) = (on.up(&self.dy), on.up(&self.x), on.up(mean), on.up(rstd));
        let mut gradients = on.up(before);
        let (dw, db) = gradients.as_view_mut().split_at(self.shape.channels).unwrap();
        let (mean, rstd) = (mean.as_view(), rstd.as_view());
        layernorm::backward_weight(&on.stream, self.shape, dy.as_view(), x.as_view(), mean, rstd, dw, db).unwrap();
        on.down(&gradients)
    }

    fn check_forward(&self) {
        let Shape { rows, channels } = self.shape;
        let y = same_bits_for_threads(|on| self.forward(on).0);
        let (_, mean, rstd) = self.forward(&On::threads(2));
        let (x, w, b) = (f64s(&self.x), f64s(&self.w), f64s(&self.b));
        let exact = reference::forward(self.shape, f64::from(self.eps), &x, &w, &b);
        // The sum is f64 and rounded once; `assert_within` allows for that. 1e-15 is f64's own rounding.
        assert_within("mean", &mean, &exact.mean, |row| 1e-15 * sum_abs(&x[row * channels..][..channels]));
        // A difference is off by its rounding (its square by twice that) and by the mean's: u |mean| in all of a row,
        // which adds the square of that to the variance. The root halves both.
        let mean_error = |row: usize| U * exact.mean[row].abs() * exact.rstd[row];
        assert_within("rstd", &rstd, &exact.rstd, |row| exact.rstd[row] * (U + mean_error(row).powi(2)));
        // Rounded: the difference, rstd (2 U in all), their product, and the sum.
        assert_within("y", &y, &exact.y, |i| {
            let (row, c) = (i / channels, i % channels);
            let xhat = (x[i] - exact.mean[row]) * exact.rstd[row];
            w[c].abs() * (4.0 * U * xhat.abs() + mean_error(row)) + U * exact.y[i].abs()
        });
        assert_eq!(y.len(), rows * channels);
    }

    fn check_backward(&self) {
        let Shape { rows, channels } = self.shape;
        let (_, mean, rstd) = self.forward(&On::threads(1));
        let (dy, x, w) = (f64s(&self.dy), f64s(&self.x), f64s(&self.w));
        let (mean64, rstd64) = (f64s(&mean), f64s(&rstd));
        let before: Vec<T> = normal(rows * channels, 5);
        let xhat = |i: usize| (x[i] - mean64[i / channels]) * rstd64[i / channels];
        let g = |i: usize| dy[i] * w[i % channels];
        let row_average = |row: usize, term: &dyn Fn(usize) -> f64| {
            (row * channels..(row + 1) * channels).map(|i| term(i).abs()).sum::<f64>() / channels as f64
        };
        let averages: Vec<(f64, f64)> =
            (0..rows).map(|row| (row_average(row, &g), row_average(row, &|i| g(i) * xhat(i)))).collect();
        // Roundings of each term of `rstd (g - avg(g) - xhat avg(g xhat))`, its own and those of the operations after
        // it: g 1 + 3; avg(g) 1 in the terms, 1 in itself, 3 after; xhat 2, avg(g xhat) 4 in the terms, 1 in itself, 2
        // after.
        let bound = |i: usize| {
            let (avg_g, avg_gx) = averages[i / channels];
            U * rstd64[i / channels] * (4.0 * g(i).abs() + 5.0 * avg_g + 9.0 * xhat(i).abs() * avg_gx)
        };
        let exact = reference::backward_input(self.shape, &dy, &x, &w, &mean64, &rstd64);
        let set = same_bits_for_threads(|on| self.backward_input(on, &mean, &rstd, Write::Set, &before));
        assert_within("dx", &set, &exact, bound);
        let added = same_bits_for_threads(|on| self.backward_input(on, &mean, &rstd, Write::Add, &before));
        let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
        assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());

        let before: Vec<f32> = normal(2 * channels, 6);
        let given = same_bits_for_threads(|on| self.backward_weight(on, &mean, &rstd, &before));
        let (dw, db) = reference::backward_weight(self.shape, &dy, &x, &mean64, &rstd64);
        let exact: Vec<f64> = dw.iter().chain(&db).zip(&before).map(|(sum, before)| sum + f64::from(*before)).collect();
        // The terms of dw are rounded three times, those of db are exact; the sums are f64.
        assert_within("dw, db", &given, &exact, |i| {
            let column = (0..rows).map(|row| row * channels + i % channels);
            let terms =
                column.map(|j| if i < channels { 3.0 * U * (dy[j] * xhat(j)).abs() } else { 1e-15 * dy[j].abs() });
            terms.sum::<f64>()
        });
    }
}

fn sum_abs(values: &[f64]) -> f64 {
    values.iter().map(|value| value.abs()).sum()
}

#[test]
fn every_shape_and_storage_is_within_its_bound_and_the_same_for_every_thread_count() {
    for (rows, channels) in [(1, 1), (5, 3), (3, 64), (300, 31), (33, 128), (768, 128), (2, 65_537), (2500, 64)] {
        let case = Case::<f32>::new(rows, channels);
        case.check_forward();
        case.check_backward();
    }
    for (rows, channels) in [(1, 1), (7, 65), (260, 48)] {
        let case = Case::<bf16>::new(rows, channels);
        case.check_forward();
        case.check_backward();
        let case = Case::<f16>::new(rows, channels);
        case.check_forward();
        case.check_backward();
    }
}

#[test]
fn a_row_of_zero_variance_is_the_bias_exactly() {
    for value in [0.0f32, 0.1, -3e7, 1e30] {
        let x = vec![value; 3 * 100];
        let case = Case { x, ..Case::<f32>::new(3, 100) };
        let (y, mean, rstd) = case.forward(&On::threads(2));
        assert_eq!(y, [case.b.clone(), case.b.clone(), case.b.clone()].concat());
        assert_eq!((mean[0], rstd[0]), (value, (1.0 / f64::from(case.eps).sqrt()) as f32));
    }
}

#[test]
fn nan_and_infinity_spoil_their_row_and_no_other() {
    let mut case = Case::<f32>::new(4, 40);
    case.x[45] = f32::NAN;
    case.x[85] = f32::INFINITY;
    case.check_forward();
    let (y, ..) = case.forward(&On::threads(1));
    for (i, y) in y.iter().enumerate() {
        assert_eq!(y.is_nan(), (40..120).contains(&i), "{i}");
    }
}

#[test]
fn nothing_to_do_is_done() {
    let on = On::threads(2);
    let case = Case::<f32>::new(0, 8);
    assert_eq!(case.forward(&on), (vec![], vec![], vec![]));
    assert_eq!(case.backward_input(&on, &[], &[], Write::Set, &[]), []);
    let before = normal::<f32>(16, 1);
    assert_eq!(case.backward_weight(&on, &[], &[], &before), before);
    let case = Case::<f32>::new(2, 0);
    let rstd = 1.0 / 1e-5f32.sqrt();
    assert_eq!(case.forward(&on), (vec![], vec![0.0; 2], vec![rstd; 2]));
    assert_eq!(case.backward_weight(&on, &[0.0; 2], &[rstd; 2], &[]), []);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let shape = Shape { rows: 2, channels: 3 };
    let (long, short) = (on.up(&[1.0f32; 6]), on.up(&[1.0f32; 3]));
    let mut y = on.up(&[7.0f32; 6]);
    let (mut mean, mut rstd) = (on.up(&[7.0f32; 2]), on.up(&[7.0f32; 3]));
    let mut forward = |eps: f32, w: &warpweft_device::Buffer<f32>| {
        let (x, b) = (long.as_view(), short.as_view());
        let (mean, rstd) = (mean.as_view_mut(), rstd.as_view_mut());
        layernorm::forward(&on.stream, shape, eps, x, w.as_view(), b, y.as_view_mut(), mean, rstd)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(forward(1e-5, &long), "layernorm forward: `w` has 6 elements; its shape 3 needs 3");
    assert_eq!(forward(1e-5, &short), "layernorm forward: `rstd` has 3 elements; its shape 2 needs 2");
    assert_eq!(forward(-1.0, &short), "layernorm forward: `eps` is -1; it must be finite and at least 0");
    assert_eq!(forward(f32::NAN, &short), "layernorm forward: `eps` is NaN; it must be finite and at least 0");
    let elsewhere = On::threads(1).up(&[1.0f32; 3]);
    assert!(forward(1e-5, &elsewhere).starts_with("w is on device"));
    assert_eq!((on.down(&y), on.down(&mean)), (vec![7.0; 6], vec![7.0; 2]));

    let scalars = on.up(&[1.0f32; 2]);
    let (dy, x, w, s) = (long.as_view(), short.as_view(), short.as_view(), scalars.as_view());
    let error = layernorm::backward_input(&on.stream, shape, dy, x, w, s, s, Write::Set, y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "layernorm backward_input: `x` has 3 elements; its shape 2 x 3 needs 6");
    let (dw, db) = y.as_view_mut().split_at(3).unwrap();
    let db = db.slice(1..).unwrap();
    let error = layernorm::backward_weight(&on.stream, shape, dy, dy, s, s, dw, db).unwrap_err();
    assert_eq!(error.to_string(), "layernorm backward_weight: `db` has 2 elements; its shape 3 needs 3");
    assert_eq!(on.down(&y), [7.0; 6]);
}
