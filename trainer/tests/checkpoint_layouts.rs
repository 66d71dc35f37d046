//! A checkpoint of any layout goes on at any other; weights go out as Hugging Face has them, and come in from there.
#![forbid(unsafe_code)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::ranks;
use serde::Deserialize;
use warpweft_comm::Communicator;
use warpweft_device::{Device, Float, bf16};
use warpweft_schedule::Name;
use warpweft_trainer::TrainError;
use warpweft_trainer::checkpoint::{Checkpoint, Foreign, Held, Pieces, Saver, WEIGHTS_FILE};
use warpweft_trainer::model::{Model, ModelShape, MoeShape, Spread, wholes};
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

const BATCH: usize = 5;
const SAVED: u64 = 3;
const STEPS: u64 = 6;

#[derive(Clone, Copy, Debug)]
struct Layout {
    sizes: Sizes,
    sequence_parallel: bool,
    zero: Zero,
    pipeline: Name,
}

fn layout(dp: usize, cp: usize, tp: usize, stage: u8) -> Layout {
    let sizes = Sizes { dp, cp, tp, ..Sizes::ONE };
    Layout { sizes, sequence_parallel: false, zero: Zero::stage(stage), pipeline: Name::OneForwardOneBackward }
}

/// The same in two stages.
fn stages(layout: Layout, pipeline: Name) -> Layout {
    Layout { sizes: Sizes { pp: 2, ..layout.sizes }, pipeline, ..layout }
}

/// Twelve, most of them of uneven parts.
fn layouts() -> Vec<Layout> {
    let sp = |layout| Layout { sequence_parallel: true, ..layout };
    vec![
        layout(1, 1, 1, 0),
        layout(3, 1, 1, 0),
        sp(layout(1, 1, 2, 0)),
        layout(1, 1, 4, 0),
        stages(layout(1, 1, 1, 0), Name::ZbH1),
        stages(layout(1, 1, 1, 0), Name::DualPipe),
        stages(layout(2, 1, 2, 1), Name::OneForwardOneBackward),
        layout(2, 1, 1, 1),
        layout(3, 1, 1, 2),
        layout(2, 1, 1, 3),
        layout(1, 2, 1, 0),
        sp(layout(2, 1, 2, 3)),
    ]
}

fn llama() -> ModelShape {
    ModelShape { hidden: 26, ..ModelShape::llama(2, 16, 4, 2, 8, 19) }
}

/// A mixture of experts without ties.
fn mixture(moe: MoeShape, shared: usize) -> ModelShape {
    ModelShape { moe: Some(moe), hidden: shared, tied: false, ..ModelShape::llama(2, 16, 4, 2, 8, 19) }
}

/// A rank's trainer and what it needs.
fn trainer<T: Float>(shape: ModelShape, layout: Layout, ranks: Arc<Communicator>) -> Trainer<T> {
    let schedule = Schedule { peak: 3e-3, warmup: 2, steps: STEPS };
    let recipe = Recipe { micro_batch: 2, schedule, clip: Some(1.0), seed: 7, ..Recipe::new(shape.context, BATCH) };
    let Layout { sequence_parallel, zero, pipeline, .. } = layout;
    let recipe = Recipe { sequence_parallel, zero, pipeline, ..recipe };
    let kv = Spread::ranks_to_a_head(&shape, layout.sizes.tp).expect("heads that the ranks can share");
    let mesh = Mesh::new(ranks, layout.sizes, kv).expect("a mesh");
    Trainer::new(shape, recipe, &Device::cpu_with_threads(1).expect("a thread"), mesh).expect("a trainer")
}

/// Steps from `first` on; their losses.
fn go_on<T: Float>(trainer: &mut Trainer<T>, layout: Layout, shape: ModelShape, first: u64, last: u64) -> Vec<f64> {
    let place = layout.sizes.place(trainer.mesh().world().rank());
    let mine = warpweft_trainer::parallel::share(BATCH, layout.sizes.dp, place.dp);
    let tokens = shape.context;
    let token = |step: u64, row: usize, t: usize| ((step * 101 + (row * row * 7 + t * (1 + row)) as u64) % 19) as u32;
    let all = |ahead: usize, step| -> Vec<u32> {
        mine.clone().flat_map(|row| (0..tokens).map(move |t| token(step, row, t + ahead))).collect()
    };
    let step = |step| {
        let (inputs, targets) = (all(0, step), all(1, step));
        let sequences = Sequences { inputs: &inputs, targets: &targets };
        trainer.step(sequences, (BATCH * tokens) as u64, None).expect("a step").loss
    };
    (first..=last).map(step).collect()
}

fn save<T: Float>(trainer: &mut Trainer<T>, folder: &Path, ranks: &Arc<Communicator>) -> Result<(), TrainError> {
    let mut saver = Saver::new(folder, ranks.clone());
    saver.save(trainer.snapshot(99, "layers = 2\n".into())?)?;
    saver.finish().map(|_| ())
}

/// Trains on a layout and saves; gives the losses of all steps.
fn saved<T: Float>(shape: ModelShape, layout: Layout, folder: &Path) -> Vec<f64> {
    let losses = ranks(layout.sizes.ranks(), |communicator| {
        let communicator = Arc::new(communicator);
        let mut trainer = trainer::<T>(shape, layout, communicator.clone());
        let mut losses = go_on(&mut trainer, layout, shape, 1, SAVED);
        save(&mut trainer, folder, &communicator).expect("a checkpoint");
        losses.extend(go_on(&mut trainer, layout, shape, SAVED + 1, STEPS));
        losses
    });
    losses[0].clone()
}

/// Loads, saves again elsewhere, and goes on; gives the losses of the steps after.
fn resumed<T: Float>(shape: ModelShape, layout: Layout, from: &Path, again: &Path) -> Vec<f64> {
    let losses = ranks(layout.sizes.ranks(), |communicator| {
        let communicator = Arc::new(communicator);
        let mut trainer = trainer::<T>(shape, layout, communicator.clone());
        trainer.restore(&Checkpoint::load(from).expect("a checkpoint")).expect("what this rank needs of it");
        save(&mut trainer, again, &communicator).expect("a checkpoint");
        go_on(&mut trainer, layout, shape, SAVED + 1, STEPS)
    });
    losses[0].clone()
}

/// All of a checkpoint: the weights' file, and the optimizer's state as whole tensors.
fn contents(shape: ModelShape, folder: &Path) -> (Vec<u8>, Vec<Vec<f32>>) {
    let checkpoint = Checkpoint::load(folder).expect("a checkpoint");
    checkpoint.verify().expect("every byte as it was written");
    let model = Model::new(shape, Spread::alone(&shape)).expect("a model");
    let state = checkpoint.optimizer().expect("shards");
    let read = |kind: &str, (name, shape): (&str, &[usize])| {
        let mut values = vec![0.0f32; shape.iter().product()];
        state.read(&format!("{kind}.{name}"), &Held::whole(shape), &mut values).expect("all elements of it");
        values
    };
    let kinds = ["m", "v"].into_iter();
    let tensors = kinds.flat_map(|kind| {
        let parameters = model.table().parameters().iter().filter(|parameter| parameter.elements() > 0);
        parameters.map(move |p| (kind, p.name().to_owned(), p.shape().to_vec()))
    });
    let tensors = tensors.map(|(kind, name, shape)| read(kind, (&name, &shape))).collect();
    let file = folder.join(format!("checkpoints/step-{SAVED:06}")).join(WEIGHTS_FILE);
    (fs::read(file).expect("weights"), tensors)
}

/// From each layout to each: the same bits are in it, and the losses after are those of the run that was not interrupted.
fn all_pairs<T: Float>(shape: ModelShape, layouts: &[Layout], apart: f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = saved::<T>(shape, layout(1, 1, 1, 0), &folder.path().join("whole"));
    for (index, from) in layouts.iter().enumerate() {
        let origin = folder.path().join(format!("from-{index}"));
        saved::<T>(shape, *from, &origin);
        let held = contents(shape, &origin);
        for (other, to) in layouts.iter().enumerate() {
            let again = folder.path().join(format!("from-{index}-to-{other}"));
            let losses = resumed::<T>(shape, *to, &origin, &again);
            assert!(contents(shape, &again) == held, "{from:?} to {to:?}: other bits");
            for (ours, expected) in losses.iter().zip(&whole[SAVED as usize..]) {
                let error = (ours - expected).abs() / expected;
                assert!(error <= apart, "{from:?} to {to:?}: {error:e} apart, {losses:?}, {whole:?}");
            }
        }
    }
}

#[test]
fn all_pairs_of_twelve_layouts_go_on_with_the_same_losses() {
    all_pairs::<f32>(llama(), &layouts(), 2e-6);
}

#[test]
fn so_it_is_with_turned_weights_and_with_untied_ones() {
    let some = [layout(1, 1, 1, 0), layout(2, 1, 2, 2), layout(3, 1, 1, 3), layout(1, 1, 4, 0)];
    all_pairs::<f32>(ModelShape::gpt2(2, 16, 4, 8, 19), &some, 2e-6);
    all_pairs::<f32>(ModelShape { tied: false, ..llama() }, &some, 2e-6);
}

#[test]
fn experts_go_on_wherever_they_are() {
    let over = |pp: usize, ep: usize, layout: Layout| Layout { sizes: Sizes { pp, ep, ..layout.sizes }, ..layout };
    let layouts = [
        layout(1, 1, 1, 0),
        over(1, 2, layout(2, 1, 1, 0)),
        over(1, 3, layout(3, 1, 1, 1)),
        over(1, 2, layout(4, 1, 1, 3)),
        over(1, 4, layout(2, 2, 1, 0)),
        over(1, 2, layout(2, 1, 2, 2)),
        over(2, 2, layout(2, 1, 1, 0)),
        over(2, 1, layout(1, 1, 1, 0)),
    ];
    let moe = MoeShape { sigmoid: true, bias_rate: 1e-3, balance: 0.01, ..MoeShape::new(5, 2, 9) };
    all_pairs::<f32>(mixture(moe, 10), &layouts, 1e-5);
    let of_gpt2 = ModelShape { hidden: 0, moe: Some(MoeShape::new(4, 1, 9)), ..ModelShape::gpt2(2, 16, 4, 8, 19) };
    all_pairs::<f32>(of_gpt2, &layouts[5..], 1e-5);
}

#[test]
fn and_with_bf16_weights_and_their_masters() {
    let some = [layout(1, 1, 1, 0), layout(2, 1, 2, 1), layout(2, 1, 1, 3)];
    all_pairs::<bf16>(llama(), &some, 1e-2);
}

#[test]
fn an_error_of_one_rank_is_the_error_of_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = layout(1, 1, 2, 0);
    saved::<f32>(llama(), layout, folder.path());
    // Where rank 1 would write, a folder is in the way.
    let partial = folder.path().join("checkpoints/.step-000004.partial/optimizer-00001-of-00002.safetensors");
    fs::create_dir_all(&partial).expect("a folder");
    let told = ranks(2, |communicator| {
        let communicator = Arc::new(communicator);
        let mut trainer = trainer::<f32>(llama(), layout, communicator.clone());
        trainer.restore(&Checkpoint::load(folder.path()).expect("a checkpoint")).expect("what this rank needs of it");
        go_on(&mut trainer, layout, llama(), SAVED + 1, SAVED + 1);
        save(&mut trainer, folder.path(), &communicator).expect_err("a folder is in the way").to_string()
    });
    assert_eq!(told[0], told[1]);
    for part in ["step 4 was not written: rank 1: cannot create", "step-000003 is untouched, and --resume takes it"] {
        assert!(told[0].contains(part), "{}", told[0]);
    }
    assert!(!partial.exists(), "its space is given back");
    assert_eq!(Checkpoint::load(folder.path()).expect("the one before").step, SAVED);
}

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    logits: Vec<Vec<f64>>,
}

/// The logits after each token are those that transformers has, on one rank and, where all have the logits, on others.
fn compare(shape: ModelShape, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let golden = fs::read(folder.join(format!("{name}.json"))).expect("a golden");
    let golden: Golden = serde_json::from_slice(&golden).expect("JSON");
    let mut trainer = trainer::<f32>(shape, layout(1, 1, 1, 0), Arc::new(Communicator::alone()));
    let file = Foreign::open(&folder.join(format!("{name}.safetensors"))).expect("a file");
    let notes = trainer.take_weights(&file).expect("the model's weights");
    for (last, expected) in golden.logits.iter().enumerate() {
        let logits = trainer.next_logits(&golden.tokens[..=last]).expect("logits");
        for (ours, theirs) in logits.iter().zip(expected) {
            assert!(
                (f64::from(*ours) - theirs).abs() <= 1e-5,
                "{name} after token {last}: {ours}, {theirs}; {notes:?}"
            );
        }
    }
}

#[test]
fn a_llama_from_transformers_says_the_same_here() {
    compare(ModelShape { hidden: 40, tied: false, ..ModelShape::llama(2, 16, 4, 2, 8, 19) }, "hf-llama");
}

#[test]
fn a_gpt2_from_transformers_says_the_same_here() {
    compare(ModelShape::gpt2(2, 16, 4, 8, 19), "hf-gpt2");
}

#[test]
fn a_mixtral_from_transformers_says_the_same_here() {
    compare(mixture(MoeShape::new(4, 2, 24), 0), "hf-mixtral");
}

#[test]
fn a_mixture_with_a_shared_expert_and_biases_from_transformers_says_the_same_here() {
    let moe = MoeShape { sigmoid: true, bias_rate: 1e-3, ..MoeShape::new(5, 2, 12) };
    compare(mixture(moe, 24), "hf-glm4-moe");
}

#[test]
fn a_mixture_goes_out_by_the_names_it_came_in_by() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let biased = MoeShape { sigmoid: true, bias_rate: 1e-3, ..MoeShape::new(5, 2, 12) };
    for (shape, name) in [(mixture(MoeShape::new(4, 2, 24), 0), "hf-mixtral"), (mixture(biased, 24), "hf-glm4-moe")] {
        let folder = tempfile::tempdir().expect("a folder");
        let theirs = Foreign::open(&goldens.join(format!("{name}.safetensors"))).expect("a file");
        let sizes = Sizes { dp: 2, ep: 2, ..Sizes::ONE };
        ranks(2, |communicator| {
            let communicator = Arc::new(communicator);
            let layout = Layout { sizes, ..layout(2, 1, 1, 1) };
            let mut trainer = trainer::<f32>(shape, layout, communicator.clone());
            let theirs = Foreign::open(&goldens.join(format!("{name}.safetensors"))).expect("a file");
            trainer.take_weights(&theirs).expect("the model's weights");
            save(&mut trainer, folder.path(), &communicator).expect("a checkpoint");
        });
        let ours = folder.path().join("checkpoints/step-000000").join(WEIGHTS_FILE);
        let ours = Foreign::open(&ours).expect("a file");
        assert!(ours.names().eq(theirs.names()), "{name}");
        let model = Model::new(shape, Spread::alone(&shape)).expect("a model");
        let [ours, theirs] = [&ours, &theirs].map(|file| file.weights(&wholes(&model)).expect("weights").0);
        for parameter in model.table().parameters().iter().filter(|parameter| parameter.elements() > 0) {
            let read = |pieces: &Pieces<'_>| {
                let mut values = vec![0.0f32; parameter.elements()];
                pieces.read(parameter.name(), &Held::whole(parameter.shape()), &mut values).expect("all elements");
                values
            };
            assert_eq!(read(&ours), read(&theirs), "{name}: {}", parameter.name());
        }
    }
}

#[test]
fn rows_past_the_vocabulary_are_left_out_and_told() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/hf-llama.safetensors");
    let shape = ModelShape { hidden: 40, tied: false, ..ModelShape::llama(2, 16, 4, 2, 8, 17) };
    let model = Model::new(shape, Spread::alone(&shape)).expect("a model");
    let file = Foreign::open(&path).expect("a file");
    let (pieces, notes) = file.weights(&wholes(&model)).expect("the first rows");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("19 rows; the last 2 are past the vocabulary of 17"), "{notes:?}");
    let mut values = vec![0.0f32; 17 * 16];
    pieces.read("model.embed_tokens.weight", &Held::whole(&[17, 16]), &mut values).expect("the first rows");
    // A file with too few rows is refused.
    let shape = ModelShape { vocab: 20, ..shape };
    let model = Model::new(shape, Spread::alone(&shape)).expect("a model");
    let error = file.weights(&wholes(&model)).err().expect("too few rows").to_string();
    assert!(error.contains("[19, 16]") && error.contains("[20, 16]"), "{error}");
}
