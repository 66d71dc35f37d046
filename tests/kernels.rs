//! `warpweft kernels`: every op on the software device and, through the stand-in driver, on the path of a real GPU.
#![forbid(unsafe_code)]

mod command;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{library::stand_in, refused, run, succeeds, warpweft};

#[test]
fn every_op_is_right_on_the_software_device() {
    let said = succeeds(&mut warpweft(&["kernels", "check"])).stdout;
    assert!(said.starts_with("# a software device of sm_80") && !said.contains("WRONG"), "{said}");
    let (right, count) = said.trim_end().lines().last().unwrap()[2..].split_once(" of ").unwrap();
    assert_eq!(count, format!("{right} right"), "{said}");
    for op in ops() {
        assert!(said.contains(&format!("  {op} ")), "no case of {op}: {said}");
    }
}

/// What no case launches is neither checked on a GPU nor counted.
#[test]
fn every_kernel_is_launched_by_a_case() {
    let json = |what: &str| succeeds(&mut warpweft(&what.split(' ').collect::<Vec<_>>())).stdout;
    let listed: serde_json::Value = serde_json::from_str(&json("kernels list --json")).unwrap();
    let of_op = |op: &serde_json::Value| op["kernels"].as_array().unwrap().clone();
    let every: Vec<_> = listed.as_object().unwrap().values().flat_map(of_op).collect();
    let mut launched = BTreeSet::new();
    for line in json("kernels count --small --json").lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        launched.extend(of_op(&case).iter().map(|launch| launch["kernel"].as_str().unwrap().to_owned()));
    }
    let never: Vec<_> = every.iter().filter(|kernel| !launched.contains(kernel.as_str().unwrap())).collect();
    assert!(every.len() > 100 && never.is_empty(), "no case launches {never:?}");
}

/// Of every public call that takes a stream there is a case.
#[test]
fn every_call_has_a_case() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let cases: String = sources(&root.join("src/cli/kernels/cases")).iter().map(text).collect();
    let mut calls = 0;
    for path in sources(&root.join("kernels/src")) {
        let source = text(&path);
        let folder = path.parent().unwrap().file_stem().unwrap().to_str().unwrap();
        let module = if folder == "moe" { path.file_stem().unwrap().to_str().unwrap() } else { folder };
        for call in source.split("\npub fn ").skip(1) {
            let (head, name) = (call.split(") ").next().unwrap(), call.split(['<', '(']).next().unwrap());
            if head.contains("stream: &Stream") {
                calls += 1;
                assert!(cases.contains(&format!("{module}::{name}(")), "no case of {module}::{name}");
            }
        }
    }
    assert!(calls > 45, "only {calls} calls were found");
}

/// Files of Rust in a folder and those below.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
        false => Vec::new(),
    };
    entries.flat_map(of).collect()
}

/// The script for a GPU goes through all its stages on the stand-in driver, beside the times of another library.
#[test]
fn every_op_is_right_through_the_driver_and_stands_beside_another_library() {
    let out = tempfile::tempdir().unwrap();
    let peer = program(
        out.path(),
        r#"[ "$1" = -c ] && exit 0
        echo '{"op": "library product", "case": "8192 x 8192 x 8192", "dtype": "bf16", "us": 1.0, "tflops": 700.0}'
        echo '{"op": "matmul", "case": "forward 136 x 72 x 264", "dtype": "bf16", "us": 4.5, "tflops": 1.0}'
        printf '{"op": "matmul", "case": "cut o'"#,
    );
    let finished = gpu_check(SCRIPT, env!("CARGO_BIN_EXE_warpweft"), out.path(), &peer);
    assert_eq!(finished.status, Some(0), "{finished:?}");
    let file = |name| std::fs::read_to_string(out.path().join(name)).unwrap();
    let checked = file("check.txt");
    assert!(checked.contains("compute capability 8.0") && !checked.contains("WRONG"), "{checked}");
    let count = |text: &str, of: &str| text.lines().filter(|line| line.starts_with(of)).count();
    let measured = file("perf.txt");
    assert_eq!(count(&measured, "  "), count(&checked, "  "), "{measured}");
    assert!(measured.contains("reaches 700.0 TFLOP/s in bf16"), "{measured}");
    let row = measured.lines().find(|line| line.contains("matmul forward 136 x 72 x 264 bf16")).unwrap();
    // Its time, and 2 * 136 * 72 * 264 operations in it.
    let theirs: Vec<_> = row.split_whitespace().rev().take(4).collect();
    assert_eq!((theirs[3], theirs[2], theirs[0]), ("4.5", "1.15", "0%"), "{row}");
    let other = measured.lines().find(|line| line.contains("matmul forward 136 x 72 x 264 f32")).unwrap();
    assert!(other.ends_with(" none") && other.matches("none").count() == 2, "{other}");
}

#[test]
fn the_script_for_a_gpu_does_without_what_was_not_carried_with_it() {
    let (carried, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = carried.path().join("gpu-check");
    std::fs::copy(SCRIPT, &script).unwrap();
    let real = env!("CARGO_BIN_EXE_warpweft");
    // One op is enough.
    let one = format!("case \"$*\" in *--op*) exec {real} \"$@\" ;; *) exec {real} \"$@\" --op cast ;; esac");
    let binary = program(carried.path(), &one);
    let finished = gpu_check(script.to_str().unwrap(), &binary, out.path(), "true");
    assert_eq!(finished.status, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("no gpu-peer beside this script"), "{finished:?}");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu-peer"), carried.path().join("gpu-peer")).unwrap();
    let finished = gpu_check(script.to_str().unwrap(), &binary, out.path(), "false");
    assert_eq!(finished.status, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("has no PyTorch that sees the card"), "{finished:?}");
    let measured = std::fs::read_to_string(out.path().join("perf.txt")).unwrap();
    assert!(measured.contains("no ceiling is known") && measured.contains("cast from f32"), "{measured}");
}

/// Five minutes are what a GPU is lent for.
#[test]
fn the_stages_of_the_script_for_a_gpu_take_five_minutes_at_most() {
    let text = std::fs::read_to_string(SCRIPT).unwrap();
    let limits = text.lines().find_map(|line| line.strip_prefix("declare -A limit=(")).unwrap().trim_end_matches(')');
    let seconds: Vec<u32> = limits.split(' ').map(|limit| limit.split_once('=').unwrap().1.parse().unwrap()).collect();
    assert_eq!(seconds.len(), 6, "{limits}");
    assert!(seconds.iter().map(|seconds| seconds + 2).sum::<u32>() <= 300, "{limits}");
    let commands = text.lines().filter(|line| line.contains("\"$binary\" kernels") || line.contains("\"$python\" "));
    assert!(commands.clone().count() == 5, "each command is a stage or within a limit");
    for command in commands {
        assert!(command.contains("within ") || command.trim_start().starts_with("stage "), "{command}");
    }
}

/// A line of the other library is of a case that there is, by its op, sizes and type.
#[test]
fn what_pytorch_is_asked_is_what_is_measured() {
    let mut peer = Command::new("python3");
    peer.args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu-peer"), "--list"]);
    peer.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ours = succeeds(&mut warpweft(&["kernels", "perf", "--list"])).stdout;
    let cases = |text: &str| -> BTreeSet<[String; 3]> {
        let objects = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        objects.map(|object| ["op", "case", "dtype"].map(|key| object[key].as_str().unwrap().to_owned())).collect()
    };
    let (ours, theirs) = (cases(&ours), cases(&succeeds(&mut peer).stdout));
    let strangers: Vec<_> =
        theirs.difference(&ours).filter(|[op, ..]| op != "copy" && op != "library product").collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    let ops = [
        "attention",
        "cast",
        "cross_entropy",
        "embedding",
        "fill",
        "layernorm",
        "matmul",
        "norm",
        "optimizer",
        "rmsnorm",
        "softmax",
        "transpose",
    ];
    for op in ops {
        assert!(theirs.iter().any(|case| case[0] == op), "PyTorch is not asked for {op}");
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu-check");

/// The script, on the stand-in driver.
fn gpu_check(script: &str, binary: &str, out: &Path, python: &str) -> command::Finished {
    let driver = stand_in();
    let mut command = Command::new(script);
    command.args(["--small", binary]).arg(out).env("LD_LIBRARY_PATH", driver.path());
    command.env("TORCH_PYTHON", python).env("PTXVM_OPTIONS", "multiprocessors=4");
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    run(&mut command)
}

/// A program of these lines of a shell.
fn program(folder: &Path, lines: &str) -> String {
    let path = folder.join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_list_has_every_kernel() {
    let said = succeeds(&mut warpweft(&["kernels", "list"])).stdout;
    assert!(said.contains("  softmax_forward_bf16\n"), "{said}");
    for op in ops() {
        assert!(said.lines().any(|line| line.starts_with(&op)), "{op}: {said}");
    }
}

#[test]
fn measuring_prints_a_line_a_case() {
    let line = "kernels perf --device software --small --iters 1 --op softmax --json";
    let said = succeeds(&mut warpweft(&line.split(' ').collect::<Vec<_>>())).stdout;
    assert_eq!(said.lines().count(), 39, "{said}");
    for line in said.lines() {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(object["us"].as_f64() > Some(0.0) && object["op"] == "softmax", "{line}");
    }
}

#[test]
fn what_is_not_there_is_refused() {
    refused(&mut warpweft(&["kernels", "check", "--op", "softmix"]), &["softmix", "kernels list"]);
    refused(&mut warpweft(&["kernels", "perf", "--device", "tpu"]), &["tpu", "cpu, software and cuda"]);
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        refused(&mut warpweft(&["kernels", "perf"]), &["cuda", "libcuda.so.1"]);
        let mut command = Command::new(SCRIPT);
        command.arg(env!("CARGO_BIN_EXE_warpweft")).env_remove("LD_LIBRARY_PATH");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let finished = run(&mut command);
        assert_eq!(finished.status, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("no device `cuda`"), "{finished:?}");
    }
}

/// The ops that the committed PTX has.
fn ops() -> Vec<String> {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/ptx")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Some ops have a file for each range of sizes, or each type: attention_64, attention_f32.
    let op = |name: String| {
        let name = name.strip_suffix(".sm_80.ptx")?;
        let (op, last) = name.rsplit_once('_').unwrap_or((name, ""));
        let variant = last == "f32" || last.parse::<u32>().is_ok();
        Some(if variant { op } else { name }.to_owned())
    };
    names.filter_map(op).collect()
}
