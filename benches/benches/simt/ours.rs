//! The kernels of `ptxvm/tests/counts`, whose results and costs are tested there, on larger inputs.

use warpweft_ptxvm::system::{Device, Launch};
use warpweft_ptxvm::types::Target;

use crate::Work;

/// Rows of softmax and layer norm, a block each, and their length.
const ROWS: u32 = 864;
const COLUMNS: u32 = 1000;
/// Segments of the scan, a block each, and their steps of 512 values.
const SEGMENTS: u32 = 432;
const STEPS: u32 = 4;

fn work(name: &str, text: &str, kernel: &str, launch: impl FnOnce(&Device, Launch) -> Launch, grid: u32) -> Work {
    let device = Device::new(Target::SM_80).expect("a device");
    let module = device.load(text).expect("the module compiles");
    let begun = module.kernel(kernel).expect("the kernel").launch([grid, 1, 1], [128, 1, 1]);
    Work { name: format!("ours: {name}"), launches: vec![launch(&device, begun)], _memory: Vec::new() }
}

/// Values about 1.
fn floats(count: u32) -> Vec<f32> {
    (0..count).map(|at| 0.5 + (at % 1021) as f32 / 1021.0).collect()
}

pub(crate) fn all() -> Vec<Work> {
    let bytes = u64::from(ROWS * COLUMNS) * 4;
    let softmax = |device: &Device, launch: Launch| {
        let out = device.allocate(bytes).expect("memory");
        launch.arg(&out).arg(&device.upload(&floats(ROWS * COLUMNS)).expect("memory")).arg(COLUMNS)
    };
    let layer_norm = |device: &Device, launch: Launch| {
        let out = device.allocate(bytes).expect("memory");
        let launch = launch.arg(&out).arg(&device.upload(&floats(ROWS * COLUMNS)).expect("memory"));
        let weights = device.upload(&floats(COLUMNS)).expect("memory");
        launch.arg(&weights).arg(&weights).arg(COLUMNS).arg(1e-5f32)
    };
    let scan = |device: &Device, launch: Launch| {
        let values: Vec<u32> = (0..SEGMENTS * STEPS * 512).collect();
        let out = device.allocate(values.len() as u64 * 4).expect("memory");
        launch.arg(&out).arg(&device.upload(&values).expect("memory")).arg(STEPS)
    };
    vec![
        work(
            "softmax, f32, 864 rows of 1000",
            include_str!("../../../ptxvm/tests/counts/softmax.ptx"),
            "softmax",
            softmax,
            ROWS,
        ),
        work(
            "layer norm, f32, 864 rows of 1000",
            include_str!("../../../ptxvm/tests/counts/layer_norm.ptx"),
            "layer_norm",
            layer_norm,
            ROWS,
        ),
        work(
            "scan, u32, 432 segments of 2048",
            include_str!("../../../ptxvm/tests/counts/scan.ptx"),
            "scan",
            scan,
            SEGMENTS,
        ),
    ]
}
