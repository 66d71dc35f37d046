//! The cases in which other trainers' numbers came to depend on the layout, each by name. The table of `docs/parallelism.md` says where
//! those are that have their test elsewhere.
#![forbid(unsafe_code)]

mod common;
mod parity;
mod runs;
mod training;

use parity::assert_same;
use runs::Runs;
use training::{Seen, Training};
use warpweft_schedule::Name;
use warpweft_trainer::checkpoint::locate;
use warpweft_trainer::diff::diff;
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::zero::Zero;

const STEPS: u64 = 6;

fn gpt2() -> ModelShape {
    ModelShape::gpt2(4, 16, 4, 8, 19)
}

/// Over so many stages, data, context and tensor parallel ranks; the data-parallel ones are told apart.
fn over([pp, cp, tp]: [usize; 3], training: Training) -> Training {
    Training { sizes: Sizes { pp, cp, tp, ..Sizes::ONE }, ..training }
}

#[test]
fn two_stages_and_eight_micro_batches_scale_by_an_eighth() {
    let training = Training { micro_batch: 1, ..Training::of(gpt2(), 8, STEPS) };
    assert_same(over([2, 1, 1], training), 1, "pp 2, 8 micro-batches");
    assert_same(over([2, 1, 1], Training { micro_batch: 1, batch: 16, ..training }), 2, "pp 2, dp 2, 8 micro-batches");
}

#[test]
fn eight_by_four_is_two_by_sixteen() {
    let of = |micro_batch| Training { micro_batch, ..Training::of(gpt2(), 32, STEPS) }.run::<f32>(1).remove(0);
    let (eight, two) = (of(4), of(16));
    let close = |ours: &[f64], theirs: &[f64], most: f64| {
        ours.iter().zip(theirs).for_each(|(a, b)| assert!((a - b).abs() <= most * b, "{a} and {b}"));
    };
    close(&eight.losses, &two.losses, 2e-6);
    close(&eight.norms, &two.norms, 1e-5);
}

#[test]
fn a_tied_embedding_on_both_ends_of_a_pipeline_with_data_parallel_ranks() {
    let training = Training { micro_batch: 1, ..Training::of(gpt2(), 6, STEPS) };
    assert!(training.shape.tied);
    for stage in 0..=3 {
        let training = Training { zero: Zero::stage(stage), ..training };
        assert_same(over([2, 1, 1], training), 2, &format!("dp 2, pp 2, ZeRO {stage}"));
    }
    // Both copies hold the same bits after every update.
    let seen = over([2, 1, 1], training).run_then::<f32, _>(2, |trainer, _| {
        trainer.settle().expect("weights that arrive");
        let id = trainer.model().table().find("transformer.wte.weight").expect("the embedding");
        trainer.weights().view(id).and_then(|view| Ok(view.host()?.to_vec())).expect("on the first and the last stage")
    });
    assert!(seen.iter().all(|table| *table == seen[0]), "two embeddings");
}

/// The mean of the losses of all tokens, not of the ranks' means: (2 + 5 + 5) / 3 = 4 where one rank has a token and the
/// other two.
#[test]
fn tokens_that_count_are_weighed_alike_over_data_parallel_ranks() {
    let training = Training { ragged: true, micro_batch: 1, ..Training::of(gpt2(), 5, STEPS) };
    assert_same(training, 2, "dp 2, ragged");
    assert_same(over([2, 2, 1], training), 2, "dp 2, pp 2, cp 2, ragged");
    // Two ranks with a sequence each, of which one counts 8 tokens and one 3: not the mean of their means.
    let one = |batch: usize, dp: usize| {
        let training = Training { ragged: true, micro_batch: 1, ..Training::of(gpt2(), batch, 1) };
        training.run::<f32>(dp).remove(0).losses[0]
    };
    let (first, both) = (one(1, 1), one(2, 2));
    let second = (11.0 * both - 8.0 * first) / 3.0;
    assert!((second - (19f64).ln()).abs() < 0.1, "a fresh model's loss is ln V: {second}");
    assert!((both - (first + second) / 2.0).abs() > 1e-5, "the second sequence's tokens weigh as the first one's");
}

#[test]
fn a_vocabulary_of_50257_over_two_and_four_ranks() {
    let training = Training { micro_batch: 1, ..Training::of(ModelShape::gpt2(1, 8, 2, 4, 50257), 2, 3) };
    assert_same(over([1, 1, 2], training), 1, "V 50257, tp 2");
    assert_same(over([1, 1, 2], training), 2, "V 50257, tp 2, world 4");
    let shape = ModelShape { heads: 4, kv_heads: 4, ..training.shape };
    assert_same(over([1, 1, 4], Training { shape, ..training }), 1, "V 50257, tp 4");
    assert_same(Training { zero: Zero::stage(3), ..training }, 2, "V 50257, ZeRO 3");
}

#[test]
fn tensor_and_context_parallel_ranks_report_the_whole_loss() {
    let training = Training::of(gpt2(), 3, 1);
    let seen: Vec<Seen> = over([1, 2, 2], training).run::<f32>(1);
    for rank in &seen {
        assert!((rank.losses[0] - (19f64).ln()).abs() < 0.1, "not ln V: {}", rank.losses[0]);
    }
    assert_same(over([1, 2, 2], Training { steps: STEPS, ..training }), 1, "tp 2, cp 2");
}

#[test]
fn one_key_value_head_for_two_ranks() {
    let training = Training::of(ModelShape::llama(2, 16, 4, 1, 8, 19), 4, STEPS);
    assert_same(over([1, 1, 2], training), 1, "one key/value head, tp 2");
    assert_same(over([2, 2, 2], Training { micro_batch: 1, ..training }), 1, "one key/value head, pp 2, cp 2, tp 2");
}

/// Biases and norms that all ranks hold alike would make the norm as large as the square root of their number.
#[test]
fn a_replicated_weight_counts_once_in_the_norm() {
    let norm = |[pp, cp, tp]: [usize; 3], dp: usize, zero: u8, sequence_parallel: bool| {
        let training = Training { zero: Zero::stage(zero), sequence_parallel, ..Training::of(gpt2(), 4, 1) };
        over([pp, cp, tp], training).run::<f32>(dp).remove(0).norms[0]
    };
    let alone = norm([1, 1, 1], 1, 0, false);
    for (axes, dp, zero, rows_apart) in [
        ([1, 1, 2], 1, 0, false),
        ([1, 1, 4], 1, 0, true),
        ([1, 2, 1], 2, 0, false),
        ([1, 1, 1], 4, 2, false),
        ([2, 1, 2], 2, 1, true),
    ] {
        let ours = norm(axes, dp, zero, rows_apart);
        assert!((ours - alone).abs() <= 1e-5 * alone, "{axes:?}, dp {dp}, ZeRO {zero}: {ours}, not {alone}");
    }
}

#[test]
fn fewer_micro_batches_than_stages_end() {
    for name in [Name::GPipe, Name::OneForwardOneBackward, Name::ZbH1, Name::ZbH2, Name::DualPipe] {
        for batch in [1, 2, 3] {
            let training = Training { micro_batch: 1, pipeline: (name, None), ..Training::of(gpt2(), batch, 3) };
            assert_same(over([4, 1, 1], training), 1, &format!("{name}, pp 4, {batch} micro-batches"));
        }
    }
}

/// A file whose every token is another, gone through in epochs of two steps of 19 sequences.
#[test]
fn a_run_that_goes_on_within_an_epoch_and_at_its_end_sees_the_next_samples() {
    let runs = Runs::new();
    let data = runs.out("tokens.bin");
    let tokens: Vec<u8> = (0..700u16).flat_map(u16::to_le_bytes).collect();
    std::fs::write(&data, tokens).expect("tokens");
    let settings = format!("data={} vocab=700 context=16 batch=19 warmup=1 save-every=1 micro-batch=7", data.display());
    let whole = runs.train("whole", &format!("{settings} ranks=1 steps=5 dump=1-5 dump-what=activations"));
    for (saved, ranks) in [(1, 3), (2, 2), (3, 5)] {
        let broken = runs.train(&format!("to-{saved}"), &format!("{settings} ranks=1 steps={saved}"));
        let from = locate(&broken).expect("its last checkpoint");
        let rest = format!("resume={} ranks={ranks} steps=5 dump=1-5 dump-what=activations", from.display());
        let resumed = runs.train(&format!("from-{saved}"), &rest);
        let report = diff(&whole, &resumed, None).expect("two runs");
        let steps: Vec<u64> = report.dumps.iter().map(|step| step.step).collect();
        assert_eq!(steps, (saved + 1..=5).collect::<Vec<_>>());
        for step in &report.dumps {
            let (kind, apart, _) = &step.worst[0];
            assert_eq!((kind.name(), *apart), ("input", 0.0), "step {} after {saved}", step.step);
        }
    }
}
