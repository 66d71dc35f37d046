//! What all ranks send against what is predicted from the sizes alone, to the byte, over many meshes.
#![forbid(unsafe_code)]

mod common;
#[allow(dead_code, reason = "what was learnt is no matter here")]
mod training;

use training::Training;
use warpweft_device::{DType, Float, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::model::{ModelShape, MoeShape, Recompute};
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::traffic::{Traffic, predict};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Sequences, Trainer};

/// dp, pp, cp, tp, ep.
type Axes = [usize; 5];

const STEPS: u64 = 3;

fn gpt2() -> Training {
    Training { micro_batch: 2, ..Training::of(ModelShape::gpt2(4, 16, 4, 8, 19), 7, STEPS) }
}

fn llama() -> Training {
    let shape = ModelShape { tied: false, ..ModelShape::llama(5, 16, 4, 2, 9, 257) };
    Training { micro_batch: 1, ..Training::of(shape, 6, STEPS) }
}

/// Whether steps send what is predicted, and held-out losses are not among it.
fn check<T: Float>(training: Training, [dp, pp, cp, tp, ep]: Axes) {
    let sizes = Sizes { pp, dp, cp, tp, ep };
    let training = Training { sizes, ..training };
    let dtype = if size_of::<T>() == 2 { DType::BF16 } else { DType::F32 };
    let each = training.run_then(dp, |trainer: &mut Trainer<T>, _| {
        let mine = training.recipe().share(trainer.mesh(), training.batch);
        let (inputs, targets) = training.sequences(9, mine);
        trainer.evaluate(Sequences { inputs: &inputs, targets: &targets }, training.batch).expect("a loss");
        trainer.settle().expect("weights that arrive");
        trainer.sent()
    });
    let sent = each.into_iter().fold(Traffic::default(), |sum, of| sum + of);
    let of_a_step = sent.kinds().map(|(kind, bytes)| (kind, bytes as f64 / STEPS as f64));
    let predicted = predict(&training.shape, &training.recipe(), sizes, dtype).expect("sizes that fit");
    let predicted = predicted.kinds().map(|(kind, bytes)| (kind, bytes as f64));
    assert_eq!(of_a_step, predicted, "{sizes:?} {:?} {:?} {:?}", training.zero, training.pipeline, training.recompute);
}

#[test]
fn data_parallel_ranks_and_what_they_share_out() {
    for stage in 0..=3 {
        for dp in [2, 3, 4] {
            let zero = Zero::stage(stage);
            check::<f32>(Training { zero, ..gpt2() }, [dp, 1, 1, 1, 1]);
            check::<bf16>(Training { zero, ..llama() }, [dp, 1, 1, 1, 1]);
        }
        check::<f32>(Training { zero: Zero { stage, shards: Some(2) }, ..llama() }, [4, 1, 1, 1, 1]);
    }
}

#[test]
fn heads_rows_and_parts_of_sequences() {
    for sequence_parallel in [false, true] {
        for recompute in [Recompute::None, Recompute::Full] {
            for tp in [2, 4] {
                check::<f32>(Training { sequence_parallel, recompute, ..gpt2() }, [1, 1, 1, tp, 1]);
                check::<bf16>(Training { sequence_parallel, recompute, ..llama() }, [1, 1, 1, tp, 1]);
            }
        }
    }
    for context in [Method::Ring, Method::Ulysses] {
        for (cp, recompute) in [(2, Recompute::None), (4, Recompute::None), (2, Recompute::Full)] {
            check::<f32>(Training { context, recompute, ..gpt2() }, [1, 1, cp, 1, 1]);
            check::<bf16>(Training { context, recompute, ..llama() }, [1, 1, cp, 1, 1]);
        }
    }
}

#[test]
fn stages_of_every_schedule() {
    let names = [
        Name::GPipe,
        Name::OneForwardOneBackward,
        Name::Interleaved,
        Name::ZbH1,
        Name::ZbH2,
        Name::ZbV,
        Name::DualPipe,
    ];
    for name in names {
        let pipeline = (name, None);
        check::<f32>(Training { pipeline, ..gpt2() }, [1, 2, 1, 1, 1]);
        check::<bf16>(Training { pipeline, ..llama() }, [2, 2, 1, 1, 1]);
        check::<f32>(Training { pipeline, zero: Zero::stage(3), ..gpt2() }, [2, 2, 1, 1, 1]);
    }
}

#[test]
fn products_of_them() {
    let zb = (Name::ZbH1, None);
    check::<f32>(Training { zero: Zero::stage(1), ..gpt2() }, [2, 2, 2, 1, 1]);
    check::<f32>(Training { zero: Zero::stage(3), sequence_parallel: true, ..gpt2() }, [2, 1, 1, 4, 1]);
    check::<f32>(Training { pipeline: zb, sequence_parallel: true, ..gpt2() }, [1, 2, 2, 2, 1]);
    check::<f32>(Training { zero: Zero::stage(2), context: Method::Ulysses, ..gpt2() }, [2, 1, 2, 2, 1]);
    let selective = Recompute::Selective;
    check::<bf16>(Training { zero: Zero::stage(3), pipeline: zb, recompute: selective, ..llama() }, [3, 2, 1, 1, 1]);
}

#[test]
fn exact_sums_send_the_nodes_of_their_trees() {
    for (dp, pp) in [(2, 1), (3, 1), (4, 1), (2, 2), (1, 2)] {
        for stage in [0, 1, 3] {
            check::<f32>(Training { exact: true, zero: Zero::stage(stage), ..gpt2() }, [dp, pp, 1, 1, 1]);
        }
    }
}

#[test]
fn rows_to_experts_that_all_tokens_choose() {
    for moe in [MoeShape::new(4, 4, 24), MoeShape { balance: 0.01, capacity: Some(4.0), ..MoeShape::new(4, 4, 24) }] {
        let shape = ModelShape { moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) };
        let training = Training { micro_batch: 2, ..Training::of(shape, 8, STEPS) };
        for axes in [[2, 1, 1, 1, 2], [4, 1, 1, 1, 2], [2, 1, 2, 1, 4], [2, 1, 1, 2, 2]] {
            for (stage, recompute) in [(0, Recompute::None), (2, Recompute::None), (0, Recompute::Full)] {
                check::<f32>(Training { zero: Zero::stage(stage), recompute, ..training }, axes);
            }
        }
    }
}
