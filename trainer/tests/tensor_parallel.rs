//! Tensor and sequence parallelism change no number.
#![forbid(unsafe_code)]

mod common;
mod parity;
mod training;

use parity::assert_same;
use training::Training;
use warpweft_device::bf16;
use warpweft_trainer::model::{ModelShape, Spread};
use warpweft_trainer::parallel::mesh::Sizes;

const STEPS: u64 = 20;

/// Both ways of sharing, on `dp` x `tp` ranks.
fn check(shape: ModelShape, dp: usize, tp: usize) {
    for sequence_parallel in [false, true] {
        let sizes = Sizes { tp, ..Sizes::ONE };
        let training = Training { sizes, sequence_parallel, micro_batch: 2, ..Training::of(shape, 5, STEPS) };
        assert_same(training, dp, &format!("{shape:?} dp {dp} tp {tp} sp {sequence_parallel}"));
    }
}

#[test]
fn gpt2_with_a_vocabulary_that_does_not_divide() {
    check(ModelShape::gpt2(2, 16, 4, 7, 19), 1, 2);
    check(ModelShape::gpt2(2, 16, 4, 8, 257), 1, 4);
}

#[test]
fn llama_with_grouped_heads_and_an_mlp_that_does_not_divide() {
    let shape = ModelShape { hidden: 50, ..ModelShape::llama(2, 24, 6, 3, 8, 19) };
    check(shape, 1, 3);
    check(ModelShape { tied: false, ..shape }, 1, 3);
}

#[test]
fn key_value_heads_that_ranks_share() {
    check(ModelShape::llama(2, 16, 4, 1, 8, 19), 1, 2);
    check(ModelShape::llama(2, 16, 4, 2, 8, 19), 1, 4);
}

#[test]
fn with_data_parallel_ranks_of_uneven_batches() {
    check(ModelShape::gpt2(2, 16, 4, 7, 19), 3, 2);
    check(ModelShape::llama(2, 16, 4, 1, 8, 19), 2, 4);
}

#[test]
fn ragged_targets_count_once_however_many_ranks_see_them() {
    let sizes = Sizes { tp: 2, ..Sizes::ONE };
    let training = Training {
        sizes,
        ragged: true,
        sequence_parallel: true,
        ..Training::of(ModelShape::gpt2(2, 16, 4, 8, 19), 5, STEPS)
    };
    assert_same(training, 2, "ragged targets");
}

#[test]
fn bf16_stays_within_a_hundredth() {
    let shape = ModelShape::llama(2, 16, 4, 2, 8, 19);
    let one = Training::of(shape, 5, 60).run::<bf16>(1).remove(0);
    let sizes = Sizes { tp: 2, ..Sizes::ONE };
    let two = Training { sizes, sequence_parallel: true, ..Training::of(shape, 5, 60) }.run::<bf16>(1).remove(0);
    for (step, (one, two)) in one.losses.iter().zip(&two.losses).enumerate() {
        assert!((one - two).abs() <= 0.01 * one, "step {}: {one} and {two}", step + 1);
    }
}

#[test]
fn heads_that_ranks_cannot_share_are_refused_with_what_they_can() {
    let error = Spread::ranks_to_a_head(&ModelShape::gpt2(1, 20, 5, 8, 8), 2).unwrap_err().to_string();
    assert_eq!(error, "5 heads do not divide by 2 tensor-parallel ranks (tp); use 1, 5 tensor-parallel ranks (tp)");
    assert!(Spread::ranks_to_a_head(&ModelShape::llama(1, 24, 6, 2, 8, 8), 3).is_err(), "3 ranks on 2 heads");
    assert_eq!(Spread::ranks_to_a_head(&ModelShape::llama(1, 16, 4, 1, 8, 8), 4), Ok(4));
}
