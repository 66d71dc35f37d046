//! What takes too long for every run of the tests: `cargo test -p warpweft-trainer --features long-tests --test long`.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::Training;
use warpweft_device::bf16;
use warpweft_schedule::Name;
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;

/// The loss after 200 steps with bf16 weights, f32 masters, is within 1 % of the one with f32 weights: for each of the
/// last ten steps, whose batches differ.
fn bf16_follows_f32(shape: ModelShape) {
    let training = Training { threads: 2, ..Training::of(shape, 8, 200) };
    let (f32s, bf16s) = (training.run::<f32>(1).remove(0), training.run::<bf16>(1).remove(0));
    assert!(f32s.losses[199] < 0.75 * f32s.losses[0], "learns: {} to {}", f32s.losses[0], f32s.losses[199]);
    for step in 190..200 {
        let distance = (bf16s.losses[step] / f32s.losses[step] - 1.0).abs();
        assert!(distance <= 0.01, "step {}: {} against {}", step + 1, bf16s.losses[step], f32s.losses[step]);
    }
}

#[test]
fn bf16_follows_f32_gpt2_long() {
    bf16_follows_f32(ModelShape::gpt2(4, 64, 4, 32, 65));
}

#[test]
fn bf16_follows_f32_llama_long() {
    bf16_follows_f32(ModelShape::llama(4, 64, 4, 2, 32, 65));
}

/// The same at layouts: their bf16 losses stay within 1 % of one rank's f32 ones at each of 200 steps.
#[test]
fn bf16_follows_f32_at_layouts_long() {
    let base = Training { micro_batch: 2, ..Training::of(ModelShape::llama(4, 32, 4, 2, 16, 65), 8, 200) };
    let reference = base.run::<f32>(1).remove(0).losses;
    assert!(reference[199] < 0.75 * reference[0], "learns: {} to {}", reference[0], reference[199]);
    let over = |[pp, cp, tp]: [usize; 3]| Training { sizes: Sizes { pp, cp, tp, ..Sizes::ONE }, ..base };
    let all = over([2, 2, 2]);
    for (training, dp) in [
        (over([1, 1, 2]), 1),
        (Training { sequence_parallel: true, ..over([1, 1, 4]) }, 1),
        (over([1, 2, 1]), 1),
        (Training { pipeline: (Name::ZbH1, None), ..over([4, 1, 1]) }, 1),
        (Training { zero: Zero::stage(3), ..base }, 3),
        (Training { zero: Zero::stage(2), sequence_parallel: true, ..over([1, 1, 2]) }, 2),
        (Training { sequence_parallel: true, pipeline: (Name::ZbH1, None), ..all }, 1),
    ] {
        let losses = training.run::<bf16>(dp).remove(0).losses;
        for (step, (ours, theirs)) in losses.iter().zip(&reference).enumerate() {
            let distance = (ours / theirs - 1.0).abs();
            assert!(distance <= 0.01, "{:?}, step {}: {ours} against {theirs}", training.sizes, step + 1);
        }
    }
}
