//! The kernels of LayerNorm on the software device, under every check and in every way of running.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Judge, Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, U, assert_like_the_cpu, assert_within, columns_error, f64s, integers, normal, row_error};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::layernorm::{self, Shape, reference};

/// Inputs of one shape in one storage type, `before` elements behind the begin of their buffers.
struct Case<T> {
    shape: Shape,
    before: usize,
    x: Vec<T>,
    branch: Option<Vec<T>>,
    w: Vec<T>,
    b: Vec<T>,
    dy: Vec<T>,
}

const EPS: f32 = 1e-5;

/// What forward writes: the sum with the branch (x without), y, mean and rstd.
type Out<T> = (Vec<T>, Vec<T>, Vec<f32>, Vec<f32>);

impl<T: Float> Case<T> {
    /// Rows off zero with outliers in some channels, as activations have them.
    fn new(rows: usize, channels: usize, before: usize) -> Self {
        let len = rows * channels;
        let mut x: Vec<T> = normal(len, 1);
        for (i, x) in x.iter_mut().enumerate() {
            let outlier = if i % channels.max(1) == 5 { 100.0 } else { 1.0 };
            *x = T::from_f64(x.to_f64() * outlier + 3.0);
        }
        let (w, b, dy) = (normal(channels, 2), normal(channels, 3), normal(len, 4));
        Self { shape: Shape { rows, channels }, before, x, branch: None, w, b, dy }
    }

    fn with_branch(self) -> Self {
        Self { branch: Some(normal(self.x.len(), 7)), ..self }
    }

    fn forward(&self, on: &On) -> Out<T> {
        let [x, w, b] = [&self.x, &self.w, &self.b].map(|values| on.padded(self.before, values));
        let [mut sum, mut y] = [0; 2].map(|_| on.padded_garbage::<T>(self.before, self.x.len()));
        let [mut mean, mut rstd] = [0; 2].map(|_| on.padded_garbage::<f32>(1, self.shape.rows));
        let (stream, shape, x, w, b) = (&on.stream, self.shape, x.view(), w.view(), b.view());
        let (y_out, saved) = (y.view_mut(), (mean.view_mut(), rstd.view_mut()));
        match &self.branch {
            None => layernorm::forward(stream, shape, EPS, x, w, b, y_out, saved.0, saved.1).unwrap(),
            Some(branch) => {
                let (branch, sum) = (on.padded(self.before, branch), sum.view_mut());
                let branch = branch.view();
                layernorm::forward_residual(stream, shape, EPS, x, branch, w, b, sum, y_out, saved.0, saved.1).unwrap();
            }
        }
        let sum = if self.branch.is_some() { sum.down(on) } else { self.x.clone() };
        (sum, y.down(on), mean.down(on), rstd.down(on))
    }

    fn backward_input(&self, on: &On, saved: [&[f32]; 2], write: Write, before: &[T]) -> Vec<T> {
        let [dy, x, w] = [&self.dy, &self.x, &self.w].map(|values| on.padded(self.before, values));
        let ([mean, rstd], mut dx) = (saved.map(|values| on.padded(3, values)), on.padded(self.before, before));
        let (stream, shape, mean, rstd) = (&on.stream, self.shape, mean.view(), rstd.view());
        let (dy, x, w) = (dy.view(), x.view(), w.view());
        layernorm::backward_input(stream, shape, dy, x, w, mean, rstd, write, dx.view_mut()).unwrap();
        dx.down(on)
    }

    /// `dw` and then `db`, added to `before`.
    fn backward_weight(&self, on: &On, saved: [&[f32]; 2], before: &[f32]) -> Vec<f32> {
        let [dy, x] = [&self.dy, &self.x].map(|values| on.padded(self.before, values));
        let ([mean, rstd], mut gradients) = (saved.map(|values| on.padded(3, values)), on.padded(0, before));
        let (dw, db) = gradients.view_mut().split_at(self.shape.channels).unwrap();
        let (dy, x, mean, rstd) = (dy.view(), x.view(), mean.view(), rstd.view());
        layernorm::backward_weight(&on.stream, self.shape, dy, x, mean, rstd, dw, db).unwrap();
        gradients.down(on)
    }

    fn check_forward(&self, ways: Ways) {
        let Shape { rows, channels } = self.shape;
        let (sum, y, mean, rstd) = ways.same(|on| self.forward(on));
        let (cpu_sum, cpu_y, ..) = self.forward(&On::threads(1));
        assert_eq!(f64s(&sum), f64s(&cpu_sum), "sum");
        let (x, w, b) = (f64s(&sum), f64s(&self.w), f64s(&self.b));
        let exact = reference::forward(self.shape, f64::from(EPS), &x, &w, &b);
        let error = row_error::<T>(channels);
        let of_row = |row: usize| &x[row * channels..][..channels];
        // The sum, and the division.
        let magnitude = |row: usize| of_row(row).iter().map(|x| x.abs()).sum::<f64>() / channels as f64;
        let mean_errors: Vec<f64> = (0..rows).map(|row| error * magnitude(row) + U * exact.mean[row].abs()).collect();
        let mean_error = |row: usize| mean_errors[row];
        assert_within("mean", &mean, &exact.mean, mean_error);
        // Relative: of the squares' sum, differences and division, halved by the root; the root and the reciprocal. The mean's
        // error adds its square, as differences sum to nothing.
        let rstd_error = |row: usize| 0.5 * (error + 4.0 * U) + 2.0 * U + (mean_error(row) * exact.rstd[row]).powi(2);
        assert_within("rstd", &rstd, &exact.rstd, |row| exact.rstd[row] * rstd_error(row));
        assert_within("y", &y, &exact.y, |i| {
            let (row, c) = (i / channels, i % channels);
            let xhat = (x[i] - exact.mean[row]) * exact.rstd[row];
            let off = (rstd_error(row) + 2.0 * U) * xhat.abs() + mean_error(row) * exact.rstd[row];
            w[c].abs() * off + U * exact.y[i].abs()
        });
        assert_like_the_cpu("y", &y, &cpu_y, &exact.y, 2.0);
        assert_eq!(y.len(), rows * channels);
    }

    fn check_backward(&self, ways: Ways) {
        let Shape { rows, channels } = self.shape;
        let (_, _, mean, rstd) = self.forward(&On::threads(1));
        let saved = [mean.as_slice(), rstd.as_slice()];
        let (dy, x, w, mean, rstd) = (f64s(&self.dy), f64s(&self.x), f64s(&self.w), f64s(&mean), f64s(&rstd));
        let before: Vec<T> = normal(rows * channels, 5);
        let xhat = |i: usize| (x[i] - mean[i / channels]) * rstd[i / channels];
        let g = |i: usize| dy[i] * w[i % channels];
        let average = |row: usize, term: &dyn Fn(usize) -> f64| {
            (row * channels..(row + 1) * channels).map(|i| term(i).abs()).sum::<f64>() / channels as f64
        };
        let averages: Vec<(f64, f64)> =
            (0..rows).map(|row| (average(row, &g), average(row, &|i| g(i) * xhat(i)))).collect();
        // As on the CPU (tests/layernorm.rs), and the sums' own errors.
        let sums = row_error::<T>(channels);
        let bound = |i: usize| {
            let (avg_g, avg_gx) = averages[i / channels];
            let terms = 4.0 * g(i).abs() + 5.0 * avg_g + 9.0 * xhat(i).abs() * avg_gx;
            rstd[i / channels] * (U * terms + sums * (avg_g + xhat(i).abs() * avg_gx))
        };
        let exact = reference::backward_input(self.shape, &dy, &x, &w, &mean, &rstd);
        let set = ways.same(|on| self.backward_input(on, saved, Write::Set, &before));
        assert_within("dx", &set, &exact, bound);
        assert_like_the_cpu("dx", &set, &self.backward_input(&On::threads(1), saved, Write::Set, &before), &exact, 3.0);
        let added = ways.same(|on| self.backward_input(on, saved, Write::Add, &before));
        let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
        assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());

        let before: Vec<f32> = normal(2 * channels, 6);
        let given = ways.same(|on| self.backward_weight(on, saved, &before));
        let (dw, db) = reference::backward_weight(self.shape, &dy, &x, &mean, &rstd);
        let exact: Vec<f64> = dw.iter().chain(&db).zip(&before).map(|(sum, before)| sum + f64::from(*before)).collect();
        assert_within("dw, db", &given, &exact, |i| {
            let column = (0..rows).map(|row| row * channels + i % channels);
            let (terms, rounded): (f64, f64) = match i < channels {
                true => (column.map(|j| (dy[j] * xhat(j)).abs()).sum(), 3.0 * U),
                false => (column.map(|j| dy[j].abs()).sum(), 0.0),
            };
            terms * (rounded + columns_error())
        });
    }
}

fn check<T: Float>(rows: usize, channels: usize, before: usize, ways: Ways) {
    let case = Case::<T>::new(rows, channels, before);
    case.check_backward(ways);
    case.check_forward(ways);
    case.with_branch().check_forward(ways);
}

#[test]
fn tiles_are_right_in_every_way() {
    for (rows, channels, before) in [(1, 1, 8), (3, 7, 1), (5, 32, 8), (2, 128, 8)] {
        check::<f32>(rows, channels, before, Ways::EVERY);
        check::<bf16>(rows, channels, before, Ways::EVERY);
        check::<f16>(rows + 1, channels, before, Ways::EVERY);
    }
}

#[test]
fn large_shapes_are_right() {
    check::<f32>(300, 260, 8, Ways::TWO);
    check::<bf16>(2, 5003, 8, Ways::TWO);
    check::<bf16>(130, 1024, 1, Ways::TWO);
    check::<f16>(2, 4096, 8, Ways::TWO);
    check::<f32>(1, 65_537, 8, Ways::TWO);
}

#[test]
fn whole_numbers_are_summed_exactly() {
    let shape = Shape { rows: 257, channels: 40 };
    let case = Case::<bf16> { dy: integers(257 * 40, 3), x: integers(257 * 40, 4), ..Case::new(257, 40, 8) };
    let (mean, rstd) = (vec![1.0; 257], vec![0.5; 257]);
    let given = case.backward_weight(&On::software(), [&mean, &rstd], &vec![2.0; 80]);
    let (dy, x) = (f64s(&case.dy), f64s(&case.x));
    let (dw, db) = reference::backward_weight(shape, &dy, &x, &vec![1.0; 257], &vec![0.5; 257]);
    let exact: Vec<f64> = dw.iter().chain(&db).map(|sum| sum + 2.0).collect();
    assert_eq!(f64s(&given), exact);
}

#[test]
fn degenerate_rows_are_as_on_the_cpu() {
    // One value, one infinity, one NaN.
    let mut case = Case::<f32>::new(3, 33, 1);
    case.x[..33].fill(7.0);
    case.x[40] = f32::INFINITY;
    case.x[70] = f32::NAN;
    let [given, expected] = [On::software_with_nans(), On::threads(1)].map(|on| case.forward(&on));
    for (i, (given, expected)) in given.1.iter().zip(&expected.1).enumerate() {
        assert!((given.is_nan() && expected.is_nan()) || given == expected, "{i}: {given}, {expected}");
    }
    // Rows of nothing, and no rows.
    for case in [Case::<bf16>::new(4, 0, 8), Case::<bf16>::new(0, 5, 8)] {
        let [given, expected] = [On::software(), On::threads(1)].map(|on| case.forward(&on));
        assert_eq!((given.2, given.3), (expected.2, expected.3));
        let zeros = vec![0.0; case.shape.rows];
        let saved = [zeros.as_slice(); 2];
        assert!(case.backward_input(&On::software(), saved, Write::Set, &[]).is_empty());
        let before = vec![1.5; 2 * case.shape.channels];
        assert_eq!(case.backward_weight(&On::software(), saved, &before), before);
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let on = On::software();
    let x = on.up(&[1.0f32; 8]);
    let (mut y, mut mean, mut rstd) = (on.up(&[5.0f32; 8]), on.up(&[5.0f32; 2]), on.up(&[5.0f32; 2]));
    let other = On::software().up(&[1.0f32; 8]);
    let shape = Shape { rows: 2, channels: 4 };
    let w = || x.view(..4).unwrap();
    for (x, w, eps, named) in [
        (x.view(..7).unwrap(), w(), EPS, "`x` has 7 elements; its shape 2 x 4 needs 8"),
        (x.as_view(), x.view(..3).unwrap(), EPS, "`w`"),
        (other.as_view(), w(), EPS, "x"),
        (x.as_view(), w(), -1.0, "`eps` is -1"),
    ] {
        let (y, saved) = (y.as_view_mut(), (mean.as_view_mut(), rstd.as_view_mut()));
        let error = layernorm::forward(&on.stream, shape, eps, x, w, w, y, saved.0, saved.1).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    assert_eq!(on.down(&y), [5.0; 8]);
}

/// Cases that take every way through a kernel: packed and not, staged and not, a warp a row and a block, one part and more. As many
/// bytes in every type.
fn cases<T: Float>() -> Vec<Case<T>> {
    let sizes = [(6, 100, 8), (5, 37, 1), (1, 1100, 8), (1, 1101, 8), (1, 24_580, 8), (1, 24_577, 1)];
    sizes.map(|(rows, channels, before)| Case::new(rows, channels * 4 / size_of::<T>(), before)).into()
}

#[test]
fn every_byte_is_moved_once() {
    let case = Case::<bf16>::new(256, 2048, 0);
    let [vector, rows] = [2048 * 2, 256];
    let (.., mean, rstd) = case.forward(&On::threads(1));
    // The weight and the bias are read by every row.
    let forward = profiles(|on| drop(case.forward(on)));
    assert_bound_by_memory("forward", &forward, (rows - 1) * 2 * vector);
    // Before the sums and again after them.
    let input = profiles(|on| drop(case.backward_input(on, [&mean, &rstd], Write::Set, &case.x)));
    assert_bound_by_memory("backward_input", &input, (2 * rows - 1) * vector);
    let weight = profiles(|on| drop(case.backward_weight(on, [&mean, &rstd], &[0.0; 4096])));
    assert_bound_by_memory("backward_weight", &weight[..1], 0);
}

fn mutants<T: Float>(most: usize) -> Verdict {
    let cases: Vec<Case<T>> = cases::<T>();
    let branched: Vec<Case<T>> = self::cases::<T>().into_iter().map(Case::with_branch).collect();
    let kernel = |call: &str| format!("layernorm_{call}_{}", T::DTYPE);
    let forward = Trial::of("layernorm", &kernel("forward"), most).verdict(|on, judge| {
        for case in cases.iter().chain(&branched) {
            let (sum, y, mean, rstd) = case.forward(on);
            judge.see(&[sum, y].concat());
            judge.see(&[mean, rstd].concat());
        }
    });
    let saved = |cases: &[Case<T>]| cases.iter().map(|case| case.forward(&On::threads(1))).collect::<Vec<_>>();
    let of_rows = saved(&cases);
    let input = Trial::of("layernorm", &kernel("backward_input"), most).verdict(|on, judge| {
        for (case, (.., mean, rstd)) in cases.iter().zip(&of_rows) {
            for write in [Write::Set, Write::Add] {
                judge.see(&case.backward_input(on, [mean, rstd], write, &case.dy));
            }
        }
    });
    let tall = [(130, 132, 0), (129, 33, 1), (1030, 5, 0)].map(|(rows, channels, before)| {
        let channels = if before == 0 && channels > 100 { channels * 4 / size_of::<T>() } else { channels };
        Case::<T>::new(rows, channels, before)
    });
    let of_tall = saved(&tall);
    let weight = |on: &On, judge: &mut Judge<'_>| {
        for (case, (.., mean, rstd)) in tall.iter().zip(&of_tall) {
            judge.see(&case.backward_weight(on, [mean, rstd], &normal(2 * case.shape.channels, 8)));
        }
    };
    let all = forward.and(input).and(Trial::of("layernorm", &kernel("backward_weight"), most).verdict(weight));
    if size_of::<T>() == 4 { all.and(Trial::of("layernorm", "layernorm_add_parts", most).verdict(weight)) } else { all }
}

#[test]
fn mutants_are_killed() {
    mutants::<f32>(sample(30, usize::MAX)).assert_killed();
    let few = sample(6, usize::MAX);
    mutants::<bf16>(few).and(mutants::<f16>(few)).assert_killed();
}
