//! Products by expert with all that goes with a product: a bias for each expert, a scale, residuals, and the way back through an
//! activation. Each expert's rows have the bits of its product alone, on the CPU and by the kernels.
#![forbid(unsafe_code)]

mod common;

use common::products::ACTIVATIONS;
use common::ways::{Ways, same_bits_in_every_way};
use common::{On, f64s, integers, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, Through};
use warpweft_kernels::moe::grouped;

/// What an expert's product has besides.
#[derive(Clone, Copy, Debug)]
struct With {
    activation: Activation,
    bias: bool,
    residual: bool,
}

/// All arrays of a layer by expert, x `[rows, k]` to y.
struct Layer<'a, T> {
    shape: grouped::Shape<'a>,
    x: Vec<T>,
    w: Vec<T>,
    bias: Vec<T>,
    residual: Vec<T>,
}

const SCALE: f32 = 0.75;

impl<'a, T: Float> Layer<'a, T> {
    fn new(counts: &'a [usize], n: usize, k: usize, numbers: impl Fn(usize, u64) -> Vec<T>) -> Self {
        let (rows, experts) = (counts.iter().sum::<usize>(), counts.len());
        Self {
            shape: grouped::Shape { counts, n, k },
            x: numbers(rows * k, 1),
            w: numbers(experts * n * k, 2),
            bias: numbers(experts * n, 3),
            residual: numbers(rows * n, 4),
        }
    }

    fn rows(&self) -> usize {
        self.shape.counts.iter().sum()
    }

    /// y and pre.
    fn forward(&self, on: &On, with: With) -> [Vec<T>; 2] {
        let (rows, outputs) = (self.rows(), with.activation.outputs(self.shape.n));
        let [x, w, bias] = [&self.x, &self.w, &self.bias].map(|values| on.up(values));
        let residual = on.up(&self.residual[..rows * outputs]);
        let (mut y, mut pre) = (on.garbage::<T>(rows * outputs), on.up(&vec![T::ZERO; rows * self.shape.n]));
        let epilogue = Epilogue {
            scale: SCALE,
            bias: with.bias.then(|| bias.as_view()),
            activation: with.activation,
            pre: (with.activation != Activation::None).then(|| pre.as_view_mut()),
            residual: with.residual.then(|| residual.as_view()),
        };
        let (x, w) = (x.as_view(), w.as_view());
        grouped::forward_with(&on.stream, self.shape, x, w, epilogue, y.as_view_mut()).unwrap();
        [on.down(&y), on.down(&pre)]
    }

    /// The same by a product an expert.
    fn forward_alone(&self, on: &On, with: With) -> [Vec<T>; 2] {
        let grouped::Shape { n, k, .. } = self.shape;
        let outputs = with.activation.outputs(n);
        let (mut ys, mut pres, mut row) = (Vec::new(), Vec::new(), 0);
        for (expert, &m) in self.shape.counts.iter().enumerate() {
            let (x, w) = (on.up(&self.x[row * k..(row + m) * k]), on.up(&self.w[expert * n * k..(expert + 1) * n * k]));
            let bias = on.up(&self.bias[expert * n..(expert + 1) * n]);
            let residual = on.up(&self.residual[row * outputs..(row + m) * outputs]);
            let (mut y, mut pre) = (on.garbage::<T>(m * outputs), on.up(&vec![T::ZERO; m * n]));
            let epilogue = Epilogue {
                scale: SCALE,
                bias: with.bias.then(|| bias.as_view()),
                activation: with.activation,
                pre: (with.activation != Activation::None).then(|| pre.as_view_mut()),
                residual: with.residual.then(|| residual.as_view()),
            };
            let shape = Shape { m, n, k };
            matmul::forward(&on.stream, shape, x.as_view(), w.as_view(), epilogue, y.as_view_mut()).unwrap();
            ys.extend(on.down(&y));
            pres.extend(on.down(&pre));
            row += m;
        }
        [ys, pres]
    }

    /// The gradient of the rows that x came of by `activation`, whose argument is `pre`, and the sums of its rows by expert: of the
    /// gradient `residual`.
    fn backward(&self, on: &On, activation: Activation, pre: &[T], write: Write) -> (Vec<T>, Vec<f32>) {
        let columns = activation.inputs(self.shape.k);
        let (dy, w, pre) = (on.up(&self.residual), on.up(&self.w), on.up(pre));
        let mut dx = on.up(&vec![T::from_f32(1.0); self.rows() * columns]);
        let mut db = on.up(&vec![2.0f32; self.shape.counts.len() * columns]);
        let through = Through {
            scale: SCALE,
            activation,
            pre: (activation != Activation::None).then(|| pre.as_view()),
            db: (write == Write::Set).then(|| db.as_view_mut()),
        };
        let (dy, w) = (dy.as_view(), w.as_view());
        grouped::backward_input_through(&on.stream, self.shape, dy, w, through, write, dx.as_view_mut()).unwrap();
        (on.down(&dx), on.down(&db))
    }

    /// The same by a product an expert, and by the sums of each.
    fn backward_alone(&self, on: &On, activation: Activation, pre: &[T], write: Write) -> (Vec<T>, Vec<f32>) {
        let grouped::Shape { n, k, .. } = self.shape;
        let columns = activation.inputs(k);
        let (mut dxs, mut dbs, mut row) = (Vec::new(), Vec::new(), 0);
        for (expert, &m) in self.shape.counts.iter().enumerate() {
            let dy = on.up(&self.residual[row * n..(row + m) * n]);
            let w = on.up(&self.w[expert * n * k..(expert + 1) * n * k]);
            let pre = on.up(&pre[..self.rows() * columns][row * columns..(row + m) * columns]);
            let mut dx = on.up(&vec![T::from_f32(1.0); m * columns]);
            let mut db = on.up(&vec![2.0f32; columns]);
            let pre = (activation != Activation::None).then(|| pre.as_view());
            let through = Through { scale: SCALE, activation, pre, db: None };
            let (shape, of_dx) = (Shape { m, n, k }, Shape { m, n: columns, k });
            let (dy, w) = (dy.as_view(), w.as_view());
            matmul::backward_input_through(&on.stream, shape, dy, w, through, write, dx.as_view_mut()).unwrap();
            if write == Write::Set {
                matmul::backward_bias(&on.stream, of_dx, dx.as_view(), db.as_view_mut()).unwrap();
            }
            dxs.extend(on.down(&dx));
            dbs.extend(on.down(&db));
            row += m;
        }
        (dxs, dbs)
    }

    fn check(&self, on: &On) {
        for activation in ACTIVATIONS {
            let what = format!("{} {:?} {activation:?}", T::DTYPE, self.shape);
            for (bias, residual) in [(true, false), (true, true), (false, true)] {
                let with = With { activation, bias, residual };
                assert!(self.forward(on, with) == self.forward_alone(on, with), "{what} {with:?}");
            }
            let pre = normal::<T>(self.rows() * activation.inputs(self.shape.k), 9);
            for write in [Write::Set, Write::Add] {
                let alone = self.backward_alone(on, activation, &pre, write);
                assert!(self.backward(on, activation, &pre, write) == alone, "{what} {write:?}");
            }
        }
    }
}

fn of_type<T: Float>(on: &On) {
    for (counts, n, k) in [(&[3, 0, 70, 1, 0, 9][..], 24, 40), (&[0, 130, 2][..], 72, 16), (&[5, 4][..], 6, 7)] {
        Layer::<T>::new(counts, n, k, normal).check(on);
    }
    for counts in [&[0, 0][..], &[]] {
        Layer::<T>::new(counts, 8, 8, normal).check(on);
    }
}

#[test]
fn each_expert_has_the_bits_of_its_product_alone_on_the_cpu() {
    let on = On::threads(2);
    of_type::<f32>(&on);
    of_type::<bf16>(&on);
    of_type::<f16>(&on);
}

#[test]
fn each_expert_has_the_bits_of_its_product_alone_on_a_gpu() {
    for on in [On::software(), On::open("software?check=all&multiprocessors=1")] {
        of_type::<f32>(&on);
        of_type::<bf16>(&on);
        of_type::<f16>(&on);
    }
    // More experts than a launch has.
    let many: Vec<usize> = (0..300).map(|expert| expert % 2).collect();
    Layer::<bf16>::new(&many, 4, 8, normal).check(&On::software());
}

#[test]
fn the_same_bits_in_every_way() {
    let counts = [9, 0, 70];
    let with = With { activation: Activation::SwiGlu, bias: true, residual: true };
    let layer = Layer::<bf16>::new(&counts, 48, 40, normal);
    same_bits_in_every_way(|on| layer.forward(on, with).concat());
    let pre = normal::<bf16>(79 * 80, 9);
    Ways::EVERY.same(|on| layer.backward(on, Activation::SwiGlu, &pre, Write::Set));
    let layer = Layer::<f32>::new(&counts, 48, 40, normal);
    Ways::TWO.same(|on| layer.forward(on, With { activation: Activation::GeluTanh, ..with }));
}

/// Whole numbers against a loop over them: y = relu(0.75 x wᵀ + bias) + residual, and dx back through a relu, with its sums.
fn exact<T: Float>(on: &On) {
    let counts = [4usize, 0, 6];
    let (n, k, expert_of) = (9, 12, |row: usize| if row < 4 { 0 } else { 2 });
    // Multiples of 4, so that 3/4 of a product is whole; small, so that f16 and bf16 hold what comes out, or round it alike.
    let layer = Layer::<T>::new(&counts, n, k, |len, seed| {
        integers::<f32>(len, seed)
            .into_iter()
            .map(|x| T::from_f32((x % 3.0) * if seed == 2 { 4.0 } else { 1.0 }))
            .collect()
    });
    let [y, pre] = layer.forward(on, With { activation: Activation::Relu, bias: true, residual: true });
    let [x, w, bias, residual] = [&layer.x, &layer.w, &layer.bias, &layer.residual].map(|values| f64s(values));
    for row in 0..10 {
        for j in 0..n {
            let e = expert_of(row);
            let sum: f64 = (0..k).map(|l| x[row * k + l] * w[(e * n + j) * k + l]).sum();
            let of_pre = 0.75 * sum + bias[e * n + j];
            assert_eq!(pre[row * n + j].to_f64(), T::from_f64(of_pre).to_f64());
            assert_eq!(y[row * n + j].to_f64(), T::from_f64(of_pre.max(0.0) + residual[row * n + j]).to_f64());
        }
    }
    let before = integers::<T>(10 * k, 7);
    let (dx, db) = layer.backward(on, Activation::Relu, &before, Write::Set);
    let mut sums = vec![2.0; 3 * k];
    for row in 0..10 {
        for l in 0..k {
            let e = expert_of(row);
            let sum: f64 = (0..n).map(|j| residual[row * n + j] * w[(e * n + j) * k + l]).sum();
            let expected = if before[row * k + l].to_f64() > 0.0 { T::from_f64(0.75 * sum) } else { T::ZERO };
            assert_eq!(dx[row * k + l].to_f64(), expected.to_f64());
            sums[e * k + l] += expected.to_f64();
        }
    }
    assert_eq!(db.iter().map(|&db| f64::from(db)).collect::<Vec<_>>(), sums, "an expert without rows gets nothing");
}

#[test]
fn whole_numbers_are_exact() {
    for on in [On::threads(2), On::software()] {
        exact::<f32>(&on);
        exact::<bf16>(&on);
        exact::<f16>(&on);
    }
}

/// The bias and the weight of an expert without rows may be anything.
#[test]
fn what_no_row_needs_changes_nothing() {
    for on in [On::threads(2), On::software()] {
        let counts = [4, 0, 6];
        let layer = Layer::<f32>::new(&counts, 8, 8, normal);
        let mut other = Layer::<f32>::new(&counts, 8, 8, normal);
        other.bias[8..16].fill(f32::NAN);
        other.w[64..128].fill(f32::NAN);
        let with = With { activation: Activation::GeluErf, bias: true, residual: false };
        assert_eq!(layer.forward(&on, with), other.forward(&on, with));
    }
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    for on in [On::threads(1), On::software()] {
        let (x, mut y, mut db) = (on.up(&[1.0f32; 64]), on.up(&[7.0f32; 10]), on.up(&[7.0f32; 4]));
        let view = |len: usize| x.view(..len).unwrap();
        let shape = grouped::Shape { counts: &[2, 3], n: 2, k: 2 };
        let mut forward = |epilogue: Epilogue<'_, f32>| {
            let (x, w) = (view(10), view(8));
            grouped::forward_with(&on.stream, shape, x, w, epilogue, y.as_view_mut()).unwrap_err().to_string()
        };
        let plain = Epilogue::<f32>::default;
        let error = forward(Epilogue { bias: Some(view(2)), ..plain() });
        assert_eq!(error, "moe::grouped::forward: `bias` has 2 elements; its shape 2 x 2 needs 4");
        let error = forward(Epilogue { residual: Some(view(8)), ..plain() });
        assert_eq!(error, "moe::grouped::forward: `residual` has 8 elements; its shape 5 x 2 needs 10");
        let error = forward(Epilogue { scale: f32::INFINITY, ..plain() });
        assert_eq!(error, "moe::grouped::forward: `scale` is inf; it must be finite");
        let mut backward = |through: Through<'_, f32>, write| {
            let (dy, w, dx) = (view(10), view(8), y.as_view_mut());
            grouped::backward_input_through(&on.stream, shape, dy, w, through, write, dx).unwrap_err().to_string()
        };
        let plain = Through::<f32>::default;
        let error = backward(Through { pre: Some(view(10)), ..plain() }, Write::Set);
        assert!(error.starts_with("moe::grouped::backward_input: `pre` is the activation's argument"), "{error}");
        let error = backward(Through { db: Some(db.as_view_mut()), ..plain() }, Write::Add);
        assert!(error.starts_with("moe::grouped::backward_input: `db` is the sum of dx's rows"), "{error}");
        let error = backward(Through { db: Some(db.view_mut(..2).unwrap()), ..plain() }, Write::Set);
        assert_eq!(error, "moe::grouped::backward_input: `db` has 2 elements; its shape 2 x 2 needs 4");
        let short = db.view_mut(..3).unwrap();
        let error = grouped::backward_bias(&on.stream, shape, view(10), short).unwrap_err().to_string();
        assert_eq!(error, "moe::grouped::backward_bias: `db` has 3 elements; its shape 2 x 2 needs 4");
        assert_eq!((on.down(&y), on.down(&db)), (vec![7.0; 10], vec![7.0; 4]));
    }
}
