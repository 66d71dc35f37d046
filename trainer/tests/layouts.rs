//! The numbers do not depend on the layout: ranks, micro-batches and threads are only ways to compute them.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{Seen, Training};
use warpweft_device::bf16;
use warpweft_trainer::model::ModelShape;

const STEPS: u64 = 100;

fn gpt2() -> Training {
    Training::of(ModelShape::gpt2(2, 16, 2, 8, 19), 7, STEPS)
}

fn llama() -> Training {
    Training { shape: ModelShape::llama(2, 16, 4, 2, 8, 19), ..gpt2() }
}

/// The grade that the design promises for dense models in f32: 2e-6 of each loss at every step.
fn assert_close(ours: &Seen, reference: &Seen, what: &str) {
    for (step, (ours, reference)) in ours.losses.iter().zip(&reference.losses).enumerate() {
        let distance = (ours - reference).abs() / reference;
        assert!(distance <= 2e-6, "{what}, step {}: {ours} against {reference}, {distance:e} apart", step + 1);
    }
}

#[test]
fn losses_are_those_of_one_rank_for_any_number_of_ranks() {
    for (training, model) in [(gpt2(), "gpt2"), (llama(), "llama")] {
        let reference = training.run::<f32>(1).remove(0);
        let (first, last) = (reference.losses[0], reference.losses[STEPS as usize - 1]);
        assert!((first - 19f64.ln()).abs() < 0.1, "{model} starts at {first}, not at ln 19");
        assert!(last < first - 0.5, "{model} learns: {first} to {last}");
        for world in 2..=4 {
            let seen = training.run::<f32>(world);
            assert!(seen.iter().all(|rank| *rank == seen[0]), "{model}: every rank of {world} has the same bits");
            assert_close(&seen[0], &reference, &format!("{model} on {world} ranks"));
        }
    }
}

#[test]
fn micro_batches_and_threads_change_nothing() {
    let reference = gpt2().run::<f32>(1).remove(0);
    let split = Training { micro_batch: 2, ..gpt2() }.run::<f32>(1).remove(0);
    assert_close(&split, &reference, "micro-batches of 2");
    let threads = Training { threads: 3, ..gpt2() }.run::<f32>(1).remove(0);
    assert_eq!(threads, reference, "the bits do not depend on the threads");
}

#[test]
fn several_units_are_each_summed_once() {
    let shape = ModelShape::gpt2(2, 128, 4, 8, 19);
    let training = Training { shape, batch: 4, micro_batch: 1, steps: 8, ..gpt2() };
    let reference = training.run::<f32>(1).remove(0);
    for world in 2..=3 {
        let seen = training.run::<f32>(world);
        assert!(seen.iter().all(|rank| *rank == seen[0]), "every rank of {world} has the same bits");
        assert_close(&seen[0], &reference, &format!("several units on {world} ranks"));
    }
}

#[test]
fn tokens_weigh_alike_wherever_they_are() {
    // 7 sequences of 8 or 3 targets over 3 ranks: 14, 11 and 11 of them, in micro-batches of 2 sequences and of 1.
    let training = Training { steps: 20, ragged: true, micro_batch: 2, ..gpt2() };
    let reference = Training { micro_batch: 7, ..training }.run::<f32>(1).remove(0);
    assert_close(&training.run::<f32>(3)[0], &reference, "uneven targets on 3 ranks");
}

#[test]
fn a_rank_without_a_sample_takes_part() {
    let training = Training { batch: 3, steps: 20, ..gpt2() };
    let reference = training.run::<f32>(1).remove(0);
    let seen = training.run::<f32>(4);
    assert!(seen.iter().all(|rank| *rank == seen[3]), "the fourth of 4 ranks has nothing of 3 sequences");
    assert_close(&seen[3], &reference, "3 sequences on 4 ranks");
}

#[test]
fn two_runs_are_bit_equal() {
    let training = Training { steps: 20, micro_batch: 2, ..llama() };
    assert_eq!(training.run::<f32>(3), training.run::<f32>(3));
    assert_eq!(training.run::<bf16>(2), training.run::<bf16>(2));
}
