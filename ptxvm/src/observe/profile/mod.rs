//! Counters of what the hardware would be charged for: per instruction, and per launch beside the roofline.
//!
//! Sectors are those that requests touch, before any cache: a kernel that reads a byte twice is charged twice, and
//! [`Profile::least_bytes`] says what any kernel must move that reads and writes the same bytes.

mod banks;
mod footprint;
mod gpu;
mod mix;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{AccessKind, At, MemoryAccess, Observer};
use crate::program::{Function, Program};
use crate::registers::Registers;
use crate::types::Space;
use footprint::Footprint;

pub use gpu::{GPUS, Gpu, Occupancy, Roofline};
pub use mix::Class;

/// What one instruction cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstructionCount {
    /// Line in the PTX text.
    pub line: u32,
    /// As the text spells it.
    pub text: String,
    /// Warps that executed it.
    pub executions: u64,
    /// Lanes that executed it, in all.
    pub lanes: u64,
    /// Requests to global memory.
    pub requests: u64,
    /// Sectors of 32 bytes that these requests touched.
    pub sectors: u64,
    /// Passes over the banks of shared memory.
    pub wavefronts: u64,
    /// Passes beyond what the accesses' width needs: bank conflicts.
    pub conflicts: u64,
    /// Bytes to and from local memory.
    pub local_bytes: u64,
    /// Branches that parted a warp.
    pub divergent: u64,
}

/// Counters of one launch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Profile {
    /// The kernel.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Shared bytes of a block.
    pub shared_bytes: u32,
    /// Registers a thread needs, by liveness: an estimate.
    pub registers: u32,
    /// Warp instructions.
    pub warp_instructions: u64,
    /// Lanes that executed, in all.
    pub thread_instructions: u64,
    /// Warp instructions by class.
    pub mix: BTreeMap<Class, u64>,
    /// Bytes of the sectors that loads from global memory touched.
    pub read_bytes: u64,
    /// Bytes of the sectors that stores and atomics to global memory touched.
    pub written_bytes: u64,
    /// Distinct bytes read from and written to global memory: the least that must move.
    pub least_bytes: u64,
    /// Global accesses of at least 16 bytes a lane, and all of them.
    pub wide_requests: (u64, u64),
    /// Bytes to and from local memory.
    pub local_bytes: u64,
    /// Passes over shared memory's banks, and those that are conflicts.
    pub wavefronts: (u64, u64),
    /// Operations of tensor cores (a multiplication and an addition are two).
    pub tensor_operations: u64,
    /// Operations on f32 outside of tensor cores.
    pub f32_operations: u64,
    /// Operations on f64.
    pub f64_operations: u64,
    /// Branches, and those that parted a warp.
    pub branches: (u64, u64),
    /// Every instruction that was executed, in the order of the text.
    pub instructions: Vec<InstructionCount>,
}

/// The observer that counts.
#[derive(Default)]
pub struct Profiler {
    profile: Profile,
    /// Of each function that ran, known by its place in the program: its instructions.
    functions: Vec<(usize, Vec<InstructionCount>)>,
    read: Footprint,
    written: Footprint,
}

impl Profiler {
    /// What was counted since the last launch began.
    pub fn finish(self) -> Profile {
        let Profiler { mut profile, functions, read, written } = self;
        profile.least_bytes = read.bytes() + written.bytes();
        let lines = functions.into_iter().flat_map(|(_, lines)| lines);
        profile.instructions = lines.filter(|line| line.executions > 0).collect();
        profile.instructions.sort_by_key(|line| line.line);
        profile
    }

    /// The counters of an instruction.
    fn line(&mut self, at: &At<'_>) -> &mut InstructionCount {
        let place = std::ptr::from_ref(at.function).addr();
        let found = self.functions.iter().position(|&(known, _)| known == place);
        let function = found.unwrap_or_else(|| {
            let fresh = vec![InstructionCount::default(); at.function.code.len()];
            self.functions.push((place, fresh));
            self.functions.len() - 1
        });
        &mut self.functions[function].1[at.index as usize]
    }

    fn global(&mut self, at: &At<'_>, access: &MemoryAccess<'_>) {
        let sectors = footprint::sectors(access.addresses, access.mask, access.bytes);
        let writes = matches!(access.kind, AccessKind::Write | AccessKind::Atomic);
        let reads = matches!(access.kind, AccessKind::Read | AccessKind::AsyncRead | AccessKind::Atomic);
        if writes {
            self.profile.written_bytes += sectors * footprint::SECTOR;
            self.written.add(access.addresses, access.mask, access.bytes);
        }
        if reads {
            self.profile.read_bytes += sectors * footprint::SECTOR;
            self.read.add(access.addresses, access.mask, access.bytes);
        }
        self.profile.wide_requests.0 += u64::from(access.bytes >= 16);
        self.profile.wide_requests.1 += 1;
        let line = self.line(at);
        line.requests += 1;
        line.sectors += sectors;
    }
}

impl Observer for Profiler {
    fn launch(&mut self, _: &Program, function: &Function, grid: [u32; 3], block: [u32; 3]) {
        *self = Profiler::default();
        self.profile.kernel.clone_from(&function.name);
        (self.profile.grid, self.profile.block) = (grid, block);
        self.profile.registers = function.live_registers;
    }

    fn block_begins(&mut self, _: [u32; 3], _: u64, shared_bytes: u32) {
        self.profile.shared_bytes = shared_bytes;
    }

    fn before(&mut self, at: &At<'_>, _: &Registers) {
        let lanes = u64::from(at.mask.count_ones());
        self.profile.warp_instructions += 1;
        self.profile.thread_instructions += lanes;
        let form = at.instruction.form;
        *self.profile.mix.entry(Class::of(form)).or_default() += 1;
        let work = mix::operations(form);
        self.profile.tensor_operations += work.tensor;
        self.profile.f32_operations += work.f32 * lanes;
        self.profile.f64_operations += work.f64 * lanes;
        let site = at.instruction.site;
        let line = self.line(at);
        if line.executions == 0 {
            let text = at.program.text.get(site.span.0 as usize..site.span.1 as usize).unwrap_or_default();
            line.line = site.line;
            line.text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        line.executions += 1;
        line.lanes += lanes;
    }

    fn access(&mut self, at: &At<'_>, access: &MemoryAccess<'_>) {
        match access.space {
            Space::Global => self.global(at, access),
            Space::Shared => {
                let (wavefronts, least) = banks::wavefronts(access.addresses, access.mask, access.bytes);
                self.profile.wavefronts.0 += wavefronts;
                self.profile.wavefronts.1 += wavefronts - least;
                let line = self.line(at);
                line.wavefronts += wavefronts;
                line.conflicts += wavefronts - least;
            }
            Space::Local => {
                let bytes = u64::from(access.bytes) * u64::from(access.mask.count_ones());
                self.profile.local_bytes += bytes;
                self.line(at).local_bytes += bytes;
            }
            _ => {}
        }
    }

    fn branch(&mut self, at: &At<'_>, taken: u32) {
        let divergent = taken != 0 && taken != at.mask;
        self.profile.branches.0 += 1;
        self.profile.branches.1 += u64::from(divergent);
        self.line(at).divergent += u64::from(divergent);
    }
}
