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
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let line = format!("train {TINY} {more} --out {}", out.display());
    let mut command = warpweft(&line.split_whitespace().collect::<Vec<_>>());
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    succeeds(&mut command);
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
}

#[test]
fn bf16_trains_there_too() {
    let expected = train("--dtype bf16 --ranks 1", None);
    same(&train("--dtype bf16 --ranks 1 --device software?check=all", None), &expected, 1e-2);
}

#[test]
fn the_same_path_leads_through_the_driver() {
    let folder = stand_in();
    let expected = train("--ranks 1 --device software", None);
    assert_eq!(train("--ranks 1 --device cuda", Some(folder.path())), expected);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    refused(
        &mut warpweft(&["train", "--device", "tpu", "--ranks", "1", "--launch", "threads"]),
        &["tpu", "cpu, software and cuda"],
    );
}
