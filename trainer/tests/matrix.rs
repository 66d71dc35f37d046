//! Over sixty meshes of up to eight ranks, each against one rank: every parallelism alone, in pairs, in triples and more.
//! `cargo test -p warpweft-trainer --features long-tests --test matrix`.
#![forbid(unsafe_code)]

mod common;
mod training;

use training::{ONE_RANK, Training};
use warpweft_schedule::Name;
use warpweft_trainer::model::{ModelShape, MoeShape};
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;

const STEPS: u64 = 20;

/// dp, pp, cp, tp, ep.
type Axes = [usize; 5];

/// What goes with a mesh: ZeRO's stage, sequence parallelism, the schedule and its chunks, how contexts meet.
#[derive(Clone, Copy)]
struct With {
    zero: u8,
    rows_apart: bool,
    pipeline: (Name, Option<usize>),
    context: Method,
}

const PLAIN: With = With { zero: 0, rows_apart: false, pipeline: ONE_RANK, context: Method::Ring };

const fn zero(stage: u8) -> With {
    With { zero: stage, ..PLAIN }
}

const fn schedule(name: Name) -> With {
    With { pipeline: (name, None), ..PLAIN }
}

const SP: With = With { rows_apart: true, ..PLAIN };
const ULYSSES: With = With { context: Method::Ulysses, ..PLAIN };
const ZB: With = schedule(Name::ZbH1);

/// Meshes of dense models, whose heads are 4 and layers 4.
const DENSE: &[(Axes, With)] = &[
    // Each parallelism alone.
    ([2, 1, 1, 1, 1], PLAIN),
    ([3, 1, 1, 1, 1], PLAIN),
    ([5, 1, 1, 1, 1], PLAIN),
    ([8, 1, 1, 1, 1], PLAIN),
    ([2, 1, 1, 1, 1], zero(1)),
    ([3, 1, 1, 1, 1], zero(2)),
    ([4, 1, 1, 1, 1], zero(3)),
    ([1, 2, 1, 1, 1], schedule(Name::GPipe)),
    ([1, 2, 1, 1, 1], PLAIN),
    ([1, 3, 1, 1, 1], PLAIN),
    ([1, 4, 1, 1, 1], ZB),
    ([1, 4, 1, 1, 1], schedule(Name::ZbH2)),
    ([1, 2, 1, 1, 1], schedule(Name::ZbV)),
    ([1, 2, 1, 1, 1], schedule(Name::Interleaved)),
    ([1, 2, 1, 1, 1], schedule(Name::DualPipe)),
    ([1, 1, 2, 1, 1], PLAIN),
    ([1, 1, 3, 1, 1], PLAIN),
    ([1, 1, 2, 1, 1], ULYSSES),
    ([1, 1, 1, 2, 1], PLAIN),
    ([1, 1, 1, 2, 1], SP),
    ([1, 1, 1, 4, 1], PLAIN),
    ([1, 1, 1, 4, 1], SP),
    // Pairs.
    ([2, 2, 1, 1, 1], PLAIN),
    ([2, 3, 1, 1, 1], ZB),
    ([2, 2, 1, 1, 1], schedule(Name::Interleaved)),
    ([4, 2, 1, 1, 1], zero(1)),
    ([3, 2, 1, 1, 1], zero(2)),
    ([2, 2, 1, 1, 1], zero(3)),
    ([2, 1, 2, 1, 1], PLAIN),
    ([3, 1, 2, 1, 1], ULYSSES),
    ([2, 1, 2, 1, 1], zero(1)),
    ([2, 1, 2, 1, 1], zero(3)),
    ([2, 1, 1, 2, 1], SP),
    ([3, 1, 1, 2, 1], PLAIN),
    ([2, 1, 1, 4, 1], SP),
    ([2, 1, 1, 2, 1], zero(1)),
    ([2, 1, 1, 2, 1], With { zero: 2, ..SP }),
    ([4, 1, 1, 2, 1], With { zero: 3, ..SP }),
    ([1, 2, 2, 1, 1], PLAIN),
    ([1, 2, 2, 1, 1], With { pipeline: (Name::ZbH1, None), ..ULYSSES }),
    ([1, 2, 1, 2, 1], PLAIN),
    ([1, 2, 1, 2, 1], SP),
    ([1, 4, 1, 2, 1], With { pipeline: (Name::ZbH1, None), ..SP }),
    ([1, 1, 2, 2, 1], PLAIN),
    ([1, 1, 2, 2, 1], With { context: Method::Ulysses, ..SP }),
    ([1, 1, 2, 4, 1], SP),
    // Triples, and all four.
    ([2, 2, 2, 1, 1], PLAIN),
    ([2, 2, 2, 1, 1], zero(3)),
    ([2, 2, 1, 2, 1], SP),
    ([2, 2, 1, 2, 1], With { pipeline: (Name::ZbH1, None), zero: 1, ..SP }),
    ([2, 2, 1, 2, 1], With { pipeline: (Name::Interleaved, None), zero: 2, ..PLAIN }),
    ([2, 1, 2, 2, 1], SP),
    ([2, 1, 2, 2, 1], With { zero: 3, ..ULYSSES }),
    ([1, 2, 2, 2, 1], SP),
    ([1, 2, 2, 2, 1], With { pipeline: (Name::ZbH1, None), ..PLAIN }),
];

/// Meshes of mixtures of 4 experts.
const EXPERTS: &[(Axes, With)] = &[
    ([2, 1, 1, 1, 2], PLAIN),
    ([4, 1, 1, 1, 4], PLAIN),
    ([4, 1, 1, 1, 2], zero(1)),
    ([2, 1, 1, 1, 1], PLAIN),
    ([1, 1, 2, 1, 2], PLAIN),
    ([2, 1, 2, 1, 4], zero(2)),
    ([2, 1, 1, 2, 2], SP),
    ([1, 2, 1, 1, 1], PLAIN),
    ([2, 2, 1, 1, 2], PLAIN),
    ([2, 2, 1, 1, 2], zero(1)),
    ([2, 2, 2, 1, 4], PLAIN),
    ([4, 2, 1, 1, 4], ZB),
    ([4, 2, 1, 1, 2], With { pipeline: (Name::ZbH1, None), ..zero(3) }),
    ([2, 2, 1, 2, 2], SP),
    ([2, 2, 1, 1, 2], schedule(Name::GPipe)),
    ([2, 2, 1, 1, 2], schedule(Name::DualPipe)),
    ([3, 2, 1, 1, 3], PLAIN),
];

/// Losses within `loss` and norms within `norm`, relative, at every step.
fn check(shape: ModelShape, meshes: &[(Axes, With)], loss: f64, norm: f64) {
    let training = Training { micro_batch: 2, ..Training::of(shape, 9, STEPS) };
    let reference = Training { micro_batch: 9, ..training }.run::<f32>(1).remove(0);
    for (index, &([dp, pp, cp, tp, ep], with)) in meshes.iter().enumerate() {
        let With { zero, rows_apart, pipeline, context } = with;
        let sizes = Sizes { pp, dp, cp, tp, ep };
        let zero = Zero::stage(zero);
        let training = Training {
            sizes: Sizes { dp: 1, ..sizes },
            zero,
            sequence_parallel: rows_apart,
            pipeline,
            context,
            ..training
        };
        let seen = training.run::<f32>(dp).remove(0);
        let (mut losses, mut norms) = (0.0f64, 0.0f64);
        for step in 0..STEPS as usize {
            let apart = |ours: &[f64], theirs: &[f64]| (ours[step] - theirs[step]).abs() / theirs[step];
            losses = losses.max(apart(&seen.losses, &reference.losses));
            norms = norms.max(apart(&seen.norms, &reference.norms));
        }
        let what = format!(
            "mesh {index}: {sizes:?}, ZeRO {}, {}, rows apart {rows_apart}, {context:?}",
            zero.stage, pipeline.0
        );
        assert!(losses <= loss, "{what}: losses {losses:e} apart");
        assert!(norms <= norm, "{what}: norms {norms:e} apart");
    }
}

#[test]
fn dense_gpt2_long() {
    check(ModelShape::gpt2(4, 16, 4, 8, 257), DENSE, 2e-6, 2e-5);
}

#[test]
fn dense_llama_long() {
    check(ModelShape::llama(4, 16, 4, 2, 9, 19), DENSE, 2e-6, 2e-5);
}

#[test]
fn mixture_of_experts_long() {
    let moe = MoeShape { balance: 0.01, ..MoeShape::new(4, 2, 24) };
    check(ModelShape { moe: Some(moe), ..ModelShape::llama(2, 16, 4, 2, 8, 19) }, EXPERTS, 1e-5, 5e-5);
}

#[test]
fn mixture_of_gpt2_with_all_there_is_long() {
    let moe =
        MoeShape { sigmoid: true, bias_rate: 1e-3, balance: 0.01, capacity: Some(1.25), ..MoeShape::new(5, 2, 20) };
    check(ModelShape { moe: Some(moe), hidden: 0, ..ModelShape::gpt2(2, 16, 4, 8, 257) }, EXPERTS, 1e-5, 5e-5);
}

#[test]
fn there_are_as_many_as_promised() {
    assert!(DENSE.len() + EXPERTS.len() >= 60, "{} and {}", DENSE.len(), EXPERTS.len());
    let most = DENSE.iter().chain(EXPERTS).map(|([dp, pp, cp, tp, _], _)| dp * pp * cp * tp).max();
    assert_eq!(most, Some(8));
}
