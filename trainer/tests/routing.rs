//! What is told of the routers of a step, the biases that follow from it, and gradients of experts over ranks.
#![forbid(unsafe_code)]

mod common;
#[allow(dead_code, reason = "weights are no matter here")]
mod training;

use std::sync::Arc;

use common::ranks;
use training::Training;
use warpweft_comm::Op;
use warpweft_device::{Device, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::memory::{Account, Allocator};
use warpweft_trainer::model::{Model, ModelShape, MoeShape, Routing, Spread};
use warpweft_trainer::parallel::gradients::Gradients;
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::plan::Plan;
use warpweft_trainer::parallel::zero::{Sharding, Zero};
use warpweft_trainer::step::{Recipe, Sequences, StepReport, Trainer};

const STEPS: u64 = 12;

fn llama(moe: MoeShape) -> ModelShape {
    ModelShape { hidden: 12, moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) }
}

fn moving() -> ModelShape {
    llama(MoeShape { bias_rate: 1e-2, balance: 0.01, sigmoid: true, ..MoeShape::new(4, 2, 8) })
}

/// What each rank was told of each step, its losses, and its biases at the end.
fn told(training: Training, dp: usize) -> Vec<(Vec<Routing>, Vec<f64>, Vec<f32>)> {
    training.run_then(dp, |trainer: &mut Trainer<f32>, reports| {
        let routing = reports.iter().map(|report| report.routing.clone().expect("routers")).collect();
        let losses = reports.iter().map(|report| report.loss).collect();
        (routing, losses, trainer.weights().biases().values().expect("host memory").to_vec())
    })
}

#[test]
fn biases_follow_the_counts_of_the_whole_step_at_every_layout() {
    let training = Training { micro_batch: 2, ..Training::of(moving(), 5, STEPS) };
    let (routing, losses, biases) = told(Training { micro_batch: 5, ..training }, 1).remove(0);
    // By hand, from the counts that the steps tell of.
    let mut expected = vec![0.0f32; 8];
    for step in &routing {
        assert_eq!(step.counts.iter().sum::<f64>(), 2.0 * 2.0 * 5.0 * 8.0, "each token, twice, in both blocks");
        for (bias, counts) in expected.chunks_exact_mut(4).zip(step.counts.chunks_exact(4)) {
            let mean = counts.iter().sum::<f64>() / 4.0;
            for (bias, count) in bias.iter_mut().zip(counts) {
                *bias += if *count < mean { 1e-2 } else { -1e-2 } * f32::from(*count != mean);
            }
        }
    }
    assert_eq!(biases, expected);
    assert!(biases.iter().any(|bias| *bias != 0.0), "{biases:?}");
    let pp = Training { pipeline: (Name::ZbH1, None), sizes: Sizes { pp: 2, ..Sizes::ONE }, ..training };
    let dual = Training { pipeline: (Name::DualPipe, None), micro_batch: 1, ..pp };
    let of = |cp, tp, ep| Training { sizes: Sizes { cp, tp, ep, ..Sizes::ONE }, ..training };
    for (what, training, dp) in [
        ("dp 3", training, 3),
        ("dp 2, ep 2", of(1, 1, 2), 2),
        ("dp 2, cp 2, ep 4", of(2, 1, 4), 2),
        ("cp 2, tp 2, ep 2", of(2, 2, 2), 1),
        ("dp 2, ZeRO-3", Training { zero: Zero::stage(3), ..training }, 2),
        ("pp 2", pp, 1),
        ("pp 2, dp 2, ep 2", Training { sizes: Sizes { pp: 2, ep: 2, ..Sizes::ONE }, ..pp }, 2),
        ("pp 2, dualpipe", dual, 1),
    ] {
        for (told, ours, moved) in told(training, dp) {
            for (step, (told, expected)) in told.iter().zip(&routing).enumerate() {
                let what = format!("{what}, step {}", step + 1);
                assert_eq!(told.counts, expected.counts, "{what}");
                let apart = |ours: f64, theirs: f64| (ours - theirs).abs() / theirs;
                let aux = apart(told.aux_loss.expect("a loss"), expected.aux_loss.expect("a loss"));
                assert!(aux <= 1e-5, "{what}: auxiliary losses {aux} apart");
                assert!((told.margin - expected.margin).abs() <= 1e-5, "{what}: {told:?}, {expected:?}");
                assert!(apart(ours[step], losses[step]) <= 1e-5, "{what}: {} and {}", ours[step], losses[step]);
            }
            assert_eq!(moved, biases, "{what}");
        }
    }
}

#[test]
fn biases_even_out_the_use_of_experts_without_a_loss() {
    let mean_load = |bias_rate: f64| {
        let shape = llama(MoeShape { bias_rate, sigmoid: true, ..MoeShape::new(4, 1, 8) });
        let training = Training::of(shape, 16, 120);
        let load = |report: &StepReport| report.routing.as_ref().expect("routers").load;
        let of_last = |reports: &[StepReport]| reports[80..].iter().map(load).sum::<f64>() / 40.0;
        training.run_then(1, |_: &mut Trainer<f32>, reports| of_last(reports))[0]
    };
    // Much larger steps throw the choice to and fro between experts.
    let (without, with) = (mean_load(0.0), mean_load(5e-4));
    assert!(with - 1.0 < 0.65 * (without - 1.0), "{with} with biases, {without} without");
}

#[test]
fn a_tie_goes_to_the_lower_experts_and_is_named() {
    let shape = llama(MoeShape { balance: 0.5, ..MoeShape::new(4, 2, 8) });
    let device = Device::cpu_with_threads(1).expect("a thread");
    let mesh = Mesh::alone().expect("a mesh of one");
    let mut trainer = Trainer::<f32>::new(shape, Recipe::new(8, 2), &device, mesh).expect("a trainer");
    let table = trainer.model().table().clone();
    let router = |name: &str| name.ends_with("gate.weight");
    let value = |name: &str| if router(name) { 0.0 } else { 0.1 };
    trainer.set_weights(|id| vec![value(table.get(id).name()); table.get(id).len()]).expect("weights");
    let tokens: Vec<u32> = (0..16).map(|i| i * 7 % 19).collect();
    let report = trainer.step(Sequences { inputs: &tokens, targets: &tokens }, 16, None).expect("a step");
    let routing = report.routing.expect("routers");
    assert_eq!((routing.margin, routing.is_narrow()), (0.0, true));
    assert_eq!(routing.counts, [16.0, 16.0, 0.0, 0.0, 16.0, 16.0, 0.0, 0.0]);
    assert_eq!((routing.load, routing.dropped), (2.0, 0));
    // Of equal shares, each of both blocks has a loss of 1 whatever the choice.
    assert!((routing.aux_loss.expect("a loss") - 2.0 * 0.5).abs() < 1e-6, "{routing:?}");
    // With a dense model there is nothing to tell.
    let dense = Training::of(ModelShape::llama(1, 16, 4, 2, 8, 19), 2, 1);
    assert!(dense.run_then(1, |_: &mut Trainer<bf16>, reports| reports[0].routing.is_none())[0]);
}

#[test]
fn what_is_over_the_capacity_is_counted_on_every_layout() {
    let shape = llama(MoeShape { capacity: Some(0.6), ..MoeShape::new(4, 2, 8) });
    let training = Training::of(shape, 4, 3);
    let dropped = |training, dp| told(training, dp)[0].0.iter().map(|step| step.dropped).collect::<Vec<_>>();
    let reference = dropped(training, 1);
    // 3 of 16 assignments of a sequence fit each of 4 experts, so 4 are dropped at least.
    assert!(reference.iter().all(|dropped| *dropped >= 2 * 4 * 4), "{reference:?}");
    for (cp, tp, ep) in [(1, 1, 2), (2, 1, 4), (1, 2, 1)] {
        let sizes = Sizes { cp, tp, ep, ..Sizes::ONE };
        assert_eq!(dropped(Training { sizes, ..training }, 2), reference, "cp {cp} tp {tp} ep {ep}");
    }
}

#[test]
fn expert_norms_over_ranks_are_the_root_of_all_squares() {
    // Squares of 20 on one rank and 100 on the other: sqrt(20 + 100) = 10.954, not (sqrt(20) + sqrt(100)) / 2 = 7.236.
    let shape = ModelShape { layers: 1, ..llama(MoeShape::new(2, 1, 8)) };
    let sizes = Sizes { dp: 2, ep: 2, ..Sizes::ONE };
    let norms = ranks(2, |communicator| {
        let mesh = Mesh::new(Arc::new(communicator), sizes, 1).expect("a mesh");
        let passes = Recipe::new(8, 2).passes(sizes).expect("a schedule");
        let spread = Spread::over(&shape, (sizes, mesh.place()), false, passes.placement()).expect("sizes that fit");
        let model = Model::new(shape, spread).expect("a model");
        let device = Device::cpu_with_threads(1).expect("a thread");
        let (table, stream, account) = (model.table(), device.stream(), Account::default());
        let plan = Plan::derive(table, &mesh, false, Zero::NONE).expect("a plan");
        let sharding = Sharding::new(table, &mesh, &plan, Zero::NONE).expect("shares");
        let mut allocator = Allocator { device: &device, account: &account };
        let mut gradients = Gradients::new(table, &mesh, &plan, &sharding, &mut allocator).expect("memory");
        gradients.begin_step(&stream, &vec![0; table.units().len()]).expect("a step");
        let up = table.find("model.layers.0.mlp.experts.up.weight").expect("experts");
        let values: &[f32] = if mesh.place().dp == 0 { &[4.0, -2.0] } else { &[6.0, 8.0] };
        gradients.view(up).expect("a gradient").host().expect("host memory")[..2].copy_from_slice(values);
        gradients.finish().expect("sums");
        let mut sum = device.upload(&[0.0]).expect("a number");
        gradients.sum_of_squares_into(&stream, table, &plan, sum.as_view_mut()).expect("squares");
        let mut squares = [sum.download(&stream).expect("a number")[0]];
        assert_eq!(squares[0], if mesh.place().dp == 0 { 20.0 } else { 100.0 });
        mesh.world().all_reduce(&mut squares[..], Op::Sum).expect("a sum");
        squares[0].sqrt()
    });
    assert!(norms.iter().all(|norm| (norm - 10.954).abs() < 5e-4), "{norms:?}");
}

/// The gradients of one step, whole tensors by name: those of experts put together from the ranks.
fn gradients(sizes: Sizes, micro_batch: usize) -> Vec<(String, Vec<f32>)> {
    let shape = llama(MoeShape { balance: 0.1, ..MoeShape::new(5, 2, 8) });
    let training = Training { sizes, micro_batch, ..Training::of(shape, 4, 1) };
    let of_ranks = training.run_then(2, |trainer: &mut Trainer<f32>, _| {
        let table = trainer.model().table();
        let view = |id| trainer.gradients().summed_of(id).and_then(|view| Ok(view.host()?.to_vec())).expect("summed");
        table.iter().map(|(id, of)| (of.name().to_owned(), of.is_of_experts(), view(id))).collect::<Vec<_>>()
    });
    let [first, second] = <[_; 2]>::try_from(of_ranks).expect("two ranks");
    type OfRank = (String, bool, Vec<f32>);
    let whole = |((name, of_experts, ours), (_, _, theirs)): (OfRank, OfRank)| {
        if of_experts && sizes.ep == 2 {
            return (name, [ours, theirs].concat());
        }
        assert_eq!(ours, theirs, "{name}: the ranks have the same");
        (name, ours)
    };
    first.into_iter().zip(second).map(whole).collect()
}

#[test]
fn ep_2_gradients_equal_ep_1() {
    let (one, two) = (gradients(Sizes::ONE, 2), gradients(Sizes { ep: 2, ..Sizes::ONE }, 1));
    assert_eq!(one.len(), two.len());
    for ((name, one), (_, two)) in one.iter().zip(&two) {
        assert_eq!(one.len(), two.len(), "{name}");
        let largest = one.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        assert!(largest > 0.0, "{name} has a gradient");
        for (index, (one, two)) in one.iter().zip(two).enumerate() {
            assert!((one - two).abs() <= 2e-6 * largest, "{name}[{index}]: {one} at ep 1, {two} at ep 2");
        }
    }
}
