//! The kernels of the residual sum on the software device: the same bits as the CPU's.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, f64s, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::residual::{self, Shape};

/// With and without a bias, one after the other.
fn run<T: Float>(on: &On, rows: usize, channels: usize, before: usize) -> Vec<f64> {
    let shape = Shape { rows, channels };
    let [x, branch] = [1, 2].map(|seed| on.padded(before, &normal::<T>(rows * channels, seed)));
    let bias = on.padded(before, &normal::<T>(channels, 3));
    let mut all = Vec::new();
    for bias in [None, Some(bias.view())] {
        let mut out = on.padded_garbage::<T>(before, rows * channels);
        residual::forward(&on.stream, shape, x.view(), branch.view(), bias, out.view_mut()).unwrap();
        all.extend(f64s(&out.down(on)));
    }
    all
}

fn check<T: Float>(rows: usize, channels: usize, before: usize, ways: Ways) {
    assert_eq!(ways.same(|on| run::<T>(on, rows, channels, before)), run::<T>(&On::threads(1), rows, channels, before));
}

#[test]
fn the_sum_is_right_in_every_way() {
    for (rows, channels, before) in [(0, 3, 8), (5, 0, 8), (3, 7, 1), (5, 96, 8)] {
        check::<f32>(rows, channels, before, Ways::EVERY);
        check::<bf16>(rows, channels, before, Ways::EVERY);
        check::<f16>(rows, channels, before, Ways::EVERY);
    }
    check::<f32>(3, 5003, 8, Ways::TWO);
    check::<bf16>(2, 65_537, 8, Ways::TWO);
}

#[test]
fn every_byte_is_moved_once() {
    let counted = profiles(|on| drop(run::<bf16>(on, 64, 2048, 0)));
    // The bias, by every row.
    assert_bound_by_memory("forward", &counted, 63 * 4096);
}

fn mutants<T: Float>(most: usize) -> Verdict {
    let sizes = [(6, 100, 0), (5, 37, 1), (2, 1100, 0), (2, 5003, 0)];
    Trial::of("residual", &format!("residual_forward_{}", T::DTYPE), most).verdict(|on, judge| {
        for (rows, channels, before) in sizes {
            judge.see(&run::<T>(on, rows, channels * 4 / size_of::<T>(), before));
        }
    })
}

#[test]
fn mutants_are_killed() {
    let few = sample(9, usize::MAX);
    mutants::<f32>(sample(28, usize::MAX)).and(mutants::<bf16>(few)).and(mutants::<f16>(few)).assert_killed();
}
