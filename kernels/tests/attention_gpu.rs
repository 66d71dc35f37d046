//! The kernels of attention on the software device, under every check: within the derived bounds and the twofold error of the
//! formula at their own precision, with every switch and all of them together.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, Output, largest, shape};
use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, U, assert_within, rounding};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::attention::{Dropout, Options, Window};

const DROPOUT: Option<Dropout> =
    Some(Dropout { probability: 0.3, seed: 0x1234_5678_9abc, first_sequence: 3, first_head: 5 });

fn window(left: usize, right: usize) -> Window {
    Window { left: Some(left), right: Some(right) }
}

/// Bounds of absolute errors, from the largest inputs.
struct Bounds {
    out: f64,
    lse: f64,
}

impl Bounds {
    /// A score is a sum of D exact products, truncated: (D + 2) 2U of the sum of their magnitudes; the factor, the exponent's
    /// argument and the largest score round three times more. Softcap adds 2^-21 of the cap, ALiBi three roundings of its
    /// term.
    fn of<T: Float>(case: &Case<T>) -> Self {
        let (d, keys) = (case.shape.head_size as f64, case.shape.keys as f64);
        let scale = case.options.scale.map_or(1.0 / d.sqrt(), |scale| f64::from(scale).abs());
        let magnitude = scale * d * largest(&case.q) * largest(&case.k);
        let far = keys.max(case.shape.queries as f64) + keys;
        let alibi =
            case.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes.iter().copied().fold(0.0, f32::max)) * far);
        let cap = case.options.softcap.map_or(0.0, f64::from);
        let score = (2.0 * d + 10.0) * U * magnitude + 8.0 * U * (alibi + (keys + 1.0).ln()) + cap * 8.0 * U;
        // A weight: its score's error and the largest one's, 2 units of the power, rescaling once a tile.
        let weight = 2.0 * score + (8.0 + 4.0 * keys / 16.0) * U;
        let kept = case.options.dropout.map_or(1.0, |dropout| 1.0 / (1.0 - f64::from(dropout.probability)));
        // Weights are rounded before they meet v; the sum of keys is truncated.
        let out = kept * largest(&case.v) * (2.0 * weight + rounding::<T>(1.0) + (2.0 * keys + 4.0) * U);
        Self { out, lse: score + weight + keys * U }
    }
}

fn round<T: Float>(value: f64) -> f64 {
    T::from_f64(value).to_f64()
}

/// Within `times` the largest error that the roundings alone make, plus that of one more rounding.
fn assert_like<T: Float>(what: &str, given: &[T], exact: &[f64], lowp: &[f64], times: f64) {
    let most = exact.iter().zip(lowp).map(|(exact, lowp)| (exact - lowp).abs()).fold(0.0, f64::max);
    assert_within(what, given, exact, |_| times * most + 2f64.powi(-20));
}

fn check_forward<T: Float>(case: &Case<T>, all: bool) -> Output<T> {
    let what = format!("{:?} {:?} {}", case.shape, case.options, T::DTYPE);
    let run = |on: &On| {
        let Output { out, lse } = case.forward(on);
        let mut bits = bytemuck::cast_slice::<T, u8>(&out).to_vec();
        bits.extend(bytemuck::cast_slice::<f32, u8>(&lse));
        bits
    };
    let bits = if all { same_bits_in_every_way(run) } else { same_bits_in_two_ways(run) };
    let (out, lse) = bits.split_at(size_of::<T>() * case.q.len());
    let saved = Output { out: bytemuck::pod_collect_to_vec(out), lse: bytemuck::pod_collect_to_vec(lse) };
    let (out, lse) = case.reference(None);
    let (bounds, lowp) = (Bounds::of(case), case.reference(Some(round::<T>)));
    assert_within(&format!("out of {what}"), &saved.out, &out, |_| bounds.out);
    assert_within(&format!("lse of {what}"), &saved.lse, &lse, |i| bounds.lse + 4.0 * U * lse[i].abs());
    assert_like(&format!("out of {what}"), &saved.out, &out, &lowp.0, 2.0);
    saved
}

#[test]
fn tiles_are_right_in_every_way() {
    check_forward(&Case::<bf16>::new(shape(1, (70, 75), (2, 1), 64), Options::CAUSAL), true);
    check_forward(&Case::<f16>::new(shape(2, (33, 70), (1, 1), 40), Options::FULL), true);
    check_forward(&Case::<bf16>::new(shape(1, (20, 100), (1, 1), 128), Options::CAUSAL), true);
    check_forward(&Case::<f16>::new(shape(1, (70, 40), (1, 1), 256), Options::FULL), true);
}

#[test]
fn every_head_size_is_right() {
    for head_size in [8, 32, 40, 64, 80, 96, 128, 256] {
        check_forward(&Case::<bf16>::new(shape(1, (150, 200), (2, 1), head_size), Options::CAUSAL), false);
        check_forward(&Case::<f16>::new(shape(1, (33, 65), (2, 2), head_size), Options::FULL), false);
    }
}

#[test]
fn queries_and_keys_may_differ_in_number() {
    for lengths in [(1, 239), (3, 799), (127, 512), (113, 203), (0, 5), (5, 0), (5, 3), (300, 7), (1, 1)] {
        for options in [Options::CAUSAL, Options::FULL] {
            check_forward(&Case::<bf16>::new(shape(1, lengths, (2, 1), 64), options), false);
            check_forward(&Case::<f16>::new(shape(1, lengths, (1, 1), 128), options), false);
        }
    }
}

#[test]
fn every_switch_is_right() {
    let full = Options::FULL;
    for options in [
        Options { window: window(20, 5), ..full },
        Options { window: Window { left: Some(17), right: None }, ..Options::CAUSAL },
        Options { window: Window { left: None, right: Some(30) }, ..full },
        Options { window: window(200, 0), ..full },
        Options { softcap: Some(2.0), ..full },
        Options { scale: Some(-0.2), ..full },
        Options { scale: Some(0.0), ..Options::CAUSAL },
        Options { dropout: DROPOUT, ..full },
        Options { window: window(40, 3), softcap: Some(5.0), dropout: DROPOUT, scale: Some(0.3), causal: true },
    ] {
        for alibi in [false, true] {
            let case = Case::<bf16>::new(shape(2, (150, 290), (2, 1), 64), options);
            check_forward(&if alibi { case.alibi() } else { case }, false);
            let case = Case::<f16>::new(shape(1, (100, 90), (2, 1), 80), options);
            check_forward(&if alibi { case.alibi() } else { case }, false);
        }
    }
}

#[test]
fn sequences_of_unequal_length_are_right() {
    let lengths = [(5, 9), (0, 4), (130, 131), (7, 0), (0, 0), (64, 200)];
    check_forward(&Case::<bf16>::of_lengths(&lengths, (4, 2), 64, Options::CAUSAL), false);
    let all = Options { window: window(60, 3), softcap: Some(5.0), dropout: DROPOUT, ..Options::FULL };
    check_forward(&Case::<f16>::of_lengths(&lengths, (2, 1), 128, all).alibi(), false);
}
