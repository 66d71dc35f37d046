//! Kernels of attention broken on purpose: a sample of the mutants of each, a larger one with `long-tests`.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::attention_trial;
use common::trial::{Verdict, sample};
use warpweft_device::{Float, bf16};
use warpweft_kernels::attention::{Dropout, Options, Window};

/// Cases that take every way through a kernel of head sizes up to `width`. Small ones first.
fn cases<T: Float>(width: usize) -> Vec<Case<T>> {
    let mut cases = borders(width);
    cases.extend(masks(width));
    cases
}

/// Every head size, and numbers of queries and keys that end within each of the groups of rows that a block of threads copies at
/// once, and of those that a fragment has; windows of no key on the left among them.
fn borders<T: Float>(width: usize) -> Vec<Case<T>> {
    let (least, count): (usize, fn(usize) -> usize) = match width {
        64 => (0, |i| [133, 157, 37, 61, 77, 85, 109, 117][i]),
        128 => (64, |i| 8 * i + 5),
        _ => (128, |i| if i < 4 { 64 + 4 * i + 3 } else { 4 * i + 3 }),
    };
    let sizes = (width - least) / 8;
    let case = |i: usize| {
        let left = if i % 4 == 2 { 0 } else { 30 };
        let options = Options { window: Window { left: Some(left), right: Some(4) }, ..Options::FULL };
        let case = Case::new(shape(1, (count(i), count(i)), (1, 1), least + 8 * (i % sizes + 1)), options);
        Case { behind: (i + 1) % 2, ..case }
    };
    (0..if width == 64 { 8 } else { 16 }).map(case).collect()
}

/// Tiles that all see and tiles that some see, in either order, with the border of a mask in every fragment, and where one more key
/// or query would make a tile of the other kind; every switch; sequences with starts and without.
fn masks<T: Float>(width: usize) -> Vec<Case<T>> {
    // In this mask the last of Philox's keys, were they one more, would keep other weights.
    let dropout = Some(Dropout { probability: 0.3, seed: (10 << 32) + 211, first_sequence: 1, first_head: 2 });
    let window = |left, right| Options { window: Window { left: Some(left), right }, ..Options::FULL };
    let all = Options { softcap: Some(5.0), dropout, scale: Some(0.3), ..window(30, Some(4)) };
    let (odd, keys) = (width - 8, if width == 64 { 300 } else { 180 });
    // Rows of the blocks that have the most queries, and of those of keys; keys of two tiles of the largest.
    let (rows, block, whole) = match width {
        64 => (128, 128, 256),
        128 => (128, 64, 128),
        _ => (64, 64, 64),
    };
    vec![
        Case::new(shape(2, (9, 20), (2, 1), width), Options::CAUSAL),
        Case::of_lengths(&[(128, 136), (0, 3), (3, 0), (7, 70)], (2, 1), odd, all).alibi(),
        Case::of_lengths(&[(5, 128), (37, 101), (69, 69), (101, 37)], (1, 1), odd, window(30, Some(4))),
        Case::new(shape(1, (130, keys), (2, 1), width - 24), Options::CAUSAL),
        // Two whole tiles under every row of a block.
        Case::new(shape(1, (rows, whole), (2, 1), width), Options::FULL),
        // The last query of the first block sees 128 keys.
        Case::new(shape(1, (130, 130), (1, 1), width), Options::CAUSAL),
        // Query 0 sees one key less than 128.
        Case::new(shape(1, (5, 131), (1, 1), width), Options::CAUSAL),
        // The last tile of keys is the first one that is not seen whole.
        Case::new(shape(1, (5, keys + 100), (1, 1), width), window(keys - 100, None)),
        // Query 127 is the first one that does not see key 0.
        Case::new(shape(1, (block + 64, block), (1, 1), width), window(62, None)),
        Case::of_lengths(&[(128, 128), (128, 136), (128, 144), (133, 152)], (1, 1), width, window(70, Some(0))),
    ]
}

fn tried<T: Float>(op: &str, width: usize, most: usize) -> Verdict {
    attention_trial::tried::<T>(op, width, &cases(width), most)
}

#[test]
fn mutants_of_head_sizes_up_to_64_are_killed() {
    tried::<bf16>("attention_64", 64, sample(2, 24)).assert_killed();
}

#[cfg(feature = "long-tests")]
#[test]
fn mutants_of_other_types_and_head_sizes_are_killed() {
    use warpweft_device::f16;
    let verdict = tried::<f16>("attention_64", 64, 10);
    let verdict = verdict.and(tried::<bf16>("attention_128", 128, 16)).and(tried::<f16>("attention_128", 128, 6));
    let verdict = verdict.and(tried::<bf16>("attention_256", 256, 14)).and(tried::<f16>("attention_256", 256, 5));
    verdict.assert_killed();
}
