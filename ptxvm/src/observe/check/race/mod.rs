//! racecheck: two accesses to one place, one of them a write, that nothing orders.
//!
//! Order is that of the PTX memory consistency model: program order of a lane, barriers (of a warp, of a block, named),
//! release and acquire patterns through memory with their scopes, and `fence.sc`. Exchanges between lanes (`shfl`, `vote`)
//! order nothing. Two strong accesses whose scopes include each other's threads do not race. See `docs/ptxvm-ordering.md`.
//!
//! The engine knows no executor: [`Race`] takes accesses and synchronisations as they come, whatever they come from.

mod channel;
mod clock;
mod order;
mod report;
mod shadow;
#[cfg(test)]
mod tests;
mod touch;

use report::Conflict;

use channel::{Channel, Strong};
use clock::{Stamp, Ticks};
use order::{Block, bits};
use shadow::{Shadow, Strength};
use touch::Touch;

use super::Site;
use crate::observe::{AccessKind, At, MemoryAccess, Sync};
use crate::program::Action;
use crate::types::{Scope, Space};

/// Pages of global memory and of shared memory, as powers of two.
const GLOBAL_PAGE: u32 = 12;
const SHARED_PAGE: u32 = 10;

/// The warp that accesses, and its instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Actor {
    /// The block's place among those that run: what [`Race::begin`] was told.
    pub(super) slot: usize,
    pub(super) warp: u32,
    /// Number of the instruction.
    pub(super) site: u32,
    /// `.nc`.
    pub(super) non_coherent: bool,
    /// The instruction returns what it read: it can be part of an acquire pattern.
    pub(super) returns: bool,
}

/// Racecheck.
#[derive(Debug)]
pub(super) struct Race {
    ticks: Ticks,
    /// Blocks that have begun.
    begun: u32,
    blocks: Vec<Option<Block>>,
    /// The shadow of each slot's shared memory.
    shared: Vec<Shadow>,
    global: Shadow,
    /// Number of each block that has begun, by serial: reports name blocks that have ended.
    indices: Vec<u64>,
    /// What the accesses of the current event ran into.
    conflicts: Vec<Conflict>,
}

impl Race {
    pub(super) fn new() -> Race {
        Race {
            ticks: Ticks::default(),
            begun: 0,
            blocks: Vec::new(),
            shared: Vec::new(),
            global: Shadow::new(GLOBAL_PAGE),
            indices: Vec::new(),
            conflicts: Vec::new(),
        }
    }

    /// A block of so many threads begins in a free slot.
    pub(super) fn begin(&mut self, slot: usize, index: u64, threads: u32) {
        if self.begun == Stamp::BLOCKS {
            return;
        }
        let block = Block::new(self.begun, threads, &mut self.ticks);
        if self.blocks.len() <= slot {
            self.blocks.resize_with(slot + 1, || None);
            self.shared.resize_with(slot + 1, || Shadow::new(SHARED_PAGE));
        }
        self.blocks[slot] = Some(block);
        self.indices.push(index);
        self.begun += 1;
    }

    /// The block of a slot has ended.
    pub(super) fn end(&mut self, slot: usize) {
        if self.blocks.get_mut(slot).and_then(Option::take).is_some() {
            self.shared[slot].clear();
        }
    }

    /// Why races may have been missed, if they may.
    pub(super) fn limits(&self) -> Option<&'static str> {
        if self.ticks.spent() || self.begun == Stamp::BLOCKS {
            return Some(
                "the launch has more blocks or synchronisations than racecheck counts: it checked the first only",
            );
        }
        self.global
            .forgot
            .then_some("the launch touches more global memory than racecheck keeps: it forgot older accesses")
    }

    fn block(&mut self, slot: usize) -> Option<(&mut Block, &mut Ticks)> {
        if self.ticks.spent() {
            return None;
        }
        let block = self.blocks.get_mut(slot)?.as_mut()?;
        Some((block, &mut self.ticks))
    }

    /// Lanes leave the kernel.
    pub(super) fn exit(&mut self, slot: usize, warp: u32, mask: u32) {
        if let Some((block, _)) = self.block(slot) {
            block.exit(warp, mask);
        }
    }

    /// `bar.warp.sync` among the lanes.
    pub(super) fn warp_barrier(&mut self, slot: usize, warp: u32, mask: u32) {
        if let Some((block, ticks)) = self.block(slot) {
            block.warp_barrier(warp, mask, ticks);
        }
    }

    /// `bar.arrive`.
    pub(super) fn arrive(&mut self, slot: usize, barrier: u32, warp: u32, mask: u32) {
        if let Some((block, ticks)) = self.block(slot) {
            block.arrive(barrier, warp, mask, ticks);
        }
    }

    /// A barrier is complete.
    pub(super) fn barrier(&mut self, slot: usize, barrier: u32, whole: bool, came: &[(u32, u32, bool)]) {
        if let Some((block, ticks)) = self.block(slot) {
            block.barrier(barrier, whole, came, ticks);
        }
    }

    /// `fence`, `membar`.
    pub(super) fn fence(&mut self, slot: usize, warp: u32, mask: u32, scope: Scope, sequential: bool) {
        if let Some((block, ticks)) = self.block(slot) {
            block.fence(warp, mask, channel::of(scope), sequential, ticks);
        }
    }

    /// The wait that covers an asynchronous copy of a lane is over: only now it has written, as far as others can tell.
    pub(super) fn landed(&mut self, slot: usize, warp: u32, lane: u32, offset: u64, bytes: u32) {
        let Some((block, _)) = self.block(slot) else { return };
        let now = Stamp::new(block.warps[warp as usize].now, block.serial, warp, lane);
        for cell in self.shared[slot].cells(offset, bytes).0 {
            if cell.write.thread() == now.thread() {
                cell.write = now;
            }
        }
    }

    /// A synchronisation, as the executor tells it.
    pub(super) fn sync(&mut self, slot: usize, at: &At<'_>, sync: &Sync<'_>) {
        match *sync {
            Sync::WarpBarrier => self.warp_barrier(slot, at.warp, at.mask),
            Sync::BarrierArrive { id, waits: false } => self.arrive(slot, id, at.warp, at.mask),
            Sync::BarrierComplete { id, participants } => {
                // The exit of the last that was waited for completes barriers without a count only.
                let counted = matches!(&at.instruction.action, Action::Barrier(barrier) if barrier.threads.is_some());
                self.barrier(slot, id, !counted, participants);
            }
            Sync::Exit => self.exit(slot, at.warp, at.mask),
            Sync::Fence { scope } => {
                let sequential = matches!(at.instruction.action, Action::Fence { sequential: true, .. });
                self.fence(slot, at.warp, at.mask, scope, sequential);
            }
            _ => {}
        }
    }

    /// An access of a warp; what it ran into is there until the next.
    pub(super) fn access(&mut self, actor: Actor, access: &MemoryAccess<'_>) -> &[Conflict] {
        self.conflicts.clear();
        let shadow = match access.space {
            Space::Shared => self.shared.get_mut(actor.slot),
            Space::Global => Some(&mut self.global),
            _ => None,
        };
        let (Some(Some(block)), Some(shadow)) = (self.blocks.get_mut(actor.slot), shadow) else { return &[] };
        if self.ticks.spent() || actor.warp as usize >= block.warps.len() {
            return &[];
        }
        let strength = channel::strength(access.order);
        let (acquires, releases) = channel::sides(access.order);
        let (writes, reads) = match access.kind {
            AccessKind::Read | AccessKind::AsyncRead => (0, access.mask),
            AccessKind::Write | AccessKind::AsyncIssue => (access.mask, 0),
            AccessKind::Atomic => (access.mask & access.wrote, access.mask & !access.wrote),
            AccessKind::AsyncWrite => return &[],
        };
        let conflicts = &mut self.conflicts;
        let now = Stamp::new(block.warps[actor.warp as usize].now, block.serial, actor.warp, 0);
        let learns = actor.returns && access.kind != AccessKind::Write;
        let mut strong = Strong { warp: actor.warp, lane: 0, stamp: now, strength, acquires, releases, learns };
        if !acquires && !releases {
            let mut touch = Touch { view: block.view(actor.warp), actor, access, strength, conflicts, told: 0 };
            touch.lanes(shadow, reads, false);
            touch.lanes(shadow, writes, true);
            let told = touch.told;
            for lane in bits(if strength == Strength::Weak { 0 } else { access.mask }) {
                strong.lane = lane;
                if told >> lane & 1 == 1 {
                    learn(block, shadow, access, strong);
                }
                if writes >> lane & 1 == 1 {
                    publish(block, shadow, access, strong);
                }
            }
            return &self.conflicts;
        }
        // Lanes go one after the other: each is ordered after what the one before published.
        for lane in bits(access.mask) {
            strong.lane = lane;
            learn(block, shadow, access, strong);
            let mut touch = Touch { view: block.view(actor.warp), actor, access, strength, conflicts, told: 0 };
            touch.lanes(shadow, reads & 1 << lane, false);
            touch.lanes(shadow, writes & 1 << lane, true);
            if writes >> lane & 1 == 1 {
                publish(block, shadow, access, strong);
            }
        }
        if releases {
            block.warps[actor.warp as usize].now = self.ticks.next();
        }
        &self.conflicts
    }

    /// Number of the block that had this serial.
    pub(super) fn block_index(&self, serial: u32) -> u64 {
        self.indices.get(serial as usize).copied().unwrap_or(0)
    }
}

/// The warp of an event, and its instruction.
pub(super) fn actor(slot: usize, site: Site, at: &At<'_>) -> Actor {
    let (non_coherent, returns) = match &at.instruction.action {
        Action::Load(load) => (load.non_coherent, true),
        Action::Atomic(atomic) => (false, atomic.returns),
        _ => (false, true),
    };
    Actor { slot, warp: at.warp, site: site.0, non_coherent, returns }
}

/// A strong access of one lane reads what was published at its place.
fn learn(block: &mut Block, shadow: &mut Shadow, access: &MemoryAccess<'_>, strong: Strong) {
    if access.kind == AccessKind::Write {
        return;
    }
    let (cells, channels) = shadow.cells(access.addresses[strong.lane as usize], access.bytes);
    for cell in cells.iter_mut().filter(|cell| cell.writer.strength() != Strength::Weak) {
        if access.kind == AccessKind::Read && cell.channel == 0 {
            Shadow::channel(channels, cell, Channel::of_write(cell.write, cell.writer.strength()));
        }
        channels[cell.channel as usize].read(block, strong);
    }
}

/// A strong write of one lane publishes what there is to publish.
fn publish(block: &Block, shadow: &mut Shadow, access: &MemoryAccess<'_>, strong: Strong) {
    let tells = Channel::tells(block, strong);
    let (cells, channels) = shadow.cells(access.addresses[strong.lane as usize], access.bytes);
    for cell in cells.iter_mut().filter(|cell| tells || cell.channel != 0) {
        let at = Shadow::channel(channels, cell, Channel::default());
        channels[at].write(block, strong, access.kind == AccessKind::Atomic);
    }
}
