//! What a launch may ask for, checked before anything runs.

use super::call::MOST_LOCAL;
use super::{HostFunctions, Launch};
use crate::program::{Action, Callee, Program};
use crate::registers::LANES;
use crate::types::Target;

/// Threads of a block.
const MOST_THREADS: u64 = 1024;
/// Blocks of a grid along x, y, z.
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Threads of a block along x, y, z.
const MOST_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Threads that a multiprocessor holds.
const RESIDENT_THREADS: u32 = 2048;
/// Blocks that it holds.
const RESIDENT_BLOCKS: u32 = 32;

/// A launch that cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LaunchError {
    /// The function does not exist or is no kernel.
    #[error("function {index} is no kernel of this module")]
    NoKernel { index: u32 },
    /// A shape with too many blocks, or none.
    #[error("a grid of {grid:?} blocks: 1 to {most:?} are possible")]
    Grid { grid: [u32; 3], most: [u32; 3] },
    /// A shape with too many threads, or none.
    #[error("a block of {block:?} threads: 1 to {most:?} are possible, at most {all} in all")]
    Block { block: [u32; 3], most: [u32; 3], all: u64 },
    /// Against `.reqntid`.
    #[error("kernel `{kernel}` needs blocks of {required:?} threads (.reqntid), {block:?} given")]
    RequiredBlock { kernel: String, block: [u32; 3], required: [u32; 3] },
    /// Against `.maxntid`.
    #[error("kernel `{kernel}` allows blocks of {most} threads (.maxntid {shape:?}), {threads} given")]
    MaxBlock { kernel: String, threads: u64, most: u64, shape: [u32; 3] },
    /// More shared memory than the target has.
    #[error("kernel `{kernel}` with {bytes} bytes of shared memory ({dynamic} of them dynamic): {target} has {most}")]
    Shared { kernel: String, bytes: u64, dynamic: u32, target: Target, most: u32 },
    /// More local memory than a thread may have.
    #[error("kernel `{kernel}` needs {bytes} bytes of local memory a thread: {most} are possible")]
    Local { kernel: String, bytes: u32, most: u32 },
    /// Parameter bytes that do not fit.
    #[error("kernel `{kernel}` takes {expected} bytes of parameters, {given} given")]
    Parameters { kernel: String, expected: u32, given: usize },
    /// A variable without an address.
    #[error("the module has {expected} variables, {given} addresses given")]
    Variables { expected: usize, given: usize },
    /// A form that does not run on this device.
    #[error("kernel `{kernel}`, line {line}: `{instruction}` does not run here: {reason}")]
    Refused { kernel: String, line: u32, instruction: String, reason: String },
    /// A function of the host that nobody provides.
    #[error("kernel `{kernel}` calls `{name}` of the host, which nobody has registered")]
    Extern { kernel: String, name: String },
}

/// Bytes of shared memory that a block may have (the opt-in limit of the CUDA programming guide, by compute capability).
pub fn most_shared(target: Target) -> u32 {
    let kib = match target.sm {
        90.. => 227,
        86 | 89 => 99,
        80 | 87 => 163,
        75 => 64,
        70 | 72 => 96,
        _ => 48,
    };
    kib << 10
}

/// What a checked launch comes to.
pub(super) struct Extent {
    /// Blocks.
    pub(super) blocks: u64,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Bytes of shared memory of a block.
    pub(super) shared: u32,
    /// Blocks that the device holds at a time.
    pub(super) resident: u64,
}

/// Checks a launch.
pub(super) fn check(launch: &Launch<'_>, host: &HostFunctions) -> Result<Extent, LaunchError> {
    let program = launch.program;
    let index = launch.function;
    let function = program.functions.get(index as usize).filter(|function| function.entry);
    let function = function.ok_or(LaunchError::NoKernel { index })?;
    let kernel = || function.name.clone();
    callees(program, index, host)?;
    let (grid, block) = (launch.grid, launch.block);
    let outside = |shape: [u32; 3], most: [u32; 3]| (0..3).any(|axis| shape[axis] == 0 || shape[axis] > most[axis]);
    if outside(grid, MOST_BLOCKS) {
        return Err(LaunchError::Grid { grid, most: MOST_BLOCKS });
    }
    let count = |shape: [u32; 3]| shape.iter().fold(1u64, |count, &axis| count.saturating_mul(u64::from(axis)));
    let threads = count(block);
    if outside(block, MOST_BLOCK) || threads > MOST_THREADS {
        return Err(LaunchError::Block { block, most: MOST_BLOCK, all: MOST_THREADS });
    }
    if let Some(required) = function.required_block.filter(|required| *required != block) {
        return Err(LaunchError::RequiredBlock { kernel: kernel(), block, required });
    }
    if let Some(shape) = function.max_block.filter(|most| threads > count(*most)) {
        return Err(LaunchError::MaxBlock { kernel: kernel(), threads, most: count(shape), shape });
    }
    let dynamic = launch.dynamic_shared;
    let base = if dynamic > 0 { function.dynamic_shared } else { function.shared_bytes };
    let bytes = u64::from(base) + u64::from(dynamic);
    let most = most_shared(launch.target);
    if bytes > u64::from(most) {
        return Err(LaunchError::Shared { kernel: kernel(), bytes, dynamic, target: launch.target, most });
    }
    if function.local_bytes > MOST_LOCAL {
        return Err(LaunchError::Local { kernel: kernel(), bytes: function.local_bytes, most: MOST_LOCAL });
    }
    if launch.params.len() != function.param_bytes as usize {
        let (expected, given) = (function.param_bytes, launch.params.len());
        return Err(LaunchError::Parameters { kernel: kernel(), expected, given });
    }
    let (expected, given) = (program.variables.len(), launch.variables.len());
    if expected != given {
        return Err(LaunchError::Variables { expected, given });
    }
    let (threads, shared) = (threads as u32, bytes as u32);
    let resident = u64::from(launch.sms.max(1)) * u64::from(occupancy(threads, shared, most));
    Ok(Extent { blocks: count(grid), threads, shared, resident })
}

/// Sees that everything runs that a kernel can come to, and is there.
fn callees(program: &Program, kernel: u32, host: &HostFunctions) -> Result<(), LaunchError> {
    let name = || program.functions[kernel as usize].name.clone();
    let mut found = vec![kernel];
    let mut next = 0;
    while let Some(&index) = found.get(next) {
        next += 1;
        let Some(function) = program.functions.get(index as usize) else { continue };
        if let Some(refusal) = function.refused.first() {
            let (instruction, reason) = (refusal.instruction.clone(), refusal.reason.clone());
            return Err(LaunchError::Refused { kernel: name(), line: refusal.line, instruction, reason });
        }
        for instruction in &function.code {
            let Action::Call(call) = &instruction.action else { continue };
            match call.callee {
                Callee::Function(callee) if !found.contains(&callee) => found.push(callee),
                Callee::Function(_) => {}
                Callee::Extern(index) => {
                    let declared = program.externs.get(index as usize).map_or("", |function| &function.name);
                    if host.find(declared).is_none() {
                        return Err(LaunchError::Extern { kernel: name(), name: declared.to_owned() });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Blocks that a multiprocessor holds.
fn occupancy(threads: u32, shared: u32, most_shared: u32) -> u32 {
    let by_threads = RESIDENT_THREADS / threads.next_multiple_of(LANES as u32);
    let by_shared = most_shared.checked_div(shared).unwrap_or(RESIDENT_BLOCKS);
    by_threads.min(by_shared).clamp(1, RESIDENT_BLOCKS)
}
