//! Pipelines change no number, whatever their schedule, and hold what the schedule says.
#![forbid(unsafe_code)]

mod common;
mod parity;
mod traffic;
mod training;

use parity::assert_same;
use training::Training;
use warpweft_schedule::{Costs, Name, Schedule};
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::sample::{Sampling, sample};
use warpweft_trainer::step::{Sequences, Trainer};

const STEPS: u64 = 20;

/// Schedules that any number of stages and micro-batches can have, but for `dualpipe`.
const NAMES: [(Name, Option<usize>); 6] = [
    (Name::GPipe, None),
    (Name::OneForwardOneBackward, None),
    (Name::Interleaved, Some(2)),
    (Name::ZbH1, None),
    (Name::ZbH2, None),
    (Name::DualPipe, None),
];

/// A training of 5 layers, so that stages are uneven, in micro-batches of one sequence.
fn gpt2(pp: usize) -> Training {
    let sizes = Sizes { pp, ..Sizes::ONE };
    Training { sizes, micro_batch: 1, ..Training::of(ModelShape::gpt2(5, 16, 2, 8, 19), 5, STEPS) }
}

fn check(training: Training, dp: usize) {
    for pipeline in NAMES {
        if pipeline.0 == Name::DualPipe && !training.sizes.pp.is_multiple_of(2) {
            continue;
        }
        if pipeline.0 == Name::Interleaved && 2 * training.sizes.pp > training.shape.layers {
            continue;
        }
        let what = format!("{} pp {} dp {dp} tp {}", pipeline.0, training.sizes.pp, training.sizes.tp);
        assert_same(Training { pipeline, ..training }, dp, &what);
    }
}

#[test]
fn two_stages() {
    check(gpt2(2), 1);
}

#[test]
fn three_and_four_stages_with_more_micro_batches_than_stages_and_fewer() {
    check(gpt2(3), 1);
    check(Training { batch: 2, ..gpt2(4) }, 1);
}

#[test]
fn one_micro_batch() {
    check(Training { micro_batch: 5, ..gpt2(2) }, 1);
}

#[test]
fn untied_llama_and_data_parallel_ranks_of_uneven_batches() {
    let shape = ModelShape { tied: false, ..ModelShape::llama(5, 16, 4, 2, 8, 19) };
    check(Training { shape, ragged: true, ..gpt2(2) }, 3);
}

#[test]
fn ranks_without_a_sample() {
    check(Training { batch: 3, ..gpt2(2) }, 4);
}

#[test]
fn with_tensor_parallel_ranks() {
    let sizes = Sizes { pp: 2, tp: 2, ..Sizes::ONE };
    check(Training { sizes, sequence_parallel: true, micro_batch: 2, ..gpt2(2) }, 2);
}

#[test]
fn optimizer_state_gradients_and_weights_shared_out_over_data_ranks() {
    for stage in 1..=3 {
        check(Training { zero: Zero::stage(stage), steps: 6, ..gpt2(2) }, 2);
    }
}

#[test]
fn with_parts_of_sequences() {
    let sizes = Sizes { pp: 2, cp: 2, ..Sizes::ONE };
    check(Training { sizes, steps: 6, ..gpt2(2) }, 1);
}

#[test]
fn what_is_under_way_is_what_the_schedule_holds() {
    for pipeline in NAMES {
        let training = Training { pipeline, batch: 8, steps: 1, ..gpt2(2) };
        let schedule = Schedule::new(pipeline.0, 2, 8, pipeline.1, Costs::default(), None).expect("a schedule");
        let peaks = training.run_then(1, |_: &mut Trainer<f32>, reports| reports[0].peak_passes);
        assert_eq!(peaks, schedule.peak_activations(), "{}", pipeline.0);
    }
}

#[test]
fn held_out_losses_and_samples_are_those_of_one_rank() {
    let see = |training: Training| {
        training.run_then(1, |trainer: &mut Trainer<f32>, _| {
            let (inputs, targets) = training.sequences(99, 0..3);
            let loss = trainer.evaluate(Sequences { inputs: &inputs, targets: &targets }, 3).expect("a loss");
            let sampling = Sampling { tokens: 12, temperature: 0.0, seed: 3 };
            (loss, sample(trainer, &[1, 2], sampling).expect("a sample"))
        })
    };
    let one = see(Training { sizes: Sizes::ONE, ..gpt2(1) }).remove(0);
    for pipeline in NAMES {
        for tp in [1, 2] {
            let sizes = Sizes { pp: 2, tp, ..Sizes::ONE };
            for (loss, drawn) in see(Training { sizes, pipeline, ..gpt2(2) }) {
                assert!((loss - one.0).abs() <= 2e-6 * one.0, "{} tp {tp}: {loss} and {}", pipeline.0, one.0);
                assert_eq!(drawn, one.1, "{} tp {tp}", pipeline.0);
            }
        }
    }
}
