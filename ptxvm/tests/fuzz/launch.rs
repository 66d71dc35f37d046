//! Launches of whatever compiled: shapes, arguments and settings by chance, most of them right enough to run.

use std::sync::Arc;

use warpweft_ptxvm::exec::{Asynchrony, Divergence, Schedule};
use warpweft_ptxvm::numerics::{Approx, TensorModel};
use warpweft_ptxvm::observe::check::Selection;
use warpweft_ptxvm::observe::profile::Profiler;
use warpweft_ptxvm::program::Program;
use warpweft_ptxvm::system::{Buffer, Device, DeviceOptions, Kernel, Module, SystemError};
use warpweft_ptxvm::types::Target;

use crate::mutate::Random;

/// Warp instructions after which a mutant is stopped.
const LIMIT: usize = 3000;
/// Kernels of a module that are launched.
const KERNELS: usize = 2;
const MEMORY: u64 = 1 << 26;

/// Loads a program and launches its first kernels once each: how many were let begin, and the warp instructions they ran.
pub(crate) fn all(program: &Arc<Program>, random: &mut Random) -> (u64, u64) {
    let target = *random.pick(&[Target::SM_80, Target::SM_80, Target::SM_80, Target::SM_90]);
    let device = Device::new(DeviceOptions { memory_bytes: MEMORY, multiprocessors: 2, ..target.into() });
    let device = device.expect("a small device");
    let module = match Module::load(&device, Arc::clone(program)) {
        Ok(module) => module,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return (0, 0);
        }
    };
    let buffers = [buffer(&device, 1 << 14, true), buffer(&device, 1 << 12, false), buffer(&device, 52, true)];
    let names: Vec<String> = module.kernels().take(KERNELS).map(|function| function.name.clone()).collect();
    let mut began = (0, 0);
    for name in names {
        let kernel = module.kernel(&name).expect("it is one of the module's");
        match one(&kernel, &buffers, random) {
            Ok(ran) => began = (began.0 + 1, began.1 + ran),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        device.clear_error();
    }
    began
}

fn buffer(device: &Device, bytes: u64, written: bool) -> Buffer {
    let buffer = device.allocate(bytes).expect("memory enough");
    if written {
        device.fill(&buffer, 0u8).expect("the buffer is there");
    }
    buffer
}

fn one(kernel: &Kernel, buffers: &[Buffer], random: &mut Random) -> Result<u64, SystemError> {
    const BLOCKS: &[[u32; 3]] =
        &[[32, 1, 1], [64, 1, 1], [96, 1, 1], [128, 1, 1], [7, 3, 2], [1, 1, 1], [1024, 1, 1], [33, 1, 64], [0, 1, 1]];
    let function = kernel.function();
    let wanted = function.required_block.filter(|_| random.below(8) > 0);
    let block = wanted.unwrap_or_else(|| *random.pick(BLOCKS));
    let grid = *random.pick(&[[1, 1, 1], [2, 1, 1], [3, 2, 1], [1, 1, 5], [i32::MAX as u32, 65535, 65535], [1, 0, 1]]);
    let limit = 1 + random.below(LIMIT) as u64;
    let mut launch = kernel.launch(grid, block).limit(limit).seed(random.next()).replay("again");
    launch = launch.shared(*random.pick(&[0, 0, 16, 4096, 49152, 100_000, u32::MAX]));
    launch = launch.schedule(*random.pick(&[Schedule::RoundRobin, Schedule::Reverse, Schedule::Random]));
    launch = launch.asynchrony(*random.pick(&[Asynchrony::Eager, Asynchrony::Latest, Asynchrony::Random]));
    launch = launch.divergence(*random.pick(&[Divergence::Reconverge, Divergence::Independent]));
    launch = launch.approx(*random.pick(&[Approx::Rounded, Approx::Adversary]));
    launch = launch.tensor(*random.pick(&[TensorModel::Native, TensorModel::ExactSm80, TensorModel::ExactSm90]));
    for param in &function.params {
        launch = launch.arg(argument(param.bytes as usize, buffers, random).as_slice());
    }
    if random.below(64) == 0 {
        launch = launch.arg(random.next());
    }
    let run = match random.below(8) {
        0 => launch.check(Selection::NONE).run()?,
        1 => launch.observe(&mut Profiler::default())?,
        _ => launch.check(Selection::ALL).run()?,
    };
    // What is stopped says so, and every report can be printed.
    assert!(run.warp_instructions <= limit, "{} instructions of {limit}", run.warp_instructions);
    assert!(!run.to_string().is_empty());
    let bad = run.reports.iter().find(|report| report.message.is_empty() || report.kind.is_empty());
    assert!(bad.is_none(), "{bad:?}");
    Ok(run.warp_instructions)
}

/// The bytes of an argument: an address that is mostly good, a small number, or anything.
fn argument(bytes: usize, buffers: &[Buffer], random: &mut Random) -> Vec<u8> {
    let mut all = vec![0; bytes];
    for word in all.chunks_mut(8) {
        let buffer = random.pick(buffers);
        let value = match random.below(16) {
            0 => random.next(),
            1 => *random.pick(&[0, 1, u64::MAX, 0x7f00_0000_0000, 1 << 63, u64::from(u32::MAX)]),
            2 => buffer.address() + buffer.bytes() - 4,
            3 => buffer.address() + 1 + random.below(64) as u64,
            4..8 => random.below(70) as u64,
            _ if word.len() < 8 => random.below(5) as u64,
            _ => buffer.address(),
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    all
}
