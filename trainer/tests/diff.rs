//! Two runs at any layouts are the same, or part where the fault is: the step, the layer, the tensor, the element.
#![forbid(unsafe_code)]

mod common;
mod runs;

use std::path::Path;
use std::sync::Arc;

use runs::Runs;
use warpweft_comm::Communicator;
use warpweft_device::Device;
use warpweft_trainer::checkpoint::{Checkpoint, Saver};
use warpweft_trainer::config::{Config, Inputs};
use warpweft_trainer::diff::{Report, Tolerance, diff};
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::step::{Recipe, Trainer};

fn compare(a: &Path, b: &Path) -> Report {
    diff(a, b, None).expect("two runs")
}

#[test]
fn a_run_is_the_same_at_every_layout() {
    let runs = Runs::new();
    let one = runs.train("one", "ranks=1 dump=1-4");
    for (index, layout) in [
        "ranks=3",
        "ranks=3 zero=3",
        "ranks=4 tp=2 sp=true zero=1",
        "ranks=3 cp=3",
        "ranks=2 cp=2 cp-method=ulysses",
        "ranks=4 pp=2 schedule=zb-h1",
        "ranks=2 pp=2 schedule=dualpipe",
        "ranks=8 pp=2 cp=2 tp=2",
    ]
    .into_iter()
    .enumerate()
    {
        let other = runs.train(&format!("other-{index}"), &format!("{layout} dump=1-4"));
        let report = compare(&one, &other);
        assert_eq!(report.parting, None, "{layout}");
        assert_eq!(report.tolerance, Tolerance::F32);
        // Of two blocks, 14 parameters each with q and kv apart, and 4 around them: before and after, gradients; the stream
        // after the embedding and each block, its errors, losses, tokens and targets.
        let parameters = report.checkpoints[0].tensors / 3;
        assert_eq!(
            report.dumps.iter().map(|step| step.tensors).collect::<Vec<_>>(),
            [3 * parameters + 3 + 3 + 1 + 2; 4]
        );
        assert_eq!((report.log.len(), report.checkpoints.len()), (4, 2), "{layout}");
        // The layouts do sum in other orders, and the first step begins with the same bits.
        let worst = |step: usize, name: &str| {
            let found = report.dumps[step].worst.iter().find(|(kind, ..)| kind.name() == name);
            found.map(|(_, apart, _)| *apart).expect("all kinds were compared")
        };
        assert_eq!((worst(0, "input"), worst(0, "before")), (0.0, 0.0), "{layout}");
        assert!(worst(0, "gradient") > 0.0 && worst(0, "gradient") < 2e-5, "{layout}: {}", worst(0, "gradient"));
    }
}

#[test]
fn experts_over_ranks_are_the_same_too() {
    let runs = Runs::new();
    let moe = "model=llama kv-heads=2 experts=4 top-k=2 dump=1,3";
    let one = runs.train("one", &format!("ranks=1 {moe}"));
    let other = runs.train("other", &format!("ranks=4 tp=2 ep=2 zero=2 {moe}"));
    let report = compare(&one, &other);
    assert_eq!((report.parting, report.tolerance), (None, Tolerance::EXPERTS));
    assert_eq!(report.dumps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn exact_runs_are_the_same_bit_by_bit() {
    let runs = Runs::new();
    let one = runs.train("one", "ranks=1 exact=true dump=1-4");
    let other = runs.train("other", "ranks=4 pp=2 exact=true dump=1-4 zero=1 micro-batch=1");
    let report = compare(&one, &other);
    assert_eq!((report.parting, report.tolerance), (None, Tolerance::NONE));
    for step in &report.dumps {
        assert!(step.worst.iter().all(|(_, apart, _)| *apart == 0.0), "{step:?}");
    }
    // The default grade is not: bit by bit its runs part in the first gradient that was summed.
    let (one, other) = (runs.train("a", "ranks=1 dump=1"), runs.train("b", "ranks=2 dump=1"));
    let parting = diff(&one, &other, Some(Tolerance::NONE)).expect("two runs").parting.expect("other sums");
    assert_eq!(parting.step, 1);
    assert!(parting.tensor.starts_with("gradient."), "{parting:?}");
}

/// A copy of a run's checkpoint at step 2 in a run of its own, one weight of which is another.
fn with_a_fault(from: &Path, to: &Path, parameter: &str, at: usize) {
    let checkpoint = Checkpoint::load(&from.join("checkpoints/step-000002")).expect("a checkpoint");
    let file = from.join("checkpoints/step-000002/config.toml");
    let config = Config::resolve(&Inputs { file: Some(&file), ..Inputs::default() }).expect("its configuration");
    let ranks = Arc::new(Communicator::alone());
    let mesh = Mesh::new(ranks.clone(), Sizes::ONE, 1).expect("a mesh");
    let recipe = Recipe::new(config.context, config.batch);
    let device = Device::cpu_with_threads(1).expect("a thread");
    let mut trainer = Trainer::<f32>::new(config.shape(), recipe, &device, mesh).expect("a trainer");
    trainer.restore(&checkpoint).expect("its weights");
    let mut snapshot = trainer.snapshot(checkpoint.data_tokens, checkpoint.config).expect("a snapshot");
    let piece = snapshot.weights.iter_mut().find(|piece| piece.name == parameter).expect("the parameter");
    let bytes = piece.bytes[4 * at..].first_chunk_mut::<4>().expect("the element");
    *bytes = (f32::from_le_bytes(*bytes) + 0.01).to_le_bytes();
    let mut saver = Saver::new(to, ranks);
    saver.save(snapshot).expect("a checkpoint");
    saver.finish().expect("a checkpoint");
}

#[test]
fn a_weight_that_is_another_is_found_by_step_layer_tensor_and_element() {
    let runs = Runs::new();
    let one = runs.train("one", "ranks=2 tp=2 dump=1-4");
    let faulty = runs.out("faulty");
    with_a_fault(&one, &faulty, "transformer.h.1.mlp.c_fc.weight", 7 * 16 + 3);

    // In the checkpoints, before anybody goes on from there.
    let parting = compare(&one, &faulty).parting.expect("the fault");
    let found = (parting.step, parting.layer.as_str(), parting.tensor.as_str(), parting.found_in);
    assert_eq!(found, (2, "block 1", "weights.transformer.h.1.mlp.c_fc.weight", "checkpoints"));
    let first = parting.distance.first.clone().expect("an element");
    assert_eq!((first.index, parting.distance.beyond), (vec![7, 3], 1));
    assert!((first.b - first.a - 0.01).abs() < 1e-6, "{} and {}", first.a, first.b);

    // In what the steps after it compute, at another layout.
    let other = runs.train("other", &format!("resume={} ranks=4 pp=2 dump=3-4", faulty.display()));
    let report = compare(&one, &other);
    let parting = report.parting.expect("the fault");
    let found = (parting.step, parting.layer.as_str(), parting.tensor.as_str(), parting.found_in);
    assert_eq!(found, (3, "block 1", "before.transformer.h.1.mlp.c_fc.weight", "dumps"));
    assert_eq!((parting.distance.first.map(|first| first.index), parting.distance.beyond), (Some(vec![7, 3]), 1));
    assert_eq!(report.dumps.len(), 2);
}

#[test]
fn a_layer_that_computes_otherwise_is_the_first_named() {
    let runs = Runs::new();
    let what = "dump-what=activations,errors,gradients";
    let one = runs.train("one", &format!("ranks=1 layers=4 dump=1-4 {what}"));
    let faulty = runs.out("faulty");
    with_a_fault(&one, &faulty, "transformer.h.2.mlp.c_proj.bias", 5);
    let other = runs.train("other", &format!("resume={} ranks=2 cp=2 dump=3-4 {what}", faulty.display()));
    let parting = compare(&one, &other).parting.expect("the fault");
    assert_eq!((parting.step, parting.layer.as_str(), parting.tensor.as_str()), (3, "block 2", "forward.block.2"));
    assert_eq!(parting.shape, [5, 17, 16]);
    assert_eq!(parting.distance.first.map(|first| first.index), Some(vec![0, 0, 5]));
    assert_eq!(parting.distance.beyond, 5 * 17, "that channel of every token");
}

#[test]
fn another_seed_is_other_tokens_and_another_rate_other_weights() {
    let runs = Runs::new();
    let one = runs.train("one", "ranks=1 dump=1-2");
    let other = runs.train("seed", "ranks=2 seed=2 dump=1-2");
    let parting = compare(&one, &other).parting.expect("other data");
    assert_eq!((parting.step, parting.layer.as_str(), parting.tensor.as_str()), (1, "data", "input.tokens"));
    let other = runs.train("rate", "ranks=2 lr=0.00301 dump=1-2");
    let parting = compare(&one, &other).parting.expect("another rate");
    assert_eq!((parting.step, parting.layer.as_str()), (1, "embedding"));
    assert_eq!(parting.tensor, "after.transformer.wte.weight");
}

#[test]
fn without_dumps_logs_and_checkpoints_are_compared() {
    let runs = Runs::new();
    let (one, same) = (runs.train("one", "ranks=1"), runs.train("same", "ranks=2 tp=2"));
    let report = compare(&one, &same);
    assert_eq!((report.parting, report.dumps.len(), report.log.len(), report.checkpoints.len()), (None, 0, 4, 2));
    let other = runs.train("other", "ranks=2 lr=0.0031");
    let parting = compare(&one, &other).parting.expect("another rate");
    assert_eq!((parting.step, parting.tensor.as_str(), parting.found_in), (2, "loss", "log"));
}

#[test]
fn what_cannot_be_compared_is_said_in_one_sentence() {
    let runs = Runs::new();
    let one = runs.train("one", "ranks=1 dump=1 steps=2");
    let says = |other: &Path, words: &[&str]| {
        let said = diff(&one, other, None).expect_err("no two runs").to_string();
        assert_eq!(said.lines().count(), 1, "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "`{word}` is not in: {said}"));
    };
    says(&runs.out("nowhere"), &["nowhere", "open"]);
    std::fs::create_dir(runs.out("empty")).expect("a folder");
    says(&runs.out("empty"), &["empty is no folder of a run", "--out"]);
    let other = runs.train("deep", "ranks=1 layers=3 dump=1 steps=2");
    says(&other, &["different models", "layers is 2 in the first and 3 in the second"]);
    let other = runs.train("wide", "ranks=1 channels=32 steps=2");
    says(&other, &["different models", "channels"]);
    let other = runs.train("batch", "ranks=1 batch=6 dump=1 steps=2");
    says(&other, &["input.tokens", "[5, 17]", "[6, 17]"]);
    // A run that goes on from step 2 has nothing of step 1.
    let later = runs.train("later", &format!("resume={} ranks=1 steps=3", one.display()));
    std::fs::remove_file(later.join("log.jsonl")).expect("a log");
    says(&later, &["no step in common", "steps 1 to 2 in its log, dumps of 1, checkpoints of 2", "checkpoints of 3"]);
}

#[test]
fn dumps_are_of_the_steps_asked_for_and_of_one_run() {
    let runs = Runs::new();
    let out = runs.train("one", "ranks=2 dump=1 dump-every=2 dump-what=gradients");
    assert_eq!(warpweft_trainer::dump::steps(&out), [1, 2, 4]);
    let again = runs.train("one", "ranks=2");
    assert_eq!(warpweft_trainer::dump::steps(&again), [] as [u64; 0], "those of the run before are gone");
}
