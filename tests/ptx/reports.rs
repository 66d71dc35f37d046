//! Exit status 1: what a check found, as text and as JSON.

use serde_json::{Value, json};

use super::command::{Finished, run, warpweft};
use super::{Folder, floats, kernels, saxpy_job};

fn vectors(arguments: &[&str]) -> Finished {
    run(warpweft(&["ptx", "run", &kernels("vectors.ptx")]).args(arguments))
}

/// Runs it and expects an error of one check, in JSON.
fn reported(arguments: &[&str], check: &str) -> Value {
    let finished = vectors(&[arguments, &["--json"]].concat());
    assert_eq!(finished.status, Some(1), "{arguments:?}: {}{}", finished.stdout, finished.stderr);
    let value: Value = serde_json::from_str(&finished.stdout).expect("one JSON object");
    assert_eq!(value["status"], 1);
    let reports = value["launches"][0]["reports"].as_array().expect("reports");
    let found = reports.iter().find(|report| report["check"] == check && report["severity"] == "error");
    found.unwrap_or_else(|| panic!("{check} says nothing: {value:#}")).clone()
}

const SAXPY: [&str; 4] = ["--kernel", "saxpy", "--block", "128"];

#[test]
fn an_access_past_a_buffer() {
    let arguments = [&SAXPY[..], &["--arg", "x=buf:508=zero", "--arg", "buf:512=zero", "--arg", "f32:1"]].concat();
    let report = reported(&arguments, "memcheck");
    assert_eq!((&report["place"]["lanes"], &report["place"]["warp"]), (&json!([31]), &json!(3)));
    assert_eq!(report["place"]["instruction"], "ld.global.f32 %f2, [%rd6];");
    let near = report["allocation"].as_str().expect("what is near");
    assert!(near.starts_with("0 bytes past the end of `x` (508 bytes at 0x"), "{near}");
    let replay = report["replay"].as_str().expect("how to see it again");
    assert!(replay.starts_with("warpweft ptx run ") && replay.contains("--arg x=buf:508=zero"), "{replay}");
    let text = vectors(&arguments);
    assert_eq!(text.status, Some(1));
    assert!(text.stdout.contains("memcheck") && text.stdout.contains("`x`"), "{}", text.stdout);

    // Without any check it is still an error: the kernel cannot go on.
    reported(&[&arguments[..], &["--check", "none"]].concat(), "execution");
}

#[test]
fn a_value_that_nobody_wrote() {
    let arguments = [&SAXPY[..], &["--arg", "x=buf:512", "--arg", "buf:512=zero", "--arg", "f32:1"]].concat();
    reported(&arguments, "initcheck");
    let without = vectors(&[&arguments[..], &["--check", "memcheck,racecheck"]].concat());
    assert_eq!(without.status, Some(0), "{}", without.stdout);
}

#[test]
fn the_replay_of_a_report_is_the_same_report() {
    let arguments =
        ["--kernel", "neighbours", "--block", "64", "--shared", "256", "--arg", "buf:256", "--arg", "u32:0"];
    let seeds = ["--schedule", "random", "--seed", "3", "--json"];
    let first = vectors(&[&arguments[..], &seeds].concat());
    let value: Value = serde_json::from_str(&first.stdout).expect("one JSON object");
    let replay = value["launches"][0]["reports"][0]["replay"].as_str().expect("a command");
    let words = replay.strip_prefix("warpweft ").expect("the command").split(' ').collect::<Vec<_>>();
    let again = run(warpweft(&words).arg("--json"));
    assert_eq!((again.status, again.stdout), (Some(1), first.stdout));
}

#[test]
fn a_missing_barrier_and_its_right_twin() {
    let with = |wait| ["--kernel", "neighbours", "--block", "64", "--shared", "256", "--arg", "buf:256", "--arg", wait];
    let report = reported(&with("u32:0"), "racecheck");
    assert_eq!(report["kernel"], "neighbours");
    let right = vectors(&with("u32:1"));
    assert_eq!(right.status, Some(0), "{}", right.stdout);
}

#[test]
fn a_kernel_without_end_stops_at_the_limit() {
    for check in ["all", "none"] {
        let report = reported(&["--kernel", "spin", "--limit", "100000", "--check", check], "execution");
        assert_eq!(report["kind"], "limit");
        assert!(report["message"].as_str().expect("a sentence").contains("100000"), "{report}");
    }
}

#[test]
fn after_a_failure_the_next_launch_does_not_run_and_memory_is_dumped() {
    let folder = Folder::new();
    let mut job = saxpy_job(&folder);
    job["launches"][0]["grid"] = json!([1]);
    job["launches"][0]["kernel"] = json!("spin");
    job["launches"][0]["params"] = json!([]);
    job["limit"] = json!(10000);
    let finished = super::job(&folder.job(&job), &[]);
    assert_eq!(finished.status, Some(1), "{}", finished.stderr);
    let told = "kernel `saxpy_struct` was not launched: the device stopped before it";
    assert!(finished.stdout.contains(told), "{}", finished.stdout);
    assert_eq!(floats(&folder.path("out.bin"))[10], 1.0);
}
