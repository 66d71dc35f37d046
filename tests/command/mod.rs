//! Running the `warpweft` command as a user does, with a deadline, and looking at what it leaves.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod library;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// No run of these tests takes longer on two cores that others use as well.
const DEADLINE: Duration = Duration::from_secs(240);

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command without the variables by which a launcher around these tests would change its meaning.
pub(crate) fn warpweft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpweft"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["WARPWEFT_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_"].iter().any(|start| text.starts_with(start))
        {
            command.env_remove(&name);
        }
    }
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command
}

/// Starts and waits.
pub(crate) fn run(command: &mut Command) -> Finished {
    finish(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

/// Waits for the end; a run past the deadline is killed and fails the test.
pub(crate) fn finish(mut child: Child) -> Finished {
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let started = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child's status can be asked for") {
            Some(status) => break status.code(),
            None if started.elapsed() > DEADLINE => {
                child.kill().expect("a child can be killed");
                child.wait().expect("a killed child ends");
                panic!("the command did not end within {DEADLINE:?}");
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("the reader ends with the pipe");
    Finished { status, stdout: text(stdout), stderr: text(stderr) }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs it and expects success.
pub(crate) fn succeeds(command: &mut Command) -> Finished {
    let finished = run(command);
    assert_eq!(finished.status, Some(0), "{command:?}: {}\n{}", finished.stderr, finished.stdout);
    finished
}

/// Runs it and expects exit status 2 and one sentence that holds all the words.
pub(crate) fn refused(command: &mut Command, words: &[&str]) {
    let finished = run(command);
    let said = finished.stderr.trim();
    assert_eq!(finished.status, Some(2), "{command:?}: {said}\n{}", finished.stdout);
    assert_eq!(said.lines().count(), 1, "{command:?}: not one sentence: {said}");
    for word in words {
        assert!(said.contains(word), "{command:?}: `{word}` is not in: {said}");
    }
}

/// Training of a model so small that a step takes a millisecond or two: `train`, the flags, and the folder.
pub(crate) fn train(out: &Path, flags: &[&str]) -> Command {
    let small =
        "train --layers 2 --channels 32 --heads 4 --context 32 --batch 12 --sample 0 --eval-every 0 --threads 1";
    let mut command = warpweft(&small.split(' ').collect::<Vec<_>>());
    command.arg("--out").arg(out).args(flags);
    command
}

/// Every line of a run's log.
pub(crate) fn log(out: &Path) -> Vec<serde_json::Value> {
    let path = out.join("log.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")));
    lines.collect()
}

/// The loss of every step, in order.
pub(crate) fn losses(out: &Path) -> Vec<f64> {
    let log = log(out);
    let losses = log.iter().map(|line| line["loss"].as_f64().unwrap_or_else(|| panic!("no loss in {line}")));
    losses.collect()
}
