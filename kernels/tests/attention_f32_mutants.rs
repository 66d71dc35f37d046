//! Kernels of attention in f32 broken on purpose: a sample of the mutants of each, a larger one with `long-tests`.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::attention_edges::edges_of_dropout;
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
    // Every eighth of a row that is there and that is not, one row and two of a thread.
    let sizes = (1..=8).map(|eighth| {
        let rows = if eighth % 2 == 0 { 5 } else { 21 };
        Case::new(shape(1, (rows, rows + 4), (1, 1), least + 16 * eighth), Options::CAUSAL)
    });
    let dropout = Some(Dropout { probability: 0.3, seed: 5 << 33, first_sequence: 1, first_head: 2 });
    let all = Options { window: window(30, 4), softcap: Some(5.0), dropout, scale: Some(0.3), ..Options::FULL };
    let beside = Options { window: window(0, 0), ..Options::FULL };
    let mut cases: Vec<Case<f32>> = sizes.collect();
    cases.extend([
        // Tiles and blocks that end where a mask does.
        Case::new(shape(1, (64, 64), (1, 1), small), Options::CAUSAL),
        Case::new(shape(1, (64, 64), (1, 1), small), beside),
        Case::new(shape(2, (3, 5), (4, 2), small), Options::FULL),
        Case::of_lengths(&[(34, 37), (0, 3), (3, 0), (3, 2)], (2, 1), small, all).alibi(),
    ]);
    let cases = cases.into_iter().map(|case| Case { behind: case.shape.queries % 2, ..case });
    cases.chain(edges_of_dropout(small)).collect()
}

fn tried(width: usize, most: usize) -> Verdict {
    attention_trial::tried("attention_f32", width, &cases(width), most)
}

#[test]
fn mutants_of_head_sizes_up_to_128_are_killed() {
    tried(128, sample(3, 20)).assert_killed_of_100(85);
}

#[test]
fn mutants_of_larger_heads_are_killed() {
    tried(256, sample(2, 10)).assert_killed_of_100(85);
}
