//! attention: within derived bounds of the f64 reference, its gradients against finite differences, masks exact.
#![forbid(unsafe_code)]

mod common;

use common::{
    On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, rounding, same_bits_for_threads,
};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::attention::{self, Options, Shape, reference};

const CAUSAL: Options = Options::CAUSAL;
const FULL: Options = Options::FULL;

fn shape(batch: usize, (queries, keys): (usize, usize), (heads, kv_heads): (usize, usize), head_size: usize) -> Shape {
    Shape { batch, queries, keys, heads, kv_heads, head_size }
}

/// Inputs and the output's gradient.
struct Case<T> {
    shape: Shape,
    options: Options,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    dout: Vec<T>,
}

struct Output<T> {
    out: Vec<T>,
    lse: Vec<f32>,
}

struct Gradients<T> {
    dq: Vec<T>,
    dk: Vec<T>,
    dv: Vec<T>,
}

impl<T: Float> Case<T> {
    fn new(shape: Shape, options: Options) -> Self {
        let q = shape.batch * shape.queries * shape.heads * shape.head_size;
        let kv = shape.batch * shape.keys * shape.kv_heads * shape.head_size;
        Self { shape, options, q: normal(q, 1), k: normal(kv, 2), v: normal(kv, 3), dout: normal(q, 4) }
    }

    fn forward(&self, on: &On) -> Output<T> {
        let Shape { batch, queries, heads, .. } = self.shape;
        let (mut out, mut lse) = (on.garbage(self.q.len()), on.garbage(batch * heads * queries));
        let (q, k, v) = (on.up(&self.q), on.up(&self.k), on.up(&self.v));
        let (q, k, v) = (q.as_view(), k.as_view(), v.as_view());
        attention::forward(&on.stream, self.shape, self.options, q, k, v, out.as_view_mut(), lse.as_view_mut())
            .unwrap();
        Output { out: on.down(&out), lse: on.down(&lse) }
    }

    fn backward(&self, on: &On, saved: &Output<T>) -> Gradients<T> {
        let (mut dq, mut dk, mut dv) = (on.garbage(self.q.len()), on.garbage(self.k.len()), on.garbage(self.v.len()));
        let (q, k, v, dout) = (on.up(&self.q), on.up(&self.k), on.up(&self.v), on.up(&self.dout));
        let (out, lse) = (on.up(&saved.out), on.up(&saved.lse));
        attention::backward(
            &on.stream,
            self.shape,
            self.options,
            q.as_view(),
            k.as_view(),
            v.as_view(),
            out.as_view(),
            lse.as_view(),
            dout.as_view(),
            dq.as_view_mut(),
            dk.as_view_mut(),
            dv.as_view_mut(),
        )
        .unwrap();
        Gradients { dq: on.down(&dq), dk: on.down(&dk), dv: on.down(&dv) }
    }

    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        reference::forward(self.shape, self.options, &f64s(&self.q), &f64s(&self.k), &f64s(&self.v))
    }

    fn reference_gradients(&self) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let [q, k, v, dout] = [&self.q, &self.k, &self.v, &self.dout].map(|x| f64s(x));
        reference::backward(self.shape, self.options, &q, &k, &v, &dout)
    }

    /// The largest absolute value of a finite input.
    fn largest(values: &[T]) -> f64 {
        values.iter().map(|x| x.to_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
    }

    /// The absolute error of a score in f32: D products of q (scaled, one rounding) and k, summed in D additions, so
    /// (D + 2) U times the sum of their magnitudes; and of the exponent's argument, one subtraction of numbers no larger
    /// than the largest score or LSE (which is at most the largest score plus ln Tk).
    fn score_error(&self) -> f64 {
        let d = self.shape.head_size as f64;
        let scale = self.options.scale.map_or(1.0 / d.sqrt(), |scale| f64::from(scale).abs());
        let magnitude = scale * d * Self::largest(&self.q) * Self::largest(&self.k);
        (d + 2.0) * U * magnitude + 2.0 * U * (magnitude + (self.shape.keys.max(1) as f64).ln())
    }

    /// The relative error of a weight: its score's and its maximum's or LSE's error through e^x, e^x itself (2 U), the
    /// sum over the keys and its rescaling once a tile, the division.
    fn weight_error(&self) -> f64 {
        let keys = self.shape.keys as f64;
        2.0 * self.score_error() + (4.0 + keys + 4.0 * (keys / 64.0).ceil()) * U
    }

    /// out is a mean of v under the weights: their relative errors and a sum of Tk terms, times the largest v.
    fn out_bound(&self) -> f64 {
        (2.0 * self.weight_error() + self.shape.keys as f64 * U) * Self::largest(&self.v)
    }

    fn check(&self, what: &str) {
        let on = On::threads(2);
        let what = format!("{what} {:?} {:?} {}", self.shape, self.options, T::DTYPE);
        let saved = self.forward(&on);
        let (out, lse) = self.reference();
        let out_bound = self.out_bound();
        assert_within(&format!("out of {what}"), &saved.out, &out, |_| out_bound);
        let lse_error = self.score_error() + self.weight_error();
        assert_within(&format!("lse of {what}"), &saved.lse, &lse, |i| lse_error + 2.0 * U * lse[i].abs());

        let gradients = self.backward(&on, &saved);
        let (dq, dk, dv) = self.reference_gradients();
        let bound = GradientBound::of(self);
        assert_within(&format!("dq of {what}"), &gradients.dq, &dq, |_| bound.dq);
        assert_within(&format!("dk of {what}"), &gradients.dk, &dk, |_| bound.dk);
        assert_within(&format!("dv of {what}"), &gradients.dv, &dv, |_| bound.dv);
    }
}

/// Bounds of the gradients' absolute errors. A row's weights sum to 1; a key's weights over its queries and group sum to
/// at most their number. dP is a sum of D products, delta = Σ dout out another, with out's own error and rounding.
struct GradientBound {
    dq: f64,
    dk: f64,
    dv: f64,
}

impl GradientBound {
    fn of<T: Float>(case: &Case<T>) -> Self {
        let Shape { queries, keys, head_size, .. } = case.shape;
        let (d, rows) = (head_size as f64, (queries * case.shape.heads / case.shape.kv_heads.max(1)) as f64);
        let scale = case.options.scale.map_or(1.0 / d.sqrt(), |scale| f64::from(scale).abs());
        let [q, k, v, dout] = [&case.q, &case.k, &case.v, &case.dout].map(|x| Case::largest(x));
        let weight = case.weight_error();
        // |dP| and |delta| are at most D |dout| |v|; dS = P (dP - delta).
        let dp = d * dout * v;
        let difference = 2.0 * (d + 2.0) * U * dp + d * dout * (case.out_bound() + rounding::<T>(v));
        // Relative to the weight P, which sums to at most 1 over keys.
        let ds = 2.0 * dp * (weight + 2.0 * U) + difference;
        Self {
            dq: scale * k * (ds + 2.0 * dp * (keys as f64 + 2.0) * U),
            dk: scale * q * rows * (ds + 2.0 * dp * (rows + 2.0) * U),
            dv: rows * dout * (weight + (rows + 1.0) * U),
        }
    }
}

#[test]
fn forward_and_backward_agree_with_the_reference_for_every_head_size() {
    for head_size in [1, 8, 32, 40, 64, 80, 128, 256] {
        for options in [CAUSAL, FULL] {
            Case::<f32>::new(shape(2, (70, 70), (4, 2), head_size), options).check("head sizes");
        }
    }
}

#[test]
fn queries_and_keys_may_differ_in_number() {
    for lengths in [(1, 239), (3, 799), (127, 512), (113, 203), (0, 5), (5, 0), (5, 3), (300, 7), (1, 1)] {
        for options in [CAUSAL, FULL] {
            Case::<f32>::new(shape(1, lengths, (2, 1), 16), options).check("lengths");
        }
    }
}

#[test]
fn sixteen_bit_storage_rounds_once() {
    for options in [CAUSAL, FULL] {
        Case::<bf16>::new(shape(2, (65, 130), (4, 2), 32), options).check("bf16");
        Case::<f16>::new(shape(2, (65, 130), (4, 2), 32), options).check("f16");
    }
}

#[test]
fn the_references_gradients_are_the_finite_differences() {
    let [q, k, v] = [1.0, 0.7, 0.5];
    for (lengths, options) in [((5, 7), CAUSAL), ((7, 4), CAUSAL), ((4, 6), FULL)] {
        let case = Case::<f32>::new(shape(2, lengths, (4, 2), 3), Options { scale: Some(0.8), ..options });
        let scaled = |x: &[f32], by: f64| -> Vec<f64> { x.iter().map(|x| by * f64::from(*x)).collect() };
        let (q, k, v, dout) = (scaled(&case.q, q), scaled(&case.k, k), scaled(&case.v, v), f64s(&case.dout));
        let loss =
            |q: &[f64], k: &[f64], v: &[f64]| dot(&reference::forward(case.shape, case.options, q, k, v).0, &dout);
        let (dq, dk, dv) = reference::backward(case.shape, case.options, &q, &k, &v, &dout);
        assert_gradient("dq", &dq, &finite_differences(&q, |q| loss(q, &k, &v)));
        assert_gradient("dk", &dk, &finite_differences(&k, |k| loss(&q, k, &v)));
        assert_gradient("dv", &dv, &finite_differences(&v, |v| loss(&q, &k, v)));
    }
}

#[test]
fn equal_scores_of_a_power_of_two_keys_give_the_exact_mean() {
    let on = On::threads(2);
    for keys in [1, 2, 64, 128, 512] {
        let mut case = Case::<f32>::new(shape(1, (3, keys), (2, 2), 40), FULL);
        case.q.fill(0.0);
        case.v = common::integers(case.v.len(), 5);
        let saved = case.forward(&on);
        for head in 0..2 {
            for d in 0..40 {
                let sum: f32 = (0..keys).map(|key| case.v[(key * 2 + head) * 40 + d]).sum();
                for query in 0..3 {
                    assert_eq!(saved.out[(query * 2 + head) * 40 + d], sum / keys as f32);
                }
            }
        }
    }
}

#[test]
fn rows_that_see_no_key_are_zero_with_no_gradient() {
    let on = On::threads(1);
    let case = Case::<f32>::new(shape(2, (9, 4), (2, 1), 8), CAUSAL);
    let saved = case.forward(&on);
    let gradients = case.backward(&on, &saved);
    for sequence in 0..2 {
        for query in 0..5 {
            let row = (sequence * 9 + query) * 16;
            assert!(saved.out[row..row + 16].iter().all(|&x| x == 0.0));
            assert!(gradients.dq[row..row + 16].iter().all(|&x| x == 0.0));
            for head in 0..2 {
                assert_eq!(saved.lse[(sequence * 2 + head) * 9 + query], f32::NEG_INFINITY);
            }
        }
    }
}

#[test]
fn what_a_mask_hides_may_be_nan_or_infinite() {
    let on = On::threads(2);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let clean = Case::<f32>::new(shape(1, (150, 150), (2, 1), 24), CAUSAL);
        let mut dirty = Case::<f32>::new(clean.shape, CAUSAL);
        // Token 100's key and value: seen by queries 100 to 149 only.
        dirty.k[100 * 24 + 3] = bad;
        dirty.v[100 * 24 + 5] = bad;
        let (saved, expected) = (dirty.forward(&on), clean.forward(&on));
        assert_eq!(saved.out[..100 * 48], expected.out[..100 * 48]);
        let bound = dirty.out_bound();
        assert_within("the pattern of what is not finite", &saved.out, &dirty.reference().0, |_| bound);
        // A gradient of query 20 that is NaN reaches keys 0 to 20 only.
        let mut poisoned = Case::<f32>::new(clean.shape, CAUSAL);
        poisoned.dout[20 * 48..21 * 48].fill(f32::NAN);
        let (gradients, expected) = (poisoned.backward(&on, &expected), clean.backward(&on, &expected));
        assert!(gradients.dv[..21 * 24].iter().all(|x| x.is_nan()));
        assert_eq!(gradients.dv[21 * 24..], expected.dv[21 * 24..]);
        assert_eq!(gradients.dk[21 * 24..], expected.dk[21 * 24..]);
        assert_eq!(gradients.dq[21 * 48..], expected.dq[21 * 48..]);
        assert_eq!(gradients.dq[..20 * 48], expected.dq[..20 * 48]);
    }
}

#[test]
fn scores_far_apart_neither_overflow_nor_vanish() {
    for far in [200.0f32, -200.0, 3000.0] {
        let mut case = Case::<f32>::new(shape(1, (64, 200), (1, 1), 8), Options { scale: Some(1.0), ..Options::FULL });
        case.q.iter_mut().enumerate().for_each(|(i, q)| *q = if i % 8 == 0 { 1.0 } else { 0.0 });
        // Key 70's score is `far`, all others' near zero.
        case.k.iter_mut().enumerate().for_each(|(i, k)| *k *= if i % 8 == 0 { 0.1 } else { 1.0 });
        case.k[70 * 8] = far;
        case.check("scores far apart");
    }
}

#[test]
fn scores_of_minus_infinity_weigh_nothing() {
    let on = On::threads(1);
    let mut case = Case::<f32>::new(shape(1, (3, 130), (1, 1), 8), Options { scale: Some(1.0), ..Options::FULL });
    case.q.fill(1.0);
    // The first tile of keys is hidden by -inf scores, then all of them.
    case.k[..64 * 8].fill(f32::NEG_INFINITY);
    let bound = case.out_bound();
    assert_within("out", &case.forward(&on).out, &case.reference().0, |_| bound);
    case.k.fill(f32::NEG_INFINITY);
    let saved = case.forward(&on);
    assert!(saved.out.iter().all(|&x| x == 0.0) && saved.lse.iter().all(|&x| x == f32::NEG_INFINITY));
}

#[test]
fn grouped_heads_equal_repeated_heads() {
    let on = On::threads(2);
    let grouped = Case::<f32>::new(shape(2, (90, 90), (6, 2), 16), CAUSAL);
    let mut repeated = Case::<f32>::new(shape(2, (90, 90), (6, 6), 16), CAUSAL);
    let repeat = |x: &[f32]| -> Vec<f32> { x.chunks(16).flat_map(|head| head.repeat(3)).collect() };
    (repeated.k, repeated.v) = (repeat(&grouped.k), repeat(&grouped.v));
    let (a, b) = (grouped.forward(&on), repeated.forward(&on));
    assert_eq!(a.out, b.out);
    assert_eq!(a.lse, b.lse);
    let (ga, gb) = (grouped.backward(&on, &a), repeated.backward(&on, &b));
    assert_eq!(ga.dq, gb.dq);
    // The group's sum is the sum of the repeated heads' gradients, up to the order and roundings of both sums.
    let bound = GradientBound::of(&grouped);
    for (what, summed, parts, bound) in [("dk", &ga.dk, &gb.dk, bound.dk), ("dv", &ga.dv, &gb.dv, bound.dv)] {
        let expected: Vec<f64> = (0..summed.len())
            .map(|i| (0..3).map(|head| f64::from(parts[(i / 16 * 3 + head) * 16 + i % 16])).sum())
            .collect();
        assert_within(what, summed, &expected, |_| 2.0 * bound);
    }
}

#[test]
fn packed_rows_give_the_same_bits_as_separate_arrays() {
    let on = On::threads(2);
    let case = Case::<bf16>::new(shape(2, (70, 70), (4, 2), 8), CAUSAL);
    let pack = |q: &[bf16], k: &[bf16], v: &[bf16]| -> Vec<bf16> {
        let rows = q.chunks(32).zip(k.chunks(16)).zip(v.chunks(16));
        rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
    };
    let qkv = on.up(&pack(&case.q, &case.k, &case.v));
    let (mut out, mut lse) = (on.garbage(case.q.len()), on.garbage(2 * 4 * 70));
    attention::forward_packed(&on.stream, case.shape, CAUSAL, qkv.as_view(), out.as_view_mut(), lse.as_view_mut())
        .unwrap();
    let saved = case.forward(&on);
    assert_eq!((on.down(&out), on.down(&lse)), (saved.out.clone(), saved.lse.clone()));

    let (dout, mut dqkv) = (on.up(&case.dout), on.garbage(qkv.len()));
    let (out, lse) = (out.as_view(), lse.as_view());
    attention::backward_packed(
        &on.stream,
        case.shape,
        CAUSAL,
        qkv.as_view(),
        out,
        lse,
        dout.as_view(),
        dqkv.as_view_mut(),
    )
    .unwrap();
    let Gradients { dq, dk, dv } = case.backward(&on, &saved);
    assert_eq!(on.down(&dqkv), pack(&dq, &dk, &dv));
}

#[test]
fn threads_neighbours_in_the_batch_and_other_heads_change_no_bit() {
    let case = Case::<f32>::new(shape(3, (300, 300), (2, 1), 40), CAUSAL);
    same_bits_for_threads(|on| case.forward(on).out);
    let all = same_bits_for_threads(|on| {
        let saved = case.forward(on);
        let gradients = case.backward(on, &saved);
        [saved.out, saved.lse, gradients.dq, gradients.dk, gradients.dv].concat()
    });
    // The second sequence alone.
    let on = On::threads(2);
    let (q, kv) = (300 * 80, 300 * 40);
    let alone = Case {
        shape: Shape { batch: 1, ..case.shape },
        options: CAUSAL,
        q: case.q[q..2 * q].to_vec(),
        k: case.k[kv..2 * kv].to_vec(),
        v: case.v[kv..2 * kv].to_vec(),
        dout: case.dout[q..2 * q].to_vec(),
    };
    let saved = alone.forward(&on);
    assert_eq!(saved.out, all[q..2 * q]);
    let gradients = alone.backward(&on, &saved);
    let after = 3 * q + 3 * 600;
    assert_eq!(gradients.dq, all[after + q..after + 2 * q]);
    assert_eq!(gradients.dk, all[after + 3 * q + kv..after + 3 * q + 2 * kv]);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let good = shape(1, (4, 4), (4, 2), 8);
    let (q, kv) = (on.up(&vec![0.0f32; 128]), on.up(&vec![0.0f32; 64]));
    let attempt = |shape: Shape, options: Options, k: usize| {
        let (mut out, mut lse) = (on.up(&vec![7.0f32; 128]), on.up(&[7.0f32; 16]));
        let k = kv.view(..k).unwrap();
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        let error = attention::forward(&on.stream, shape, options, q.as_view(), k, kv.as_view(), o, l).unwrap_err();
        assert!(on.down(&out).iter().chain(&on.down(&lse)).all(|&x| x == 7.0));
        error
    };
    let text = |error: KernelError| error.to_string();
    assert_eq!(
        text(attempt(good, CAUSAL, 63)),
        "attention::forward: `k` has 63 elements; its shape 1 x 4 x 2 x 8 needs 64"
    );
    assert_eq!(
        text(attempt(Shape { kv_heads: 3, ..good }, CAUSAL, 64)),
        "attention::forward: `kv_heads` is 3; it must be a divisor of the 4 query heads"
    );
    assert!(text(attempt(Shape { kv_heads: 0, ..good }, CAUSAL, 64)).contains("`kv_heads` is 0"));
    assert!(text(attempt(Shape { head_size: 0, ..good }, CAUSAL, 64)).contains("`head_size` is 0"));
    let infinite = Options { scale: Some(f32::INFINITY), ..CAUSAL };
    assert!(text(attempt(good, infinite, 64)).contains("`scale` is inf"));
    let huge = Shape { batch: usize::MAX / 2, ..good };
    assert!(text(attempt(huge, CAUSAL, 64)).contains("more elements than memory can address"));
    // No element, but sizes that no address space has; and very many sequences of length zero.
    let none = |shape: Shape| {
        let empty = Case::<f32> { shape, options: CAUSAL, q: vec![], k: vec![], v: vec![], dout: vec![] };
        let (q, mut out, mut lse) = (on.up::<f32>(&[]), on.up::<f32>(&[]), on.up::<f32>(&[]));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        attention::forward(&on.stream, shape, CAUSAL, q.as_view(), q.as_view(), q.as_view(), o, l)?;
        empty.backward(&on, &Output { out: vec![], lse: vec![] });
        Ok(())
    };
    let text_of = |result: Result<(), KernelError>| result.unwrap_err().to_string();
    let long = Shape { batch: 0, queries: usize::MAX, ..good };
    assert!(text_of(none(long)).contains("more elements than memory can address"));
    assert_eq!(none(Shape { batch: 1 << 48, queries: 0, keys: 0, ..good }), Ok(()));
    let (mut out, mut lse) = (on.up(&vec![7.0f32; 128]), on.up(&[7.0f32; 16]));
    let unequal = Shape { keys: 5, ..good };
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    let error = attention::forward_packed(&on.stream, unequal, CAUSAL, q.as_view(), o, l).unwrap_err();
    assert!(text(error).contains("`keys` is 5; it must be 4 as `queries`"));
}
