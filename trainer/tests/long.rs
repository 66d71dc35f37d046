//! What takes too long for every run of the tests: `cargo test -p warpweft-trainer --features long-tests --test long`.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::Training;
use warpweft_device::bf16;
use warpweft_trainer::model::ModelShape;

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
