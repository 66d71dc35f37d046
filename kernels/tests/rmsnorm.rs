//! RMSNorm: the reference against finite differences, the fast path against the reference within bounds derived from
//! its operations, and what degenerate and wrong arguments do.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::rmsnorm::{self, Shape, reference};

#[test]
fn the_reference_gradients_are_those_of_finite_differences() {
    for channels in [1, 2, 7] {
        let shape = Shape { rows: 3, channels };
        let [x, dy] = [1, 2].map(|seed| f64s(&normal::<f32>(3 * channels, seed)));
        let w = f64s(&normal::<f32>(channels, 3));
        let eps = 0.5;
        let rstd = reference::forward(shape, eps, &x, &w).1;
        let loss = |x: &[f64], w: &[f64]| dot(&dy, &reference::forward(shape, eps, x, w).0);
        let dx = reference::backward_input(shape, &dy, &x, &w, &rstd);
        assert_gradient("dx", &dx, &finite_differences(&x, |x| loss(x, &w)));
        let dw = reference::backward_weight(shape, &dy, &x, &rstd);
        assert_gradient("dw", &dw, &finite_differences(&w, |w| loss(&x, w)));
    }
}

/// Inputs of one shape in one storage type.
struct Case<T> {
    shape: Shape,
    x: Vec<T>,
    w: Vec<T>,
    dy: Vec<T>,
}

const EPS: f32 = 1e-5;

impl<T: Float> Case<T> {
    fn new(rows: usize, channels: usize) -> Self {
        let len = rows * channels;
        // Outliers in some channels, as activations have them.
        let mut x: Vec<T> = normal(len, 1);
        x.iter_mut().skip(5).step_by(channels.max(6)).for_each(|x| *x = T::from_f64(x.to_f64() * 100.0));
        Self { shape: Shape { rows, channels }, x, w: normal(channels, 2), dy: normal(len, 4) }
    }

    fn forward(&self, on: &On) -> (Vec<T>, Vec<f32>) {
        let (x, w, mut y) = (on.up(&self.x), on.up(&self.w), on.garbage::<T>(self.x.len()));
        let mut rstd = on.garbage(self.shape.rows);
        let (x, w, rstd_view) = (x.as_view(), w.as_view(), rstd.as_view_mut());
        rmsnorm::forward(&on.stream, self.shape, EPS, x, w, y.as_view_mut(), rstd_view).unwrap();
        (on.down(&y), on.down(&rstd))
    }

    fn backward_input(&self, on: &On, rstd: &[f32], write: Write, before: &[T]) -> Vec<T> {
        let (dy, x, w, rstd) = (on.up(&self.dy), on.up(&self.x), on.up(&self.w), on.up(rstd));
        let (dy, x, w, rstd, mut dx) = (dy.as_view(), x.as_view(), w.as_view(), rstd.as_view(), on.up(before));
        rmsnorm::backward_input(&on.stream, self.shape, dy, x, w, rstd, write, dx.as_view_mut()).unwrap();
        on.down(&dx)
    }

    fn backward_weight(&self, on: &On, rstd: &[f32], before: &[f32]) -> Vec<f32> {
        let (dy, x, rstd, mut dw) = (on.up(&self.dy), on.up(&self.x), on.up(rstd), on.up(before));
        let (dy, x, rstd) = (dy.as_view(), x.as_view(), rstd.as_view());
        rmsnorm::backward_weight(&on.stream, self.shape, dy, x, rstd, dw.as_view_mut()).unwrap();
        on.down(&dw)
    }

    fn check(&self) {
        let Shape { rows, channels } = self.shape;
        let (x, w, dy) = (f64s(&self.x), f64s(&self.w), f64s(&self.dy));
        let y = same_bits_for_threads(|on| self.forward(on).0);
        let rstd = self.forward(&On::threads(3)).1;
        let (exact, exact_rstd) = reference::forward(self.shape, f64::from(EPS), &x, &w);
        // All f64 but for the rounding, which `assert_within` allows.
        assert_within("rstd", &rstd, &exact_rstd, |row| 1e-15 * exact_rstd[row]);
        // Rounded: rstd and two products.
        assert_within("y", &y, &exact, |i| 3.0 * U * exact[i].abs());

        let rstd64 = f64s(&rstd);
        let xhat = |i: usize| x[i] * rstd64[i / channels];
        let g = |i: usize| dy[i] * w[i % channels];
        let average = |row: usize| {
            (row * channels..(row + 1) * channels).map(|i| (g(i) * xhat(i)).abs()).sum::<f64>() / channels as f64
        };
        let averages: Vec<f64> = (0..rows).map(average).collect();
        // Roundings of each term of `rstd (g - xhat avg(g xhat))`: g 1 + 2; xhat 1, avg(g xhat) 3 in the terms, 1 in
        // itself, 2 after.
        let bound =
            |i: usize| U * rstd64[i / channels] * (3.0 * g(i).abs() + 7.0 * xhat(i).abs() * averages[i / channels]);
        let before: Vec<T> = normal(rows * channels, 5);
        let exact = reference::backward_input(self.shape, &dy, &x, &w, &rstd64);
        let set = same_bits_for_threads(|on| self.backward_input(on, &rstd, Write::Set, &before));
        assert_within("dx", &set, &exact, bound);
        let added = same_bits_for_threads(|on| self.backward_input(on, &rstd, Write::Add, &before));
        let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
        assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());

        let before: Vec<f32> = normal(channels, 6);
        let dw = same_bits_for_threads(|on| self.backward_weight(on, &rstd, &before));
        let sums = reference::backward_weight(self.shape, &dy, &x, &rstd64);
        let exact: Vec<f64> = sums.iter().zip(&before).map(|(sum, before)| sum + f64::from(*before)).collect();
        assert_within("dw", &dw, &exact, |c| {
            (0..rows).map(|row| row * channels + c).map(|i| 2.0 * U * (dy[i] * xhat(i)).abs()).sum::<f64>()
        });
    }
}

#[test]
fn every_shape_and_storage_is_within_its_bound_and_the_same_for_every_thread_count() {
    for (rows, channels) in [(1, 1), (5, 3), (300, 31), (768, 128), (2, 65_537), (2500, 64)] {
        Case::<f32>::new(rows, channels).check();
    }
    for (rows, channels) in [(1, 1), (7, 65), (260, 48)] {
        Case::<bf16>::new(rows, channels).check();
        Case::<f16>::new(rows, channels).check();
    }
}

#[test]
fn rows_of_zeros_and_of_huge_numbers() {
    let mut case = Case::<f32>::new(2, 50);
    case.x[..50].fill(0.0);
    case.x[50..].fill(-1e30);
    let (y, rstd) = case.forward(&On::threads(1));
    assert_eq!(y[..50], [0.0; 50]);
    assert_eq!(rstd, [(1.0 / f64::from(EPS).sqrt()) as f32, 1e-30]);
    case.check();
}

#[test]
fn nan_and_infinity_stay_in_their_row() {
    let mut case = Case::<f32>::new(4, 40);
    case.x[45] = f32::NAN;
    case.x[85] = f32::INFINITY;
    let (y, rstd) = case.forward(&On::threads(1));
    let (x, w) = (f64s(&case.x), f64s(&case.w));
    let (exact, exact_rstd) = reference::forward(case.shape, f64::from(EPS), &x, &w);
    assert_within("rstd", &rstd, &exact_rstd, |row| 1e-15 * exact_rstd[row]);
    assert_within("y", &y, &exact, |i| 3.0 * U * exact[i].abs());
    let nans: Vec<usize> = (0..160).filter(|&i| y[i].is_nan()).collect();
    assert_eq!(nans, (40..80).chain([85]).collect::<Vec<_>>());
}

#[test]
fn nothing_to_do_is_done() {
    let on = On::threads(2);
    let case = Case::<f32>::new(0, 8);
    assert_eq!(case.forward(&on), (vec![], vec![]));
    assert_eq!(case.backward_input(&on, &[], Write::Set, &[]), []);
    let before = normal::<f32>(8, 1);
    assert_eq!(case.backward_weight(&on, &[], &before), before);
    let case = Case::<f32>::new(2, 0);
    assert_eq!(case.forward(&on), (vec![], vec![1.0 / EPS.sqrt(); 2]));
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let shape = Shape { rows: 2, channels: 3 };
    let (long, short, scalars) = (on.up(&[1.0f32; 6]), on.up(&[1.0f32; 3]), on.up(&[1.0f32; 2]));
    let (mut y, mut rstd) = (on.up(&[7.0f32; 6]), on.up(&[7.0f32; 2]));
    let (x, w, s) = (long.as_view(), short.as_view(), scalars.as_view());
    let mut forward = |eps, x, w| {
        let error = rmsnorm::forward(&on.stream, shape, eps, x, w, y.as_view_mut(), rstd.as_view_mut());
        error.unwrap_err().to_string()
    };
    assert_eq!(forward(EPS, w, w), "rmsnorm forward: `x` has 3 elements; its shape 2 x 3 needs 6");
    assert_eq!(forward(EPS, x, x), "rmsnorm forward: `w` has 6 elements; its shape 3 needs 3");
    assert_eq!(forward(f32::INFINITY, x, w), "rmsnorm forward: `eps` is inf; it must be finite and at least 0");
    let error = rmsnorm::backward_input(&on.stream, shape, x, x, w, w, Write::Set, y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "rmsnorm backward_input: `rstd` has 3 elements; its shape 2 needs 2");
    let error = rmsnorm::backward_weight(&on.stream, shape, x, x, s, y.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "rmsnorm backward_weight: `dw` has 6 elements; its shape 3 needs 3");
    assert_eq!((on.down(&y), on.down(&rstd)), (vec![7.0; 6], vec![7.0; 2]));
}
