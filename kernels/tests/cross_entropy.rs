//! Cross-entropy: the reference against finite differences, the fast path against the reference within bounds derived
//! from its operations, extreme logits, ignored targets, and targets outside the vocabulary.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, f64s, finite_differences, normal, same_bits_for_threads, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::cross_entropy::{self, Shape, Sum, reference};

#[test]
fn the_reference_gradient_is_that_of_finite_differences() {
    for vocab in [1, 2, 9] {
        let shape = Shape { rows: 5, vocab };
        let logits = f64s(&normal::<f32>(5 * vocab, 1));
        let mut targets = tokens(5, vocab as u32, 2);
        targets[3] = 77;
        let gradient = reference::backward(shape, &logits, &targets, Some(77), 0.25);
        let loss = |x: &[f64]| 0.25 * reference::forward(shape, x, &targets, Some(77)).0.iter().sum::<f64>();
        assert_gradient("dlogits", &gradient, &finite_differences(&logits, loss));
    }
}

struct Case<T> {
    shape: Shape,
    logits: Vec<T>,
    targets: Vec<u32>,
    ignore: Option<u32>,
}

impl<T: Float> Case<T> {
    fn new(rows: usize, vocab: usize, spread: f64, offset: f64) -> Self {
        let logits = normal::<T>(rows * vocab, 1).iter().map(|x| T::from_f64(x.to_f64() * spread + offset)).collect();
        let mut targets = tokens(rows, vocab as u32, 2);
        targets.iter_mut().skip(3).step_by(5).for_each(|target| *target = u32::MAX);
        Self { shape: Shape { rows, vocab }, logits, targets, ignore: Some(u32::MAX) }
    }

    fn forward(&self, on: &On) -> (Vec<f32>, Vec<f32>, Sum) {
        let (logits, targets) = (on.up(&self.logits), on.up(&self.targets));
        let (mut losses, mut lse) = (on.garbage(self.shape.rows), on.garbage(self.shape.rows));
        let (logits, targets, ignore) = (logits.as_view(), targets.as_view(), self.ignore);
        let (losses_view, lse_view) = (losses.as_view_mut(), lse.as_view_mut());
        let sum = cross_entropy::forward(&on.stream, self.shape, logits, targets, ignore, losses_view, lse_view);
        (on.down(&losses), on.down(&lse), sum.unwrap())
    }

    fn backward(&self, on: &On, lse: &[f32], scale: f32) -> Vec<T> {
        let (mut logits, targets, lse) = (on.up(&self.logits), on.up(&self.targets), on.up(lse));
        let (targets, lse, ignore) = (targets.as_view(), lse.as_view(), self.ignore);
        cross_entropy::backward(&on.stream, self.shape, logits.as_view_mut(), targets, ignore, lse, scale).unwrap();
        on.down(&logits)
    }

    /// The roundings of the sum of exponentials of a row, relative to it: the average over the softmax of each term's,
    /// U |x - max| by the difference and 2 U for an exponential within a unit in the last place.
    fn sum_error(&self, logits: &[f64]) -> f64 {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let terms = logits.iter().map(|x| (x - max, (x - max).exp())).filter(|(_, term)| *term > 0.0);
        let (errors, sum) =
            terms.fold((0.0, 0.0), |(errors, sum), (x, term)| (errors + term * (U * x.abs() + 2.0 * U), sum + term));
        errors / sum
    }

    fn check(&self, scale: f32) {
        let Shape { vocab, .. } = self.shape;
        let logits = f64s(&self.logits);
        let rows: Vec<&[f64]> = logits.chunks(vocab).collect();
        let sum_errors: Vec<f64> = rows.iter().map(|row| self.sum_error(row)).collect();
        let losses = same_bits_for_threads(|on| self.forward(on).0);
        let lse = same_bits_for_threads(|on| self.forward(on).1);
        let (exact, exact_lse) = reference::forward(self.shape, &logits, &self.targets, self.ignore);
        assert_within("losses", &losses, &exact, |row| sum_errors[row]);
        assert_within("lse", &lse, &exact_lse, |row| sum_errors[row]);
        // The sum of the losses is f64 throughout and the same bits for every thread count.
        let sums = same_bits_for_threads(|on| vec![self.forward(on).2.loss]);
        let ignored = |row: usize| Some(self.targets[row]) == self.ignore;
        let counted = || (0..self.shape.rows).filter(|&row| !ignored(row));
        assert_eq!(self.forward(&On::threads(2)).2.count, counted().count());
        let total: f64 = exact.iter().sum();
        let allowed = 1.01 * counted().map(|row| sum_errors[row]).sum::<f64>() + 1e-13 * total.abs();
        assert!((sums[0] - total).abs() <= allowed, "{} for {total}, allowed {allowed}", sums[0]);

        let gradient = same_bits_for_threads(|on| self.backward(on, &lse, scale));
        let (scale, exact) =
            (f64::from(scale), reference::backward(self.shape, &logits, &self.targets, self.ignore, f64::from(scale)));
        assert_within("dlogits", &gradient, &exact, |i| {
            let (row, class) = (i / vocab, i % vocab);
            if ignored(row) {
                return 0.0;
            }
            let onehot = f64::from(class == self.targets[row] as usize);
            let probability = exact[i] / scale + onehot;
            // `lse`: its own error, the rounding of its storage (a large one is not used), and of the difference; then
            // 2 U for the exponential, 1 or 2 for its factor, and at the target 1 for the subtraction.
            let storage = exact_lse[row].abs().min(16.0);
            let difference = if probability > 1e-60 { probability.ln().abs() } else { 0.0 };
            let relative = sum_errors[row] + U * (storage + difference + 4.0);
            scale.abs() * (probability * relative + onehot * U) + 2f64.powi(-148)
        });
    }
}

#[test]
fn every_shape_and_storage_is_within_its_bound_and_the_same_for_every_thread_count() {
    for (rows, vocab) in [(1, 1), (7, 2), (768, 65), (100, 256), (11, 5003), (3, 65_537), (2100, 65)] {
        Case::<f32>::new(rows, vocab, 3.0, 0.0).check(1.0 / rows as f32);
        Case::<f32>::new(rows, vocab, 30.0, -500.0).check(-2.5);
    }
    for (rows, vocab) in [(5, 1), (50, 65), (9, 3000)] {
        Case::<bf16>::new(rows, vocab, 3.0, 0.0).check(0.125);
        Case::<f16>::new(rows, vocab, 3.0, 40.0).check(1.0);
    }
}

/// A row of two logits as a case.
fn pair(logits: [f32; 2], target: u32) -> Case<f32> {
    Case { shape: Shape { rows: 1, vocab: 2 }, logits: logits.to_vec(), targets: vec![target], ignore: None }
}

#[test]
fn extreme_logits_are_exact() {
    let (big, max, inf) = (1e30f32, f32::MAX, f32::INFINITY);
    let ln2 = 2f64.ln();
    let cases = [
        ([big, -big], 0, 0.0, [0.0, 0.0]),
        ([big, -big], 1, 2.0 * f64::from(big), [1.0, -1.0]),
        // Ties of a size where an f32 logarithm of the sum has lost the ln 2.
        ([big, big], 1, ln2, [0.5, -0.5]),
        ([1e4, 1e4], 0, ln2, [-0.5, 0.5]),
        ([-max, -max], 0, ln2, [-0.5, 0.5]),
        // The loss, 6.8e38, is beyond f32 but not beyond the sum's f64.
        ([max, -max], 1, 2.0 * f64::from(max), [1.0, -1.0]),
        ([-inf, 3.0], 1, 0.0, [0.0, 0.0]),
        ([-inf, 3.0], 0, f64::INFINITY, [-1.0, 1.0]),
    ];
    for (logits, target, loss, gradient) in cases {
        let case = pair(logits, target);
        let (losses, lse, sum) = case.forward(&On::threads(1));
        assert_eq!((sum.loss, losses[0]), (loss, loss as f32), "{logits:?} {target}");
        assert_eq!(case.backward(&On::threads(1), &lse, 1.0), gradient, "{logits:?} {target}");
    }
}

#[test]
fn a_row_without_a_distribution_is_nan_and_leaves_the_others_alone() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits = vec![1.0, nan, 0.0, inf, -inf, -inf, 2.0, 2.0];
    let case = Case { shape: Shape { rows: 4, vocab: 2 }, logits, targets: vec![0; 4], ignore: None };
    let (losses, lse, sum) = case.forward(&On::threads(1));
    assert!(losses[..3].iter().all(|loss| loss.is_nan()) && sum.loss.is_nan());
    assert_eq!((losses[3], sum.count), (2f64.ln() as f32, 4));
    let gradient = case.backward(&On::threads(1), &lse, 1.0);
    assert!(gradient[..6].iter().all(|gradient| gradient.is_nan()));
    assert_eq!(gradient[6..], [-0.5, 0.5]);
}

#[test]
fn all_ignored_is_no_loss_and_no_gradient_whatever_the_logits() {
    let shape = Shape { rows: 3, vocab: 2 };
    // 1 is inside the vocabulary, u32::MAX is not.
    for ignore in [1, u32::MAX] {
        let logits = vec![1.0f32, 2.0, f32::NAN, f32::INFINITY, 0.0, 0.0];
        let case = Case { shape, logits, targets: vec![ignore; 3], ignore: Some(ignore) };
        let (losses, lse, sum) = case.forward(&On::threads(2));
        assert_eq!((losses, sum), (vec![0.0; 3], Sum { loss: 0.0, count: 0 }));
        assert_eq!(case.backward(&On::threads(2), &lse, 1.0), [0.0; 6]);
    }
}

#[test]
fn nothing_to_do_is_done() {
    let case = Case::<f32>::new(0, 5, 1.0, 0.0);
    assert_eq!(case.forward(&On::threads(2)), (vec![], vec![], Sum::default()));
    assert_eq!(case.backward(&On::threads(2), &[], 1.0), []);
    let shape = Shape { rows: 2, vocab: 0 };
    let case = Case::<f32> { shape, logits: vec![], targets: vec![9; 2], ignore: Some(9) };
    assert_eq!(case.forward(&On::threads(2)), (vec![0.0; 2], vec![f32::NEG_INFINITY; 2], Sum::default()));
    assert_eq!(case.backward(&On::threads(2), &[0.0; 2], 1.0), []);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let shape = Shape { rows: 3, vocab: 2 };
    let (mut logits, targets) = (on.up(&[1.0f32; 6]), on.up(&[0u32, 5, 2]));
    let (mut losses, mut lse) = (on.up(&[7.0f32; 3]), on.up(&[7.0f32; 3]));
    let targets = targets.as_view();
    let mut forward = |shape, ignore| {
        let (losses, lse) = (losses.as_view_mut(), lse.as_view_mut());
        cross_entropy::forward(&on.stream, shape, logits.as_view(), targets, ignore, losses, lse).unwrap_err()
    };
    let outside = |op, row, token| KernelError::OutOfVocabulary { op, row, token, vocab: 2 };
    assert_eq!(forward(shape, None), outside("cross_entropy forward", 1, 5));
    assert_eq!(forward(shape, Some(5)), outside("cross_entropy forward", 2, 2));
    let error = forward(Shape { rows: 2, vocab: 3 }, Some(5)).to_string();
    assert_eq!(error, "cross_entropy forward: `targets` has 3 elements; its shape 2 needs 2");
    let lse = lse.as_view();
    let mut backward = |ignore, scale| {
        cross_entropy::backward(&on.stream, shape, logits.as_view_mut(), targets, ignore, lse, scale).unwrap_err()
    };
    assert_eq!(backward(None, 1.0), outside("cross_entropy backward", 1, 5));
    let error = backward(Some(5), f32::INFINITY).to_string();
    assert_eq!(error, "cross_entropy backward: `scale` is inf; it must be finite");
    assert_eq!((on.down(&logits), on.down(&losses)), (vec![1.0; 6], vec![7.0; 3]));
}
