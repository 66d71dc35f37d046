//! Losses, norms and gradients of two tiny models against PyTorch's (`goldens/make.py` made them, and says how).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::Deserialize;
use warpweft_device::Device;
use warpweft_trainer::model::{IGNORE, ModelShape, Table, TensorId};
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::mesh::Mesh;
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

/// The parameters of `make.py`, which has queries, keys and values as one: the parts of each, by their names here.
fn packed(table: &Table) -> Vec<(String, Vec<TensorId>)> {
    let mut packed: Vec<(String, Vec<TensorId>)> = Vec::new();
    for (id, parameter) in table.iter() {
        let name = parameter.name().replace(".q.", ".").replace(".kv.", ".");
        match packed.iter_mut().find(|(known, _)| *known == name) {
            Some((_, ids)) => ids.push(id),
            None => packed.push((name, vec![id])),
        }
    }
    packed
}

/// The weights of `make.py`.
fn weights(table: &Table) -> BTreeMap<TensorId, Vec<f32>> {
    let mut weights = BTreeMap::new();
    for (index, (name, ids)) in packed(table).into_iter().enumerate() {
        let norm = !table.get(ids[0]).decays() && name.ends_with("weight");
        let mut i = 0;
        for id in ids {
            let values = (i..i + table.get(id).len()).map(|i| {
                let number = (((i * 7919 + index * 104_729) % 2003) as f64 - 1001.0) / 1001.0;
                if norm { 1.0 + 0.25 * number } else { 0.25 * number }
            });
            weights.insert(id, values.map(|value| value as f32).collect());
            i += table.get(id).len();
        }
    }
    weights
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
    Recipe { micro_batch, schedule, clip: Some(0.5), ..Recipe::new(TOKENS, BATCH) }
}

/// Every gradient of step 1 within 1e-5 of its tensor's largest entry plus 1e-8 (some are zero but for rounding: a bias
/// of the keys moves every score of a row alike), and ten losses within 1e-5: f32 against f32 over sums of some hundred
/// terms, through ten updates.
fn compare(shape: ModelShape, golden: &str, micro_batch: usize) {
    let golden: Golden = serde_json::from_str(golden).expect("a committed golden");
    let device = Device::cpu_with_threads(2).expect("two threads");
    let mesh = Mesh::alone().expect("a mesh of one");
    let mut trainer = Trainer::<f32>::new(shape, recipe(micro_batch), &device, mesh).expect("a trainer");
    let values = weights(trainer.model().table());
    trainer.set_weights(|id| values[&id].clone()).expect("as many weights as the model has");
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
    let packed = packed(table);
    assert_eq!(packed.len(), golden.gradients.len());
    for (name, ids) in packed {
        let expected = &golden.gradients[&name];
        let summed = |id: &TensorId| trainer.gradients().summed_of(*id).and_then(|view| Ok(view.host()?.to_vec()));
        let found: Vec<f32> = ids.iter().flat_map(|id| summed(id).expect("a summed gradient")).collect();
        assert_eq!(found.len(), expected.len(), "{name}");
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            let allowed = 1e-5 * largest + 1e-8;
            assert!(error <= allowed, "{name}[{index}]: {found} against {expected}, largest {largest}");
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
