//! Training with the kernels of a GPU: on the software device under every check, and through the stand-in driver on the path
//! of a real one; the losses are those of the CPU.
#![forbid(unsafe_code)]

mod command;

use std::path::Path;

use command::{library::stand_in, refused, succeeds, warpweft};

/// A model small enough for a GPU in software.
const TINY: &str = "--layers 1 --channels 32 --heads 2 --context 16 --batch 4 --steps 4 --eval-every 2 --eval-sequences 2 --sample 4 \
                    --launch threads --threads 1 --lr 0.01 --seed 5";

/// Losses and gradient norms by step.
fn numbers(out: &Path) -> Vec<[f64; 2]> {
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    let steps = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    steps.filter_map(|step| Some([step["loss"].as_f64()?, step["grad_norm"].as_f64()?])).collect()
}

fn train(more: &str, library: Option<&Path>) -> Vec<[f64; 2]> {
    train_of(TINY, more, library)
}

fn train_of(model: &str, more: &str, library: Option<&Path>) -> Vec<[f64; 2]> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let line = format!("train {model} {more} --out {}", out.display());
    let mut command = warpweft(&line.split_whitespace().collect::<Vec<_>>());
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    succeeds(&mut command);
    // Time on a software device is no share of what a GPU does.
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["mfu"].is_null(), more.contains("software"), "{log}");
    numbers(&out)
}

/// Both sum in f32, in other orders: 2 (n + 4) U of a sum of n terms, of which the longest, over the 64 rows of a step, the
/// vocabulary and the MLP's width, follow each other some twenty deep; AdamW's first steps move every weight by the sign of
/// its gradient, and so hand a relative error of a small gradient on whole.
const WITHIN: f64 = 2e-5;

#[track_caller]
fn same(given: &[[f64; 2]], expected: &[[f64; 2]], within: f64) {
    assert_eq!((given.len(), expected.len()), (4, 4));
    for (step, (given, expected)) in given.iter().zip(expected).enumerate() {
        for (given, expected) in given.iter().zip(expected) {
            let distance = ((given - expected) / expected).abs();
            assert!(distance <= within, "step {}: {given}, on the CPU {expected}: {distance:e}", step + 1);
        }
    }
}

#[test]
fn a_model_trains_on_the_software_device() {
    for model in ["gpt2", "llama --kv-heads 1"] {
        let expected = train(&format!("--model {model} --ranks 1"), None);
        for device in
            ["software?check=all", "software?check=all&divergence=independent&async=latest&schedule=random&seed=3"]
        {
            same(&train(&format!("--model {model} --ranks 1 --device {device}"), None), &expected, WITHIN);
        }
        // Ranks that share out everything that they can.
        let layout = "--ranks 4 --dp 2 --tp 2 --zero 2 --micro-batch 1 --recompute full --device software?check=all";
        let model = model.trim_end_matches(" --kv-heads 1");
        let expected = train(&format!("--model {model} --ranks 1"), None);
        same(&train(&format!("--model {model} {layout}"), None), &expected, WITHIN);
    }
}

/// Experts, so many that some get few tokens: their losses, chosen by auxiliary loss or by biases within a capacity.
const MIXTURES: [&str; 2] = [
    "--model llama --experts 4 --top-k 2 --expert-hidden 24 --aux-loss 0.02",
    "--model gpt2 --experts 5 --top-k 2 --shared-expert 16 --router sigmoid --bias-rate 0.01 --aux-loss 0.01 --capacity 1.1",
];

#[test]
fn experts_train_on_the_software_device() {
    for model in MIXTURES {
        let expected = train(&format!("{model} --ranks 1"), None);
        same(&train(&format!("{model} --ranks 1 --device software?check=all"), None), &expected, WITHIN);
        // Each rank has some of the experts, and columns of each; or tokens of each sequence.
        for layout in ["--dp 2 --ep 2 --tp 2 --micro-batch 1 --recompute selective", "--cp 2 --dp 2 --ep 4"] {
            same(&train(&format!("{model} --ranks 4 {layout} --device software"), None), &expected, WITHIN);
        }
    }
}

#[test]
fn a_checkpoint_of_a_device_is_taken_up_by_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let [there, rest, whole] = ["there", "rest", "whole"].map(|name| folder.path().join(name));
    let go = |line: String| succeeds(&mut warpweft(&line.split_whitespace().collect::<Vec<_>>()));
    // What a run dumps is read from the device too.
    go(format!("train {TINY} --ranks 1 --device software --save-every 2 --dump 1 --out {}", there.display()));
    let saved = there.join("checkpoints/step-000002");
    go(format!("train --resume {} --device cpu --out {}", saved.display(), rest.display()));
    go(format!("train {TINY} --ranks 1 --dump 1 --out {}", whole.display()));
    // Its log begins with the steps before the checkpoint.
    same(&numbers(&rest), &numbers(&whole), WITHIN);
    go(format!("diff {} {} --tolerance 1e-3", there.display(), whole.display()));
    // The biases of routers too.
    let [there, rest, whole] = ["experts", "experts_rest", "experts_whole"].map(|name| folder.path().join(name));
    let model = format!("{TINY} {} --ranks 1", MIXTURES[1]);
    go(format!("train {model} --device cpu --save-every 2 --out {}", there.display()));
    let saved = there.join("checkpoints/step-000002");
    go(format!("train --resume {} --device software --out {}", saved.display(), rest.display()));
    go(format!("train {model} --device software --out {}", whole.display()));
    same(&numbers(&rest), &numbers(&whole), WITHIN);
}

#[test]
fn bf16_trains_there_too() {
    let expected = train("--dtype bf16 --ranks 1", None);
    same(&train("--dtype bf16 --ranks 1 --device software?check=all", None), &expected, 1e-2);
}

#[test]
fn the_same_path_leads_through_the_driver() {
    let folder = stand_in();
    for model in ["", MIXTURES[1]] {
        let expected = train(&format!("{model} --ranks 1 --device software"), None);
        assert_eq!(train(&format!("{model} --ranks 1 --device cuda"), Some(folder.path())), expected);
    }
    // Two ranks that share a GPU.
    let layout = "--model llama --ranks 2 --cp 2";
    let expected = train(&format!("{layout} --device software"), None);
    assert_eq!(train(&format!("{layout} --device cuda:0"), Some(folder.path())), expected);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    refused(
        &mut warpweft(&["train", "--device", "tpu", "--ranks", "1", "--launch", "threads"]),
        &["tpu", "cpu, software and cuda"],
    );
}

/// A layer for each of two stages, and a small rate: AdamW makes a whole step of a gradient that is all but rounding.
fn deep() -> String {
    TINY.replace("--layers 1", "--layers 2").replace("--lr 0.01", "--lr 0.0003")
}

/// Layouts on the software device, under every check, against the same of the CPU.
#[track_caller]
fn layouts(model: &str, layouts: &[&str]) {
    for layout in layouts {
        let expected = train_of(&deep(), &format!("{model} {layout}"), None);
        let given = train_of(&deep(), &format!("{model} {layout} --device software?check=all"), None);
        let pairs = given.iter().flatten().zip(expected.iter().flatten());
        let near = pairs.clone().all(|(given, expected)| ((given - expected) / expected).abs() <= WITHIN);
        assert!(near, "{model} {layout}: {given:?}, on the CPU {expected:?}");
        assert_eq!(given.len(), expected.len(), "{model} {layout}");
    }
}

const DOCUMENTS: &str = "--packing documents --end-token 10";

#[test]
fn tokens_in_parts_train_on_a_device() {
    layouts("--model llama", &["--ranks 2 --cp 2"]);
    layouts("--model gpt2", &["--ranks 2 --cp 2 --cp-method ulysses"]);
}

#[test]
fn documents_in_parts_train_on_a_device() {
    layouts(&format!("--model llama {DOCUMENTS}"), &["--ranks 2 --cp 2 --micro-batch 2"]);
}

#[test]
fn columns_and_rows_and_stages_train_on_a_device() {
    layouts("--model gpt2", &["--ranks 2 --tp 2 --sp", "--ranks 2 --pp 2 --schedule zb-h1 --micro-batch 1"]);
}

/// The rest of them: what each parallelism does alone, and some products.
#[cfg(feature = "long-tests")]
#[test]
fn every_layout_trains_on_a_device() {
    let all = [
        "--ranks 1 --recompute full",
        "--ranks 1 --recompute selective --micro-batch 3",
        "--ranks 2 --tp 2",
        "--ranks 2 --tp 2 --sp --recompute full",
        "--ranks 2 --cp 2 --micro-batch 1",
        "--ranks 2 --cp 2 --cp-method ulysses --recompute full",
        "--ranks 2 --pp 2 --schedule gpipe --micro-batch 2",
        "--ranks 2 --pp 2 --schedule 1f1b --micro-batch 1",
        "--ranks 2 --pp 2 --schedule zb-h2 --micro-batch 1",
        "--ranks 2 --pp 2 --schedule dualpipe --micro-batch 1",
        "--ranks 2 --zero 1",
        "--ranks 3 --zero 2 --micro-batch 1",
        "--ranks 2 --zero 3 --micro-batch 1",
        "--ranks 4 --cp 2 --tp 2 --sp",
        "--ranks 4 --pp 2 --cp 2 --schedule zb-h1 --micro-batch 2",
        "--ranks 8 --pp 2 --tp 2 --dp 2 --zero 1 --micro-batch 1",
    ];
    for model in ["--model gpt2", "--model llama"] {
        layouts(model, &all);
    }
    for model in ["--model gpt2", "--model llama --kv-heads 1"] {
        let layouts_of_documents = ["--ranks 1", "--ranks 2 --cp 2 --cp-method ulysses", "--ranks 2 --tp 2 --sp"];
        layouts(&format!("{model} {DOCUMENTS}"), &layouts_of_documents);
    }
    for model in MIXTURES {
        let stages = "--ranks 4 --pp 2 --dp 2 --ep 2 --micro-batch 1 --schedule zb-h1 --recompute full";
        layouts(model, &[stages, "--ranks 2 --zero 3 --micro-batch 1", "--ranks 4 --cp 4 --ep 4"]);
    }
}

/// What each run's last line of the log says of all state.
fn states(device: &str, layouts: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let states = layouts.iter().map(|layout| {
        let out = folder.path().join("run");
        let line = format!("train {} --exact --device {device} {layout} --out {}", deep(), out.display());
        succeeds(&mut warpweft(&line.split_whitespace().collect::<Vec<_>>()));
        let last = command::log(&out).pop().expect("a log");
        assert_eq!(last["steps"], 4, "{layout}");
        last["state_sha256"].as_str().expect("a digest").to_owned()
    });
    states.collect()
}

#[test]
fn exact_sums_have_the_same_bits_at_every_layout_of_a_device() {
    let layouts = [
        "--ranks 1",
        "--ranks 1 --micro-batch 3",
        "--ranks 3 --micro-batch 1",
        "--ranks 2 --zero 3 --recompute full",
        "--ranks 2 --pp 2 --schedule 1f1b --micro-batch 2",
        "--ranks 4 --pp 2 --dp 2 --schedule zb-h1 --micro-batch 1",
    ];
    let on_a_device = states("software", &layouts);
    assert!(on_a_device.iter().all(|state| *state == on_a_device[0]), "{on_a_device:?}");
    // Products and sums of a row are in another order there: its bits are not the CPU's.
    assert_ne!(on_a_device[0], states("cpu", &layouts[..1])[0]);
    // Types of two bytes and rotary positions, a head of keys that all share.
    let llama = layouts.map(|layout| format!("--model llama --kv-heads 1 --dtype bf16 {layout}"));
    let some = [&llama[0], &llama[2], &llama[5]].map(String::as_str);
    let on_a_device = states("software", &some);
    assert!(on_a_device.iter().all(|state| *state == on_a_device[0]), "{on_a_device:?}");
    let experts = ["--ranks 1", "--ranks 2 --micro-batch 1"].map(|layout| format!("{} {layout}", MIXTURES[1]));
    let on_a_device = states("software", &experts.each_ref().map(String::as_str));
    assert_eq!(on_a_device[0], on_a_device[1]);
}
