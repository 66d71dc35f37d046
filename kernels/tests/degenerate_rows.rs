//! Degenerate inputs of the ops that sum along rows: softmax, LayerNorm, RMSNorm.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, degenerate_inputs};
use common::padded::Padded;
use common::{On, U, assert_within, f64s, integers, normal, row_error};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::{Write, layernorm, rmsnorm, softmax};

struct Softmax;

degenerate_inputs!(Softmax: softmax_no_rows, softmax_no_columns, softmax_rows_of_65_537, softmax_off_by_one, softmax_between_nans);

impl Op for Softmax {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let on = On::software();
        let (shape, options) = (softmax::Shape { rows, columns }, softmax::Options::default());
        let (x, dy) = (normal::<T>(rows * columns, 1), normal::<T>(rows * columns, 2));
        let mut y = on.padded_garbage::<T>(before, x.len());
        softmax::forward(&on.stream, shape, options, on.padded(before, &x).view(), y.view_mut()).unwrap();
        let y = y.down(&on);
        let exact = softmax::reference::forward(shape, options, &f64s(&x));
        let largest = f64s(&x).into_iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        // Difference and exponential (2 units) here, in the sum's terms and in the rescaling of partial sums; the sum, the reciprocal
        // and the product with it.
        let relative = (6.0 * largest + 12.0) * U + row_error::<T>(columns);
        assert_within("y", &y, &exact, |i| exact[i] * relative + 2f64.powi(-126));

        let mut dx = on.padded_garbage::<T>(before, x.len());
        let (from, out) = (on.padded(before, &dy), on.padded(before, &y));
        softmax::backward(&on.stream, shape, options, from.view(), out.view(), Write::Set, dx.view_mut()).unwrap();
        let (dy, y) = (f64s(&dy), f64s(&y));
        let exact = softmax::reference::backward(shape, options, &dy, &y);
        let of_row = |row: usize| row * columns..(row + 1) * columns;
        let terms: Vec<f64> = (0..rows).map(|row| of_row(row).map(|i| (y[i] * dy[i]).abs()).sum()).collect();
        assert_within("dx", &dx.down(&on), &exact, |i| {
            let terms = terms[i / columns];
            y[i] * (4.0 * U * (dy[i].abs() + terms) + terms * row_error::<T>(columns)) + 2f64.powi(-126)
        });
    }
}

/// Rows whose mean is 0 and whose variance and `eps` are 1 together, so that `rstd` is 1: of +1, -1 and with an odd number of columns
/// one 0. A branch that is added first, in whole numbers, takes nothing from that.
struct Signs<T> {
    eps: f32,
    before: usize,
    /// Its sum with the branch are the signs.
    x: Vec<T>,
    branch: Vec<T>,
    signs: Vec<f64>,
    w: Vec<T>,
    b: Vec<T>,
    dy: Vec<T>,
}

impl<T: Float> Signs<T> {
    fn new(rows: usize, columns: usize, before: usize) -> Self {
        let sign = |i: usize| {
            // 7 divides no number of columns here: each place has another rank.
            let rank = (i * 7 + i / columns) % columns;
            let of = if rank < columns / 2 { 1.0 } else { -1.0 };
            if rank == columns / 2 * 2 { 0.0 } else { of }
        };
        let signs: Vec<f64> = (0..rows * columns).map(sign).collect();
        let branch = integers::<T>(signs.len(), 1);
        let x = signs.iter().zip(&branch).map(|(sign, branch)| T::from_f64(sign - branch.to_f64())).collect();
        let eps = if columns == 0 { 1.0 } else { (columns % 2) as f32 / columns as f32 };
        let [w, b] = [2, 3].map(|seed| integers(columns, seed));
        Self { eps, before, x, branch, w, b, dy: integers(signs.len(), 4), signs }
    }

    /// The signs as the input itself.
    fn alone(&self) -> Vec<T> {
        self.signs.iter().map(|sign| T::from_f64(*sign)).collect()
    }

    /// One of the arrays on the device.
    fn up(&self, on: &On, values: &[T]) -> Padded<T> {
        on.padded(self.before, values)
    }

    /// y = signs w (+ b), within the roundings of variance and `eps`, of the root, the reciprocal and the products.
    #[track_caller]
    fn assert_y(&self, y: &[T], with_bias: bool) {
        let columns = self.w.len();
        let product = |i: usize| self.signs[i] * self.w[i % columns].to_f64();
        let bias = |i: usize| if with_bias { self.b[i % columns].to_f64() } else { 0.0 };
        let exact: Vec<f64> = (0..y.len()).map(|i| product(i) + bias(i)).collect();
        assert_within("y", y, &exact, |i| U * (8.0 * product(i).abs() + exact[i].abs()));
    }

    /// dx of a mean of 0 and an `rstd` of 1: all sums are of whole numbers and exact, the averages are rounded.
    #[track_caller]
    fn assert_dx(&self, dx: &[T], centred: bool) {
        let columns = self.w.len();
        let g = |i: usize| self.dy[i].to_f64() * self.w[i % columns].to_f64();
        let of_row = |i: usize| i / columns * columns..(i / columns + 1) * columns;
        let averages: Vec<[f64; 2]> = (0..dx.len() / columns.max(1))
            .map(|row| {
                let row = || of_row(row * columns);
                let average = |of: &dyn Fn(usize) -> f64| row().map(of).sum::<f64>() / columns as f64;
                [if centred { average(&g) } else { 0.0 }, average(&|i| g(i) * self.signs[i])]
            })
            .collect();
        let term = |i: usize| averages[i / columns];
        let exact: Vec<f64> = (0..dx.len()).map(|i| g(i) - term(i)[0] - self.signs[i] * term(i)[1]).collect();
        let bound = |i: usize| U * (2.0 * term(i)[0].abs() + 2.0 * term(i)[1].abs() + 2.0 * g(i).abs());
        assert_within("dx", dx, &exact, bound);
    }

    /// Sums of whole numbers over the rows, each added to 2.
    fn columns(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        let columns = self.w.len();
        (0..columns).map(|c| 2.0 + (c..self.dy.len()).step_by(columns).map(&of).sum::<f64>()).collect()
    }

    fn dw(&self) -> Vec<f64> {
        self.columns(|i| self.dy[i].to_f64() * self.signs[i])
    }

    fn db(&self) -> Vec<f64> {
        self.columns(|i| self.dy[i].to_f64())
    }
}

/// `rstd` is 1 but for the rounding of variance, `eps`, root and reciprocal.
#[track_caller]
fn assert_ones(rstd: &[f32]) {
    assert_within("rstd", rstd, &vec![1.0; rstd.len()], |_| 5.0 * U);
}

struct LayerNorm;

degenerate_inputs!(LayerNorm: layernorm_no_rows, layernorm_no_columns, layernorm_rows_of_65_537, layernorm_off_by_one, layernorm_between_nans);

impl LayerNorm {
    fn run<T: Float>(case: &Signs<T>, rows: usize) {
        let (on, columns) = (On::software(), case.w.len());
        let (shape, stream) = (layernorm::Shape { rows, channels: columns }, &on.stream);
        let [w, b, dy] = [&case.w, &case.b, &case.dy].map(|values| case.up(&on, values));
        for with_branch in [false, true] {
            let x = if with_branch { &case.x } else { &case.alone() };
            let [x, branch] = [x, &case.branch].map(|values| case.up(&on, values));
            let [mut sum, mut y] = [0; 2].map(|_| on.padded_garbage::<T>(case.before, case.x.len()));
            let [mut mean, mut rstd] = [0; 2].map(|_| on.padded_garbage::<f32>(1, rows));
            let (x, w, b, saved) = (x.view(), w.view(), b.view(), (mean.view_mut(), rstd.view_mut()));
            if with_branch {
                let (eps, branch, sum, y) = (case.eps, branch.view(), sum.view_mut(), y.view_mut());
                layernorm::forward_residual(stream, shape, eps, x, branch, w, b, sum, y, saved.0, saved.1).unwrap();
            } else {
                layernorm::forward(stream, shape, case.eps, x, w, b, y.view_mut(), saved.0, saved.1).unwrap();
            }
            if with_branch {
                assert_eq!(f64s(&sum.down(&on)), case.signs);
            }
            case.assert_y(&y.down(&on), true);
            assert_eq!(mean.down(&on), vec![0.0; rows]);
            assert_ones(&rstd.down(&on));
        }
        let (x, mut dx) = (case.up(&on, &case.alone()), on.padded_garbage::<T>(case.before, case.x.len()));
        let [mean, rstd] = [0.0, 1.0].map(|of: f32| on.padded(1, &vec![of; rows]));
        let (mean, rstd) = (mean.view(), rstd.view());
        layernorm::backward_input(stream, shape, dy.view(), x.view(), w.view(), mean, rstd, Write::Set, dx.view_mut())
            .unwrap();
        case.assert_dx(&dx.down(&on), true);
        let [mut dw, mut db] = [0; 2].map(|_| on.padded(1, &vec![2f32; columns]));
        let out = (dw.view_mut(), db.view_mut());
        layernorm::backward_weight(stream, shape, dy.view(), x.view(), mean, rstd, out.0, out.1).unwrap();
        assert_eq!((f64s(&dw.down(&on)), f64s(&db.down(&on))), (case.dw(), case.db()));
    }
}

impl Op for LayerNorm {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        Self::run(&Signs::<T>::new(rows, columns, before), rows);
    }
}

struct RmsNorm;

degenerate_inputs!(RmsNorm: rmsnorm_no_rows, rmsnorm_no_columns, rmsnorm_rows_of_65_537, rmsnorm_off_by_one, rmsnorm_between_nans);

impl RmsNorm {
    fn run<T: Float>(case: &Signs<T>, rows: usize) {
        let (on, columns) = (On::software(), case.w.len());
        let (shape, stream) = (rmsnorm::Shape { rows, channels: columns }, &on.stream);
        let [w, dy] = [&case.w, &case.dy].map(|values| case.up(&on, values));
        for with_branch in [false, true] {
            let x = if with_branch { &case.x } else { &case.alone() };
            let [x, branch] = [x, &case.branch].map(|values| case.up(&on, values));
            let [mut sum, mut y] = [0; 2].map(|_| on.padded_garbage::<T>(case.before, case.x.len()));
            let mut rstd = on.padded_garbage::<f32>(1, rows);
            let (x, w, eps) = (x.view(), w.view(), case.eps);
            if with_branch {
                let (branch, sum, y, rstd) = (branch.view(), sum.view_mut(), y.view_mut(), rstd.view_mut());
                rmsnorm::forward_residual(stream, shape, eps, x, branch, w, sum, y, rstd).unwrap();
            } else {
                rmsnorm::forward(stream, shape, eps, x, w, y.view_mut(), rstd.view_mut()).unwrap();
            }
            if with_branch {
                assert_eq!(f64s(&sum.down(&on)), case.signs);
            }
            case.assert_y(&y.down(&on), false);
            assert_ones(&rstd.down(&on));
        }
        let (x, mut dx) = (case.up(&on, &case.alone()), on.padded_garbage::<T>(case.before, case.x.len()));
        let rstd = on.padded(1, &vec![1f32; rows]);
        let (x, dy, rstd) = (x.view(), dy.view(), rstd.view());
        rmsnorm::backward_input(stream, shape, dy, x, w.view(), rstd, Write::Set, dx.view_mut()).unwrap();
        case.assert_dx(&dx.down(&on), false);
        let mut dw = on.padded(1, &vec![2f32; columns]);
        rmsnorm::backward_weight(stream, shape, dy, x, rstd, dw.view_mut()).unwrap();
        assert_eq!(f64s(&dw.down(&on)), case.dw());
    }
}

impl Op for RmsNorm {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        Self::run(&Signs::<T>::new(rows, columns, before), rows);
    }
}

/// Under a weight of zeros y is the bias, dx is 0, and the weight has its gradient all the same.
fn without_weight<T: Float>() -> Signs<T> {
    let mut case = Signs::<T>::new(3, 40, 8);
    case.w.fill(T::ZERO);
    case
}

#[test]
fn layernorm_zero_weight() {
    LayerNorm::run(&without_weight::<f32>(), 3);
    LayerNorm::run(&without_weight::<bf16>(), 3);
    LayerNorm::run(&without_weight::<f16>(), 3);
}

#[test]
fn rmsnorm_zero_weight() {
    RmsNorm::run(&without_weight::<f32>(), 3);
    RmsNorm::run(&without_weight::<bf16>(), 3);
    RmsNorm::run(&without_weight::<f16>(), 3);
}
