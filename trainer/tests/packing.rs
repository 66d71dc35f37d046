//! Documents packed into sequences: each is what it is alone, in every layout.
#![forbid(unsafe_code)]

mod common;

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use common::ranks;
use warpweft_device::{Device, Float, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::config::{Config, Inputs};
use warpweft_trainer::data::Documents;
use warpweft_trainer::model::{IGNORE, ModelShape, MoeShape, Recompute, Spread};
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::report::{Progress, StepRecord};
use warpweft_trainer::run;
use warpweft_trainer::step::{Packed, Recipe, Sequences, Trainer, valid_targets};

const TOKENS: usize = 12;
const BATCH: usize = 5;
const VOCAB: u32 = 19;

/// Lengths of the documents of a sequence; uneven, so that the ranks' targets that count are, too.
fn lengths(step: u64, row: usize) -> &'static [u32] {
    let all: [&[u32]; 6] = [&[12], &[5, 7], &[1, 4, 7], &[3, 3, 3, 3], &[11, 1], &[2, 1, 1, 6, 2]];
    all[(step as usize * 5 + row) % all.len()]
}

fn token(step: u64, row: usize, place: usize) -> u32 {
    let (number, place) = (step * 1009 + row as u64 * 31, place as u64);
    ((number + place * (1 + number % 3) + place * place % 5) % u64::from(VOCAB)) as u32
}

/// Documents side by side: tokens, targets, borders. The last target of a document is not known.
fn packed(step: u64, rows: Range<usize>) -> (Vec<u32>, Vec<u32>, Vec<Documents>) {
    let places = || rows.clone().flat_map(|row| (0..TOKENS).map(move |place| (row, place)));
    let inputs = places().map(|(row, place)| token(step, row, place)).collect();
    let mut targets: Vec<u32> = places().map(|(row, place)| token(step, row, place + 1)).collect();
    let documents: Vec<_> = rows.clone().map(|row| Documents::of_lengths(lengths(step, row).iter().copied())).collect();
    for (targets, documents) in targets.chunks_exact_mut(TOKENS).zip(&documents) {
        documents.mask(targets);
    }
    (inputs, targets, documents)
}

/// The same documents, each at the beginning of a sequence of its own, of which nothing else counts.
fn alone(step: u64) -> (Vec<u32>, Vec<u32>) {
    let (inputs, targets, documents) = packed(step, 0..BATCH);
    let (mut each, mut wanted) = (Vec::new(), Vec::new());
    for (row, documents) in documents.iter().enumerate() {
        for ends in documents.bounds().windows(2) {
            let range = row * TOKENS + ends[0] as usize..row * TOKENS + ends[1] as usize;
            each.extend_from_slice(&inputs[range.clone()]);
            wanted.extend_from_slice(&targets[range]);
            each.resize(each.len().next_multiple_of(TOKENS), 7);
            wanted.resize(each.len(), IGNORE);
        }
    }
    (each, wanted)
}

#[derive(Clone, Copy)]
struct Layout {
    shape: ModelShape,
    sizes: Sizes,
    recipe: Recipe,
}

fn layout(shape: ModelShape) -> Layout {
    let schedule = Schedule { peak: 3e-3, warmup: 10, steps: 20 };
    let recipe = Recipe { schedule, clip: Some(1.0), seed: 7, micro_batch: 2, ..Recipe::new(TOKENS, BATCH) };
    Layout { shape, sizes: Sizes::ONE, recipe }
}

fn gpt2() -> ModelShape {
    ModelShape::gpt2(2, 16, 4, TOKENS, VOCAB as usize)
}

fn llama() -> ModelShape {
    ModelShape { tied: false, ..ModelShape::llama(2, 16, 4, 2, TOKENS, VOCAB as usize) }
}

impl Layout {
    fn trainer<T: Float>(self, communicator: Arc<warpweft_comm::Communicator>) -> Trainer<T> {
        let device = Device::cpu_with_threads(1).expect("a thread");
        let kv = Spread::ranks_to_a_head(&self.shape, self.sizes.tp).expect("heads that the ranks can share");
        let mesh = Mesh::new(communicator, self.sizes, kv).expect("a mesh");
        Trainer::new(self.shape, self.recipe, &device, mesh).expect("a trainer")
    }

    /// Losses and norms of packed steps, and the digest of the state where that is exact, by rank.
    fn packed<T: Float>(self, steps: u64) -> Vec<(Vec<[f64; 2]>, Option<String>)> {
        ranks(self.sizes.ranks(), |communicator| {
            let mut trainer = self.trainer::<T>(Arc::new(communicator));
            let mine = self.recipe.share(trainer.mesh(), BATCH);
            let step = |step| {
                let (inputs, targets, documents) = packed(step, mine.clone());
                let valid = valid_targets(&packed(step, 0..BATCH).1);
                let sequences = Sequences { inputs: &inputs, targets: &targets };
                let report = trainer.step(Packed { sequences, documents: &documents }, valid, None).expect("a step");
                [report.loss, report.grad_norm]
            };
            let seen = (1..=steps).map(step).collect();
            (seen, self.recipe.exact.then(|| trainer.state_sha256().expect("whole tensors")))
        })
    }
}

/// Losses and norms of the documents run alone on one rank, and the gradients of the first step.
fn reference<T: Float>(shape: ModelShape, steps: u64) -> (Vec<[f64; 2]>, Vec<Vec<f32>>) {
    let rank = |communicator| {
        let Layout { recipe, .. } = layout(shape);
        // As many sequences as there are documents at most.
        let recipe = Recipe { batch: 5 * BATCH, micro_batch: 5 * BATCH, ..recipe };
        let mut trainer = Layout { recipe, ..layout(shape) }.trainer::<T>(Arc::new(communicator));
        let mut first = Vec::new();
        let step = |step| {
            let (inputs, targets) = alone(step);
            let valid = valid_targets(&targets);
            let report = trainer.step(Sequences { inputs: &inputs, targets: &targets }, valid, None).expect("a step");
            if step == 1 {
                first = gradients(&trainer);
            }
            [report.loss, report.grad_norm]
        };
        ((1..=steps).map(step).collect(), first)
    };
    ranks(1, rank).remove(0)
}

fn gradients<T: Float>(trainer: &Trainer<T>) -> Vec<Vec<f32>> {
    let of = |id| trainer.gradients().summed_of(id).and_then(|view| Ok(view.host()?.to_vec())).expect("summed");
    trainer.model().table().iter_here().map(|(id, _)| of(id)).collect()
}

fn apart([ours, theirs]: [f64; 2]) -> f64 {
    (ours - theirs).abs() / theirs
}

/// Whether a layout has the losses and norms of the documents alone, at each of 20 steps.
fn check(layout: Layout, what: &str) {
    let (alone, _) = reference::<f32>(layout.shape, 20);
    for (seen, _) in layout.packed::<f32>(20) {
        for (step, (ours, theirs)) in seen.iter().zip(&alone).enumerate() {
            let [loss, norm] = [0, 1].map(|i| apart([ours[i], theirs[i]]));
            assert!(loss <= 2e-6, "{what}, step {}: losses {loss:e} apart", step + 1);
            assert!(norm <= 1e-5, "{what}, step {}: norms {norm:e} apart", step + 1);
        }
    }
}

#[test]
fn gradients_are_the_sums_of_the_documents_alone() {
    for shape in [gpt2(), llama()] {
        let (_, alone) = reference::<f32>(shape, 1);
        let packed = ranks(1, |communicator| {
            let mut trainer = layout(shape).trainer::<f32>(Arc::new(communicator));
            let (inputs, targets, documents) = packed(1, 0..BATCH);
            let packed = Packed { sequences: Sequences { inputs: &inputs, targets: &targets }, documents: &documents };
            trainer.step(packed, valid_targets(&targets), None).expect("a step");
            gradients(&trainer)
        });
        let length = |of: &[f32]| of.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        for (ours, theirs) in packed[0].iter().zip(&alone) {
            let difference: Vec<f32> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
            assert!(length(theirs) > 0.0 && length(&difference) <= 2e-6 * length(theirs));
        }
    }
}

#[test]
fn every_axis() {
    for shape in [gpt2(), llama()] {
        let plain = layout(shape);
        let on = |sizes: Sizes, recipe: Recipe, what: &str| check(Layout { shape, sizes, recipe }, what);
        check(plain, "one rank");
        on(Sizes { dp: 3, ..Sizes::ONE }, plain.recipe, "dp 3");
        on(Sizes { dp: 2, ..Sizes::ONE }, Recipe { zero: Zero::stage(3), ..plain.recipe }, "dp 2, ZeRO-3");
        let rows_apart = Recipe { sequence_parallel: true, ..plain.recipe };
        on(Sizes { tp: 2, ..Sizes::ONE }, rows_apart, "tp 2, sp");
        let pipelined = Recipe { pipeline: Name::ZbH1, micro_batch: 1, ..plain.recipe };
        on(Sizes { pp: 2, dp: 2, ..Sizes::ONE }, pipelined, "pp 2 x dp 2");
        for context in [Method::Ring, Method::Ulysses] {
            for cp in [2, 4] {
                let recipe = Recipe { context, recompute: Recompute::Full, ..plain.recipe };
                on(Sizes { cp, ..Sizes::ONE }, recipe, &format!("cp {cp}, {context:?}"));
            }
        }
        let selective = Recipe { recompute: Recompute::Selective, ..rows_apart };
        on(Sizes { dp: 2, cp: 2, tp: 2, ..Sizes::ONE }, selective, "dp 2 x cp 2 x tp 2");
    }
}

#[test]
fn mixtures_of_experts() {
    let shape = ModelShape { moe: Some(MoeShape::new(4, 2, 8)), ..llama() };
    let sizes = Sizes { dp: 2, ep: 2, ..Sizes::ONE };
    let (alone, _) = reference::<f32>(shape, 6);
    for (seen, _) in (Layout { sizes, ..layout(shape) }).packed::<f32>(6) {
        for (ours, theirs) in seen.iter().zip(&alone) {
            assert!(apart([ours[0], theirs[0]]) <= 1e-5 && apart([ours[1], theirs[1]]) <= 5e-5, "{ours:?} {theirs:?}");
        }
    }
}

#[test]
fn exact_states_are_those_of_one_rank() {
    let recipe = Recipe { exact: true, ..layout(llama()).recipe };
    let one = Layout { recipe, ..layout(llama()) }.packed::<bf16>(6).remove(0);
    for (dp, pp, micro_batch, stage) in [(2, 1, 2, 0), (3, 1, 1, 3), (2, 2, 1, 1)] {
        let recipe = Recipe { micro_batch, zero: Zero::stage(stage), ..recipe };
        let sizes = Sizes { dp, pp, ..Sizes::ONE };
        for rank in (Layout { shape: llama(), sizes, recipe }).packed::<bf16>(6) {
            assert_eq!(rank, one, "dp {dp} pp {pp}");
        }
    }
}

#[test]
fn neighbours_change_no_bit_of_a_document() {
    for (context, cp) in [(Method::Ring, 1), (Method::Ring, 2), (Method::Ulysses, 2)] {
        for shape in [gpt2(), llama()] {
            let recipe = Recipe { context, ..layout(shape).recipe };
            let layout = Layout { recipe, sizes: Sizes { cp, ..Sizes::ONE }, ..layout(shape) };
            ranks(cp, |communicator| {
                let mut trainer = layout.trainer::<f32>(Arc::new(communicator));
                let (inputs, targets, _) = packed(1, 0..1);
                let documents = [Documents::of_lengths([4, 5, 3])];
                // Only the document in the middle counts.
                let counts = |place: usize| (4..8).contains(&place);
                let targets: Vec<u32> =
                    (0..TOKENS).map(|place| if counts(place) { targets[place] } else { IGNORE }).collect();
                let mut loss = |inputs: &[u32], documents| {
                    let sequences = Sequences { inputs, targets: &targets };
                    trainer.evaluate(Packed { sequences, documents }, 1).expect("a loss")
                };
                let before = loss(&inputs, &documents);
                let mut others = inputs.clone();
                others.iter_mut().enumerate().filter(|(place, _)| !(4..9).contains(place)).for_each(|(_, t)| *t = 3);
                assert_ne!(others, inputs);
                assert_eq!(loss(&others, &documents), before, "{context:?} cp {cp}");
                assert_ne!(loss(&others, &[]), loss(&inputs, &[]), "as one document they see each other");
            });
        }
    }
}

#[test]
fn documents_that_are_not_the_sequences_are_refused() {
    let mut trainer = layout(gpt2()).trainer::<f32>(Arc::new(warpweft_comm::Communicator::alone()));
    let (inputs, targets, _) = packed(1, 0..2);
    let sequences = Sequences { inputs: &inputs, targets: &targets };
    for documents in [vec![Documents::of_lengths([12])], vec![Documents::of_lengths([12]), Documents::of_lengths([11])]]
    {
        let error = trainer.step(Packed { sequences, documents: &documents }, 2, None).expect_err("not these");
        assert!(error.to_string().contains("for 2, or do not fill their 12 tokens"), "{error}");
    }
}

/// A run over lines of text as documents, with these flags besides.
fn run_with(folder: &Path, out: &str, flags: &[(&str, &str)]) -> Vec<StepRecord> {
    let text = folder.join("text.txt");
    let lines: Vec<String> = (0..200).map(|line| "warp and weft ".repeat(1 + line * 7 % 3)).collect();
    fs::write(&text, lines.join("\n")).expect("a text");
    let out = folder.join(out);
    let base = [("data", text.to_str().expect("text")), ("out", out.to_str().expect("text")), ("layers", "2")];
    let sizes = [("channels", "16"), ("heads", "2"), ("context", "32"), ("batch", "5"), ("steps", "6")];
    let rest = [("eval-every", "3"), ("eval-sequences", "4"), ("sample", "4"), ("threads", "1"), ("warmup", "1")];
    let given = base.iter().chain(&sizes).chain(&rest).chain(flags);
    let flags: Vec<_> = given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let config = Config::resolve(&Inputs { flags: &flags, ..Inputs::default() }).expect("a configuration that fits");
    ranks(config.ranks, |communicator| {
        run(&config, communicator, config.ranks, Progress::silent()).expect("a run");
    });
    let log = fs::read_to_string(out.join("log.jsonl")).expect("a log");
    log.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

#[test]
fn runs_count_the_targets_that_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let documents = [("packing", "documents"), ("end-token", "10")];
    let with = |more: &[(&'static str, &'static str)]| [&documents[..], more].concat();
    let one = run_with(folder.path(), "one", &with(&[("ranks", "1")]));
    assert_eq!(one.last().expect("a step").tokens, 6 * 5 * 32);
    for (out, flags) in [
        ("dp", vec![("dp", "3"), ("micro-batch", "1")]),
        ("mesh", vec![("dp", "2"), ("tp", "2"), ("pp", "2"), ("recompute", "full")]),
        ("cp", vec![("cp", "2"), ("dp", "1")]),
    ] {
        for (ours, theirs) in run_with(folder.path(), out, &with(&flags)).iter().zip(&one) {
            let losses = |of: &StepRecord| of.loss.expect("a loss");
            assert!(apart([losses(ours), losses(theirs)]) <= 2e-6, "{out}");
            let held_out = |of: &StepRecord| of.val_loss.unwrap_or(1.0);
            assert!(apart([held_out(ours), held_out(theirs)]) <= 2e-6, "{out}");
        }
    }
    let windows = run_with(folder.path(), "windows", &[("ranks", "1")]);
    assert_ne!(windows[0].loss, one[0].loss);
}

#[test]
fn a_text_without_borders_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out").display().to_string();
    let flags = [("packing", "documents"), ("ranks", "1"), ("out", &out)];
    let flags: Vec<_> = flags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let config = Config::resolve(&Inputs { flags: &flags, ..Inputs::default() }).expect("a configuration that fits");
    let errors = ranks(1, |communicator| run(&config, communicator, 1, Progress::silent()).expect_err("no borders"));
    assert!(errors[0].to_string().contains("the built-in text does not say where its documents end"), "{}", errors[0]);
}
