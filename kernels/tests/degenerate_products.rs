//! Degenerate inputs of the matrix products, of one layer and of a layer for each expert: whole numbers, whose sums are exact.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, degenerate_inputs};
use common::padded::Padded;
use common::{On, f64s, integers};
use warpweft_device::{DType, Float};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, Through};
use warpweft_kernels::moe::grouped;

/// The sum over `terms` of products.
fn dot(terms: usize, product: impl Fn(usize) -> f64) -> f64 {
    (0..terms).map(product).sum()
}

/// Rounded once, as a product is stored.
fn stored<T: Float>(values: impl Iterator<Item = f64>) -> Vec<f64> {
    values.map(|value| T::from_f64(value).to_f64()).collect()
}

/// Every array of a layer of `[m, n, k]` between NaNs: its products, and what they are.
struct Layer<T> {
    shape: Shape,
    before: usize,
    x: Vec<T>,
    w: Vec<T>,
    dy: Vec<T>,
    bias: Vec<T>,
    residual: Vec<T>,
}

impl<T: Float> Layer<T> {
    fn new([m, n, k]: [usize; 3], before: usize) -> Self {
        let [x, w, dy, bias, residual] =
            [(1, m * k), (2, n * k), (3, m * n), (4, n), (5, m * n)].map(|(seed, len)| integers(len, seed));
        Self { shape: Shape { m, n, k }, before, x, w, dy, bias, residual }
    }

    fn up(&self, on: &On, values: &[T]) -> Padded<T> {
        on.padded(self.before, values)
    }

    fn check_forward(&self) {
        let (on, Shape { m, n, k }) = (On::software(), self.shape);
        let [x, w, bias, residual] = [&self.x, &self.w, &self.bias, &self.residual].map(|values| self.up(&on, values));
        let [mut y, mut pre] = [0; 2].map(|_| on.padded_garbage::<T>(self.before, m * n));
        let epilogue = Epilogue {
            bias: Some(bias.view()),
            activation: Activation::Relu,
            pre: Some(pre.view_mut()),
            residual: Some(residual.view()),
            ..Epilogue::default()
        };
        matmul::forward(&on.stream, self.shape, x.view(), w.view(), epilogue, y.view_mut()).unwrap();
        let sum = |i: usize| {
            let (row, column) = (i / n, i % n);
            dot(k, |c| self.x[row * k + c].to_f64() * self.w[column * k + c].to_f64()) + self.bias[column].to_f64()
        };
        let sums: Vec<f64> = (0..m * n).map(sum).collect();
        let with = |i: usize| sums[i].max(0.0) + self.residual[i].to_f64();
        assert_eq!(f64s(&y.down(&on)), stored::<T>((0..m * n).map(with)));
        assert_eq!(f64s(&pre.down(&on)), stored::<T>(sums.iter().copied()));
    }

    /// dx where x is that of a ReLU that lets everything through, and its column sums.
    fn check_input(&self) {
        let (on, Shape { m, n, k }) = (On::software(), self.shape);
        let [dy, w, open] = [&self.dy, &self.w, &vec![T::from_f32(1.0); m * k]].map(|values| self.up(&on, values));
        let (mut dx, mut db) = (on.padded_garbage::<T>(self.before, m * k), on.padded(self.before, &vec![2f32; k]));
        let (activation, pre, db_out) = (Activation::Relu, Some(open.view()), Some(db.view_mut()));
        let through = Through { activation, pre, db: db_out, ..Through::default() };
        let (stream, out) = (&on.stream, dx.view_mut());
        matmul::backward_input_through(stream, self.shape, dy.view(), w.view(), through, Write::Set, out).unwrap();
        let of_x = |i: usize| dot(n, |o| self.dy[i / k * n + o].to_f64() * self.w[o * k + i % k].to_f64());
        let expected = stored::<T>((0..m * k).map(of_x));
        assert_eq!(f64s(&dx.down(&on)), expected);
        let db_exact: Vec<f64> = (0..k).map(|c| 2.0 + dot(m, |row| expected[row * k + c])).collect();
        assert_eq!(f64s(&db.down(&on)), db_exact);
    }

    /// dw, and the sums of dy's rows.
    fn check_weight(&self) {
        let (on, Shape { m, n, k }) = (On::software(), self.shape);
        let [x, dy] = [&self.x, &self.dy].map(|values| self.up(&on, values));
        let mut dw = on.padded(self.before, &vec![2f32; n * k]);
        matmul::backward_weight(&on.stream, self.shape, x.view(), dy.view(), dw.view_mut()).unwrap();
        let of_w = |i: usize| 2.0 + dot(m, |row| self.dy[row * n + i / k].to_f64() * self.x[row * k + i % k].to_f64());
        assert_eq!(f64s(&dw.down(&on)), (0..n * k).map(of_w).collect::<Vec<_>>());
        let mut db = on.padded(self.before, &vec![2f32; n]);
        matmul::backward_bias(&on.stream, self.shape, dy.view(), db.view_mut()).unwrap();
        let of_b = |c: usize| 2.0 + dot(m, |row| self.dy[row * n + c].to_f64());
        assert_eq!(f64s(&db.down(&on)), (0..n).map(of_b).collect::<Vec<_>>());
    }
}

struct Matmul;

degenerate_inputs!(Matmul: matmul_no_rows, matmul_no_columns, matmul_rows_of_65_537, matmul_off_by_one, matmul_between_nans);

impl Op for Matmul {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        // Inputs, outputs and rows, over which each product sums.
        let layers = [[rows, 4, columns], [rows, columns, 4], [columns, rows, 4]].map(|of| Layer::<T>::new(of, before));
        layers[0].check_forward();
        let long = columns > 1000;
        // A software device takes seconds for each long sum, and the products have one loop.
        if !long || cfg!(feature = "long-tests") {
            layers[1].check_input();
            layers[2].check_weight();
        }
        if !long {
            // The other ways around: long rows of results are tiles beside tiles.
            layers[0].check_input();
            layers[0].check_weight();
            layers[1].check_forward();
            layers[1].check_weight();
        }
    }
}

struct Grouped;

degenerate_inputs!(Grouped: grouped_no_rows, grouped_no_columns, grouped_rows_of_65_537, grouped_off_by_one, grouped_between_nans);

impl Op for Grouped {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        // Experts without rows on both sides and between.
        let counts = [0, rows, 0, rows / 2, 0];
        // Long sums in f32 and those of gradients are the ones of a single layer.
        if columns < 1000 || T::DTYPE != DType::F32 {
            Experts::<T>::new(&counts, [4, columns], before).check_forward();
        }
        let columns = columns % 1000;
        Experts::<T>::new(&counts, [columns, 4], before).check_input();
        Experts::<T>::new(&[0, columns, 0, rows, 0], [rows, 4], before).check_weight();
    }
}

/// A layer of `[n, k]` for each of five experts.
struct Experts<'a, T> {
    shape: grouped::Shape<'a>,
    before: usize,
    rows: usize,
    x: Vec<T>,
    w: Vec<T>,
    dy: Vec<T>,
}

impl<'a, T: Float> Experts<'a, T> {
    fn new(counts: &'a [usize; 5], [n, k]: [usize; 2], before: usize) -> Self {
        let rows = counts.iter().sum::<usize>();
        let [x, w, dy] = [(1, rows * k), (2, 5 * n * k), (3, rows * n)].map(|(seed, len)| integers(len, seed));
        Self { shape: grouped::Shape { counts, n, k }, before, rows, x, w, dy }
    }

    fn expert(&self, row: usize) -> usize {
        if row < self.shape.counts[1] { 1 } else { 3 }
    }

    fn up(&self, on: &On, values: &[T]) -> Padded<T> {
        on.padded(self.before, values)
    }

    fn check_forward(&self) {
        let (on, grouped::Shape { n, k, .. }) = (On::software(), self.shape);
        let (x, w, mut y) =
            (self.up(&on, &self.x), self.up(&on, &self.w), on.padded_garbage::<T>(self.before, self.rows * n));
        let (x, w, out) = (x.view(), w.view(), y.view_mut());
        grouped::forward(&on.stream, self.shape, x, w, Activation::None, None, out).unwrap();
        let product = |i: usize| {
            let w = &self.w[(self.expert(i / n) * n + i % n) * k..][..k];
            dot(k, |c| self.x[i / n * k + c].to_f64() * w[c].to_f64())
        };
        assert_eq!(f64s(&y.down(&on)), stored::<T>((0..self.rows * n).map(product)));
    }

    fn check_input(&self) {
        let (on, grouped::Shape { n, k, .. }) = (On::software(), self.shape);
        let (dy, w, mut dx) =
            (self.up(&on, &self.dy), self.up(&on, &self.w), on.padded_garbage::<T>(self.before, self.rows * k));
        grouped::backward_input(&on.stream, self.shape, dy.view(), w.view(), Write::Set, dx.view_mut()).unwrap();
        let gradient = |i: usize| {
            let (row, c) = (i / k, i % k);
            dot(n, |o| self.dy[row * n + o].to_f64() * self.w[(self.expert(row) * n + o) * k + c].to_f64())
        };
        assert_eq!(f64s(&dx.down(&on)), stored::<T>((0..self.rows * k).map(gradient)));
    }

    fn check_weight(&self) {
        let (on, grouped::Shape { n, k, .. }) = (On::software(), self.shape);
        let (x, dy) = (self.up(&on, &self.x), self.up(&on, &self.dy));
        let mut dw = on.padded(self.before, &vec![2f32; 5 * n * k]);
        grouped::backward_weight(&on.stream, self.shape, x.view(), dy.view(), dw.view_mut()).unwrap();
        let gradient = |i: usize| {
            let (of, o, c) = (i / (n * k), i / k % n, i % k);
            let rows = (0..self.rows).filter(|row| self.expert(*row) == of);
            2.0 + rows.map(|row| self.dy[row * n + o].to_f64() * self.x[row * k + c].to_f64()).sum::<f64>()
        };
        assert_eq!(f64s(&dw.down(&on)), (0..5 * n * k).map(gradient).collect::<Vec<_>>());
    }
}
