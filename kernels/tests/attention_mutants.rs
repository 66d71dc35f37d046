//! Kernels of attention broken on purpose: a sample of the mutants of each, a larger one with `long-tests`.
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, shape};
use common::attention_trial;
use common::trial::{Verdict, sample};
use warpweft_device::{DType, Float, bf16};
use warpweft_kernels::attention::{Dropout, Options, Window};

/// Cases that take every way through a kernel of head sizes up to `width`: tiles that all see and tiles that some see, with every
/// border of a mask and of what is there in each fragment, every head size, every switch, sequences with starts. Small ones first.
fn cases<T: Float>(width: usize) -> Vec<Case<T>> {
    let dropout = Some(Dropout { probability: 0.3, seed: 5 << 33, first_sequence: 1, first_head: 2 });
    let window = Window { left: Some(30), right: Some(4) };
    let all = Options { window, softcap: Some(5.0), dropout, scale: Some(0.3), ..Options::FULL };
    let some = Options { window, ..Options::FULL };
    let past = Options { window: Window { left: Some(70), right: Some(0) }, ..Options::FULL };
    let (odd, keys) = (width - 8, if width == 64 { 300 } else { 180 });
    let mut cases: Vec<Case<T>> = (1..=8)
        .map(|eighth| {
            let least = if width == 64 || (width == 128 && T::DTYPE == DType::F32) { 0 } else { width / 2 };
            let size = least + (width - least) / 8 * eighth;
            let left = if eighth % 4 == 3 { 0 } else { 30 };
            let options = Options { window: Window { left: Some(left), right: Some(4) }, ..Options::FULL };
            let case = Case::new(shape(1, (16 * eighth - 11, 16 * eighth - 11), (1, 1), size), options);
            Case { behind: eighth % 2, ..case }
        })
        .collect();
    cases.extend([
        Case::of_lengths(&[(40, 50), (0, 3), (3, 0), (7, 70)], (2, 1), odd, all).alibi(),
        Case::of_lengths(&[(5, 128), (37, 101), (69, 69), (101, 37)], (1, 1), odd, some),
        Case::new(shape(1, (130, keys), (2, 1), width - 24), Options::CAUSAL),
        Case::of_lengths(&[(128, 128), (128, 136), (128, 144), (128, 152)], (1, 1), width, past),
    ]);
    cases
}

fn tried<T: Float>(op: &str, width: usize, most: usize) -> Verdict {
    attention_trial::tried::<T>(op, width, &cases(width), most)
}

/// Less than elsewhere is asserted: the proof does not tell yet what some of the mutants change.
const LEAST: usize = 65;

#[test]
fn mutants_of_head_sizes_up_to_64_are_killed() {
    tried::<bf16>("attention_64", 64, sample(2, 20)).assert_killed_of_100(LEAST);
}

#[cfg(feature = "long-tests")]
#[test]
fn mutants_of_other_types_and_head_sizes_are_killed() {
    use warpweft_device::f16;
    let verdict = tried::<f16>("attention_64", 64, 5);
    let verdict = verdict.and(tried::<bf16>("attention_128", 128, 10)).and(tried::<f16>("attention_128", 128, 4));
    let verdict = verdict.and(tried::<bf16>("attention_256", 256, 10)).and(tried::<f16>("attention_256", 256, 4));
    verdict.assert_killed_of_100(LEAST);
}
