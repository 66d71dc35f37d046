//! Whole runs, from a configuration to the last line: what they write, and that a resumed one is the unbroken one.
#![forbid(unsafe_code)]

mod common;

use std::fs;
use std::path::Path;

use common::ranks;
use warpweft_trainer::checkpoint::Checkpoint;
use warpweft_trainer::config::{Config, Inputs};
use warpweft_trainer::report::{Progress, StepRecord};
use warpweft_trainer::{Outcome, TrainError, run};

/// A configuration of a tiny model on a small text, from flags.
fn config(folder: &Path, flags: &[(&str, &str)]) -> Config {
    let text = folder.join("text.txt");
    let rhyme = "the warp goes up, the weft goes through; the cloth is one, the threads are two.\n";
    fs::write(&text, rhyme.repeat(40)).expect("a text");
    let base = [
        ("data", text.to_str().expect("a path of text")),
        ("layers", "2"),
        ("channels", "16"),
        ("heads", "2"),
        ("context", "16"),
        ("batch", "5"),
        ("steps", "8"),
        ("warmup", "2"),
        ("eval-every", "4"),
        ("eval-sequences", "6"),
        ("save-every", "4"),
        ("sample", "12"),
        ("threads", "1"),
    ];
    let given = base.iter().filter(|(name, _)| flags.iter().all(|(other, _)| other != name)).chain(flags);
    resolve(&given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
}

fn resolve(flags: &[(String, String)]) -> Config {
    Config::resolve(&Inputs { flags, ..Inputs::default() }).expect("a configuration that fits")
}

/// Runs it on the ranks it asks for; gives rank 0's outcome.
fn train(config: &Config) -> Result<Outcome, TrainError> {
    let mut outcomes = ranks(config.ranks, |communicator| run(config, communicator, config.ranks, Progress::silent()));
    outcomes.drain(..).reduce(|first, other| other.and(first)).expect("at least one rank")
}

/// What a log says that must be the same in a run that is done again.
fn numbers(out: &Path) -> Vec<StepRecord> {
    let log = fs::read_to_string(out.join("log.jsonl")).expect("a log");
    let records = log.lines().map(|line| serde_json::from_str::<StepRecord>(line).expect("a record"));
    let timeless = |r: StepRecord| {
        let StepRecord { step, loss, grad_norm, lr, tokens, val_loss, .. } = r;
        StepRecord { step, loss, grad_norm, lr, tokens, val_loss, ..StepRecord::default() }
    };
    records.map(timeless).collect()
}

fn file(out: &Path, step: u64, name: &str) -> Vec<u8> {
    fs::read(out.join(format!("checkpoints/step-{step:06}")).join(name)).expect("a file of a checkpoint")
}

fn is_resumed_bit_equal(extra: &[(&str, &str)]) -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    let flags = |out: &Path| {
        let out = ("out".to_owned(), out.to_str().expect("a path of text").to_owned());
        let extra = extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        extra.chain([out]).collect::<Vec<_>>()
    };
    let with = |out: &Path| {
        let flags = flags(out);
        let flags: Vec<_> = flags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        config(folder.path(), &flags)
    };
    let unbroken = train(&with(&whole))?;
    assert_eq!((unbroken.steps, unbroken.sample.map(|text| text.is_empty())), (8, Some(false)));

    train(&with(&broken))?;
    let latest = "checkpoints/step-000004";
    let resumed = [("resume".to_owned(), broken.join(latest).to_str().expect("a path of text").to_owned())];
    let outcome = train(&resolve(&resumed))?;
    assert_eq!(outcome.steps, 8);
    assert_eq!(numbers(&broken), numbers(&whole));
    for name in ["weights.safetensors", "optimizer.safetensors"] {
        assert!(file(&broken, 8, name) == file(&whole, 8, name), "{name} of step 8 has the same bytes");
    }
    Ok(())
}

#[test]
fn a_resumed_run_is_bit_equal_to_the_unbroken_one() -> Result<(), TrainError> {
    is_resumed_bit_equal(&[("ranks", "2")])
}

#[test]
fn so_it_is_with_bf16_weights_and_grouped_heads() -> Result<(), TrainError> {
    let extra = [("ranks", "1"), ("dtype", "bf16"), ("model", "llama"), ("kv-heads", "1"), ("micro-batch", "2")];
    is_resumed_bit_equal(&extra)
}

#[test]
fn a_run_writes_what_it_names() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, trace) = (folder.path().join("out"), folder.path().join("trace.json"));
    let paths = [&out, &trace].map(|path| path.to_str().expect("a path of text"));
    let outcome = train(&config(folder.path(), &[("out", paths[0]), ("trace", paths[1]), ("ranks", "2")]))?;
    assert!(outcome.files.iter().all(|path| path.exists()), "{:?}", outcome.files);
    assert!(outcome.files.contains(&trace));
    let records = numbers(&out);
    assert_eq!(records.len(), 8);
    assert!(records.iter().all(|record| record.loss.is_some_and(f64::is_finite)));
    let evaluated: Vec<u64> =
        records.iter().filter(|record| record.val_loss.is_some()).map(|record| record.step).collect();
    assert_eq!(evaluated, [4, 8]);
    assert_eq!(records[7].tokens, 8 * 5 * 16, "tokens since the start");
    let spans = fs::read_to_string(&trace).expect("a trace");
    for name in ["forward block 1", "backward block 0", "all_reduce bucket 0", "optimizer", "rank 1"] {
        assert!(spans.contains(name), "no {name} in the trace");
    }
    Ok(())
}

#[test]
fn other_data_and_another_model_are_refused_by_name() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    train(&config(folder.path(), &[("out", out.to_str().expect("a path of text")), ("ranks", "1")]))?;
    let checkpoint = Checkpoint::load(&out)?;
    assert_eq!(
        (checkpoint.step, checkpoint.data_tokens),
        (8, fs::metadata(folder.path().join("text.txt")).map_or(0, |m| m.len()))
    );
    fs::write(folder.path().join("text.txt"), "another text of another length. ".repeat(20)).expect("a text");
    let resumed =
        [("resume".to_owned(), out.to_str().expect("a path of text").to_owned()), ("steps".to_owned(), "9".to_owned())];
    let error = train(&resolve(&resumed)).expect_err("other data");
    assert_eq!(error.exit_status(), 2);
    assert!(matches!(error, TrainError::OtherData { now: 640, .. }), "{error}");
    Ok(())
}
