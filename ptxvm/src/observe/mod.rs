//! What the executor tells of its steps. The checks and counters are observers: the executor knows none of them, and
//! without one it is compiled without the calls.

pub mod check;
pub mod profile;

use crate::memory::Fault;
use crate::program::{Function, Instruction, Order, Program};
use crate::registers::{LANES, Registers};
use crate::report::Report;
use crate::types::{Scope, Space};

/// Where the executor stands.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The module.
    pub program: &'a Program,
    /// The function that runs (the kernel, or a device function it called).
    pub function: &'a Function,
    /// Index of the instruction in it.
    pub index: u32,
    /// The instruction.
    pub instruction: &'a Instruction,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Block number, x fastest.
    pub block_index: u64,
    /// Warp in the block.
    pub warp: u32,
    /// Lanes that execute it: active and not guarded off.
    pub mask: u32,
}

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessKind {
    Read,
    Write,
    /// Reads and writes in one step.
    Atomic,
    /// The reading half of `cp.async`, when it is issued: lanes that read at least a byte of their source.
    AsyncRead,
    /// The destination of `cp.async`, when it is issued, right after [`AccessKind::AsyncRead`]. Nothing is written yet:
    /// from here to the wait that covers the copy, the bytes belong to it.
    AsyncIssue,
    /// The writing half of `cp.async`, when it lands.
    AsyncWrite,
}

/// An access of a warp to memory. `addresses` are generic where the space is global, and offsets in the window for
/// shared and local memory; `space` is where they resolved to, never `Generic`. Lanes of one access may resolve to
/// different spaces: the executor then tells each part.
pub struct MemoryAccess<'a> {
    /// Read or write.
    pub kind: AccessKind,
    /// Where.
    pub space: Space,
    /// Of each lane in `mask`.
    pub addresses: &'a [u64; LANES],
    /// Lanes.
    pub mask: u32,
    /// Bytes each lane accesses: element size times count.
    pub bytes: u32,
    /// Its strength.
    pub order: Order,
    /// For writes of a plain store: the bytes written, 16 a lane at most, so that same-value writes can be told.
    pub values: Option<&'a [[u8; 32]; LANES]>,
    /// Whether each atomic wrote (a failed compare-and-swap did not), and in what order lanes went: ascending.
    pub wrote: u32,
}

/// Events of synchronisation.
#[derive(Clone, Copy, Debug)]
pub enum Sync<'a> {
    /// The lanes came to barrier `id`, and wait (`sync`) or go on (`arrive`).
    BarrierArrive {
        /// Number of the barrier.
        id: u32,
        /// `bar.arrive` does not wait.
        waits: bool,
    },
    /// A barrier of the block is complete: every (warp, mask) that took part, and which of them waited.
    BarrierComplete {
        /// Number of the barrier.
        id: u32,
        /// (warp, lanes, waited).
        participants: &'a [(u32, u32, bool)],
    },
    /// `bar.warp.sync` has all its members (`At::mask` is them). It orders memory among them.
    WarpBarrier,
    /// A `.sync` exchange (`shfl`, `vote`, `match`, `redux`, `mma`) has all its members. It does not order memory.
    Converge,
    /// The lanes leave the kernel: `exit`, the entry's `ret`, the end of its code. It is told before any barrier that
    /// their leaving completes.
    Exit,
    /// `membar`, `fence`.
    Fence {
        /// Its scope.
        scope: Scope,
    },
    /// `cp.async.commit_group`.
    CommitGroup,
    /// `cp.async.wait_group n` is satisfied; `None` is `wait_all`.
    WaitGroup(Option<u32>),
    /// A copy that was issued at (function, index) with this ticket now lands in shared memory.
    CopyLands {
        /// Number of the copy, counted from 0 in each block.
        ticket: u64,
    },
}

/// Why a launch does not go on.
#[derive(Clone, Debug)]
pub enum Halt<'a> {
    /// An access went wrong.
    Fault(&'a Fault),
    /// `trap`.
    Trap,
    /// A failed `assert` in the kernel: message, file, line, function.
    Assert(&'a str),
    /// A wrong use of a synchronising instruction: kind and sentence.
    Sync {
        /// Stable word.
        kind: &'static str,
        /// With the numbers.
        message: &'a str,
    },
    /// Nothing can run: one line for each waiting fragment.
    Deadlock(&'a [Waiting]),
    /// The instruction limit is reached.
    Limit(u64),
}

/// A fragment of a warp that waits, for the deadlock report.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Block coordinates.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: u32,
    /// Its lanes.
    pub mask: u32,
    /// Index of the function and of the instruction where it waits.
    pub place: (u32, u32),
    /// What for, in words: `barrier 0: 64 of 128 threads have come`.
    pub what: String,
}

/// Sees every step of the executor. Every method has a body that does nothing.
#[allow(unused_variables)]
pub trait Observer {
    /// Whether it wants to be told anything; asked once, before a launch.
    fn is_active(&self) -> bool {
        true
    }

    /// A kernel begins.
    fn launch(&mut self, program: &Program, function: &Function, grid: [u32; 3], block: [u32; 3]) {}
    /// A block begins: its shared memory (bytes) and registers are undefined.
    fn block_begins(&mut self, block: [u32; 3], block_index: u64, shared_bytes: u32) {}
    /// A block has ended.
    fn block_ends(&mut self, block_index: u64) {}
    /// Before the guard of an instruction is looked at, whatever lanes it leaves: `At::mask` is those before.
    fn guarded(&mut self, at: &At<'_>, registers: &Registers) {}
    /// Before an instruction takes effect, whatever it is; its sources can be read.
    fn before(&mut self, at: &At<'_>, registers: &Registers) {}
    /// After it took effect: its destinations can be read.
    fn after(&mut self, at: &At<'_>, registers: &Registers) {}
    /// A function was entered: presets are filled, all else in its window is undefined.
    fn enter(&mut self, at: &At<'_>, callee: &Function, registers: &Registers) {}
    /// An access that is in bounds; called before memory changes.
    fn access(&mut self, at: &At<'_>, access: &MemoryAccess<'_>) {}
    /// A synchronisation.
    fn sync(&mut self, at: &At<'_>, sync: &Sync<'_>) {}
    /// A branch was taken: lanes that jump, of those in `At::mask`.
    fn branch(&mut self, at: &At<'_>, taken: u32) {}
    /// A use of a synchronising instruction that is wrong, and with which the hardware goes on: kind and sentence.
    fn misuse(&mut self, at: &At<'_>, kind: &'static str, message: &str) {}
    /// The launch stops.
    fn halt(&mut self, at: Option<&At<'_>>, halt: &Halt<'_>) {}
    /// The kernel has ended.
    fn finish(&mut self) {}
    /// The reports so far, taken out.
    fn take_reports(&mut self) -> Vec<Report> {
        Vec::new()
    }
    /// Reports of errors so far: the executor stops at the limit that the launch sets.
    fn errors(&self) -> u64 {
        0
    }
}

/// Sees nothing, costs nothing.
pub struct Nobody;

impl Observer for Nobody {
    fn is_active(&self) -> bool {
        false
    }
}

/// Who watches the executor, as the executor is compiled: for [`Nobody`], without the calls, and for any observer. Not once
/// for each observer, as it is large and a call is little beside what an observer does.
pub(crate) trait Watcher: Observer {
    /// Whether the calls are there.
    const ACTIVE: bool;
}

impl Watcher for Nobody {
    const ACTIVE: bool = false;
}

impl Watcher for dyn Observer + '_ {
    const ACTIVE: bool = true;
}
