//! `warpweft perf` as its users run it: every collective on every transport, nccl-tests' columns, links named after its
//! programs, JSON.
#![forbid(unsafe_code)]

mod command;

use command::{run, succeeds, warpweft};

/// The numbers of the rows: size, count, then time, bandwidths and wrong elements, twice.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn every_collective_is_right_on_every_transport() {
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"] {
        for (ranks, transport) in [("2", "shm"), ("3", "tcp"), ("4", "thread"), ("1", "auto")] {
            let sizes = ["-b", "0", "-e", "200K", "-i", "66666", "-n", "2", "-c", "2"];
            let mut command = warpweft(&["perf", kind, "--ranks", ranks, "--transport", transport]);
            let text = succeeds(command.args(sizes)).stdout;
            let rows = rows(&text);
            assert_eq!(rows.len(), 4, "{kind} {ranks} {transport}: {text}");
            for row in &rows {
                assert_eq!(row.len(), 13, "{row:?}");
                assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"), "{kind} {ranks} {transport}: {text}");
            }
            assert!(text.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "{text}");
            let last = format!("# Collective test concluded: {kind}_perf\n");
            assert!(text.ends_with(&last), "{text}");
        }
    }
}

#[test]
fn every_type_and_operation_is_right() {
    for kind in ["all_reduce", "reduce_scatter"] {
        let mut command = warpweft(&["perf", kind, "--ranks", "3", "-b", "1001", "-e", "1001", "-n", "1", "-d", "all"]);
        let text = succeeds(command.args(["-o", "all"])).stdout;
        let rows = rows(&text);
        assert_eq!(rows.len(), 12 * 5);
        assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{text}");
    }
    let mut command = warpweft(&["perf", "broadcast", "--ranks", "3", "-b", "8", "-e", "8", "-r", "-1", "-d", "bf16"]);
    let roots: Vec<String> = rows(&succeeds(&mut command).stdout).into_iter().map(|row| row[4].clone()).collect();
    assert_eq!(roots, ["0", "1", "2"]);
}

#[test]
fn bandwidths_follow_from_size_and_time() {
    let mut command = warpweft(&["perf", "all_reduce", "--ranks", "4", "-b", "1M", "-e", "4M", "-f", "2", "-a", "3"]);
    let text = succeeds(command.args(["--transport", "thread", "-n", "3"])).stdout;
    let rows = rows(&text);
    assert_eq!(rows.len(), 3);
    for row in rows {
        let number = |column: usize| row[column].parse::<f64>().expect("a number");
        let algorithm = number(0) / 1e9 / (number(5) * 1e-6);
        // Two decimals are shown of each, and of the time at least four digits.
        assert!((number(6) - algorithm).abs() <= 0.005 + algorithm * 1e-3, "{row:?}");
        assert!((number(7) - algorithm * 1.5).abs() <= 0.005 + algorithm * 1.5e-3, "{row:?}");
    }
}

#[test]
fn a_link_named_after_the_program_of_nccl_tests_takes_its_arguments() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = folder.path().join("all_gather_perf");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_warpweft"), &link).expect("a link");
    let json = folder.path().join("results.json");
    let mut command = std::process::Command::new(&link);
    command.args(["-b", "1K", "-e", "2K", "-f", "2", "-n", "2", "-J"]).arg(&json);
    let finished = run(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()));
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    assert_eq!(rows(&finished.stdout).len(), 2);
    let text = std::fs::read_to_string(&json).expect("the file is there");
    let document: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(document["results"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["results"][1]["size"], 2048);
    assert_eq!(document["results"][1]["in_place"]["nwrong"], 0);
    assert_eq!(document["out_of_bounds"]["count"], 0);
}
