//! Whole runs, from a configuration to the last line: what they write, and that a resumed one is the unbroken one.
#![forbid(unsafe_code)]

mod common;

use std::fs;
use std::path::Path;

use common::ranks;
use warpweft_trainer::checkpoint::{Checkpoint, optimizer_file};
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

fn whole_records(out: &Path) -> Vec<StepRecord> {
    let log = fs::read_to_string(out.join("log.jsonl")).expect("a log");
    log.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// What a log says that must be the same in a run that is done again.
fn numbers(out: &Path) -> Vec<StepRecord> {
    let timeless = |r: StepRecord| {
        let StepRecord { step, loss, grad_norm, lr, tokens, val_loss, .. } = r;
        StepRecord { step, loss, grad_norm, lr, tokens, val_loss, ..StepRecord::default() }
    };
    whole_records(out).into_iter().map(timeless).collect()
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
    let ranks = resolve(&resumed).ranks;
    for name in ["weights.safetensors", &optimizer_file(0, ranks)] {
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
fn a_run_resumed_on_other_ranks_and_elsewhere_sees_the_next_samples() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, elsewhere) = (folder.path().join("whole"), folder.path().join("elsewhere"));
    let paths = [&whole, &elsewhere].map(|path| path.to_str().expect("a path of text"));
    // An epoch of this text has 174 sequences: 4 steps end inside the second one, 8 inside the third.
    train(&config(folder.path(), &[("out", paths[0]), ("ranks", "1"), ("batch", "45")]))?;
    let from = whole.join("checkpoints/step-000004");
    let flags = [("resume", from.to_str().expect("a path of text")), ("out", paths[1]), ("ranks", "3")];
    train(&resolve(&flags.map(|(name, value)| (name.to_owned(), value.to_owned()))))?;
    let (unbroken, resumed) = (numbers(&whole), numbers(&elsewhere));
    assert_eq!(resumed[..4], unbroken[..4], "the log so far goes along");
    assert_eq!((resumed.len(), unbroken.len()), (8, 8));
    for (resumed, unbroken) in resumed.iter().zip(&unbroken) {
        let pairs = [(resumed.loss, unbroken.loss), (resumed.val_loss, unbroken.val_loss)];
        for (ours, reference) in pairs.into_iter().filter_map(|(ours, reference)| Some((ours?, reference?))) {
            // The grade for another layout, f32.
            assert!((ours - reference).abs() <= 2e-6 * reference, "step {}: {ours}, {reference}", resumed.step);
        }
    }
    Ok(())
}

#[test]
fn units_are_reduced_while_the_backward_pass_goes_on() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, path) = (folder.path().join("out"), folder.path().join("trace.json"));
    let paths = [&out, &path].map(|path| path.to_str().expect("a path of text"));
    let sizes = [("layers", "4"), ("channels", "256"), ("steps", "2"), ("sample", "0"), ("ranks", "2")];
    let flags: Vec<_> = sizes.into_iter().chain([("out", paths[0]), ("trace", paths[1])]).collect();
    train(&config(folder.path(), &flags))?;
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("a trace")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    // A rank whose progress thread gets no processor in time shows no overlap: on a loaded machine that may be one.
    let mut overlaps = false;
    for rank in 0..2 {
        let start = |name: &str| {
            let named = |event: &&serde_json::Value| event["name"].as_str().is_some_and(|text| text.starts_with(name));
            let event = events.iter().filter(|event| event["pid"] == rank && event["ph"] == "X").find(named);
            event.and_then(|event| event["ts"].as_f64()).unwrap_or_else(|| panic!("no {name} of rank {rank}"))
        };
        // The units are the two tables, the four blocks and the head: the last block is done long before the first one.
        overlaps |= start("all_reduce unit 5") < start("backward block 0");
        assert!(start("all_reduce unit 0") < start("all_reduce losses"), "rank {rank} sums the embedding");
    }
    assert!(overlaps, "no rank's reductions start before its backward pass is done");
    for record in whole_records(&out) {
        let (exposed, comm) = (record.exposed_comm_ms.expect("known"), record.comm_ms.expect("known"));
        assert!(comm > 0.0 && exposed > 0.0 && exposed < record.step_ms.expect("known"), "{exposed} of {comm}");
    }
    Ok(())
}

#[test]
fn a_trace_that_cannot_be_written_is_found_before_any_data_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, trace) = (folder.path().join("out"), folder.path().join("missing/trace.json"));
    let [out, trace] = [&out, &trace].map(|path| path.to_str().expect("a path of text"));
    let config = config(folder.path(), &[("out", out), ("trace", trace), ("ranks", "1")]);
    fs::remove_file(folder.path().join("text.txt")).expect("the text");
    let error = train(&config).expect_err("a trace in a folder that is not there");
    assert!(error.to_string().contains("missing/trace.json"), "{error}");
    assert_eq!(error.exit_status(), 2);
}

#[test]
fn tokens_of_a_bin_are_no_text() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, out) = (folder.path().join("train.bin"), folder.path().join("out"));
    let tokens: Vec<u8> = (0..600u16).flat_map(|token| (token * 7 % 30).to_le_bytes()).collect();
    fs::write(&data, tokens).expect("tokens");
    let [data, out] = [&data, &out].map(|path| path.to_str().expect("a path of text"));
    let flags = [("data", data), ("out", out), ("ranks", "1"), ("vocab", "30"), ("steps", "2")];
    let text = train(&config(folder.path(), &flags))?.sample.expect("a sample");
    let numbers: Result<Vec<u32>, _> = text.split(' ').map(str::parse).collect();
    assert!(numbers.is_ok_and(|numbers| numbers.len() == 12 && numbers.iter().all(|token| *token < 30)), "{text}");
    Ok(())
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
    let summary = fs::read(out.join("report.json")).expect("a report");
    let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
    for class in ["parameters", "gradients", "optimizer", "activations", "errors", "buffers"] {
        let bytes = &summary["memory_bytes"][class];
        assert!(bytes["measured"] == bytes["predicted"] && bytes["measured"].as_u64() > Some(0), "{class}: {bytes}");
    }
    for kind in ["data", "world"] {
        let bytes = &summary["sent_bytes_a_step"][kind];
        assert_eq!(bytes["measured"].as_f64(), bytes["predicted"].as_f64(), "{kind}");
    }
    let shares = summary["time_shares"].as_object().expect("shares");
    let whole: f64 = shares.values().map(|share| share.as_f64().expect("a number")).sum();
    assert!((whole - 1.0).abs() < 1e-9 && shares["forward"].as_f64() > Some(0.0), "{shares:?}");
    let spans = fs::read_to_string(&trace).expect("a trace");
    for name in ["forward block 1", "backward block 0", "all_reduce unit 0", "optimizer", "rank 1"] {
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

#[test]
fn a_run_over_several_sources_resumes_in_their_order() -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, tokens) = (folder.path().join("verse.txt"), folder.path().join("tokens.bin"));
    fs::write(&text, "weft under, warp over, and over again: the cloth is whole.\n".repeat(30)).expect("a text");
    let ids = (0..2000_u32).flat_map(|i| ((i * i % 251) as u16).to_le_bytes());
    fs::write(&tokens, ids.collect::<Vec<_>>()).expect("tokens");
    let data = format!("0.7:{},0.3:{}", text.display(), tokens.display());
    is_resumed_bit_equal(&[("ranks", "2"), ("data", &data)])
}

#[test]
fn an_exact_run_ends_its_log_with_one_digest_for_any_number_of_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let last_line = |flags: &[(&str, &str)]| {
        let out = folder.path().join("out");
        let base = [("exact", "true"), ("out", out.to_str().expect("a path of text"))];
        train(&config(folder.path(), &[&base, flags].concat())).expect("a run");
        let log = fs::read_to_string(out.join("log.jsonl")).expect("a log");
        assert_eq!(log.lines().count(), 9, "8 steps and the digest");
        log.lines().last().expect("a line").to_owned()
    };
    let reference = last_line(&[("ranks", "1")]);
    let digest: serde_json::Value = serde_json::from_str(&reference).expect("JSON");
    assert_eq!((digest["steps"].as_u64(), digest["state_sha256"].as_str().map(str::len)), (Some(8), Some(64)));
    for flags in [&[("ranks", "2")][..], &[("ranks", "3"), ("micro-batch", "1")], &[("ranks", "1"), ("threads", "2")]] {
        assert_eq!(last_line(flags), reference, "{flags:?}");
    }
    assert_ne!(last_line(&[("ranks", "1"), ("seed", "2")]), reference, "another seed, another state");
}
