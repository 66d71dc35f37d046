//! The executor: runs a kernel, 32 lanes at a time, and tells an [`Observer`] what it does.
//!
//! A launch is spread over workers (`worker`), each of which keeps some blocks resident and gives them turns. A block
//! (`block`) is a state machine: its warps (`warp`) run a quantum of instructions each (`step`), so blocks that
//! wait for one another by spinning on memory always get on. How lanes that a branch divided meet again is in
//! `converge`, how `.sync` instructions wait for their members in `gather`, barriers in `barrier`.
//!
//! With an active observer there is one worker, and everything, reports included, follows from the seed.

mod access;
mod address;
mod apart;
mod atomic;
mod barrier;
mod block;
mod cache;
mod call;
mod converge;
mod copy;
mod error;
mod gather;
mod host;
mod limits;
mod matrix;
mod printf;
mod random;
mod special;
mod step;
#[cfg(test)]
mod tests;
mod warp;
mod words;
mod worker;

pub use error::ExecError;
pub use host::{Flow, HostCall, HostError, HostFunction, HostFunctions};
pub use limits::{LaunchError, most_shared};

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::memory::{AddressSpace, DeviceId};
use crate::numerics::Settings;
use crate::observe::{Nobody, Observer};
use crate::program::Program;
use crate::types::Target;
use worker::{Context, Core};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The module.
    pub program: &'a Program,
    /// The address of each of its variables.
    pub variables: &'a [u64],
    /// The kernel: index in [`Program::functions`].
    pub function: u32,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameters' bytes, at the offsets that the function gives.
    pub params: &'a [u8],
    /// Where it runs.
    pub device: DeviceId,
    /// What the device is: its limits count, not those of the module's `.target`.
    pub target: Target,
    /// Multiprocessors of the device.
    pub sms: u32,
    /// `%gridid`.
    pub grid_id: u64,
}

/// How to run it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// In what order warps and blocks get their turns.
    pub schedule: Schedule,
    /// When asynchronous copies land.
    pub asynchrony: Asynchrony,
    /// Whether lanes that a branch divided wait for each other.
    pub divergence: Divergence,
    /// Of everything that is left to chance.
    pub seed: u64,
    /// Warp instructions after which a kernel is stopped.
    pub limit: u64,
    /// Host threads, where nobody watches.
    pub workers: usize,
    /// How numbers are made.
    pub settings: Settings,
    /// Reported errors after which a kernel is stopped.
    pub most_errors: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            schedule: Schedule::RoundRobin,
            asynchrony: Asynchrony::Eager,
            divergence: Divergence::Reconverge,
            seed: 0,
            limit: u64::MAX,
            workers: 1,
            settings: Settings::default(),
            most_errors: u64::MAX,
        }
    }
}

/// The order of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Ascending.
    #[default]
    RoundRobin,
    /// Descending.
    Reverse,
    /// By seed, and turns of lengths by seed.
    Random,
}

/// When `cp.async` lands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asynchrony {
    /// When it is issued.
    #[default]
    Eager,
    /// When something waits for it.
    Latest,
    /// By seed, somewhere in between; and what it copies is read, by seed, when it is issued or when it lands.
    Random,
}

/// What happens after a branch that divides the lanes of a warp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divergence {
    /// They wait for each other where their paths meet again.
    #[default]
    Reconverge,
    /// They run on their own, and meet again by chance or at a `.sync` instruction.
    Independent,
}

/// How a launch went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Instructions that warps executed.
    pub warp_instructions: u64,
    /// What the kernel printed.
    pub output: Vec<u8>,
    /// Why it ended early.
    pub failure: Option<ExecError>,
}

/// Checks a launch, as [`run`] does before anything runs.
///
/// # Errors
/// What is wrong with it.
pub fn check(launch: &Launch<'_>, host: &HostFunctions) -> Result<(), LaunchError> {
    limits::check(launch, host).map(drop)
}

/// Runs a kernel to its end, or until it fails.
///
/// # Errors
/// Where the launch cannot begin: nothing has run.
pub fn run(
    launch: &Launch<'_>,
    memory: &AddressSpace,
    host: &HostFunctions,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Outcome, LaunchError> {
    let extent = limits::check(launch, host)?;
    let program = launch.program;
    let watched = observer.is_active();
    let workers = if watched { 1 } else { options.workers.clamp(1, extent.blocks.min(1024) as usize) };
    let window = (extent.resident as usize / workers).max(2);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    let context = Context {
        launch,
        program,
        memory,
        host,
        options,
        params: launch.params.chunks(4).map(word).collect(),
        extent,
        window,
        next: AtomicU64::new(0),
        executed: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
        failure: Default::default(),
        output: Default::default(),
    };
    if watched {
        observer.launch(program, &program.functions[launch.function as usize], launch.grid, launch.block);
        Core::new(&context, observer, 0).work();
        observer.finish();
    } else if workers == 1 {
        Core::new(&context, &mut Nobody, 0).work();
    } else {
        std::thread::scope(|scope| {
            for number in 0..workers as u64 {
                let context = &context;
                scope.spawn(move || Core::new(context, &mut Nobody, number).work());
            }
        });
    }
    let failure = context.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map(|error| *error);
    let output = context.output.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Outcome { warp_instructions: context.executed.load(Relaxed), output, failure })
}

/// The lanes of a mask, ascending.
fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}
