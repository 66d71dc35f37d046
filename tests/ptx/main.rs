//! `warpweft ptx` as a user runs it: jobs, flags, exit statuses, and what it prints.
#![forbid(unsafe_code)]

mod bad_jobs;
mod check;
#[path = "../command/mod.rs"]
mod command;
mod profile;
mod reports;

use std::path::{Path, PathBuf};

use command::{Finished, run, succeeds, warpweft};
use serde_json::{Value, json};

/// A kernel file of these tests.
pub(crate) fn kernels(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "ptx", "kernels", name].iter().collect();
    path.to_string_lossy().into_owned()
}

/// A folder for a job and its files.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("a file can be written");
        self.path(name).to_string_lossy().into_owned()
    }

    pub(crate) fn job(&self, job: &Value) -> String {
        self.write("job.json", job.to_string().as_bytes())
    }
}

/// Runs a job with more flags.
pub(crate) fn job(path: &str, flags: &[&str]) -> Finished {
    run(warpweft(&["ptx", "run", "--job", path]).args(flags))
}

pub(crate) fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

pub(crate) fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("the dump is there");
    bytes.chunks(4).map(|chunk| f32::from_le_bytes(chunk.try_into().expect("whole floats"))).collect()
}

/// 1000 elements of y = 1.5 x + y, twice: a struct with two addresses, 1.5 and 1000.
pub(crate) fn saxpy_job(folder: &Folder) -> Value {
    folder.write("x.bin", &bytes((0..1000).map(|at| at as f32)));
    folder.write("y.bin", &bytes((0..1000).map(|at| 0.1 * at as f32)));
    let launch = json!({
        "kernel": "saxpy_struct", "grid": [8, 1, 1], "block": [128, 1, 1],
        "params": [{
            "bytes": "000000000000000000000000000000000000c03fe8030000",
            "pointers": [{"at": 0, "ptr": "x", "offset": 0}, {"at": 8, "ptr": "y"}],
        }],
    });
    json!({
        "device": "sm_80", "module": kernels("vectors.ptx"),
        "buffers": {"x": {"bytes": 4000, "init": "x.bin"}, "y": {"bytes": 4000, "init": "y.bin"}},
        "launches": [launch, launch], "dump": {"y": "out.bin"}, "check": "all", "seed": 1, "schedule": "rr",
        "async": "latest", "divergence": "reconverge", "approx": "rounded", "numerics": "exact", "limit": 2000000,
    })
}

#[test]
fn a_job_launches_twice_on_one_memory_with_addresses_in_a_struct() {
    let folder = Folder::new();
    let path = folder.job(&saxpy_job(&folder));
    let finished = job(&path, &[]);
    assert_eq!(finished.status, Some(0), "{}{}", finished.stdout, finished.stderr);
    let expected = (0..1000).map(|at| {
        let x = at as f32;
        1.5f32.mul_add(x, 1.5f32.mul_add(x, 0.1 * x))
    });
    assert_eq!(floats(&folder.path("out.bin")), expected.collect::<Vec<f32>>());
    assert_eq!(finished.stdout.matches("kernel `saxpy_struct`, 8x1x1 blocks of 128x1x1 threads: ran ").count(), 2);
}

#[test]
fn the_same_by_flags() {
    let folder = Folder::new();
    let x = folder.write("x.bin", &bytes((0..256).map(|at| at as f32)));
    let out = folder.path("out.bin").to_string_lossy().into_owned();
    let arguments = ["--arg", &format!("buf:{x}"), "--arg", "y=buf:1K=zero", "--arg", "f32:0.5"];
    let shape = ["--kernel", "saxpy", "--grid", "2", "--block", "128,1", "--dump", &format!("y={out}")];
    succeeds(warpweft(&["ptx", "run", &kernels("vectors.ptx")]).args(arguments).args(shape));
    assert_eq!(floats(&folder.path("out.bin")), (0..256).map(|at| 0.5 * at as f32).collect::<Vec<f32>>());

    // A struct, an address inside a buffer, and x used twice.
    let arguments = [
        "--arg".to_owned(),
        format!("x=buf:{x}"),
        "--arg".to_owned(),
        "ptr:x+512".to_owned(),
        "--arg=f32:-2".to_owned(),
    ];
    let shape = ["--kernel", "saxpy", "--block", "128", "--dump", &format!("x={out}"), "--check", "none"];
    succeeds(warpweft(&["ptx", "run", &kernels("vectors.ptx")]).args(arguments).args(shape));
    let expected = (0..256).map(|at| if at < 128 { at as f32 } else { at as f32 - 2.0 * (at - 128) as f32 });
    assert_eq!(floats(&folder.path("out.bin")), expected.collect::<Vec<f32>>());
}

#[test]
fn outputs_and_json_are_the_same_run_after_run() {
    let folder = Folder::new();
    let path = folder.job(&saxpy_job(&folder));
    let flags = ["--json", "--schedule", "random", "--seed", "5", "--divergence", "independent"];
    let (first, dump) = (job(&path, &flags), std::fs::read(folder.path("out.bin")).expect("the dump is there"));
    let again = job(&path, &flags);
    assert_eq!(first.stdout, again.stdout);
    assert_eq!(dump, std::fs::read(folder.path("out.bin")).expect("the dump is there"));
    let value: Value = serde_json::from_str(&first.stdout).expect("one JSON object");
    assert_eq!((&value["status"], &value["errors"]), (&json!(0), &json!(0)));
    let launches = value["launches"].as_array().expect("launches");
    assert_eq!(launches.len(), 2);
    assert_eq!(launches[0]["grid"], json!([8, 1, 1]));
    // 32 warps of 10 to 19 instructions, more where one falls apart.
    let instructions = launches[0]["warp_instructions"].as_u64().expect("a count");
    assert!((32 * 10..=32 * 40).contains(&instructions), "{instructions}");
}

#[test]
fn what_a_kernel_prints_is_shown() {
    let shape = ["--block", "32", "--arg", "u32:0xbeef"];
    let finished = succeeds(warpweft(&["ptx", "run", &kernels("print.ptx")]).args(shape));
    assert!(finished.stdout.starts_with("lane 3 says beef\n"), "{}", finished.stdout);
    let finished = succeeds(warpweft(&["ptx", "run", &kernels("print.ptx"), "--json"]).args(shape));
    let value: Value = serde_json::from_str(&finished.stdout).expect("one JSON object");
    assert_eq!(value["launches"][0]["output"], "lane 3 says beef\n");
}

#[test]
fn a_buffer_past_32_bits_takes_little_time() {
    let started = std::time::Instant::now();
    let arguments = ["--arg", "x=buf:5G=zero", "--arg", "ptr:x+5368709000", "--arg", "f32:1"];
    let shape = ["--kernel", "saxpy", "--block", "30"];
    succeeds(warpweft(&["ptx", "run", &kernels("vectors.ptx")]).args(arguments).args(shape));
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}
