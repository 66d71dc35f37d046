//! ZeRO and HSDP: what data ranks share out changes neither the numbers nor the formulas of memory.
#![forbid(unsafe_code)]

mod common;
mod training;

use std::sync::Arc;

use common::{ranks, ranks_with};
use training::{Seen, Training};
use warpweft_comm::{Algorithm, Options};
use warpweft_device::{Device, Float, bf16};
use warpweft_trainer::memory::Class;
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::layout::Axes;
use warpweft_trainer::parallel::mesh::Mesh;
use warpweft_trainer::parallel::share;
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

const STEPS: u64 = 20;

/// Three micro-batches of 7 sequences: 3 on the first of three ranks, 2 on the others, one at a time.
fn gpt2() -> Training {
    let shape = ModelShape::gpt2(2, 16, 2, 8, 19);
    Training { micro_batch: 1, ..Training::of(shape, 7, STEPS) }
}

fn llama() -> Training {
    Training { shape: ModelShape { tied: false, ..ModelShape::llama(3, 16, 4, 2, 8, 19) }, ..gpt2() }
}

fn assert_close(ours: &Seen, reference: &Seen, what: &str) {
    let pairs = |ours: &[f64], reference: &[f64]| -> Vec<(f64, f64)> {
        ours.iter().copied().zip(reference.iter().copied()).collect()
    };
    let losses = pairs(&ours.losses, &reference.losses);
    let norms = pairs(&ours.norms, &reference.norms);
    assert_eq!(losses.len(), STEPS as usize);
    for (name, pairs) in [("loss", losses), ("norm", norms)] {
        for (step, (ours, reference)) in pairs.into_iter().enumerate() {
            let distance = (ours - reference).abs() / reference;
            let grade = if name == "loss" { 2e-6 } else { 2e-5 };
            assert!(distance <= grade, "{what}, {name} of step {}: {ours} against {reference}", step + 1);
        }
    }
}

#[test]
fn losses_and_norms_are_those_of_one_rank_at_every_stage() {
    for (training, model) in [(gpt2(), "gpt2"), (llama(), "llama")] {
        let reference = training.run::<f32>(1).remove(0);
        for world in 1..=4 {
            for stage in 1..=3 {
                let seen = Training { zero: Zero::stage(stage), ..training }.run::<f32>(world);
                let what = format!("{model}, stage {stage} on {world} ranks");
                assert!(seen.iter().all(|rank| rank.losses == seen[0].losses), "{what}: all ranks see the same");
                assert_close(&seen[0], &reference, &what);
                let held: usize = seen.iter().map(|rank| rank.weights.len()).sum();
                assert_eq!(held, reference.weights.len(), "{what}: the parts are the whole");
            }
        }
    }
}

#[test]
fn replicas_of_shards_sum_once() {
    let reference = llama().run::<f32>(1).remove(0);
    for stage in 1..=3 {
        for shards in [1, 2, 4] {
            let zero = Zero { stage, shards: Some(shards) };
            let seen = Training { zero, ..llama() }.run::<f32>(4);
            assert_close(&seen[0], &reference, &format!("stage {stage}, {shards} shards on 4 ranks"));
            for rank in shards..4 {
                assert_eq!(seen[rank].weights, seen[rank - shards].weights, "replicas hold the same bits");
            }
        }
    }
}

#[test]
fn bf16_weights_with_shared_out_masters_learn_the_same() {
    let reference = gpt2().run::<bf16>(1).remove(0);
    for stage in 1..=3 {
        let seen = Training { zero: Zero::stage(stage), ..gpt2() }.run::<bf16>(3);
        for (ours, reference) in seen[0].losses.iter().zip(&reference.losses) {
            assert!((ours - reference).abs() / reference < 1e-2, "stage {stage}: {ours} against {reference}");
        }
    }
}

#[test]
fn two_runs_are_bit_equal() {
    let training = Training { zero: Zero::stage(3), ..llama() };
    assert_eq!(training.run::<f32>(3), training.run::<f32>(3));
}

/// Bytes of parameters, gradients and optimizer on each rank, and of buffers for units that are whole for a while.
fn held<T: Float>(shape: ModelShape, world: usize, zero: Zero) -> Vec<([u64; 3], u64, Vec<usize>)> {
    ranks(world, |communicator| {
        let mesh = Mesh::data(Arc::new(communicator)).expect("a mesh");
        let device = Device::cpu_with_threads(1).expect("a thread");
        let recipe = Recipe { zero, micro_batch: 1, ..Recipe::new(shape.context, world) };
        let trainer = Trainer::<T>::new(shape, recipe, &device, mesh).expect("a trainer");
        let now = trainer.account().current();
        let classes = [Class::Parameters, Class::Gradients, Class::Optimizer].map(|class| now.of(class));
        let tokens = (shape.context * 12) as u64;
        let units = trainer.model().table().units_here().map(|(_, unit)| unit.elements).collect();
        (classes, now.of(Class::Buffers) - tokens, units)
    })
}

/// Bytes of a parameter: whole on every rank, and over all ranks together where it is shared out.
fn check_bytes<T: Float>(stages: [[u64; 2]; 4]) {
    let shape = ModelShape::llama(2, 16, 4, 2, 8, 19);
    for world in [1, 2, 3, 4] {
        for (stage, [whole, apart]) in stages.into_iter().enumerate() {
            let zero = Zero::stage(stage as u8);
            for (rank, (classes, buffers, units)) in held::<T>(shape, world, zero).into_iter().enumerate() {
                let all: u64 = units.iter().map(|unit| *unit as u64).sum();
                // To the byte: each unit's share, which is at most one element more than its Nth part.
                let part: u64 = units.iter().map(|unit| share(*unit, world, rank).len() as u64).sum();
                assert!(part < all / world as u64 + units.len() as u64 + 1);
                let bytes: u64 = classes.iter().sum();
                assert_eq!(bytes, whole * all + apart * part, "stage {stage}, rank {rank} of {world}");
                // The table of tokens, two of the blocks, the last norm: gradients from stage 2 on, weights at stage 3.
                let working = (units[0] + 2 * units[1] + units[3]) as u64;
                let of = [0, 0, 4, 4 + size_of::<T>() as u64][stage];
                assert_eq!(buffers, of * working, "stage {stage}, rank {rank} of {world}");
            }
        }
    }
}

#[test]
fn bytes_of_a_parameter_are_those_of_the_formulas() {
    check_bytes::<bf16>([[18, 0], [6, 12], [2, 16], [0, 18]]);
    check_bytes::<f32>([[16, 0], [8, 8], [4, 12], [0, 16]]);
}

/// Elements that all ranks of `world` send around a ring in the second of two steps, and those of each unit.
fn sent(shape: ModelShape, world: usize, micro_batches: usize, zero: Zero) -> (u64, Vec<usize>) {
    let ring = Options { algorithm: Algorithm::Ring, ..Options::default() };
    let each = ranks_with(ring, world, |communicator| {
        let mesh = Mesh::data(Arc::new(communicator)).expect("a mesh");
        let device = Device::cpu_with_threads(1).expect("a thread");
        let batch = world * micro_batches;
        let recipe = Recipe { zero, micro_batch: 1, ..Recipe::new(shape.context, batch) };
        let mut trainer = Trainer::<f32>::new(shape, recipe, &device, mesh).expect("a trainer");
        let tokens = vec![1; micro_batches * shape.context];
        let mut before = 0;
        for _ in 0..2 {
            let sequences = Sequences { inputs: &tokens, targets: &tokens };
            trainer.step(sequences, (batch * shape.context) as u64, None).expect("a step");
            trainer.settle().expect("weights that arrive");
            let groups = trainer.mesh().groups(Axes::TOKENS).expect("the data ranks");
            let sent: u64 = groups.iter().map(|group| group.sent_bytes()).sum();
            before = sent - before;
        }
        let units = trainer.model().table().units_here().map(|(_, unit)| unit.elements).collect::<Vec<_>>();
        (before / 4, units)
    });
    (each.iter().map(|(sent, _)| sent).sum(), each[0].1.clone())
}

#[test]
fn elements_sent_are_those_of_the_formulas() {
    let shape = ModelShape::llama(2, 16, 4, 2, 8, 19);
    for world in [2, 3, 4] {
        for m in [1, 3] {
            let others = world as u64 - 1;
            for stage in 0..=2 {
                let (sent, units) = sent(shape, world, m, Zero::stage(stage));
                let all: u64 = units.iter().map(|unit| *unit as u64).sum();
                let times = if stage == 2 { m as u64 + 1 } else { 2 };
                assert_eq!(sent, times * others * all, "stage {stage}, {m} micro-batches on {world} ranks");
            }
            let (sent, units) = sent(shape, world, m, Zero::stage(3));
            let [tokens, blocks, head] = [units[0], units[1] + units[2], units[3]].map(|unit| unit as u64);
            // Gathered for the forward and for the backward pass, and scattered; the head stays in between, and the tied
            // table is read by both ends of the forward pass and stays for the backward pass of the second.
            let expected = (3 * tokens + 3 * blocks + 2 * head) * m as u64 * others;
            assert_eq!(sent, expected, "stage 3, {m} micro-batches on {world} ranks");
        }
    }
}
