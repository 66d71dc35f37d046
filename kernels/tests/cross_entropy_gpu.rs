//! The kernels of cross-entropy on the software device, under every check and in every way of running, with all options.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Judge, Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, U, assert_gradient, assert_within, f64s, finite_differences, normal, row_error, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::cross_entropy::{self, Options, PARTS, Shape, Shard, Sum, reference};

struct Case<T> {
    shape: Shape,
    before: usize,
    options: Options,
    logits: Vec<T>,
    targets: Vec<u32>,
}

const ALL: Options = Options { ignore: Some(u32::MAX), smoothing: 0.25, z_loss: 0.0625, softcap: 20.0 };
const PLAIN: Options = Options { ignore: Some(u32::MAX), smoothing: 0.0, z_loss: 0.0, softcap: 0.0 };
/// Ranks that share the classes unevenly, the last one with none.
const RANKS: usize = 4;

impl<T: Float> Case<T> {
    fn new(rows: usize, vocab: usize, before: usize, options: Options) -> Self {
        let logits = normal::<T>(rows * vocab, 1).iter().map(|x| T::from_f64(x.to_f64() * 3.0)).collect();
        let mut targets = tokens(rows, vocab as u32, 2);
        targets.iter_mut().skip(3).step_by(5).for_each(|target| *target = u32::MAX);
        Self { shape: Shape { rows, vocab }, before, options, logits, targets }
    }

    fn forward(&self, on: &On) -> (Vec<f32>, Vec<f32>, Sum) {
        let (logits, targets) = (on.padded(self.before, &self.logits), on.up(&self.targets));
        let [mut losses, mut lse] = [0; 2].map(|_| on.padded_garbage::<f32>(1, self.shape.rows));
        let (logits, targets, out) = (logits.view(), targets.as_view(), (losses.view_mut(), lse.view_mut()));
        let sum = cross_entropy::forward(&on.stream, self.shape, logits, targets, self.options, out.0, out.1);
        (losses.down(on), lse.down(on), sum.unwrap())
    }

    fn backward(&self, on: &On, lse: &[f32], scale: f32) -> Vec<T> {
        let (mut logits, targets, lse) = (on.padded(self.before, &self.logits), on.up(&self.targets), on.up(lse));
        let (targets, lse) = (targets.as_view(), lse.as_view());
        cross_entropy::backward(&on.stream, self.shape, logits.view_mut(), targets, self.options, lse, scale).unwrap();
        logits.down(on)
    }

    /// By ranks that share the classes: losses, gradient and the sum.
    fn shared(&self, on: &On, scale: f32) -> (Vec<f32>, Vec<f64>, Sum) {
        let (losses, _, gradient, sum) = self.shared_and_normaliser(on, scale);
        (losses, gradient, sum)
    }

    /// And, second, the normaliser of each row.
    fn shared_and_normaliser(&self, on: &On, scale: f32) -> (Vec<f32>, Vec<f64>, Vec<f64>, Sum) {
        let Shape { rows, vocab } = self.shape;
        let ends = [0, vocab / 3, vocab / 2, vocab, vocab];
        let part = |rank: usize| -> Vec<T> {
            let rows = self.logits.chunks(vocab.max(1));
            rows.flat_map(|row| row[ends[rank]..ends[rank + 1]].to_vec()).collect()
        };
        let targets = on.up(&self.targets);
        let mut all = on.up(&vec![f64::NAN; RANKS * rows * PARTS]);
        let of = |rank: usize| {
            let shape = Shape { rows, vocab: ends[rank + 1] - ends[rank] };
            (shape, Shard { first: ends[rank], vocab })
        };
        for rank in 0..RANKS {
            let ((shape, shard), logits) = (of(rank), on.padded(self.before, &part(rank)));
            let own = all.view_mut(rank * rows * PARTS..(rank + 1) * rows * PARTS).unwrap();
            let (logits, targets) = (logits.view(), targets.as_view());
            cross_entropy::forward_shard(&on.stream, shape, shard, logits, targets, self.options, own).unwrap();
        }
        let (mut losses, mut normaliser) = (on.garbage::<f32>(rows), on.up(&vec![f64::NAN; rows * 2]));
        let out = (losses.as_view_mut(), normaliser.as_view_mut());
        let sum = cross_entropy::merge(&on.stream, RANKS, all.as_view(), targets.as_view(), self.options, out.0, out.1)
            .unwrap();
        let mut gradient = vec![0.0; rows * vocab];
        for rank in 0..RANKS {
            let ((shape, shard), mut logits) = (of(rank), on.padded(self.before, &part(rank)));
            let (targets, normaliser, options) = (targets.as_view(), normaliser.as_view(), self.options);
            let own = logits.view_mut();
            cross_entropy::backward_shard(&on.stream, shape, shard, own, targets, options, normaliser, scale).unwrap();
            for (i, value) in f64s(&logits.down(on)).into_iter().enumerate() {
                gradient[i / shape.vocab * vocab + ends[rank] + i % shape.vocab] = value;
            }
        }
        (on.down(&losses), on.down(&normaliser), gradient, sum)
    }

    /// The relative error of a row's sum of exponentials: of each term the difference and the exponential (2 units, and another
    /// rescaling or two of the partial sum, whose maxima are no further apart than the spread), and of the sum itself.
    fn sum_error(&self, row: usize) -> f64 {
        let logits = &f64s(&self.logits)[row * self.shape.vocab..][..self.shape.vocab];
        let spread = logits.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        row_error::<T>(self.shape.vocab) + U * (4.0 * spread + 12.0)
    }

    fn check(&self, ways: Ways) {
        let (Shape { vocab, .. }, scale) = (self.shape, 0.5f32);
        let (losses, lse, sum) = ways.same(|on| self.forward(on));
        let logits = f64s(&self.logits);
        let (exact, exact_lse) = reference::forward(self.shape, &logits, &self.targets, self.options);
        let largest = logits.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        // Capped logits have two roundings and a tanh of 2 units, and their mean the sum's error; the z-loss doubles what lse has.
        let capped = if self.options.softcap > 0.0 { 6.0 * U * largest } else { 0.0 };
        let mean = if self.options.smoothing > 0.0 { largest * row_error::<T>(vocab) } else { 0.0 };
        let z = |row: usize| 1.0 + 2.0 * f64::from(self.options.z_loss) * exact_lse[row].abs();
        let sum_errors: Vec<f64> = (0..self.shape.rows).map(|row| self.sum_error(row)).collect();
        let lse_error = |row: usize| sum_errors[row] + capped;
        let loss_error = |row: usize| z(row) * lse_error(row) + capped + mean;
        assert_within("lse", &lse, &exact_lse, lse_error);
        assert_within("losses", &losses, &exact, loss_error);
        let ignored = |row: usize| Some(self.targets[row]) == self.options.ignore;
        let counted: Vec<usize> = (0..self.shape.rows).filter(|row| !ignored(*row)).collect();
        assert_eq!(sum.count, counted.len());
        let allowed: f64 = 1.01 * counted.iter().map(|row| loss_error(*row) + 1e-12).sum::<f64>();
        assert!((sum.loss - exact.iter().sum::<f64>()).abs() <= allowed, "{sum:?}");

        let exact = reference::backward(self.shape, &logits, &self.targets, self.options, f64::from(scale));
        let bound = |i: usize| {
            let row = i / vocab;
            if ignored(row) {
                return 0.0;
            }
            let x = if self.options.softcap > 0.0 { 20.0 * (logits[i] / 20.0).tanh() } else { logits[i] };
            let probability = (x - exact_lse[row]).exp() * z(row);
            // lse's error and storage, the difference, the exponential and its factor; the subtractions and the slope.
            let relative = sum_errors[row] + capped + U * (exact_lse[row].abs() + (x - exact_lse[row]).abs() + 8.0);
            f64::from(scale) * (probability * relative + 6.0 * U) + 2f64.powi(-140)
        };
        let gradient = ways.same(|on| self.backward(on, &lse, scale));
        assert_within("dlogits", &gradient, &exact, bound);
        let (shared_losses, shared_gradient, shared_sum) = ways.same(|on| self.shared(on, scale));
        let (exact_losses, _) = reference::forward(self.shape, &logits, &self.targets, self.options);
        assert_within("losses of ranks", &shared_losses, &exact_losses, loss_error);
        let shared_gradient: Vec<T> = shared_gradient.into_iter().map(T::from_f64).collect();
        assert_within("dlogits of ranks", &shared_gradient, &exact, bound);
        assert_eq!(shared_sum.count, sum.count);
    }
}

#[test]
fn the_reference_gradient_with_all_options_is_that_of_finite_differences() {
    let shape = Shape { rows: 5, vocab: 9 };
    let logits = f64s(&normal::<f32>(45, 1));
    let mut targets = tokens(5, 9, 2);
    targets[3] = u32::MAX;
    let gradient = reference::backward(shape, &logits, &targets, ALL, 0.25);
    let loss = |x: &[f64]| 0.25 * reference::forward(shape, x, &targets, ALL).0.iter().sum::<f64>();
    assert_gradient("dlogits", &gradient, &finite_differences(&logits, loss));
}

#[test]
fn the_cpu_has_the_options_too() {
    for threads in [1, 2] {
        let ways = On::threads(threads);
        for options in [ALL, PLAIN, Options { smoothing: 0.5, ..PLAIN }, Options { softcap: 5.0, ..PLAIN }] {
            let case = Case::<f32>::new(9, 300, 8, options);
            let (losses, lse, _) = case.forward(&ways);
            let (exact, exact_lse) = reference::forward(case.shape, &f64s(&case.logits), &case.targets, options);
            assert_within("losses", &losses, &exact, |_| 64.0 * U);
            assert_within("lse", &lse, &exact_lse, |_| 64.0 * U);
            let exact = reference::backward(case.shape, &f64s(&case.logits), &case.targets, options, 0.5);
            assert_within("dlogits", &case.backward(&ways, &lse, 0.5), &exact, |_| 64.0 * U);
            let (shared, gradient, _) = case.shared(&ways, 0.5);
            assert_within("losses of ranks", &shared, &f64s(&losses), |_| 64.0 * U);
            let gradient: Vec<f32> = gradient.into_iter().map(|x| x as f32).collect();
            assert_within("dlogits of ranks", &gradient, &exact, |_| 64.0 * U);
        }
    }
}

#[test]
fn tiles_are_right_in_every_way() {
    for (rows, vocab, before, options) in [(1, 1, 8, PLAIN), (5, 7, 1, ALL), (6, 96, 8, PLAIN), (4, 128, 8, ALL)] {
        Case::<f32>::new(rows, vocab, before, options).check(Ways::EVERY);
        Case::<bf16>::new(rows, vocab, before, options).check(Ways::EVERY);
    }
    Case::<f16>::new(4, 40, 8, PLAIN).check(Ways::EVERY);
}

#[test]
fn large_vocabularies_are_right() {
    Case::<f32>::new(4, 5003, 8, PLAIN).check(Ways::TWO);
    Case::<bf16>::new(5, 8192, 8, ALL).check(Ways::TWO);
    Case::<f16>::new(2, 65_537, 1, PLAIN).check(Ways::TWO);
}

#[test]
fn extreme_logits_are_exact() {
    let (big, max, inf) = (1e30f32, f32::MAX, f32::INFINITY);
    let ln2 = 2f64.ln();
    let cases = [
        ([big, -big], 0, 0.0, [0.0, 0.0]),
        ([big, -big], 1, 2.0 * f64::from(big), [1.0, -1.0]),
        ([big, big], 1, ln2, [0.5, -0.5]),
        ([1e4, 1e4], 0, ln2, [-0.5, 0.5]),
        ([-max, -max], 0, ln2, [-0.5, 0.5]),
        ([max, -max], 1, 2.0 * f64::from(max), [1.0, -1.0]),
        ([-inf, 3.0], 1, 0.0, [0.0, 0.0]),
        ([-inf, 3.0], 0, f64::INFINITY, [-1.0, 1.0]),
    ];
    let on = On::software();
    for (logits, target, loss, gradient) in cases {
        let shape = Shape { rows: 1, vocab: 2 };
        let case = Case { shape, before: 8, options: None.into(), logits: logits.to_vec(), targets: vec![target] };
        let (losses, lse, sum) = case.forward(&on);
        assert_eq!((sum.loss, losses[0]), (loss, loss as f32), "{logits:?} {target}");
        assert_eq!(case.backward(&on, &lse, 1.0), gradient, "{logits:?} {target}");
    }
}

#[test]
fn a_row_without_a_distribution_is_nan_and_leaves_the_others_alone() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits = vec![1.0, nan, 0.0, inf, -inf, -inf, 2.0, 2.0];
    let shape = Shape { rows: 4, vocab: 2 };
    let case = Case { shape, before: 8, options: None.into(), logits, targets: vec![0; 4] };
    let on = On::software_with_nans();
    let (losses, lse, sum) = case.forward(&on);
    assert!(losses[..3].iter().all(|loss| loss.is_nan()) && sum.loss.is_nan(), "{losses:?}");
    assert_eq!((losses[3], sum.count), (2f64.ln() as f32, 4));
    let gradient = case.backward(&on, &lse, 1.0);
    assert!(gradient[..6].iter().all(|gradient| gradient.is_nan()), "{gradient:?}");
    assert_eq!(gradient[6..], [-0.5, 0.5]);
}

#[test]
fn all_ignored_is_no_loss_and_no_gradient_whatever_the_logits() {
    let shape = Shape { rows: 3, vocab: 2 };
    // 1 is inside the vocabulary, u32::MAX is not.
    for ignore in [1, u32::MAX] {
        let logits = vec![1.0f32, 2.0, f32::NAN, f32::INFINITY, 0.0, 0.0];
        let case = Case { shape, before: 8, options: Some(ignore).into(), logits, targets: vec![ignore; 3] };
        let on = On::software_with_nans();
        let (losses, lse, sum) = case.forward(&on);
        assert_eq!((losses, sum), (vec![0.0; 3], Sum { loss: 0.0, count: 0 }));
        assert_eq!(case.backward(&on, &lse, 1.0), [0.0; 6]);
    }
}

#[test]
fn nothing_to_do_is_done() {
    let on = On::software();
    let case = Case::<f32>::new(0, 5, 8, PLAIN);
    assert_eq!(case.forward(&on), (vec![], vec![], Sum::default()));
    assert_eq!(case.backward(&on, &[], 1.0), []);
    let shape = Shape { rows: 2, vocab: 0 };
    let case = Case::<f32> { shape, before: 8, options: Some(9).into(), logits: vec![], targets: vec![9; 2] };
    assert_eq!(case.forward(&on), (vec![0.0; 2], vec![f32::NEG_INFINITY; 2], Sum::default()));
    assert_eq!(case.backward(&on, &[0.0; 2], 1.0), []);
}

/// What the calls say of targets outside the vocabulary in some of three rows, the losses and the gradient that are left.
fn outside<T: Float>(on: &On, rows: &[usize]) -> ([String; 2], Vec<f32>, Vec<T>) {
    let mut case = Case::<T>::new(3, 40, 0, PLAIN);
    rows.iter().for_each(|row| case.targets[*row] = 40);
    let (mut logits, targets) = (on.up(&case.logits), on.up(&case.targets));
    let (mut losses, mut lse) = (on.garbage::<f32>(3), on.up(&[4.0f32; 3]));
    let (out, options) = ((losses.as_view_mut(), lse.as_view_mut()), case.options);
    let error =
        cross_entropy::forward(&on.stream, case.shape, logits.as_view(), targets.as_view(), options, out.0, out.1);
    let forward = error.unwrap_err().to_string();
    let (targets, lse) = (targets.as_view(), lse.as_view());
    cross_entropy::backward(&on.stream, case.shape, logits.as_view_mut(), targets, options, lse, 1.0).unwrap();
    let backward = on.stream.synchronize().unwrap_err().to_string();
    ([forward, backward], on.down(&losses), on.down(&logits))
}

#[test]
fn a_target_outside_the_vocabulary_names_its_row_and_writes_nothing() {
    let (said, losses, gradient) = outside::<f32>(&On::software(), &[2]);
    assert!(losses[2].is_nan(), "the row's loss is not written");
    for (said, call) in said.iter().zip(["cross_entropy forward: `targets`", "cross_entropy backward: `targets`"]) {
        assert!(said.contains(call) && said.contains("row 2") && said.contains("40"), "{said}");
    }
    let case = Case::<f32>::new(3, 40, 0, PLAIN);
    assert_eq!(gradient[80..], case.logits[80..], "the row's logits");
}

#[test]
fn no_ranks_have_no_losses() {
    for on in [On::software(), On::threads(1)] {
        let (parts, targets) = (on.up::<f64>(&[]), on.up(&[0u32; 2]));
        let (mut losses, mut normaliser) = (on.garbage::<f32>(2), on.garbage::<f64>(4));
        let out = (losses.as_view_mut(), normaliser.as_view_mut());
        let error = cross_entropy::merge(&on.stream, 0, parts.as_view(), targets.as_view(), PLAIN, out.0, out.1);
        assert!(error.unwrap_err().to_string().contains("`ranks` is 0"));
    }
}

#[test]
fn wrong_options_are_refused() {
    let on = On::software();
    let (logits, targets) = (on.up(&[1.0f32; 4]), on.up(&[0u32; 2]));
    let (mut losses, mut lse) = (on.garbage::<f32>(2), on.garbage::<f32>(2));
    let wrong = [
        (Options { smoothing: 1.5, ..PLAIN }, "`smoothing` is 1.5"),
        (Options { z_loss: f32::NAN, ..PLAIN }, "`z_loss` is NaN"),
        (Options { softcap: -1.0, ..PLAIN }, "`softcap` is -1"),
    ];
    for (options, named) in wrong {
        let (shape, out) = (Shape { rows: 2, vocab: 2 }, (losses.as_view_mut(), lse.as_view_mut()));
        let (logits, targets) = (logits.as_view(), targets.as_view());
        let error = cross_entropy::forward(&on.stream, shape, logits, targets, options, out.0, out.1).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn every_byte_is_moved_once() {
    let case = Case::<bf16>::new(64, 8192, 0, PLAIN);
    let (_, lse, _) = case.forward(&On::threads(1));
    assert_bound_by_memory("forward", &profiles(|on| drop(case.forward(on))), 0);
    assert_bound_by_memory("backward", &profiles(|on| drop(case.backward(on, &lse, 1.0))), 0);
}

/// Everything that the kernels do in cases that take every way through them.
fn proof<T: Float>(on: &On, judge: &mut Judge<'_>, cases: &[Case<T>]) {
    for case in cases {
        let (losses, lse, sum) = case.forward(on);
        judge.see(&losses);
        judge.see(&lse);
        judge.see(&[sum.loss, sum.count as f64]);
        judge.see(&case.backward(on, &lse, 0.5));
        // Just so large that it is not used.
        judge.see(&case.backward(on, &vec![16.0; case.shape.rows], 0.5));
        let (losses, normaliser, gradient, sum) = case.shared_and_normaliser(on, 0.5);
        judge.see(&losses);
        judge.see(&normaliser);
        judge.see(&gradient);
        judge.see(&[sum.loss, sum.count as f64]);
    }
    // Of several rows one is told, whole.
    for rows in [&[2][..], &[0, 1, 2]] {
        let (said, losses, gradient) = outside::<T>(on, rows);
        judge.see(said.concat().as_bytes());
        judge.see(&losses);
        judge.see(&gradient);
    }
}

impl<T: Float> Case<T> {
    fn with_logits(mut self, of: impl Fn(f64) -> f64) -> Self {
        self.logits.iter_mut().for_each(|logit| *logit = T::from_f64(of(logit.to_f64())));
        self
    }
}

/// Rows of every kind of options, short and long, with a log-sum-exp that is used as it was saved and with one that is not.
fn cases_of_rows<T: Float>() -> Vec<Case<T>> {
    let (capped, far_capped) = (Options { softcap: 5.0, ..PLAIN }, Options { softcap: 100.0, ..PLAIN });
    let kinds = [ALL, PLAIN, Options { smoothing: 0.5, ..PLAIN }, capped];
    let sizes = [(1, 4096 / size_of::<T>(), 0), (1, 1280 / size_of::<T>(), 3)];
    let large = |case: Case<T>| case.with_logits(|logit| logit + 30.0);
    let mut cases = vec![Case::new(6, 44 * 4 / size_of::<T>(), 0, ALL), large(Case::new(6, 44, 0, PLAIN))];
    cases.push(Case::new(5, 37, 1, PLAIN));
    for (rows, vocab, before) in sizes {
        // Logits so far apart that e^x of a difference is beyond f32, and one that is so far above all others.
        for options in [PLAIN, far_capped] {
            cases.push(Case::new(rows, vocab, before, options).with_logits(|logit| logit * 100.0));
            let mut one = Case::new(rows, vocab, before, Options { softcap: 20.0 * options.softcap, ..options });
            let mut each = Case::new(rows, vocab, before, one.options);
            one.logits[vocab * 2 / 3] = T::from_f64(500.0);
            // The same at each place of 16 bytes, in a thread each.
            (0..8).for_each(|place| each.logits[41 * place] = T::from_f64(500.0));
            cases.extend([one, each]);
        }
        for kind in kinds {
            let far = Options { softcap: kind.softcap * 8.0, ..kind };
            cases.extend([Case::new(rows, vocab, before, kind), large(Case::new(rows, vocab, before, far))]);
        }
    }
    // A target at each place of 16 bytes.
    for (kind, before) in kinds.into_iter().flat_map(|kind| [(kind, 0), (kind, 1)]) {
        let mut case = Case::new(8, 64, before, kind);
        case.targets = (0..8).map(|row| 9 * row).collect();
        cases.push(case);
    }
    // A row without a distribution has no loss, but a log-sum-exp.
    let mut none = Case::new(2, 40, 0, PLAIN);
    none.logits[..40].fill(T::from_f32(f32::NEG_INFINITY));
    none.targets[0] = u32::MAX;
    cases.push(none);
    cases
}

fn mutants<T: Float>(most: usize) -> Verdict {
    let cases = cases_of_rows::<T>();
    let tried = |call: &str| {
        let kernel = format!("cross_entropy_{call}_{}", T::DTYPE);
        Trial::of("cross_entropy", &kernel, most).verdict(|on, judge| proof(on, judge, &cases))
    };
    tried("parts").and(tried("backward"))
}

/// Of what joins rows and ranks, a thread a row: more rows than a block has threads, and ranks whose largest logits are so far apart that
/// a share is subnormal in f64, or nothing.
fn mutants_of_joining(most: usize) -> Verdict {
    let far = |apart: f64| {
        let mut case = Case::<f32>::new(3, 12, 0, ALL);
        // The ranks' classes are 0 to 3, 4 and 5, and the rest.
        let shift = |class: usize| if class < 4 { 0.0 } else { if class < 6 { -apart } else { -2.0 * apart } };
        case.logits.iter_mut().enumerate().for_each(|(i, logit)| *logit = (f64::from(*logit) + shift(i % 12)) as f32);
        case.options.softcap = 0.0;
        case
    };
    let mut cases: Vec<Case<f32>> = [0.0, 20.0, 350.0, 700.0, 740.0, 800.0, -350.0, -730.0].map(far).into();
    cases.extend([Case::new(1100, 4, 0, ALL), Case::new(2049, 3, 0, PLAIN), Case::new(257, 3, 0, PLAIN)]);
    for rows in [257, 2049] {
        let mut counted = Case::new(rows, 3, 0, Options { ignore: None, ..PLAIN });
        counted.targets = tokens(rows, 3, 2);
        cases.push(counted);
    }
    cases.extend(cases_of_rows().pop());
    let tried = |kernel| Trial::of("cross_entropy", kernel, most).verdict(|on, judge| proof(on, judge, &cases));
    tried("cross_entropy_merge").and(tried("cross_entropy_sum"))
}

#[test]
fn mutants_are_killed() {
    mutants::<f32>(sample(20, usize::MAX)).assert_killed();
    let few = sample(5, usize::MAX);
    mutants::<bf16>(few).assert_killed();
    mutants::<f16>(few).assert_killed();
}

#[test]
fn mutants_of_joining_are_killed() {
    mutants_of_joining(sample(20, usize::MAX)).assert_killed();
}
