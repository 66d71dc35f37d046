//! Triton's softmax and layer norm and CUB's scan, from the folder that `WARPWEFT_FOREIGN_KERNELS` names and
//! `scripts/foreign-kernels` has made. None of their PTX is committed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpweft_ptxvm::system::{Buffer, Device, Launch, Module};
use warpweft_ptxvm::types::Target;

use crate::Work;

/// Nothing where the variable is not set.
pub(crate) fn all() -> Vec<Work> {
    let Some(folder) = std::env::var_os("WARPWEFT_FOREIGN_KERNELS").map(PathBuf::from) else { return Vec::new() };
    vec![softmax(&folder), layer_norm(&folder), scan(&folder)]
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&text(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| number.try_into().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

/// A kernel of Triton, and its launch with the block and the shared memory that it was compiled for.
fn triton(folder: &Path, name: &str, grid: u32) -> (Device, Launch) {
    let about = json(&folder.join(format!("triton_{name}.json")));
    let device = Device::new(Target::SM_80).expect("a device");
    let module = device.load(&text(&folder.join(format!("triton_{name}.ptx")))).expect("the module compiles");
    let kernel = module.kernel(about["kernel"].as_str().expect("a kernel's name")).expect("the kernel");
    let launch = kernel.launch([grid, 1, 1], [number(&about["block"]), 1, 1]).shared(number(&about["shared"]));
    (device, launch)
}

fn zeros(device: &Device, count: u32) -> Buffer {
    device.upload(&vec![0f32; count as usize]).expect("memory")
}

/// `softmax(out, in, rows, columns, stride, scratch, scratch)`: blocks take rows in turn.
fn softmax(folder: &Path) -> Work {
    let (rows, columns) = (1728, 1000u32);
    let (device, launch) = triton(folder, "softmax_f32", 432);
    let scratch = zeros(&device, 4);
    let out = device.allocate(u64::from(rows * columns) * 4).expect("memory");
    let launch = launch.arg(&out).arg(&zeros(&device, rows * columns));
    let launch = launch.arg(rows).arg(columns).arg(columns).arg(&scratch).arg(&scratch);
    Work { name: "Triton: softmax, f32, 1728 rows of 1000".to_owned(), launches: vec![launch], _memory: Vec::new() }
}

/// `layer_norm(in, out, weight, bias, mean, rstd, stride, columns, epsilon, scratch, scratch)`: a block a row.
fn layer_norm(folder: &Path) -> Work {
    let (rows, columns) = (600, 1151u32);
    let (device, launch) = triton(folder, "layer_norm_f32", rows);
    let (scratch, weights) = (zeros(&device, 4), zeros(&device, columns));
    let out = |count: u32| device.allocate(u64::from(count) * 4).expect("memory");
    let launch = launch.arg(&zeros(&device, rows * columns)).arg(&out(rows * columns)).arg(&weights).arg(&weights);
    let launch = launch.arg(&out(rows)).arg(&out(rows)).arg(columns).arg(columns).arg(1e-5f32);
    let launch = launch.arg(&scratch).arg(&scratch);
    Work { name: "Triton: layer norm, f32, 600 rows of 1151".to_owned(), launches: vec![launch], _memory: Vec::new() }
}

/// What CUB's own host code launches for one device-wide scan, twenty times.
fn scan(folder: &Path) -> Work {
    let written = json(&folder.join("cub_scan.exclusive_sum_f32.json"));
    let device = Device::new(Target::SM_80).expect("a device");
    let module = device.load(&text(&folder.join("cub_scan.ptx"))).expect("the module compiles");
    let buffers = written["buffers"].as_object().expect("buffers by name");
    let made = buffers.iter().map(|(name, bytes)| {
        let buffer = device.upload(&vec![0u8; number(bytes) as usize]).expect("memory");
        (name.as_str(), buffer)
    });
    let buffers: BTreeMap<&str, Buffer> = made.collect();
    let steps = written["steps"].as_array().expect("a list of launches");
    let launches: Vec<Launch> = steps.iter().map(|step| replayed(&module, step, &buffers)).collect();
    let launches = std::iter::repeat_n(launches, 20).flatten().collect();
    Work {
        name: "CUB: device scan, f32, 12345 values, 20 times".to_owned(),
        launches,
        _memory: buffers.into_values().collect(),
    }
}

fn replayed(module: &Module, step: &Value, buffers: &BTreeMap<&str, Buffer>) -> Launch {
    let shape = |key: &str| [0, 1, 2].map(|axis| number(&step[key][axis]));
    let kernel = module.kernel(step["kernel"].as_str().expect("a kernel's name")).expect("the kernel");
    let launch = kernel.launch(shape("grid"), shape("block")).shared(number(&step["shared"]));
    step["params"].as_array().expect("a list of parameters").iter().fold(launch, |launch, param| {
        let digits = param["bytes"].as_str().expect("bytes in hexadecimal");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
        let mut bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        for pointer in param["pointers"].as_array().expect("a list of pointers") {
            let buffer = &buffers[pointer["ptr"].as_str().expect("a buffer's name")];
            let (at, offset) = (number(&pointer["at"]) as usize, u64::from(number(&pointer["offset"])));
            bytes[at..at + 8].copy_from_slice(&(buffer.address() + offset).to_le_bytes());
        }
        launch.arg(bytes.as_slice())
    })
}
