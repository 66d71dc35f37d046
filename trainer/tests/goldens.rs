//! Losses, norms and gradients of two tiny models against PyTorch's (`goldens/make.py` made them, and says how).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use warpweft_comm::Communicator;
use warpweft_device::Device;
use warpweft_trainer::model::{IGNORE, ModelShape, Table};
use warpweft_trainer::optimizer::{AdamW, Schedule};
use warpweft_trainer::step::{Recipe, Sequences, Trainer, valid_targets};

const TOKENS: usize = 8;
const BATCH: usize = 3;
const VOCAB: u64 = 11;
const STEPS: u64 = 10;

#[derive(Deserialize)]
struct Golden {
    losses: Vec<f64>,
    norms: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// The weights of `make.py`, flat.
fn weights(table: &Table) -> Vec<f32> {
    let mut flat = vec![0.0; table.elements()];
    for (index, parameter) in table.parameters().iter().enumerate() {
        let norm = !parameter.decays() && parameter.name.ends_with("weight");
        for (i, value) in flat[parameter.range()].iter_mut().enumerate() {
            let number = (((i * 7919 + index * 104_729) % 2003) as f64 - 1001.0) / 1001.0;
            *value = if norm { 1.0 + 0.25 * number } else { 0.25 * number } as f32;
        }
    }
    flat
}

/// The batch of `make.py`: every seventh target counts for nothing.
fn batch(step: u64) -> (Vec<u32>, Vec<u32>) {
    let token = |i: u64| ((i * i * 31 + i * 17 + step * 101 + i / 5) % VOCAB) as u32;
    let place = |row: usize, t: usize| token((row * (TOKENS + 1) + t) as u64);
    let places = (0..BATCH).flat_map(|row| (0..TOKENS).map(move |t| (row, t)));
    let inputs = places.clone().map(|(row, t)| place(row, t)).collect();
    let targets =
        places.enumerate().map(|(index, (row, t))| if index % 7 == 6 { IGNORE } else { place(row, t + 1) }).collect();
    (inputs, targets)
}

fn recipe(micro_batch: usize) -> Recipe {
    let schedule = Schedule { peak: 1e-2, warmup: 3, steps: STEPS };
    Recipe { tokens: TOKENS, micro_batch, adamw: AdamW::default(), schedule, clip: Some(0.5), seed: 0 }
}

/// Every gradient of step 1 within 1e-5 of its tensor's largest entry plus 1e-8 (some are zero but for rounding: a bias
/// of the keys moves every score of a row alike), and ten losses within 1e-5: f32 against f32 over sums of some hundred
/// terms, through ten updates.
fn compare(shape: ModelShape, golden: &str, micro_batch: usize) {
    let golden: Golden = serde_json::from_str(golden).expect("a committed golden");
    let device = Device::cpu_with_threads(2).expect("two threads");
    let communicator = Arc::new(Communicator::alone());
    let mut trainer = Trainer::<f32>::new(shape, recipe(micro_batch), &device, communicator).expect("a trainer");
    let values = weights(trainer.model().table());
    trainer.set_weights(&values).expect("as many weights as the model has");
    for step in 1..=STEPS {
        let (inputs, targets) = batch(step);
        let valid = valid_targets(&targets);
        let sequences = Sequences { inputs: &inputs, targets: &targets };
        let report = trainer.step(sequences, valid, None).expect("a step");
        let expected = golden.losses[step as usize - 1];
        assert!((report.loss - expected).abs() <= 1e-5, "step {step}: loss {} against {expected}", report.loss);
        let norm = golden.norms[step as usize - 1];
        assert!(
            (report.grad_norm - norm).abs() <= 1e-4 * norm,
            "step {step}: norm {} against {norm}",
            report.grad_norm
        );
        if step == 1 {
            compare_gradients(&trainer, &golden);
        }
    }
}

fn compare_gradients(trainer: &Trainer<f32>, golden: &Golden) {
    let table = trainer.model().table();
    assert_eq!(table.parameters().len(), golden.gradients.len());
    for (id, parameter) in table.iter() {
        let expected = &golden.gradients[&parameter.name];
        let found = trainer.gradients().summed_of(id).and_then(|view| Ok(view.host()?)).expect("a summed gradient");
        assert_eq!(found.len(), expected.len(), "{}", parameter.name);
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            let allowed = 1e-5 * largest + 1e-8;
            assert!(error <= allowed, "{}[{index}]: {found} against {expected}, largest {largest}", parameter.name);
        }
    }
}

#[test]
fn gpt2_is_pytorchs() {
    compare(ModelShape::gpt2(2, 16, 2, TOKENS, VOCAB as usize), include_str!("goldens/gpt2.json"), BATCH);
}

#[test]
fn llama_is_pytorchs() {
    compare(ModelShape::llama(2, 16, 2, 1, TOKENS, VOCAB as usize), include_str!("goldens/llama.json"), BATCH);
}

#[test]
fn micro_batches_are_the_batch_token_weighted() {
    // Two sequences, then one: parts of different size and of different counts of valid targets.
    compare(ModelShape::gpt2(2, 16, 2, TOKENS, VOCAB as usize), include_str!("goldens/gpt2.json"), 2);
    compare(ModelShape::llama(2, 16, 2, 1, TOKENS, VOCAB as usize), include_str!("goldens/llama.json"), 1);
}
