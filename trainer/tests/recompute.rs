//! Activation recomputation: the same bits as without it, in every layout; the memory that it is for; what it sends again.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{ONE_RANK, Seen, Training};
use warpweft_device::{Float, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::memory::Class;
use warpweft_trainer::model::{ModelShape, MoeShape, Recompute};
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::Trainer;

const AGAIN: [Recompute; 2] = [Recompute::Selective, Recompute::Full];

fn gpt2() -> Training {
    Training { micro_batch: 2, ragged: true, ..Training::of(ModelShape::gpt2(4, 16, 4, 8, 19), 5, 4) }
}

fn llama() -> Training {
    Training { shape: ModelShape { tied: false, ..ModelShape::llama(4, 16, 4, 2, 9, 19) }, ..gpt2() }
}

fn mixture() -> Training {
    let moe = MoeShape { balance: 0.01, ..MoeShape::new(4, 2, 12) };
    Training { shape: ModelShape { moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) }, ..gpt2() }
}

/// Losses, norms and weights are the same bits, whatever is computed again.
fn check<T: Float>(training: Training, dp: usize, what: &str) {
    let kept: Vec<Seen> = training.run::<T>(dp);
    assert!(kept[0].losses[3] != kept[0].losses[0], "{what}: something is learnt");
    for recompute in AGAIN {
        assert_eq!(Training { recompute, ..training }.run::<T>(dp), kept, "{what}, {recompute:?}");
    }
}

#[test]
fn one_rank() {
    check::<f32>(gpt2(), 1, "gpt2");
    check::<f32>(llama(), 1, "llama");
    check::<f32>(mixture(), 1, "mixture");
    check::<bf16>(gpt2(), 1, "gpt2 in bf16");
    check::<bf16>(llama(), 1, "llama in bf16");
    check::<bf16>(mixture(), 1, "mixture in bf16");
    check::<f32>(Training { threads: 3, ..llama() }, 1, "three threads");
}

#[test]
fn regions_of_other_ranks() {
    for training in [gpt2(), llama()] {
        for (tp, sequence_parallel) in [(2, false), (2, true), (4, true)] {
            let sizes = Sizes { tp, ..Sizes::ONE };
            check::<f32>(
                Training { sizes, sequence_parallel, ..training },
                1,
                &format!("tp {tp} sp {sequence_parallel}"),
            );
        }
        for context in [Method::Ring, Method::Ulysses] {
            let sizes = Sizes { cp: 2, ..Sizes::ONE };
            check::<f32>(Training { sizes, context, ..training }, 1, &format!("{context:?}"));
        }
        let sizes = Sizes { cp: 2, tp: 2, ..Sizes::ONE };
        check::<f32>(Training { sizes, sequence_parallel: true, ..training }, 2, "dp 2 x cp 2 x tp 2");
    }
}

#[test]
fn experts_on_other_ranks() {
    for (dp, cp, tp, ep, stage) in [(2, 1, 1, 2, 0), (2, 1, 2, 2, 1), (2, 2, 1, 4, 3)] {
        let sizes = Sizes { cp, tp, ep, ..Sizes::ONE };
        let training = Training { sizes, sequence_parallel: tp > 1, zero: Zero::stage(stage), ..mixture() };
        check::<f32>(training, dp, &format!("dp {dp} cp {cp} tp {tp} ep {ep} ZeRO-{stage}"));
    }
}

/// Every schedule, those that split backward passes too, whose weights wait for their gradients.
const NAMES: [(Name, Option<usize>); 7] = [
    (Name::GPipe, None),
    (Name::OneForwardOneBackward, None),
    (Name::Interleaved, Some(2)),
    (Name::ZbH1, None),
    (Name::ZbH2, None),
    (Name::ZbV, None),
    (Name::DualPipe, None),
];

#[test]
fn every_schedule() {
    for pipeline in NAMES {
        for training in [gpt2(), mixture()] {
            let layers = 4;
            let shape = ModelShape { layers, ..training.shape };
            let sizes = Sizes { pp: 2, ..Sizes::ONE };
            check::<f32>(
                Training { shape, sizes, pipeline, micro_batch: 1, ..training },
                1,
                &format!("{}", pipeline.0),
            );
        }
    }
}

#[test]
fn weights_shared_out_over_data_ranks() {
    for stage in [1, 2, 3] {
        let zero = Zero::stage(stage);
        check::<f32>(Training { zero, ..llama() }, 3, &format!("ZeRO-{stage}"));
        for pipeline in [ONE_RANK, (Name::ZbH1, None)] {
            let sizes = Sizes { pp: 2, ..Sizes::ONE };
            let training = Training { zero, sizes, pipeline, micro_batch: 1, ..gpt2() };
            check::<f32>(training, 2, &format!("ZeRO-{stage}, {}", pipeline.0));
        }
    }
}

#[test]
fn exact_sums_are_those_of_one_rank() {
    let reference = Training { exact: true, ..gpt2() }.run::<f32>(1).remove(0);
    for recompute in AGAIN {
        for (dp, pp, pipeline, stage) in [(3, 1, ONE_RANK, 0), (2, 2, (Name::ZbH1, None), 1), (2, 1, ONE_RANK, 3)] {
            let (sizes, zero) = (Sizes { pp, ..Sizes::ONE }, Zero::stage(stage));
            let training = Training { exact: true, recompute, sizes, pipeline, zero, ..gpt2() };
            for rank in training.run::<f32>(dp) {
                assert_eq!(rank.state, reference.state, "{recompute:?} dp {dp} pp {pp} ZeRO-{stage}");
                assert_eq!(rank.losses, reference.losses);
            }
        }
    }
}

/// Bytes of activations on each rank.
fn activations<T: Float>(training: Training) -> Vec<u64> {
    let training = Training { steps: 1, ..training };
    training.run_then(1, |trainer: &mut Trainer<T>, _| trainer.account().peak().of(Class::Activations))
}

/// Bytes a row that a block keeps besides its input, and those of them that are cheap to have again, of `tp` ranks one.
fn of_block<T>(shape: &ModelShape, tp: u64) -> [u64; 2] {
    let [c, f, up, qkv, h] = [shape.channels, shape.hidden, shape.expanded(), shape.qkv_width(), shape.heads];
    let [c, f, up, qkv, h] = [c, f, up, qkv, h].map(|size| size as u64);
    let norm = if shape.architecture == warpweft_trainer::model::Architecture::Gpt2 { 2 } else { 1 };
    let cheap = 2 * c + f / tp;
    let all = cheap + qkv / tp + c / tp + c + up / tp;
    let width = size_of::<T>() as u64;
    [all * width + (2 * norm + h / tp) * 4, cheap * width]
}

#[test]
fn activations_fall_by_the_bytes_of_the_formula() {
    fn check<T: Float>(training: Training, blocks: u64, passes: &[u64], waiting: &[u64]) {
        let shape = training.shape;
        let rows = (training.micro_batch * shape.context) as u64;
        let [all, cheap] = of_block::<T>(&shape, training.sizes.tp as u64).map(|bytes| bytes * rows);
        let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full]
            .map(|recompute| activations::<T>(Training { recompute, ..training }));
        for rank in 0..none.len() {
            let (passes, waiting) = (passes[rank % passes.len()], waiting[rank % waiting.len()]);
            // Of every pass under way each block's; once a rank for the block at work.
            assert_eq!(none[rank] - selective[rank], passes * blocks * cheap - cheap, "selective, rank {rank}");
            assert_eq!(none[rank] - full[rank], passes * blocks * all - waiting * all, "full, rank {rank}");
        }
    }
    check::<f32>(gpt2(), 4, &[1], &[1]);
    check::<bf16>(llama(), 4, &[1], &[1]);
    check::<f32>(Training { sizes: Sizes { tp: 2, ..Sizes::ONE }, ..llama() }, 4, &[1], &[1]);
    // Two stages of two blocks: 1F1B has two passes under way on the first, GPipe all of them on both.
    let pipelined = |name| Training {
        sizes: Sizes { pp: 2, ..Sizes::ONE },
        pipeline: (name, None),
        batch: 6,
        micro_batch: 1,
        ..gpt2()
    };
    check::<f32>(pipelined(Name::OneForwardOneBackward), 2, &[2, 1], &[1, 1]);
    check::<f32>(pipelined(Name::GPipe), 2, &[6, 6], &[1, 1]);
    // ZB-H1, first stage: F F B W F B W .., so that both blocks of one pass wait. Second: F B F B W F B W .., of two passes.
    check::<f32>(pipelined(Name::ZbH1), 2, &[2, 2], &[2, 4]);
}

#[test]
fn tensor_parallel_ranks_sum_attention_once_more() {
    let (tp, layers, rows, channels) = (2, 4, 2 * 8, 16u64);
    for (sequence_parallel, again) in [(false, 1), (true, 3)] {
        let sizes = Sizes { tp: tp as usize, ..Sizes::ONE };
        // Micro-batches of even size: 2 and 2 sequences.
        let training = Training { sizes, sequence_parallel, batch: 4, steps: 1, ..gpt2() };
        let sent = |recompute| -> u64 {
            let training = Training { recompute, ..training };
            let each = training.run_then(1, |_: &mut Trainer<f32>, reports| reports[0].traffic.tensor);
            each.iter().sum()
        };
        let [none, selective, full] = [Recompute::None, Recompute::Selective, Recompute::Full].map(sent);
        assert_eq!(selective, none, "nothing travels again");
        // An all-reduce is two of what an all-gather or a reduce-scatter is.
        let moves = if sequence_parallel { again } else { 2 * again };
        assert_eq!(full - none, 2 * layers * moves * (tp - 1) * rows * channels * 4, "sp {sequence_parallel}");
    }
}
