//! The memory account against a formula that is written down apart from the code that allocates.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;

use common::ranks;
use warpweft_device::{Device, Float, bf16};
use warpweft_trainer::memory::Class;
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::mesh::Mesh;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

fn check<T: Float>(shape: ModelShape, parameters: u64, norm_numbers: u64) {
    let (tokens, micro_batch) = (shape.context, 3);
    let schedule = Schedule { peak: 1e-3, warmup: 0, steps: 1 };
    let recipe = Recipe { schedule, ..Recipe::new(tokens, micro_batch) };
    let device = Device::cpu_with_threads(1).expect("a thread");
    let trainer = Trainer::<T>::new(shape, recipe, &device, Mesh::alone().expect("a mesh")).expect("a trainer");
    let of = |class| trainer.account().current().of(class);
    let (rows, width) = ((tokens * micro_batch) as u64, size_of::<T>() as u64);
    let [l, c, h, v] = [shape.layers, shape.channels, shape.heads, shape.vocab].map(|size| size as u64);
    let [qkv, up, f] = [shape.qkv_width(), shape.expanded(), shape.hidden].map(|size| size as u64);

    assert_eq!(of(Class::Parameters), width * parameters);
    assert_eq!(of(Class::Gradients), 4 * parameters);
    let master = if width < 4 { 4 } else { 0 };
    assert_eq!(of(Class::Optimizer), (8 + master) * parameters);
    // A block keeps both normed inputs, the packed rows, what attention gives and its sum with the residual stream, and
    // the MLP's inside before and after the activation; in f32 the norms' numbers and attention's log-sums.
    let stored = (l + 1) * c + l * (4 * c + qkv + up + f) + c + v;
    // In f32, of the loss: itself; in f64 its three parts, all ranks' parts, largest logit and sum.
    let numbers = l * (2 * norm_numbers + h) + norm_numbers + 1 + 2 * (3 + 3 + 2);
    assert_eq!(of(Class::Activations), rows * (stored * width + numbers * 4));
    // Of one block at a time: its output and middle, both normed inputs, the packed rows, before the activation. Besides:
    // what comes in from and goes to the blocks around it, two borders, one layer to the next, the last norm's input.
    assert_eq!(of(Class::Errors), rows * ((4 * c + qkv + up) + (c + 2 * c + f.max(c)) + c) * width);
    assert_eq!(of(Class::Buffers), rows * 12, "inputs, positions and targets");
    assert_eq!(trainer.account().peak_total(), trainer.account().current().total());
}

#[test]
fn what_is_on_its_way_between_ranks_is_in_the_account() {
    let shape = ModelShape::gpt2(1, 16, 2, 8, 19);
    let (tokens, micro_batch) = (shape.context, 2);
    ranks(2, |communicator| {
        let communicator = Arc::new(communicator);
        let schedule = Schedule { peak: 1e-3, warmup: 0, steps: 1 };
        let recipe = Recipe { schedule, micro_batch, ..Recipe::new(tokens, 2 * micro_batch) };
        let device = Device::cpu_with_threads(1).expect("a thread");
        let mesh = Mesh::data(communicator).expect("a mesh");
        let mut trainer = Trainer::<f32>::new(shape, recipe, &device, mesh).expect("a trainer");
        let sequences = Sequences { inputs: &[1; 16], targets: &[2; 16] };
        let held = |trainer: &Trainer<f32>| trainer.account().current().of(Class::Communicators);
        assert!(held(&trainer) > 0, "two ranks have something between them");
        for _ in 0..2 {
            assert_eq!(held(&trainer), trainer.mesh().buffer_bytes() as u64);
            trainer.step(sequences, 32, None).expect("a step");
        }
    });
}

#[test]
fn every_class_has_the_bytes_of_its_formula() {
    let (l, c, v, t) = (2, 16, 19, 8);
    let gpt2 = ModelShape::gpt2(2, 16, 2, 8, 19);
    let parameters = v * c + t * c + l * (12 * c * c + 13 * c) + 2 * c;
    check::<f32>(gpt2, parameters, 2);
    check::<bf16>(gpt2, parameters, 2);
    // 4 heads of 4, 2 of keys and values: 32 packed rows. An MLP of 64 (8 C / 3 rounded up), with its gate.
    let llama = ModelShape::llama(2, 16, 4, 2, 8, 19);
    let layer = 32 * c + c * c + 3 * 64 * c + 2 * c;
    check::<f32>(llama, v * c + l * layer + c, 1);
    let untied = ModelShape { tied: false, ..llama };
    check::<bf16>(untied, 2 * v * c + l * layer + c, 1);
}
