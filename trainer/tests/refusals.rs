//! Steps that must not be taken, each an error that says why.
#![forbid(unsafe_code)]

use warpweft_device::Device;
use warpweft_trainer::TrainError;
use warpweft_trainer::model::{ModelShape, TensorId};
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::mesh::Mesh;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

const TOKENS: usize = 4;

fn trainer() -> Trainer<f32> {
    let schedule = Schedule { peak: 1e-3, warmup: 0, steps: 2 };
    let recipe = Recipe { schedule, clip: Some(1.0), ..Recipe::new(TOKENS, 1) };
    let device = Device::cpu_with_threads(1).expect("a thread");
    let shape = ModelShape::gpt2(1, 8, 2, TOKENS, 11);
    Trainer::new(shape, recipe, &device, Mesh::alone().expect("a mesh")).expect("a trainer")
}

fn step(trainer: &mut Trainer<f32>, inputs: [u32; TOKENS], targets: [u32; TOKENS], valid: u64) -> TrainError {
    let sequences = Sequences { inputs: &inputs, targets: &targets };
    trainer.step(sequences, valid, None).expect_err("a step that must not be taken")
}

#[test]
fn a_token_or_target_outside_the_vocabulary_is_named() {
    for (inputs, targets) in [([1, 2, 11, 3], [1; TOKENS]), ([1; TOKENS], [1, 2, 11, 3])] {
        let error = step(&mut trainer(), inputs, targets, 4);
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(text.contains("row 2") && text.contains("token 11") && text.contains("vocabulary has 11"), "{text}");
    }
}

#[test]
fn tokens_without_targets_and_parts_of_a_sequence_are_refused() {
    for (inputs, targets) in [(4, 3), (4, 8), (6, 6), (0, 4)] {
        let (inputs, targets) = (vec![1; inputs], vec![1; targets]);
        let sequences = Sequences { inputs: &inputs, targets: &targets };
        let error = trainer().step(sequences, 4, None).expect_err("not a batch");
        let text = format!("{} tokens and {} targets are not sequences of 4", inputs.len(), targets.len());
        assert!(error.to_string().starts_with(&text), "{error}");
        assert!(trainer().evaluate(sequences, 1).is_err());
    }
}

#[test]
fn sizes_that_make_no_pass_are_refused() {
    let trainer = |micro_batch, tokens| {
        let schedule = Schedule { peak: 1e-3, warmup: 0, steps: 2 };
        let recipe = Recipe { schedule, ..Recipe::new(tokens, micro_batch) };
        let device = Device::cpu_with_threads(1).expect("a thread");
        let shape = ModelShape::gpt2(1, 8, 2, TOKENS, 11);
        Trainer::<f32>::new(shape, recipe, &device, Mesh::alone().expect("a mesh")).err().map(|error| error.to_string())
    };
    for (micro_batch, tokens) in [(0, TOKENS), (1, 0)] {
        assert!(trainer(micro_batch, tokens).is_some_and(|text| text.contains("is 0; a model needs at least 1")));
    }
    // The elements of the widest activations overflow, and so would their bytes.
    for micro_batch in [usize::MAX, usize::MAX / TOKENS / 32] {
        assert!(trainer(micro_batch, TOKENS).is_some_and(|text| text.contains("cannot allocate")), "{micro_batch}");
    }
    assert_eq!(trainer(1, TOKENS), None);
}

#[test]
fn a_wrong_count_of_targets_is_found_before_the_update() {
    let mut trainer = trainer();
    let before = weights(&trainer);
    let error = step(&mut trainer, [1; TOKENS], [1; TOKENS], 5);
    assert!(matches!(error, TrainError::Valid { told: 5, found: 4 }), "{error}");
    assert_eq!(weights(&trainer), before);
}

#[test]
fn a_loss_that_is_no_number_ends_the_training_before_the_update() {
    let mut trainer = trainer();
    let poison = |id: TensorId, len: usize| vec![if id.index() == 0 { f32::NAN } else { 0.5 }; len];
    let table = trainer.model().table().clone();
    trainer.set_weights(|id| poison(id, table.get(id).len())).expect("as many weights");
    let error = step(&mut trainer, [1; TOKENS], [1; TOKENS], 4);
    assert!(matches!(error, TrainError::NotFinite { step: 1, .. }), "{error}");
    assert!(error.to_string().contains("lower --lr"));
    let after = weights(&trainer);
    assert!(after.iter().all(|weight| weight.is_nan() || *weight == 0.5), "an update was done");
}

/// All weights, parameter after parameter.
fn weights(trainer: &Trainer<f32>) -> Vec<f32> {
    let view = |id| trainer.weights().view(id).and_then(|view| Ok(view.host()?.to_vec())).expect("host memory");
    trainer.model().table().iter().flat_map(|(id, _)| view(id)).collect()
}
