//! `warpweft kernels`: every op on the software device and, through the stand-in driver, on the path of a real GPU.
#![forbid(unsafe_code)]

mod command;

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

#[test]
fn every_op_is_right_through_the_driver() {
    let folder = stand_in();
    let mut command = warpweft(&["kernels", "check", "--device", "cuda"]);
    let said = succeeds(command.env("LD_LIBRARY_PATH", folder.path())).stdout;
    assert!(said.contains("compute capability 8.0") && !said.contains("WRONG"), "{said}");
}

#[test]
fn the_script_for_a_gpu_goes_through_all_its_stages() {
    let (driver, out) = (stand_in(), tempfile::tempdir().unwrap());
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu-check"));
    command.args(["--small", env!("CARGO_BIN_EXE_warpweft")]).arg(out.path());
    command.env("LD_LIBRARY_PATH", driver.path()).env("TORCH_PYTHON", "false");
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let finished = run(&mut command);
    assert_eq!(finished.status, Some(0), "{finished:?}");
    for (file, text) in [("check.txt", "right"), ("perf.txt", "matmul")] {
        let said = std::fs::read_to_string(out.path().join(file)).unwrap();
        assert!(said.contains(text), "{file}: {said}");
    }
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
    assert_eq!(said.lines().count(), 18, "{said}");
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
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu-check");
        let mut command = Command::new(script);
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
