//! `warpweft diff` as a user runs it: what it prints, its object and its exit statuses.
#![forbid(unsafe_code)]

mod command;

use std::path::{Path, PathBuf};

use command::{Finished, refused, run, succeeds, warpweft};
use serde_json::Value;

/// Trains a small model into a folder.
fn train(folder: &Path, name: &str, flags: &str) -> PathBuf {
    let out = folder.join(name);
    let small = "train --layers 2 --channels 16 --heads 2 --context 16 --batch 6 --steps 4 --warmup 2 --eval-every 0 --sample 0 --threads 1 \
                 --launch threads";
    succeeds(
        warpweft(&small.split_whitespace().collect::<Vec<_>>()).arg("--out").arg(&out).args(flags.split_whitespace()),
    );
    out
}

fn diff(a: &Path, b: &Path, flags: &str) -> Finished {
    run(warpweft(&["diff"]).args([a, b]).args(flags.split_whitespace()))
}

fn object(finished: &Finished) -> Value {
    assert_eq!(finished.stdout.trim_end().lines().count(), 1, "one object: {}", finished.stdout);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[track_caller]
fn says(finished: &Finished, status: i32, words: &[&str]) {
    assert_eq!(finished.status, Some(status), "{}\n{}", finished.stdout, finished.stderr);
    for word in words {
        assert!(finished.stdout.contains(word), "no `{word}` in {}", finished.stdout);
    }
}

#[test]
fn runs_that_are_the_same_at_other_layouts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = train(folder.path(), "one", "--ranks 1 --dump 1-4 --save-every 4");
    let two = train(
        folder.path(),
        "two",
        "--ranks 4 --tp 2 --pp 2 --schedule zb-h1 --micro-batch 3 --dump 1-4 --save-every 4",
    );
    let same = diff(&one, &two, "");
    says(
        &same,
        0,
        &["1 rank against pp 2 tp 2", "the runs are the same within", "4 steps of the logs", "checkpoint of step 4"],
    );
    // A line for each dumped step, and for each of the logs.
    for table in ["dumped", "logged"] {
        let rows = same.stdout.lines().skip_while(|line| !line.trim_start().starts_with(table)).skip(1);
        let steps: Vec<_> = rows.take(4).map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
        assert_eq!(steps, ["1", "2", "3", "4"], "{table}: {}", same.stdout);
    }
    let report = object(&diff(&one, &two, "--json"));
    assert_eq!((&report["parting"], report["log"].as_array().map(Vec::len)), (&Value::Null, Some(4)));
    assert_eq!(
        (report["dumps"].as_array().map(Vec::len), report["checkpoints"].as_array().map(Vec::len)),
        (Some(4), Some(1))
    );
    assert_eq!(report["tolerance"]["loss"], 2e-6);
    // The sums of four ranks are in another order.
    says(&diff(&one, &two, "--tolerance 0"), 1, &["the runs part at step 1"]);
    says(&diff(&one, &one, "--tolerance 0"), 0, &["the runs are the same within no tolerance, bit by bit"]);
}

#[test]
fn runs_that_part_do_so_at_a_step_layer_tensor_and_element() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = train(folder.path(), "one", "--ranks 1 --dump 1-4");
    let rate = train(folder.path(), "rate", "--ranks 2 --tp 2 --weight-decay 0.3 --dump 1-4");
    let parts = diff(&one, &rate, "");
    says(
        &parts,
        1,
        &[
            "1 rank against tp 2",
            "the runs part at step 1: embedding, after.transformer.wte.weight [256, 16], in the dumps",
        ],
    );
    says(&parts, 1, &["elements further apart than 2e-5", "first [0, 0]", "worst ["]);
    assert_eq!(parts.stderr, "", "what it found is no error");
    let found = diff(&one, &rate, "--json");
    assert_eq!(found.status, Some(1));
    let parting = &object(&found)["parting"];
    assert_eq!(
        (&parting["step"], &parting["layer"], &parting["found_in"]),
        (&1.into(), &"embedding".into(), &"dumps".into())
    );
    assert_eq!(
        (&parting["tensor"], &parting["shape"]),
        (&"after.transformer.wte.weight".into(), &serde_json::json!([256, 16]))
    );
    let first = &parting["distance"]["first"];
    let [a, b] = ["a", "b"].map(|which| first[which].as_f64().expect("a number"));
    assert!(first["index"] == serde_json::json!([0, 0]) && a != b, "{parting}");
    // Whoever asks for no more than that is told that they are the same.
    says(&diff(&one, &rate, "--tolerance 0.5"), 0, &["the runs are the same within"]);
    // Logs alone name the step, and how to get the tensor.
    let (plain, other) =
        (train(folder.path(), "plain", "--ranks 1"), train(folder.path(), "other", "--ranks 1 --seed 2"));
    says(&diff(&plain, &other, ""), 1, &["the runs part at step 1: the log", "loss", "train both again with --dump 1"]);
}

#[test]
fn what_cannot_be_compared_is_one_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = train(folder.path(), "one", "--ranks 1");
    let [nowhere, empty] = ["nowhere", "empty"].map(|name| folder.path().join(name));
    std::fs::create_dir(&empty).expect("a folder");
    for (other, word) in [(&nowhere, "cannot open"), (&empty, "is no folder of a run")] {
        refused(warpweft(&["diff"]).args([&one, other]), &[word, other.to_str().expect("plain")]);
    }
    let larger = train(folder.path(), "larger", "--ranks 1 --dump 1");
    let wider = folder.path().join("wider");
    let flags = "train --layers 2 --channels 32 --heads 2 --context 16 --batch 6 --steps 1 --warmup 0 --eval-every 0 --sample 0 --launch threads";
    succeeds(
        warpweft(&flags.split_whitespace().collect::<Vec<_>>())
            .args(["--ranks", "1", "--dump", "1", "--out"])
            .arg(&wider),
    );
    refused(warpweft(&["diff"]).args([&larger, &wider]), &["different models", "16", "32"]);
    refused(warpweft(&["diff", "a", "b", "--tolerance=-1"]).env("COLUMNS", "200"), &["finite number from 0"]);
}
