//! The memory account of every rank against what is predicted from the sizes alone, to the byte, over many meshes.
#![forbid(unsafe_code)]

mod common;
#[allow(dead_code, reason = "what was learnt is no matter here")]
mod training;

use training::{ONE_RANK, Training};
use warpweft_device::{DType, Float, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::memory::{Bytes, Class, predict};
use warpweft_trainer::model::{ModelShape, MoeShape, Recompute};
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::Trainer;

/// dp, pp, cp, tp, ep.
type Axes = [usize; 5];

const PREDICTED: [Class; 6] =
    [Class::Parameters, Class::Gradients, Class::Optimizer, Class::Activations, Class::Errors, Class::Buffers];

fn gpt2() -> Training {
    Training { micro_batch: 2, ..Training::of(ModelShape::gpt2(4, 16, 4, 8, 19), 7, 2) }
}

fn llama() -> Training {
    let shape = ModelShape { tied: false, ..ModelShape::llama(5, 16, 4, 2, 9, 257) };
    Training { micro_batch: 1, ..Training::of(shape, 6, 2) }
}

/// Whether the most that every rank has held, two steps included, is what is predicted.
fn check<T: Float>(training: Training, [dp, pp, cp, tp, ep]: Axes, classes: &[Class]) {
    let sizes = Sizes { pp, dp, cp, tp, ep };
    let training = Training { sizes, ..training };
    let what = format!("{sizes:?} {:?} {:?} sp {}", training.zero, training.pipeline, training.sequence_parallel);
    let dtype = if size_of::<T>() == 2 { DType::BF16 } else { DType::F32 };
    let seen = training.run_then(dp, |trainer: &mut Trainer<T>, _| {
        trainer.settle().expect("weights that arrive");
        let place = trainer.mesh().place();
        let predicted = predict(&training.shape, &training.recipe(), (sizes, place), dtype).expect("sizes that fit");
        (place, predicted, trainer.account().peak())
    });
    for (place, predicted, held) in seen {
        let of = |bytes: &Bytes| classes.iter().map(|class| (class.name(), bytes.of(*class))).collect::<Vec<_>>();
        assert_eq!(of(&held), of(&predicted), "{what}, {place:?}");
    }
}

#[test]
fn data_parallel_ranks_and_what_they_share_out() {
    for stage in 0..=3 {
        for dp in [1, 2, 3, 4] {
            let zero = Zero::stage(stage);
            check::<f32>(Training { zero, ..gpt2() }, [dp, 1, 1, 1, 1], &PREDICTED);
            check::<bf16>(Training { zero, ..llama() }, [dp, 1, 1, 1, 1], &PREDICTED);
        }
        let zero = Zero { stage, shards: Some(2) };
        check::<f32>(Training { zero, ..llama() }, [4, 1, 1, 1, 1], &PREDICTED);
    }
}

#[test]
fn heads_rows_and_parts_of_sequences() {
    for sequence_parallel in [false, true] {
        for tp in [2, 4] {
            check::<f32>(Training { sequence_parallel, ..gpt2() }, [1, 1, 1, tp, 1], &PREDICTED);
            check::<bf16>(Training { sequence_parallel, ..llama() }, [1, 1, 1, tp, 1], &PREDICTED);
        }
    }
    for context in [Method::Ring, Method::Ulysses] {
        for cp in [2, 4] {
            check::<f32>(Training { context, ..gpt2() }, [1, 1, cp, 1, 1], &PREDICTED);
            check::<bf16>(Training { context, ..llama() }, [1, 1, cp, 1, 1], &PREDICTED);
        }
    }
    check::<f32>(gpt2(), [1, 1, 3, 1, 1], &PREDICTED);
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
        check::<f32>(Training { pipeline, ..gpt2() }, [1, 2, 1, 1, 1], &PREDICTED);
        check::<bf16>(Training { pipeline, micro_batch: 1, ..llama() }, [2, 2, 1, 1, 1], &PREDICTED);
        if !matches!(name, Name::Interleaved | Name::ZbV) {
            check::<f32>(Training { pipeline, micro_batch: 1, ..gpt2() }, [1, 4, 1, 1, 1], &PREDICTED);
        }
    }
}

#[test]
fn what_is_computed_again() {
    for recompute in [Recompute::Selective, Recompute::Full] {
        check::<f32>(Training { recompute, ..gpt2() }, [2, 1, 1, 1, 1], &PREDICTED);
        let training = Training { recompute, sequence_parallel: true, ..llama() };
        check::<bf16>(training, [1, 1, 2, 2, 1], &PREDICTED);
        for name in [Name::OneForwardOneBackward, Name::Interleaved, Name::ZbH1, Name::ZbV, Name::DualPipe] {
            let training = Training { recompute, pipeline: (name, None), zero: Zero::stage(3), ..gpt2() };
            check::<f32>(Training { micro_batch: 1, ..training }, [2, 2, 1, 1, 1], &PREDICTED);
        }
    }
}

#[test]
fn products_of_them() {
    let zero = Zero::stage;
    let zb = (Name::ZbH1, None);
    check::<f32>(Training { zero: zero(1), ..gpt2() }, [2, 2, 2, 1, 1], &PREDICTED);
    check::<f32>(Training { zero: zero(3), sequence_parallel: true, ..gpt2() }, [2, 1, 1, 4, 1], &PREDICTED);
    check::<f32>(Training { pipeline: zb, sequence_parallel: true, ..gpt2() }, [1, 2, 2, 2, 1], &PREDICTED);
    check::<f32>(Training { zero: zero(2), context: Method::Ulysses, ..gpt2() }, [2, 1, 2, 2, 1], &PREDICTED);
    check::<bf16>(Training { zero: zero(3), pipeline: zb, ..llama() }, [3, 2, 1, 1, 1], &PREDICTED);
}

#[test]
fn experts_but_for_what_their_routing_makes() {
    let moe = MoeShape { bias_rate: 1e-3, ..MoeShape::new(4, 2, 24) };
    let shape = ModelShape { moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) };
    let training = Training { pipeline: ONE_RANK, ..Training::of(shape, 8, 2) };
    let training = Training { micro_batch: 2, ..training };
    for stage in 0..=3 {
        let training = Training { zero: Zero::stage(stage), ..training };
        for axes in [[2, 1, 1, 1, 2], [4, 1, 1, 1, 2], [2, 1, 1, 2, 1]] {
            check::<f32>(training, axes, &PREDICTED[..3]);
        }
    }
}
