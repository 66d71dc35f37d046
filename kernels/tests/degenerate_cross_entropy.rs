//! Degenerate inputs of cross-entropy, of whole rows and of ranks that share the classes.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, degenerate_inputs};
use common::{On, U, assert_within, f64s, normal, row_error, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::cross_entropy::{self, PARTS, Shape, Shard, Sum, reference};

/// The target that does not count.
const NONE: u32 = u32::MAX;

struct Case<T> {
    shape: Shape,
    before: usize,
    logits: Vec<T>,
    targets: Vec<u32>,
}

/// Losses, a row's `lse` and gradient.
type Out<T> = (Vec<f32>, Vec<f32>, Vec<T>, Sum);

impl<T: Float> Case<T> {
    fn run(&self, on: &On) -> Out<T> {
        let (mut logits, targets) = (on.padded(self.before, &self.logits), on.up(&self.targets));
        let [mut losses, mut lse] = [0; 2].map(|_| on.padded_garbage::<f32>(1, self.shape.rows));
        let (stream, targets, out) = (&on.stream, targets.as_view(), (losses.view_mut(), lse.view_mut()));
        let sum = cross_entropy::forward(stream, self.shape, logits.view(), targets, Some(NONE), out.0, out.1);
        let (lse, dlogits) = (lse.down(on), logits.view_mut());
        cross_entropy::backward(stream, self.shape, dlogits, targets, Some(NONE), on.up(&lse).as_view(), 0.5).unwrap();
        (losses.down(on), lse, logits.down(on), sum.unwrap())
    }

    /// By two ranks, the second of which has the last third of the classes: losses and gradient.
    fn shared(&self, on: &On) -> (Vec<f32>, Vec<T>, Sum) {
        let Shape { rows, vocab } = self.shape;
        let first = vocab - vocab / 3;
        let ranks = [0..first, first..vocab];
        let targets = on.up(&self.targets);
        let (stream, targets) = (&on.stream, targets.as_view());
        let mut parts = on.up(&vec![f64::NAN; 2 * rows * PARTS]);
        let mut logits = ranks.clone().map(|classes| {
            let own: Vec<T> = self.logits.chunks(vocab.max(1)).flat_map(|row| row[classes.clone()].to_vec()).collect();
            on.padded(self.before, &own)
        });
        let of = |rank: usize| (Shape { rows, vocab: ranks[rank].len() }, Shard { first: ranks[rank].start, vocab });
        for (rank, logits) in logits.iter().enumerate() {
            let ((shape, shard), of_rank) = (of(rank), rank * rows * PARTS..(rank + 1) * rows * PARTS);
            let own = parts.view_mut(of_rank).unwrap();
            cross_entropy::forward_shard(stream, shape, shard, logits.view(), targets, Some(NONE), own).unwrap();
        }
        let (mut losses, mut both) = (on.garbage::<f32>(rows), on.up(&vec![f64::NAN; rows * 2]));
        let out = (losses.as_view_mut(), both.as_view_mut());
        let sum = cross_entropy::merge(stream, 2, parts.as_view(), targets, Some(NONE), out.0, out.1).unwrap();
        for (rank, logits) in logits.iter_mut().enumerate() {
            let ((shape, shard), both) = (of(rank), both.as_view());
            let own = logits.view_mut();
            cross_entropy::backward_shard(stream, shape, shard, own, targets, Some(NONE), both, 0.5).unwrap();
        }
        let [low, high] = logits.map(|logits| logits.down(on));
        let row = |row: usize| {
            let of = |part: &[T], width: usize| part[row * width..][..width].to_vec();
            [of(&low, first), of(&high, vocab - first)].concat()
        };
        (on.down(&losses), (0..rows).flat_map(row).collect(), sum)
    }
}

struct CrossEntropy;

degenerate_inputs!(CrossEntropy: cross_entropy_no_rows, cross_entropy_no_columns, cross_entropy_rows_of_65_537, cross_entropy_off_by_one, cross_entropy_between_nans);

impl Op for CrossEntropy {
    fn check<T: Float>(rows: usize, vocab: usize, before: usize) {
        let mut targets = if vocab == 0 { vec![NONE; rows] } else { tokens(rows, vocab as u32, 2) };
        targets.iter_mut().skip(1).step_by(2).for_each(|target| *target = NONE);
        let case = Case::<T> { shape: Shape { rows, vocab }, before, logits: normal(rows * vocab, 1), targets };
        let logits = f64s(&case.logits);
        let (losses, exact_lse) = if vocab == 0 {
            (vec![0.0; rows], vec![f64::NEG_INFINITY; rows])
        } else {
            reference::forward(case.shape, &logits, &case.targets, Some(NONE))
        };
        let spread = logits.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        // Of a row's sum: of each term the difference and the exponential (2 units) and another rescaling or two of the partial sum.
        let error = row_error::<T>(vocab) + U * (4.0 * spread + 12.0);
        let dlogits = reference::backward(case.shape, &logits, &case.targets, Some(NONE), 0.5);
        let ignored = |row: usize| case.targets[row] == NONE;
        let bound = |i: usize| {
            let (row, x) = (i / vocab, logits[i]);
            if ignored(row) {
                return 0.0;
            }
            let off = x - exact_lse[row];
            // lse's error and storage, the difference, the exponential and its factor; the subtraction.
            0.5 * (off.exp() * (error + U * (exact_lse[row].abs() + off.abs() + 8.0)) + 6.0 * U) + 2f64.powi(-140)
        };
        let on = On::software();
        let (given, lse, gradient, sum) = case.run(&on);
        assert_within("lse", &lse, &exact_lse, |_| error);
        assert_within("losses", &given, &losses, |_| error);
        assert_within("dlogits", &gradient, &dlogits, bound);
        assert_eq!(sum.count, (0..rows).filter(|row| !ignored(*row)).count());
        let (given, gradient, of_ranks) = case.shared(&on);
        assert_within("losses of ranks", &given, &losses, |_| error);
        assert_within("dlogits of ranks", &gradient, &dlogits, bound);
        assert_eq!(of_ranks.count, sum.count);
    }
}

/// No loss and no gradient, whatever the logits are.
fn all_ignored<T: Float>() {
    let logits = [1.0, 2.0, f32::NAN, 3.0, f32::INFINITY, -f32::INFINITY, f32::MAX, 0.0, 1.0].map(T::from_f32).to_vec();
    let case = Case { shape: Shape { rows: 3, vocab: 3 }, before: 8, logits, targets: vec![NONE; 3] };
    let on = On::software_with_nans();
    let (losses, _, gradient, sum) = case.run(&on);
    assert_eq!((losses, sum), (vec![0.0; 3], Sum { loss: 0.0, count: 0 }));
    assert_eq!(f64s(&gradient), [0.0; 9]);
    let (losses, gradient, sum) = case.shared(&on);
    assert_eq!((losses, sum), (vec![0.0; 3], Sum { loss: 0.0, count: 0 }));
    assert_eq!(f64s(&gradient), [0.0; 9]);
}

#[test]
fn cross_entropy_all_ignored() {
    all_ignored::<f32>();
    all_ignored::<bf16>();
    all_ignored::<f16>();
}

/// What every call says of a target outside the vocabulary in row 1, whose logits stay as they are.
fn target_out_of_range<T: Float>() {
    let on = On::software();
    let (shape, values, shard) = (Shape { rows: 3, vocab: 8 }, normal::<T>(24, 1), Shard { first: 0, vocab: 8 });
    let (targets, mut parts) = (on.up(&[0u32, 8, 7]), on.up(&[0.0; 3 * PARTS]));
    let (mut losses, mut lse) = (on.up(&[0.5f32; 3]), on.up(&[3.0f32; 3]));
    let normaliser = on.up(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let (stream, targets) = (&on.stream, targets.as_view());
    let named = |call: &str, said: String| {
        assert!(said.contains(&format!("cross_entropy {call}: `targets`")) && said.contains("8 in row 1"), "{said}");
    };
    let mut logits = on.up(&values);
    let out = (losses.as_view_mut(), lse.as_view_mut());
    let said = cross_entropy::forward(stream, shape, logits.as_view(), targets, None, out.0, out.1).unwrap_err();
    assert!(matches!(said, KernelError::Device(_)), "{said}");
    named("forward", said.to_string());
    assert_eq!(on.down(&losses)[1], 0.5, "written");
    cross_entropy::backward(stream, shape, logits.as_view_mut(), targets, None, lse.as_view(), 1.0).unwrap();
    named("backward", stream.synchronize().unwrap_err().to_string());
    cross_entropy::forward_shard(stream, shape, shard, logits.as_view(), targets, None, parts.as_view_mut()).unwrap();
    named("forward_shard", stream.synchronize().unwrap_err().to_string());
    let normaliser = normaliser.as_view();
    cross_entropy::backward_shard(stream, shape, shard, logits.as_view_mut(), targets, None, normaliser, 1.0).unwrap();
    named("backward_shard", stream.synchronize().unwrap_err().to_string());
    assert_eq!(f64s(&on.down(&logits)[8..16]), f64s(&values[8..16]), "the row's logits");
}

#[test]
fn cross_entropy_target_out_of_range() {
    target_out_of_range::<f32>();
    target_out_of_range::<bf16>();
    target_out_of_range::<f16>();
}
