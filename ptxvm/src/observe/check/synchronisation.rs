//! synccheck: wrong uses of barriers and `.sync` instructions. The executor knows most of them, since it must do
//! something about each: it tells them as a halt, or as a misuse where the hardware goes on. Added here is what it can
//! go on from without noticing: counts that the hardware rounds, and arrivals that nobody waits for.

use super::{Finding, Findings, Site};
use crate::observe::{At, Sync};
use crate::program::Barrier;
use crate::registers::Registers;
use crate::report::{Check, Place};

/// Barriers of a block.
const BARRIERS: usize = 16;

/// Those who came to a barrier without waiting since it was last complete.
#[derive(Clone, Debug, Default)]
struct Arrived {
    threads: u32,
    first: Option<(Site, Place)>,
}

#[derive(Debug, Default)]
struct Block {
    /// Threads that have not exited.
    live: u32,
    arrived: [Arrived; BARRIERS],
}

/// Synccheck.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    blocks: Vec<Block>,
}

impl Barriers {
    /// A block begins in a free slot.
    pub(super) fn begin(&mut self, slot: usize, threads: u32) {
        if self.blocks.len() <= slot {
            self.blocks.resize_with(slot + 1, Block::default);
        }
        self.blocks[slot] = Block { live: threads, ..Block::default() };
    }

    /// A barrier instruction, before it takes effect.
    pub(super) fn before(&self, at: &At<'_>, barrier: &Barrier, registers: &Registers, to: &mut Findings) {
        let Some(slot) = barrier.threads else { return };
        let counts = registers.narrow(slot);
        let mut lanes = (0..32).filter(|lane| at.mask >> lane & 1 == 1);
        let Some(first) = lanes.next() else { return };
        let count = counts[first];
        if lanes.any(|lane| counts[lane] != count) {
            tell(at, "barrier-count", "lanes of one warp give a barrier different thread counts", to);
        } else if !count.is_multiple_of(32) {
            let message = format!("a barrier of {count} threads: the count must be a multiple of the warp size, 32");
            tell(at, "barrier-count", &message, to);
        }
    }

    /// A synchronisation.
    pub(super) fn sync(&mut self, slot: usize, at: &At<'_>, sync: &Sync<'_>, to: &mut Findings) {
        let Some(block) = self.blocks.get_mut(slot) else { return };
        match *sync {
            Sync::Exit => block.live = block.live.saturating_sub(at.mask.count_ones()),
            Sync::BarrierArrive { id, waits: false } => {
                if let Some(arrived) = block.arrived.get_mut(id as usize) {
                    arrived.threads += at.mask.count_ones();
                    arrived.first.get_or_insert_with(|| (to.site(at), to.place(at, at.mask)));
                }
            }
            Sync::BarrierComplete { id, .. } => {
                if let Some(arrived) = block.arrived.get_mut(id as usize) {
                    *arrived = Arrived::default();
                }
            }
            _ => {}
        }
    }

    /// A block has ended: nobody may have come to a barrier that was never complete.
    pub(super) fn end(&mut self, slot: usize, to: &mut Findings) {
        let Some(block) = self.blocks.get_mut(slot).filter(|block| block.live == 0) else { return };
        for (id, arrived) in block.arrived.iter_mut().enumerate() {
            let Some((site, place)) = arrived.first.take() else { continue };
            let threads = arrived.threads;
            to.add(Check::Synccheck, "arrive-without-sync", (site, site), || Finding {
                message: format!(
                    "{threads} threads arrived at barrier {id}, and the block ended before it was complete"
                ),
                place,
                ..Finding::default()
            });
        }
    }
}

/// Tells a wrong use of a synchronising instruction.
pub(super) fn tell(at: &At<'_>, kind: &'static str, message: &str, to: &mut Findings) {
    let (site, place) = (to.site(at), to.place(at, at.mask));
    to.add(Check::Synccheck, kind, (site, site), || Finding {
        message: message.to_owned(),
        place,
        ..Finding::default()
    });
}
