//! initcheck: a byte that nobody has written must not decide anything.
//!
//! Undefined bytes are followed from memory through registers, shared and local memory. Reading them is no error, nor is
//! moving them, storing them to shared or local memory, or not choosing them in a select. They must not reach an
//! address, a branch or guard, an operand of an atomic or a barrier, or global memory.
//!
//! What is not followed: the parameters of device functions (they count as defined), and constant memory, which always is.

mod global;
mod propagate;
mod registers;
mod usage;
mod vary;
mod window;

use std::collections::HashMap;
use std::sync::Arc;

use global::Global;
use vary::Trial;
use window::{Bytes, Local, Shared, ones};

use super::{Findings, Site};
use crate::memory::AddressSpace;
use crate::observe::{AccessKind, At, MemoryAccess, Sync};
use crate::program::{Action, Address, AddressBase, AtomicOp, Function, Instruction};
use crate::registers::{LANES, Registers};
use crate::types::Space;

/// The check.
#[derive(Debug)]
pub(super) struct InitCheck {
    global: Global,
    blocks: Vec<Block>,
    by_index: HashMap<u64, usize>,
    /// The block that the last event was about.
    current: usize,
    trial: Trial,
}

/// What is known of a block that runs.
#[derive(Debug, Default)]
struct Block {
    index: u64,
    shared: Shared,
    warps: Vec<Warp>,
    /// `cp.async` instructions so far: the ticket of the next.
    issued: u64,
    /// The copies that bring undefined bytes.
    copies: HashMap<u64, Box<Bytes>>,
    /// The copy that lands now.
    landing: u64,
}

#[derive(Debug, Default)]
struct Warp {
    registers: registers::Registers,
    local: Local,
    /// Bytes that each lane's `cp.async` reads.
    source: Option<Box<[u32; LANES]>>,
}

/// The lanes of a mask, ascending.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

impl InitCheck {
    /// `memory` remembers what of global memory has a value; without it all has.
    pub(super) fn new(memory: Option<Arc<AddressSpace>>) -> InitCheck {
        InitCheck {
            global: Global::new(memory),
            blocks: Vec::new(),
            by_index: HashMap::new(),
            current: 0,
            trial: Trial::new(),
        }
    }

    pub(super) fn block_begins(&mut self, index: u64, shared_bytes: u32) {
        let block = Block { index, shared: Shared::new(shared_bytes), ..Block::default() };
        self.current = self.blocks.len();
        self.by_index.insert(index, self.current);
        self.blocks.push(block);
    }

    pub(super) fn block_ends(&mut self, index: u64) {
        let Some(at) = self.by_index.remove(&index) else { return };
        self.blocks.swap_remove(at);
        if let Some(moved) = self.blocks.get(at) {
            self.by_index.insert(moved.index, at);
        }
        self.current = 0;
    }

    /// Turns to the block and warp of an event.
    #[inline(always)]
    fn turn(&mut self, at: &At<'_>) -> Option<(&mut Block, &mut Trial, &mut Global)> {
        if self.blocks.get(self.current).is_none_or(|block| block.index != at.block_index) {
            self.current = *self.by_index.get(&at.block_index)?;
        }
        let block = self.blocks.get_mut(self.current)?;
        let warp = at.warp as usize;
        if block.warps.len() <= warp {
            block.warps.resize_with(warp + 1, Warp::default);
        }
        Some((block, &mut self.trial, &mut self.global))
    }

    /// A function begins.
    pub(super) fn enter(&mut self, at: &At<'_>, callee: &Function, registers: &Registers) {
        let Some((block, ..)) = self.turn(at) else { return };
        block.warps[at.warp as usize].registers.enter(registers.base(), callee, at.mask);
    }

    /// An instruction begins: uses of its registers are judged, and what it makes of them is entered.
    #[inline]
    pub(super) fn before(&mut self, at: &At<'_>, registers: &Registers, findings: &mut Findings) {
        let Some((block, trial, _)) = self.turn(at) else { return };
        let warp = &mut block.warps[at.warp as usize];
        warp.registers.turn(registers.base());
        match &at.instruction.action {
            Action::Lanes(_) | Action::ConvertAddress { .. } | Action::IsSpace(_) => {
                propagate::each(at, registers, &mut warp.registers, trial);
            }
            Action::Collective { .. } => {
                usage::members(at, &mut warp.registers, findings);
                propagate::collective(at, registers, &mut warp.registers, trial);
            }
            Action::Special(_) | Action::ActiveMask => propagate::written(at, &mut warp.registers),
            action => {
                if let Action::CopyAsync { source_bytes, ignore_source, bytes, .. } = action {
                    warp.source = source_of(at, registers, *source_bytes, *ignore_source, u32::from(*bytes));
                }
                usage::operands(at, &mut warp.registers, findings);
            }
        }
    }

    /// An instruction with a guard, whatever it does.
    pub(super) fn guarded(&mut self, at: &At<'_>, registers: &Registers, findings: &mut Findings) {
        let Some((block, ..)) = self.turn(at) else { return };
        let warp = &mut block.warps[at.warp as usize];
        warp.registers.turn(registers.base());
        usage::guard(at, &mut warp.registers, findings);
    }

    /// What a copy brings is known when it is issued, and arrives when it lands.
    pub(super) fn sync(&mut self, at: &At<'_>, sync: &Sync<'_>) {
        if let Sync::CopyLands { ticket } = sync
            && let Some((block, ..)) = self.turn(at)
        {
            block.landing = *ticket;
        }
    }

    /// An access to memory.
    #[inline]
    pub(super) fn access(&mut self, at: &At<'_>, access: &MemoryAccess<'_>, findings: &mut Findings) {
        let Some((block, _, global)) = self.turn(at) else { return };
        match access.kind {
            AccessKind::Read => read(at, access, block, global, findings),
            AccessKind::Write => write(at, access, block, global, findings),
            AccessKind::Atomic => atomic(at, access, block, global, findings),
            AccessKind::AsyncRead => {
                let warp = &block.warps[at.warp as usize];
                if let Some(mut undefined) = global.read(access.addresses, access.mask, access.bytes) {
                    if let Some(source) = &warp.source {
                        lanes(access.mask).for_each(|lane| undefined[lane] &= ones(source[lane]));
                    }
                    block.copies.insert(block.issued, Box::new(undefined));
                }
            }
            AccessKind::AsyncIssue => block.issued += 1,
            AccessKind::AsyncWrite => {
                let undefined = block.copies.get(&block.landing).map(|undefined| &**undefined);
                block.shared.write(access.addresses, access.mask, access.bytes, undefined);
            }
        }
    }
}

/// The bytes that each lane of a `cp.async` reads, where they are not all.
fn source_of(
    at: &At<'_>,
    registers: &Registers,
    bytes: Option<u16>,
    ignore: Option<u16>,
    all: u32,
) -> Option<Box<[u32; LANES]>> {
    let ignored = ignore.map_or(0, |slot| registers.predicate(slot)) & at.mask;
    let mut source = bytes.map_or([all; LANES], |slot| registers.narrow(slot).map(|asked| asked.min(all)));
    lanes(ignored).for_each(|lane| source[lane] = 0);
    (bytes.is_some() || ignore.is_some()).then(|| Box::new(source))
}

/// The address operand of an instruction that has one.
fn address(instruction: &Instruction) -> Option<&Address> {
    match &instruction.action {
        Action::Load(access) | Action::Store(access) => Some(&access.address),
        Action::Atomic(atomic) => Some(&atomic.address),
        Action::LoadMatrix { address, .. } => Some(address),
        _ => None,
    }
}

/// Whether an access is to the parameters of a call, which are not followed.
fn is_call_parameter(instruction: &Instruction) -> bool {
    address(instruction).is_some_and(|address| match address.base {
        AddressBase::FunctionParam => true,
        AddressBase::Frame => address.space == Space::Param,
        _ => false,
    })
}

fn undefined_bytes(access: &MemoryAccess<'_>, block: &Block, warp: u32, global: &mut Global) -> Option<Bytes> {
    let (addresses, mask, bytes) = (access.addresses, access.mask, access.bytes);
    match access.space {
        Space::Shared => block.shared.read(addresses, mask, bytes),
        Space::Local => block.warps[warp as usize].local.read(addresses, mask, bytes),
        Space::Global | Space::Generic => global.read(addresses, mask, bytes),
        Space::Const | Space::Param => None,
    }
}

/// A load: its registers take over what memory has.
fn read(at: &At<'_>, access: &MemoryAccess<'_>, block: &mut Block, global: &mut Global, findings: &Findings) {
    let undefined = match is_call_parameter(at.instruction) {
        true => None,
        false => undefined_bytes(access, block, at.warp, global),
    };
    let registers = &mut block.warps[at.warp as usize].registers;
    let origin = if undefined.is_some() { findings.site(at) } else { Site::NONE };
    match &at.instruction.action {
        Action::Load(load) => propagate::loaded(at, load, access.mask, undefined.as_ref(), origin, registers),
        Action::LoadMatrix { count, transposed, .. } => {
            propagate::matrix(at, *count, *transposed, undefined.as_ref(), origin, registers);
        }
        _ => {}
    }
}

/// A store: undefined bytes may go to shared and local memory.
fn write(at: &At<'_>, access: &MemoryAccess<'_>, block: &mut Block, global: &mut Global, findings: &mut Findings) {
    let Block { warps, shared, .. } = block;
    let warp = &mut warps[at.warp as usize];
    let undefined = match &at.instruction.action {
        Action::Store(store) => propagate::stored(at, store, access.mask, &warp.registers),
        _ => None,
    };
    let (addresses, mask, bytes) = (access.addresses, access.mask, access.bytes);
    match access.space {
        Space::Shared => shared.write(addresses, mask, bytes, undefined.as_ref()),
        Space::Local => warp.local.write(addresses, mask, bytes, undefined.as_ref()),
        _ => {
            if let Some(undefined) = undefined {
                usage::stored(at, access, &undefined, &mut warp.registers, global, findings);
            }
            global.write(addresses, mask, bytes);
        }
    }
}

/// An atomic: what it finds in memory decides what it leaves there.
fn atomic(at: &At<'_>, access: &MemoryAccess<'_>, block: &mut Block, global: &mut Global, findings: &mut Findings) {
    let Action::Atomic(atomic) = &at.instruction.action else { return };
    let undefined = undefined_bytes(access, block, at.warp, global);
    let exchange = atomic.op == AtomicOp::Exchange;
    if let Some(undefined) = undefined.as_ref().filter(|_| !exchange) {
        usage::atomic(at, access, undefined, global, findings);
    }
    let Block { warps, shared, .. } = block;
    let registers = &mut warps[at.warp as usize].registers;
    if atomic.returns {
        let origin = if undefined.is_some() { findings.site(at) } else { Site::NONE };
        propagate::returned(at, access.mask, undefined.as_ref().filter(|_| exchange), origin, registers);
    }
    match access.space {
        Space::Shared => shared.write(access.addresses, access.mask, access.bytes, None),
        _ => global.write(access.addresses, access.mask, access.bytes),
    }
}
