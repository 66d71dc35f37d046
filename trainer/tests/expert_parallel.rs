//! Expert parallelism changes no number of a training.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{Seen, Training};
use warpweft_device::Device;
use warpweft_trainer::model::{ModelShape, MoeShape, ShapeError};
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

const STEPS: u64 = 20;

/// Losses within 1e-5 of one rank's and gradient norms within 5e-5, at every step; every rank has the same.
fn assert_same(training: Training, dp: usize, what: &str) {
    let reference =
        Training { sizes: Sizes::ONE, sequence_parallel: false, zero: Zero::NONE, ..training }.run::<f32>(1).remove(0);
    let seen = training.run::<f32>(dp);
    for rank in &seen {
        assert_eq!((&rank.losses, &rank.norms), (&seen[0].losses, &seen[0].norms), "{what}: ranks differ");
    }
    let Seen { losses, norms, .. } = &seen[0];
    for step in 0..losses.len() {
        let apart = |ours: &[f64], theirs: &[f64]| (ours[step] - theirs[step]).abs() / theirs[step];
        let (loss, norm) = (apart(losses, &reference.losses), apart(norms, &reference.norms));
        assert!(loss <= 1e-5, "{what}, step {}: losses {loss:e} apart", step + 1);
        assert!(norm <= 5e-5, "{what}, step {}: norms {norm:e} apart", step + 1);
    }
}

/// On dp x cp x tp ranks, ep of them with experts of their own.
fn check(shape: ModelShape, (dp, cp, tp, ep): (usize, usize, usize, usize)) {
    let sizes = Sizes { cp, tp, ep, ..Sizes::ONE };
    let training = Training { sizes, micro_batch: 2, ..Training::of(shape, 5, STEPS) };
    assert_same(training, dp, &format!("{shape:?} dp {dp} cp {cp} tp {tp} ep {ep}"));
}

fn gpt2(moe: MoeShape) -> ModelShape {
    ModelShape { hidden: 24, moe: Some(moe), ..ModelShape::gpt2(2, 16, 4, 7, 19) }
}

fn llama(moe: MoeShape) -> ModelShape {
    ModelShape { hidden: 12, moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) }
}

#[test]
fn experts_over_ranks_are_experts_on_one() {
    check(gpt2(MoeShape::new(4, 2, 8)), (2, 1, 1, 2));
    check(llama(MoeShape::new(6, 2, 10)), (4, 1, 1, 4));
    check(llama(MoeShape { sigmoid: true, ..MoeShape::new(5, 3, 6) }), (4, 1, 1, 2));
}

#[test]
fn without_expert_parallelism_every_rank_has_all_experts() {
    check(llama(MoeShape::new(4, 2, 8)), (3, 1, 1, 1));
    check(llama(MoeShape::new(4, 1, 8)), (1, 1, 2, 1));
}

#[test]
fn with_every_other_axis() {
    check(llama(MoeShape::new(4, 2, 9)), (1, 2, 1, 2));
    check(gpt2(MoeShape::new(4, 2, 9)), (2, 1, 2, 2));
    check(llama(MoeShape { normalize: false, ..MoeShape::new(4, 2, 8) }), (2, 2, 2, 4));
}

#[test]
fn no_shared_expert_and_more_ranks_than_experts() {
    check(ModelShape { hidden: 0, ..llama(MoeShape::new(4, 2, 8)) }, (2, 1, 1, 2));
    check(llama(MoeShape::new(3, 1, 8)), (4, 1, 1, 4));
}

#[test]
fn rows_shared_out_over_tensor_parallel_ranks() {
    let sizes = Sizes { tp: 2, ep: 2, ..Sizes::ONE };
    let shape = llama(MoeShape::new(4, 2, 8));
    let training = Training { sizes, ragged: true, sequence_parallel: true, ..Training::of(shape, 5, STEPS) };
    assert_same(training, 2, "sequence parallelism");
}

#[test]
fn state_shared_out_over_the_ranks_with_the_same_experts() {
    for stage in 1..=3 {
        let sizes = Sizes { ep: 2, cp: 2, ..Sizes::ONE };
        let shape = llama(MoeShape::new(4, 2, 9));
        let training = Training { sizes, zero: Zero::stage(stage), micro_batch: 2, ..Training::of(shape, 5, STEPS) };
        assert_same(training, 2, &format!("ZeRO-{stage}"));
    }
}

#[test]
fn the_auxiliary_loss_is_a_sequences_wherever_its_tokens_are() {
    for sigmoid in [false, true] {
        let shape = llama(MoeShape { balance: 0.5, sigmoid, ..MoeShape::new(4, 2, 9) });
        check(shape, (2, 1, 1, 2));
        check(shape, (1, 4, 1, 2));
        check(shape, (2, 2, 2, 4));
    }
    // It is felt: the same training without it goes elsewhere.
    let losses = |balance| {
        let shape = llama(MoeShape { balance, ..MoeShape::new(4, 2, 9) });
        Training::of(shape, 5, STEPS).run::<f32>(1).remove(0).losses
    };
    let (with, without) = (losses(0.5), losses(0.0));
    assert_eq!(with[0], without[0], "it is not in the loss");
    assert_ne!(with[5], without[5]);
}

#[test]
fn capacity_drops_the_same_wherever_the_tokens_of_a_sequence_are() {
    for capacity in [0.6, 1.0] {
        let shape = llama(MoeShape { capacity: Some(capacity), ..MoeShape::new(4, 2, 9) });
        check(shape, (2, 1, 1, 2));
        check(shape, (1, 4, 1, 2));
        check(shape, (2, 2, 2, 4));
    }
    let losses = |capacity| {
        let shape = llama(MoeShape { capacity, ..MoeShape::new(4, 2, 9) });
        Training::of(shape, 5, STEPS).run::<f32>(1).remove(0).losses
    };
    assert_eq!(losses(Some(4.0)), losses(None), "more than all there are");
    assert_ne!(losses(Some(0.6))[0], losses(None)[0]);
}

#[test]
fn the_auxiliary_gradient_is_proportional_to_its_factor() {
    let gradient = |balance: f64| -> Vec<f64> {
        let shape = llama(MoeShape { balance, ..MoeShape::new(4, 2, 8) });
        let device = Device::cpu_with_threads(1).expect("a thread");
        let mesh = Mesh::alone().expect("a mesh of one");
        let mut trainer = Trainer::<f32>::new(shape, Recipe::new(8, 2), &device, mesh).expect("a trainer");
        let tokens: Vec<u32> = (0..16).map(|i| i * 7 % 19).collect();
        trainer.step(Sequences { inputs: &tokens, targets: &tokens }, 16, None).expect("a step");
        let id = trainer.model().table().find("model.layers.1.mlp.gate.weight").expect("a router");
        let view = trainer.gradients().summed_of(id).expect("summed");
        view.host().expect("host memory").iter().map(|g| f64::from(*g)).collect()
    };
    // The last router changes nothing that the errors of the output depend on, so its gradients are sums of two terms.
    let (none, once, twice) = (gradient(0.0), gradient(1.0), gradient(2.0));
    let largest = once.iter().zip(&none).map(|(once, none)| (once - none).abs()).fold(0.0, f64::max);
    assert!(largest > 1e-4, "{largest}");
    for ((none, once), twice) in none.iter().zip(&once).zip(&twice) {
        assert!(((twice - none) - 2.0 * (once - none)).abs() <= 1e-5 * largest.max(none.abs()));
    }
}

#[test]
fn sizes_that_make_no_mixture_are_refused() {
    assert_eq!(llama(MoeShape::new(2, 3, 8)).check(), Err(ShapeError::TopK { top_k: 3, experts: 2 }));
    assert!(matches!(llama(MoeShape::new(0, 0, 8)).check(), Err(ShapeError::Zero { what: "experts" })));
    assert!(matches!(llama(MoeShape::new(2, 1, 0)).check(), Err(ShapeError::Zero { .. })));
    for balance in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(llama(MoeShape { balance, ..MoeShape::new(2, 1, 8) }).check().is_err());
    }
    assert!(llama(MoeShape { capacity: Some(0.0), ..MoeShape::new(2, 1, 8) }).check().is_err());
    assert!(llama(MoeShape::new(usize::MAX / 2, 1, 8)).check().is_err());
}

/// Along the gradient of each tensor, at unit length, the loss must rise by the gradient's norm.
///
/// With a step of h = 2^-7 each way the differences carry the rounding of two losses near 3 (each within some 2^-23 of
/// itself, 1e-6 together with the passes' own), over 2 h: 1e-4; and h² / 6 times a third derivative, 1e-5 of its size.
#[test]
fn every_gradient_is_the_slope_of_the_loss() {
    let sigmoid = MoeShape { sigmoid: true, ..MoeShape::new(3, 3, 8) };
    let raw = MoeShape { normalize: false, ..MoeShape::new(3, 3, 8) };
    for shape in [llama(MoeShape::new(3, 3, 8)), llama(sigmoid), gpt2(raw), llama(MoeShape::new(4, 2, 8))] {
        // A choice has no slope: where there is one, what comes after the last of them is all that can be compared.
        let part = if shape.moe.is_some_and(|moe| moe.top_k < moe.experts) { ".1.mlp.experts." } else { ".mlp." };
        let (inputs, targets): (Vec<u32>, Vec<u32>) =
            (0..2 * shape.context as u32).map(|i| ((i * i * 7 + i) % 19, (i * 5 + 3) % 19)).unzip();
        let sequences = Sequences { inputs: &inputs, targets: &targets };
        let device = Device::cpu_with_threads(1).expect("a thread");
        let trainer = || {
            let mesh = Mesh::alone().expect("a mesh of one");
            Trainer::<f32>::new(shape, Recipe::new(shape.context, 2), &device, mesh).expect("a trainer")
        };
        let mut at = trainer();
        // Far from the small initial values, so that every gradient is well above rounding.
        let values: Vec<Vec<f32>> = at
            .model()
            .table()
            .iter()
            .map(|(id, parameter)| {
                let norm = parameter.shape().len() == 1 && parameter.name().ends_with("weight");
                let value = |i: usize| ((i * 7919 + id.index() * 104_729) % 2003) as f32 / 1001.0 - 1.0;
                (0..parameter.len()).map(|i| 0.5 * value(i) + if norm { 1.0 } else { 0.0 }).collect()
            })
            .collect();
        at.set_weights(|id| values[id.index()].clone()).expect("weights");
        at.step(sequences, inputs.len() as u64, None).expect("a step");
        let mut moved = trainer();
        for (id, parameter) in at.model().table().iter() {
            if !parameter.name().contains(part) {
                continue;
            }
            let gradient = at.gradients().summed_of(id).and_then(|view| Ok(view.host()?.to_vec())).expect("summed");
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            assert!(norm > 1e-2, "{}: a norm of {norm} is too small to be seen", parameter.name());
            let h = 1.0 / 128.0;
            let mut loss = |sign: f64| {
                let step = |(w, g): (&f32, &f32)| (f64::from(*w) + sign * h * f64::from(*g) / norm) as f32;
                let there: Vec<f32> = values[id.index()].iter().zip(&gradient).map(step).collect();
                moved
                    .set_weights(|other| if other == id { there.clone() } else { values[other.index()].clone() })
                    .expect("weights");
                moved.evaluate(sequences, 2).expect("a loss")
            };
            let slope = (loss(1.0) - loss(-1.0)) / (2.0 * h);
            let allowed = 2e-4 + 5e-3 * norm;
            assert!((slope - norm).abs() <= allowed, "{}: slope {slope}, norm {norm}", parameter.name());
        }
    }
}
