//! Context parallelism changes no number of a training.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{Seen, Training};
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::Sizes;

const STEPS: u64 = 20;

/// Losses within 2e-6 of one rank's and gradient norms within 1e-5, at every step; every rank has the same.
fn assert_same(training: Training, dp: usize, what: &str) {
    let reference = Training { sizes: Sizes::ONE, sequence_parallel: false, ..training }.run::<f32>(1).remove(0);
    let seen = training.run::<f32>(dp);
    for rank in &seen {
        assert_eq!((&rank.losses, &rank.norms), (&seen[0].losses, &seen[0].norms), "{what}: ranks differ");
    }
    let Seen { losses, norms, .. } = &seen[0];
    for step in 0..losses.len() {
        let apart = |ours: &[f64], theirs: &[f64]| (ours[step] - theirs[step]).abs() / theirs[step];
        let (loss, norm) = (apart(losses, &reference.losses), apart(norms, &reference.norms));
        assert!(loss <= 2e-6, "{what}, step {}: losses {loss:e} apart", step + 1);
        assert!(norm <= 1e-5, "{what}, step {}: norms {norm:e} apart", step + 1);
    }
}

/// By ring and by exchange, on `dp` x `cp` x `tp` ranks.
fn check(shape: ModelShape, (dp, cp, tp): (usize, usize, usize)) {
    for context in [Method::Ring, Method::Ulysses] {
        let sizes = Sizes { cp, tp, ..Sizes::ONE };
        let training = Training { sizes, context, micro_batch: 2, ..Training::of(shape, 5, STEPS) };
        assert_same(training, dp, &format!("{shape:?} dp {dp} cp {cp} tp {tp} {context:?}"));
    }
}

#[test]
fn gpt2_with_learned_positions_and_sequences_that_do_not_divide() {
    check(ModelShape::gpt2(2, 24, 6, 13, 19), (1, 2, 1));
    check(ModelShape::gpt2(2, 24, 6, 7, 19), (1, 3, 1));
}

#[test]
fn llama_turns_by_the_positions_of_the_whole_sequence() {
    check(ModelShape::llama(2, 32, 4, 4, 16, 19), (1, 4, 1));
    check(ModelShape::llama(2, 16, 4, 1, 13, 19), (1, 2, 1));
}

#[test]
fn sequences_shorter_than_their_cuts_leave_ranks_without_tokens() {
    check(ModelShape::gpt2(1, 16, 4, 3, 19), (1, 4, 1));
}

#[test]
fn with_data_and_tensor_parallel_ranks() {
    check(ModelShape::gpt2(2, 16, 4, 11, 19), (3, 2, 1));
    check(ModelShape::llama(2, 16, 4, 2, 12, 19), (1, 2, 2));
    check(ModelShape::gpt2(2, 16, 4, 9, 257), (2, 2, 2));
}

#[test]
fn ragged_targets_count_where_they_are() {
    let sizes = Sizes { cp: 2, tp: 2, ..Sizes::ONE };
    let shape = ModelShape::gpt2(2, 16, 4, 8, 19);
    let training = Training { sizes, ragged: true, sequence_parallel: true, ..Training::of(shape, 5, STEPS) };
    assert_same(training, 2, "ragged targets");
}
