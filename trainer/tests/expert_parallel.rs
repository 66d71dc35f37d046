//! Expert parallelism changes no number of a training.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{Seen, Training};
use warpweft_trainer::model::{ModelShape, MoeShape, ShapeError};
use warpweft_trainer::parallel::mesh::Sizes;

const STEPS: u64 = 20;

/// Losses within 1e-5 of one rank's and gradient norms within 5e-5, at every step; every rank has the same.
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
        assert!(loss <= 1e-5, "{what}, step {}: losses {loss:e} apart", step + 1);
        assert!(norm <= 5e-5, "{what}, step {}: norms {norm:e} apart", step + 1);
    }
}

/// On dp x cp x tp ranks, ep of them with experts of their own.
fn check(shape: ModelShape, (dp, cp, tp, ep): (usize, usize, usize, usize)) {
    let sizes = Sizes { cp, tp, ep, ..Sizes::ONE };
    let training = Training { sizes, micro_batch: 2, ..Training::of(shape, 5, STEPS) };
    assert_same(training, dp, &format!("{shape:?} dp {dp} cp {cp} tp {tp} ep {ep}"));
}

fn gpt2(moe: MoeShape) -> ModelShape {
    ModelShape { hidden: 24, moe: Some(moe), ..ModelShape::gpt2(2, 16, 4, 7, 19) }
}

fn llama(moe: MoeShape) -> ModelShape {
    ModelShape { hidden: 12, moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) }
}

#[test]
fn experts_over_ranks_are_experts_on_one() {
    check(gpt2(MoeShape::new(4, 2, 8)), (2, 1, 1, 2));
    check(llama(MoeShape::new(6, 2, 10)), (4, 1, 1, 4));
    check(llama(MoeShape { sigmoid: true, ..MoeShape::new(5, 3, 6) }), (4, 1, 1, 2));
}

#[test]
fn without_expert_parallelism_every_rank_has_all_experts() {
    check(llama(MoeShape::new(4, 2, 8)), (3, 1, 1, 1));
    check(llama(MoeShape::new(4, 1, 8)), (1, 1, 2, 1));
}

#[test]
fn with_every_other_axis() {
    check(llama(MoeShape::new(4, 2, 9)), (1, 2, 1, 2));
    check(gpt2(MoeShape::new(4, 2, 9)), (2, 1, 2, 2));
    check(llama(MoeShape { normalize: false, ..MoeShape::new(4, 2, 8) }), (2, 2, 2, 4));
}

#[test]
fn no_shared_expert_and_more_ranks_than_experts() {
    check(ModelShape { hidden: 0, ..llama(MoeShape::new(4, 2, 8)) }, (2, 1, 1, 2));
    check(llama(MoeShape::new(3, 1, 8)), (4, 1, 1, 4));
}

#[test]
fn rows_shared_out_over_tensor_parallel_ranks() {
    let sizes = Sizes { tp: 2, ep: 2, ..Sizes::ONE };
    let shape = llama(MoeShape::new(4, 2, 8));
    let training = Training { sizes, ragged: true, sequence_parallel: true, ..Training::of(shape, 5, STEPS) };
    assert_same(training, 2, "sequence parallelism");
}

#[test]
fn sizes_that_make_no_mixture_are_refused() {
    assert_eq!(llama(MoeShape::new(2, 3, 8)).check(), Err(ShapeError::TopK { top_k: 3, experts: 2 }));
    assert!(matches!(llama(MoeShape::new(0, 0, 8)).check(), Err(ShapeError::Zero { what: "experts" })));
    assert!(matches!(llama(MoeShape::new(2, 1, 0)).check(), Err(ShapeError::Zero { .. })));
    assert!(llama(MoeShape::new(usize::MAX / 2, 1, 8)).check().is_err());
}
