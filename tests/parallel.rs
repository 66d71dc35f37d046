//! Parallelism at the command, over ranks that are processes: the same losses, and with `--exact` the same bits.
#![forbid(unsafe_code)]

mod command;

use std::path::Path;

use command::{losses, refused, succeeds, warpweft};

fn train(out: &Path, flags: &str) {
    let mut command = warpweft(&["train", "--channels", "32", "--heads", "4", "--context", "32", "--batch", "10"]);
    command.args(["--sample", "8", "--eval-every", "0", "--threads", "1", "--steps", "20", "--timeout", "60"]);
    succeeds(command.arg("--out").arg(out).args(flags.split_whitespace()));
}

#[test]
fn losses_agree_over_meshes_of_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = folder.path().join("one");
    train(&one, "--ranks 1");
    let reference = losses(&one);
    assert_eq!(reference.len(), 20);
    for (index, flags) in [
        "--tp 2 --sp",
        "--cp 2",
        "--cp 2 --cp-method ulysses --transport tcp",
        "--pp 2 --micro-batch 3",
        "--pp 2 --schedule dualpipe --micro-batch 2",
        "--dp 3 --zero 3 --micro-batch 2",
        "--dp 2 --pp 2 --zero 1 --schedule zb-h1 --micro-batch 2 --transport tcp",
        "--dp 2 --cp 2 --tp 2 --sp --zero 2 --launch threads",
        "--dp 4 --zero 3 --shards 2",
    ]
    .into_iter()
    .enumerate()
    {
        let out = folder.path().join(index.to_string());
        train(&out, flags);
        for (step, (one, ours)) in reference.iter().zip(losses(&out)).enumerate() {
            assert!(((ours - one) / one).abs() <= 2e-6, "{flags}, step {}: {ours}, one rank {one}", step + 1);
        }
    }
}

#[test]
fn mixtures_of_experts_agree_over_meshes_of_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (model, of) in [
        ("llama", "--model llama --kv-heads 2 --experts 4 --expert-hidden 48 --shared-expert 32"),
        ("gpt2", "--experts 6 --top-k 3 --expert-hidden 40 --router sigmoid --capacity 1.5"),
    ] {
        let one = folder.path().join(model);
        train(&one, &format!("{of} --ranks 1"));
        let reference = losses(&one);
        assert!(reference[19] < reference[0] - 0.5, "{model} learns: {reference:?}");
        for (index, flags) in [
            "--ep 2",
            "--dp 4 --ep 4 --micro-batch 2",
            "--dp 2 --cp 2 --ep 4 --zero 1",
            "--pp 2 --dp 2 --ep 2 --micro-batch 2 --schedule zb-h1 --transport tcp",
            "--dp 2 --ep 2 --tp 2 --sp --launch threads",
        ]
        .into_iter()
        .filter(|flags| model == "llama" || !flags.contains("--ep 4"))
        .enumerate()
        {
            let out = folder.path().join(format!("{model}-{index}"));
            train(&out, &format!("{of} {flags}"));
            for (step, (one, ours)) in reference.iter().zip(losses(&out)).enumerate() {
                let what = format!("{model} {flags}, step {}", step + 1);
                assert!(((ours - one) / one).abs() <= 1e-5, "{what}: {ours}, one rank {one}");
            }
        }
    }
}

#[test]
fn the_state_is_one_for_every_data_layout_schedule_and_transport() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let digest = |name: &str, flags: &str| {
        let out = folder.path().join(name);
        train(&out, &format!("--exact {flags}"));
        let log = std::fs::read_to_string(out.join("log.jsonl")).expect("a log");
        let last: serde_json::Value = serde_json::from_str(log.lines().last().expect("lines")).expect("JSON");
        assert_eq!(last["steps"], 20);
        last["state_sha256"].as_str().unwrap_or_else(|| panic!("{flags}: no digest in {last}")).to_owned()
    };
    let one = digest("one", "--ranks 1");
    assert_eq!(one.len(), 64);
    for (index, flags) in [
        "--ranks 1 --micro-batch 3",
        "--dp 2 --zero 1",
        "--dp 3 --zero 2 --micro-batch 3 --transport tcp",
        "--dp 4 --zero 3",
        "--dp 8 --launch threads",
        "--pp 2 --schedule gpipe --micro-batch 4",
        "--pp 2 --schedule zb-h2 --micro-batch 2 --transport tcp",
        "--pp 2 --schedule interleaved --micro-batch 2",
        "--pp 2 --schedule dualpipe --micro-batch 2",
        "--pp 4 --schedule zb-h1 --micro-batch 1",
        "--pp 2 --dp 2 --zero 1 --micro-batch 3",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(digest(&index.to_string(), flags), one, "{flags}");
    }
    assert_ne!(digest("other", "--ranks 1 --seed 2"), one, "another seed is another state");
    let of = "--model llama --experts 4 --expert-hidden 40 --shared-expert 24 --bias-rate 1e-3";
    let one = digest("mixture", &format!("{of} --ranks 1"));
    for (index, flags) in
        ["--dp 3 --zero 3 --micro-batch 2", "--pp 2 --dp 2 --schedule zb-h1 --micro-batch 2 --transport tcp"]
            .into_iter()
            .enumerate()
    {
        assert_eq!(digest(&format!("mixture-{index}"), &format!("{of} {flags}")), one, "{flags}");
    }
}

#[test]
fn what_a_run_would_take_is_said_without_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let mut command =
        warpweft(&["train", "--ranks", "8", "--pp", "2", "--tp", "2", "--sp", "--zero", "1", "--dry-run"]);
    let said = succeeds(command.args(["--schedule", "zb-h1", "--micro-batch", "3"]).arg("--out").arg(&out)).stdout;
    for words in [
        "mesh: pp 2 x dp 2 x cp 1 x tp 2 = 8 ranks",
        "plan: zb-h1, 4 micro-batches of 3 sequences, ZeRO 1",
        "model: 834,304 parameters",
        "bubble: 7.7 % where F = B = W",
        "memory by rank",
        "holds most",
    ] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    let said = succeeds(command.arg("--json")).stdout;
    let object: serde_json::Value = serde_json::from_str(&said).expect("one object");
    assert_eq!(object["mesh"], serde_json::json!({"ranks": 8, "pp": 2, "dp": 2, "cp": 1, "tp": 2, "ep": 1}));
    assert_eq!(
        (&object["schedule"], &object["micro_batches"], &object["micro_batch"]),
        (&"zb-h1".into(), &4.into(), &3.into())
    );
    assert_eq!(
        (object["parameters"].as_u64(), object["memory_bytes"].as_array().map(Vec::len)),
        (Some(834_304), Some(8))
    );
    // ZB-H1: (p - 1)(F + B - W) of m (F + B + W) + that, at F = B = W.
    assert!((object["bubble_rate"].as_f64().expect("a rate") - 1.0 / 13.0).abs() < 1e-12);
    let number =
        |value: &serde_json::Value, key: &str| value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"));
    let sent = &object["sent_bytes_a_step"];
    let kinds = ["data", "experts", "tensor", "context", "pipeline", "world"].map(|kind| number(sent, kind));
    assert_eq!(kinds.iter().sum::<u64>(), number(sent, "total"));
    assert!(kinds[0] > 0 && kinds[1] == 0 && kinds[2] > 0 && kinds[3] == 0 && kinds[4] > 0, "{sent}");
    let largest = number(&object, "largest_rank") as usize;
    for (rank, held) in object["memory_bytes"].as_array().expect("a list").iter().enumerate() {
        let classes = held.as_object().expect("classes").iter().filter(|(class, _)| *class != "total");
        assert_eq!(
            classes.map(|(_, bytes)| bytes.as_u64().expect("bytes")).sum::<u64>(),
            number(held, "total"),
            "rank {rank}"
        );
        assert!(number(held, "total") <= number(&object["memory_bytes"][largest], "total"), "rank {rank}");
    }
    refused(&mut warpweft(&["train", "--json", "--ranks", "1"]), &["--json is for --dry-run", "log.jsonl"]);
    assert!(!out.exists(), "nothing is written");
}
