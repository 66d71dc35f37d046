//! What the products cost the hardware, by the software device's counters: no conflicts between banks of shared memory, operands
//! in 16 bytes a lane, each byte of an operand read once a tile.
#![forbid(unsafe_code)]

mod common;

use common::normal;
use warpweft_device::ptxvm::observe::profile::{Profile, Profiler};
use warpweft_device::ptxvm::system::{Device, Pointer};
use warpweft_device::ptxvm::types::Target;
use warpweft_device::{Float, bf16};
use warpweft_kernels::programs;

/// One tile of each product of `m`, `n`, `k` that are its size: the kernel's name without the type, its two operands' elements
/// and its result's bytes.
fn profile<T: Float>(kernel: &str, [m, n, k]: [usize; 3], threads: u32) -> Profile {
    let program = programs().iter().find(|program| program.op == "matmul").unwrap();
    let device = Device::new(Target::SM_80).unwrap();
    let module = device.load(program.ptx).unwrap();
    let mut groups = [0u32; 257];
    groups[1] = m as u32;
    let (weight, forward) = (kernel.contains("weight"), kernel.contains("forward"));
    let (a, b) = if weight {
        (m * k, m * n)
    } else if forward {
        (m * k, n * k)
    } else {
        (m * n, n * k)
    };
    let [a, b] = [a, b].map(|len| device.upload(&normal::<T>(len, 1)).unwrap());
    let bytes = if weight { n * k * 4 } else { m * if forward { n } else { k } * size_of::<T>() };
    let y = device.upload(&vec![0u8; bytes]).unwrap();
    let launch = module.kernel(&format!("{kernel}_{}", T::DTYPE)).unwrap().launch([1, 1, 1], [threads, 1, 1]);
    let null = Pointer(0);
    let launch = launch.shared(96 << 10).arg(&a).arg(&b);
    let launch = match (weight, forward) {
        (true, _) => launch.arg(&y),
        (_, true) => launch.arg(null).arg(null).arg(null).arg(&y),
        _ => launch.arg(null).arg(null).arg(&y).arg(null),
    };
    let launch = launch.arg(bytemuck::cast_slice::<u32, u8>(&groups)).arg(m as u32).arg(n as u32).arg(k as u32);
    let launch = if weight { launch.arg(1f32).arg(1u32) } else { launch.arg(1f32).arg(0u32).arg(1u32) };
    let mut profiler = Profiler::default();
    assert_eq!(launch.observe(&mut profiler).unwrap().failure(), None);
    profiler.finish()
}

/// Instructions that more passes over the banks were made for than they need.
fn conflicts(of: &Profile) -> Vec<String> {
    let lines = of.instructions.iter().filter(|line| line.conflicts > 0);
    lines
        .map(|line| format!("{} of {} at line {}: {}", line.conflicts, line.wavefronts, line.line, line.text))
        .collect()
}

const KERNELS: [&str; 3] = ["matmul_forward", "matmul_backward_input", "matmul_backward_weight"];

#[test]
fn tensor_products_have_no_bank_conflicts_and_read_16_bytes_a_lane() {
    for kernel in KERNELS {
        for (variant, tile) in [("large", 128), ("small", 64)] {
            // Two tiles' edges of the result, and eight steps.
            let sizes = match kernel {
                "matmul_forward" => [tile, tile, 256],
                "matmul_backward_input" => [tile, 256, tile],
                _ => [256, tile, tile],
            };
            let of = profile::<bf16>(&format!("{kernel}_{variant}"), sizes, 128);
            let what = format!("{kernel} {variant}");
            assert_eq!(conflicts(&of), Vec::<String>::new(), "{what}");
            let copies: Vec<_> = of.instructions.iter().filter(|line| line.text.contains("cp.async.cg")).collect();
            let bytes: u64 = copies.iter().map(|line| line.sectors * 32).sum();
            assert_eq!(bytes, 2 * (tile * 256 * 2) as u64, "{what}: each byte of the operands is read once");
            assert!(copies.iter().all(|line| line.text.replace(' ', "").contains(",16")), "{what}");
            assert_eq!(of.tensor_operations, 2 * (tile * tile * 256) as u64, "{what}");
            assert_eq!(of.local_bytes, 0, "{what}");
        }
    }
}

#[test]
fn products_in_f32_have_no_bank_conflicts() {
    for kernel in KERNELS {
        for (variant, tile, threads) in [("large", 128, 256), ("small", 64, 64)] {
            let sizes = match kernel {
                "matmul_forward" => [tile, tile, 64],
                "matmul_backward_input" => [tile, 64, tile],
                _ => [64, tile, tile],
            };
            let of = profile::<f32>(&format!("{kernel}_{variant}"), sizes, threads);
            assert_eq!(conflicts(&of), Vec::<String>::new(), "{kernel} {variant}");
            assert_eq!(of.local_bytes, 0, "{kernel} {variant}");
        }
    }
}
