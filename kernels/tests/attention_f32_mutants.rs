//! Kernels of attention in f32 broken on purpose: a sample of the mutants of each, a larger one with `long-tests`.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::attention_trial;
use common::trial::{Verdict, sample};
use warpweft_kernels::attention::{Dropout, Options, Window};

fn window(left: usize, right: usize) -> Window {
    Window { left: Some(left), right: Some(right) }
}

/// Cases that take every way through the kernels of head sizes up to `width`, with as little arithmetic as that takes: a block has
/// 32 rows, a thread rows 16 apart. Small ones first.
fn cases(width: usize) -> Vec<Case<f32>> {
    let least = if width == 128 { 0 } else { 128 };
    let small = least + 8;
    // In each 32 elements of a row those that are there and those that are not.
    let sizes =
        [24, 40, 72, 104].into_iter().map(|size| Case::new(shape(1, (21, 25), (1, 1), least + size), Options::CAUSAL));
    // In the last of Philox's ten rounds the keys are all ones: one more changes every number.
    let seed = !(u64::from(0xbb67_ae85u32.wrapping_mul(9)) << 32 | u64::from(0x9e37_79b9u32.wrapping_mul(9)));
    let dropout = Some(Dropout { probability: 0.3, seed, first_sequence: 1, first_head: 2 });
    let all = Options { window: window(30, 4), softcap: Some(5.0), dropout, scale: Some(0.3), ..Options::FULL };
    let beside = Options { window: window(0, 0), ..Options::FULL };
    let mut cases: Vec<Case<f32>> = sizes.collect();
    cases.extend([
        Case::new(shape(1, (5, 9), (1, 1), width), Options::CAUSAL),
        // Tiles and blocks that end where a mask does.
        Case::new(shape(1, (40, 40), (1, 1), small), Options::CAUSAL),
        Case::new(shape(1, (40, 40), (1, 1), small), beside),
        Case::new(shape(2, (3, 5), (4, 2), small), Options { softcap: Some(5.0), ..Options::FULL }),
        Case::of_lengths(&[(33, 33), (0, 3), (20, 0), (32, 32)], (2, 1), small, all).alibi(),
    ]);
    cases.into_iter().map(|case| Case { behind: case.shape.queries % 2, ..case }).collect()
}

fn tried(width: usize, most: usize) -> Verdict {
    attention_trial::tried("attention_f32", width, &cases(width), most)
}

#[test]
fn mutants_of_head_sizes_up_to_128_are_killed() {
    tried(128, sample(4, 100)).assert_killed();
}

#[test]
fn mutants_of_larger_heads_are_killed() {
    tried(256, sample(2, 70)).assert_killed();
}
