//! The numbers do not depend on how the work is spread: ranks, transports, processes or threads, one run or two halves.
#![forbid(unsafe_code)]

mod command;

use std::path::Path;

use command::{log, losses, succeeds, train};

/// The loss may differ by the order in which ranks' sums are added up; this is what `docs/numerics.md` allows in f32.
const RELATIVE: f64 = 2e-6;

fn agree(reference: &[f64], out: &Path, what: &str) {
    let given = losses(out);
    assert_eq!(given.len(), reference.len(), "{what}");
    for (step, (a, b)) in reference.iter().zip(&given).enumerate() {
        assert!(((a - b) / a).abs() <= RELATIVE, "{what}: step {}: loss {b}, with one rank {a}", step + 1);
    }
}

#[test]
fn losses_agree_for_all_ranks_and_transports() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = folder.path().join("one");
    succeeds(&mut train(&one, &["--ranks", "1", "--steps", "100"]));
    let reference = losses(&one);
    assert_eq!(reference.len(), 100);
    assert!((reference[0] - 256f64.ln()).abs() < 0.1, "first loss {}", reference[0]);
    assert!(reference[99] < reference[0] - 1.0, "the loss does not fall: {} to {}", reference[0], reference[99]);
    for ranks in ["2", "3", "4"] {
        for transport in ["thread", "shm", "tcp"] {
            let out = folder.path().join(format!("{ranks}-{transport}"));
            succeeds(&mut train(&out, &["--ranks", ranks, "--transport", transport, "--steps", "100"]));
            agree(&reference, &out, &format!("{ranks} ranks over {transport}"));
        }
    }
}

#[test]
fn an_uneven_batch_and_micro_batches_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = folder.path().join("one");
    let steps = ["--steps", "30", "--batch", "7", "--model", "llama", "--kv-heads", "2"];
    succeeds(&mut train_with(&one, &steps, &["--ranks", "1"]));
    let reference = losses(&one);
    for flags in [["--ranks", "2", "--micro-batch", "3"], ["--ranks", "3", "--micro-batch", "1"]] {
        let out = folder.path().join(flags[1]);
        succeeds(&mut train_with(&out, &steps, &flags));
        agree(&reference, &out, &format!("{flags:?}"));
    }
}

fn train_with(out: &Path, shared: &[&str], flags: &[&str]) -> std::process::Command {
    // The flags of `train` hold a batch already: given twice it would be refused.
    let mut command = command::warpweft(&["train", "--layers", "2", "--channels", "32", "--heads", "4"]);
    command.args(["--context", "32", "--sample", "0", "--eval-every", "0", "--threads", "1"]);
    command.arg("--out").arg(out).args(shared).args(flags);
    command
}

#[test]
fn ranks_that_torchrun_starts_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, out) = (folder.path().join("one"), folder.path().join("two"));
    succeeds(&mut train(&one, &["--ranks", "1", "--steps", "20"]));
    // A port that was free a moment ago; nobody else asks the system for this one so soon.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("it is bound").port().to_string();
    drop(free);
    let ranks = ["0", "1"].map(|rank| {
        let mut command = train(&out, &["--steps", "20"]);
        command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]).env("WARPWEFT_SECRET", "7".repeat(64));
        command.spawn().expect("the command starts")
    });
    let [first, second] = ranks.map(command::finish);
    assert_eq!((first.status, second.status), (Some(0), Some(0)), "{}\n{}", first.stderr, second.stderr);
    assert_eq!(second.stdout, "", "only rank 0 reports");
    agree(&losses(&one), &out, "two ranks that torchrun started");
}

#[test]
fn two_runs_of_one_command_are_equal_to_the_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for flags in [["--ranks", "3", "--transport", "shm"], ["--ranks", "2", "--transport", "tcp"]] {
        let outs = ["first", "second"].map(|name| folder.path().join(format!("{name}-{}", flags[3])));
        for out in &outs {
            succeeds(&mut train(out, &[&flags[..], &["--steps", "40"]].concat()));
        }
        let bits = |out: &Path| log(out).iter().map(|line| [line["loss"].clone(), line["grad_norm"].clone()]).collect();
        let [first, second]: [Vec<_>; 2] = [bits(&outs[0]), bits(&outs[1])];
        assert_eq!(first, second, "{flags:?}");
    }
}

#[test]
fn a_resumed_run_is_equal_to_the_unbroken_one_to_the_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for dtype in ["f32", "bf16"] {
        let whole = folder.path().join(format!("whole-{dtype}"));
        succeeds(&mut train(&whole, &["--ranks", "2", "--steps", "16", "--save-every", "8", "--dtype", dtype]));
        let unbroken = log(&whole);
        let resumed = folder.path().join(format!("resumed-{dtype}"));
        let checkpoint = whole.join("checkpoints/step-000008");
        assert!(checkpoint.is_dir(), "the run left no {}", checkpoint.display());
        let mut command = command::warpweft(&["train", "--resume"]);
        succeeds(command.arg(checkpoint).arg("--out").arg(&resumed));
        // The log of the first half goes along to the new folder.
        let resumed = log(&resumed);
        assert_eq!(resumed[..8], unbroken[..8], "{dtype}");
        assert_eq!(resumed.len(), unbroken.len(), "{dtype}");
        for (a, b) in unbroken.iter().zip(&resumed) {
            for key in ["step", "loss", "grad_norm", "lr", "tokens"] {
                assert_eq!(a[key], b[key], "{dtype}: {key} of step {}", a["step"]);
            }
        }
    }
}

#[test]
fn the_log_has_its_keys_and_the_last_line_names_the_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("run");
    let mut command =
        command::warpweft(&["train", "--layers", "1", "--channels", "16", "--heads", "2", "--context", "16"]);
    command.args(["--batch", "4", "--steps", "6", "--eval-every", "3", "--sample", "5", "--ranks", "2"]);
    let finished = succeeds(command.arg("--out").arg(&out));
    let always = [
        "backward_ms",
        "comm_ms",
        "exposed_comm_ms",
        "forward_ms",
        "grad_norm",
        "loss",
        "lr",
        "mfu",
        "optimizer_ms",
        "peak_bytes",
        "sent_bytes",
        "step",
        "step_ms",
        "tokens",
        "tokens_per_s",
        "waiting_ms",
    ];
    let log = log(&out);
    assert_eq!(log.len(), 6);
    for (index, line) in log.iter().enumerate() {
        let keys: std::collections::BTreeSet<&str> =
            line.as_object().expect("an object a line").keys().map(String::as_str).collect();
        let mut wanted = std::collections::BTreeSet::from(always);
        if (index + 1) % 3 == 0 {
            wanted.insert("val_loss");
        }
        assert_eq!(keys, wanted, "line {}", index + 1);
    }
    let last = finished.stdout.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains("log.jsonl") && last.contains(&*out.to_string_lossy()), "last line: {last}");
}
