//! The exact grade: all state has the same bits, whatever the data ranks, ZeRO's stage, the micro-batches and the threads.
#![forbid(unsafe_code)]

mod common;
mod training;

use std::sync::Arc;

use common::ranks;
use training::{Seen, Training};
use warpweft_device::{Device, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::model::{ModelShape, MoeShape, Spread};
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Trainer};

fn gpt2() -> Training {
    Training { exact: true, ragged: true, ..Training::of(ModelShape::gpt2(2, 16, 2, 8, 19), 8, 20) }
}

fn llama() -> Training {
    Training { shape: ModelShape { tied: false, ..ModelShape::llama(2, 16, 4, 2, 8, 19) }, ..gpt2() }
}

#[test]
fn two_copies_of_the_model_have_the_state_of_one() {
    for (training, model) in [(gpt2(), "gpt2"), (llama(), "llama"), (mixture(), "mixture")] {
        let reference = training.run::<f32>(1).remove(0);
        for (world, micro_batch) in [(1, 1), (1, 3), (3, 1)] {
            let (pipeline, sizes) = ((Name::DualPipe, None), Sizes { pp: 2, ..Sizes::ONE });
            let split = Training { pipeline, sizes, micro_batch, ..training };
            assert_same(
                &split.run::<f32>(world),
                &reference,
                &format!("{model}, {world} ranks, {micro_batch} at once"),
            );
        }
    }
}

/// Llama with all that a mixture has.
fn mixture() -> Training {
    let moe = MoeShape { balance: 0.01, bias_rate: 1e-3, capacity: Some(1.0), ..MoeShape::new(5, 2, 9) };
    Training { shape: ModelShape { moe: Some(moe), hidden: 12, ..llama().shape }, ..llama() }
}

fn assert_same(seen: &[Seen], reference: &Seen, what: &str) {
    for rank in seen {
        assert_eq!(rank.losses, reference.losses, "{what}: losses");
        assert_eq!(rank.norms, reference.norms, "{what}: norms");
        assert_eq!(rank.state, reference.state, "{what}: state");
    }
}

#[test]
fn any_number_of_data_ranks_has_the_state_of_one() {
    for (training, model) in [(gpt2(), "gpt2"), (llama(), "llama")] {
        let reference = training.run::<f32>(1).remove(0);
        assert!(reference.losses[19] < reference.losses[0], "{model} learns");
        assert!(reference.norms.iter().any(|norm| *norm > 1.0), "{model}: something is clipped");
        let default = Training { exact: false, ..training };
        let [one, three] = [1, 3].map(|world| default.run::<f32>(world).remove(0).weights);
        assert_ne!(one, three, "{model}: sums in another order have other bits, or this test proves nothing");
        for world in [2, 3, 4, 8] {
            assert_same(&training.run::<f32>(world), &reference, &format!("{model} on {world} ranks"));
        }
    }
}

#[test]
fn every_split_into_micro_batches_has_the_same_state() {
    // 7 sequences: an odd tree, 3 on one of three ranks, none on the last of eight.
    let training = Training { batch: 7, ..gpt2() };
    let reference = training.run::<f32>(1).remove(0);
    for micro_batch in [1, 2, 3, 7] {
        for world in [1, 3, 8] {
            let split = Training { micro_batch, ..training };
            assert_same(&split.run::<f32>(world), &reference, &format!("{micro_batch} at once on {world} ranks"));
        }
    }
    let threads = Training { threads: 3, ..training }.run::<f32>(2);
    assert_same(&threads, &reference, "three threads");
}

#[test]
fn every_stage_of_zero_has_the_same_state() {
    let reference = gpt2().run::<f32>(1).remove(0);
    for stage in 1..=3 {
        for (world, shards) in [(2, None), (3, None), (4, Some(2)), (4, Some(1))] {
            let split = Training { zero: Zero { stage, shards }, micro_batch: 1, ..gpt2() };
            let what = format!("stage {stage} on {world} ranks, shards {shards:?}");
            assert_same(&split.run::<f32>(world), &reference, &what);
        }
    }
}

#[test]
fn bf16_is_exact_too() {
    let reference = llama().run::<bf16>(1).remove(0);
    for (world, stage) in [(2, 0), (3, 1), (4, 2), (3, 3)] {
        let split = Training { zero: Zero::stage(stage), micro_batch: 1, ..llama() };
        assert_same(&split.run::<bf16>(world), &reference, &format!("stage {stage} on {world} ranks"));
    }
}

#[test]
fn a_mixture_of_experts_is_exact_over_data_ranks_stages_and_schedules() {
    let reference = mixture().run::<f32>(1).remove(0);
    assert!(reference.losses[19] < reference.losses[0], "it learns");
    let default = Training { exact: false, ..mixture() };
    let [one, three] = [1, 3].map(|world| default.run::<f32>(world).remove(0).weights);
    assert_ne!(one, three, "sums in another order have other bits, or this test proves nothing");
    for (world, micro_batch, stage) in [(1, 3, 0), (2, 8, 1), (3, 1, 2), (4, 2, 3), (8, 1, 0)] {
        let split = Training { micro_batch, zero: Zero::stage(stage), ..mixture() };
        assert_same(&split.run::<f32>(world), &reference, &format!("{world} ranks, {micro_batch}, stage {stage}"));
    }
    let threads = Training { threads: 3, ..mixture() }.run::<f32>(2);
    assert_same(&threads, &reference, "three threads");
    let sizes = Sizes { pp: 2, ..Sizes::ONE };
    for (name, world) in [(Name::GPipe, 1), (Name::ZbH1, 2), (Name::ZbH2, 1)] {
        let split = Training { pipeline: (name, None), micro_batch: 1, sizes, ..mixture() };
        assert_same(&split.run::<f32>(world), &reference, &format!("{name} on {world} x 2 ranks"));
    }
    let halves = mixture().run::<bf16>(1).remove(0);
    assert_same(&Training { micro_batch: 2, ..mixture() }.run::<bf16>(3), &halves, "bf16");
}

/// The digest of the initial state of a model.
fn initial(shape: ModelShape, sizes: Sizes, zero: Zero, seed: u64) -> Vec<String> {
    ranks(sizes.ranks(), |communicator| {
        let kv = Spread::ranks_to_a_head(&shape, sizes.tp).expect("heads that the ranks can share");
        let mesh = Mesh::new(Arc::new(communicator), sizes, kv).expect("a mesh");
        let device = Device::cpu_with_threads(1).expect("a thread");
        let recipe = Recipe { zero, seed, ..Recipe::new(shape.context, 4) };
        let mut trainer = Trainer::<f32>::new(shape, recipe, &device, mesh).expect("a trainer");
        trainer.state_sha256().expect("whole tensors")
    })
}

#[test]
fn the_digest_is_of_whole_tensors_at_every_layout() {
    for shape in [ModelShape::gpt2(2, 16, 2, 8, 19), ModelShape::llama(2, 16, 4, 1, 8, 19)] {
        let reference = initial(shape, Sizes::ONE, Zero::NONE, 7).remove(0);
        assert_ne!(reference, initial(shape, Sizes::ONE, Zero::NONE, 8)[0], "other weights have another");
        for (dp, tp, stage) in [(1, 2, 0), (2, 2, 0), (2, 2, 1), (3, 1, 3), (2, 2, 3)] {
            let sizes = Sizes { dp, tp, ..Sizes::ONE };
            for digest in initial(shape, sizes, Zero::stage(stage), 7) {
                assert_eq!(digest, reference, "dp {dp}, tp {tp}, stage {stage}");
            }
        }
    }
}

#[test]
fn what_is_not_exact_is_refused_with_the_fix() {
    let shape = ModelShape::gpt2(1, 16, 2, 8, 19);
    let errors = ranks(2, |communicator| {
        let mesh = Mesh::new(Arc::new(communicator), Sizes { tp: 2, ..Sizes::ONE }, 1).expect("a mesh");
        let recipe = Recipe { exact: true, ..Recipe::new(shape.context, 4) };
        let device = Device::cpu_with_threads(1).expect("a thread");
        Trainer::<f32>::new(shape, recipe, &device, mesh).err().expect("tp 2 is not exact").to_string()
    });
    let expected = "--exact holds over dp, pp and ZeRO; with tp 2, sums over tp depend on its size: set tp 1, or leave \
                    --exact out";
    assert!(errors.iter().all(|error| error == expected), "{errors:?}");
}
