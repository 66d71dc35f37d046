//! Which blocks run: a small number for each, so that checks keep arrays instead of maps.

use std::collections::HashMap;

/// The slots of running blocks. A block keeps its slot until it ends; then another may have it.
#[derive(Debug, Default)]
pub(super) struct Slots {
    of: HashMap<u64, usize>,
    free: Vec<usize>,
    used: usize,
    /// The block asked for last, and its slot.
    last: Option<(u64, usize)>,
}

impl Slots {
    /// A block begins.
    pub(super) fn take(&mut self, block_index: u64) -> usize {
        let slot = self.free.pop().unwrap_or(self.used);
        self.used = self.used.max(slot + 1);
        self.of.insert(block_index, slot);
        slot
    }

    /// A block has ended: its slot, which is free from now on.
    pub(super) fn free(&mut self, block_index: u64) -> usize {
        self.last = None;
        let slot = self.of.remove(&block_index).unwrap_or(0);
        self.free.push(slot);
        slot
    }

    /// The slot of a block.
    #[inline(always)]
    pub(super) fn of(&mut self, block_index: u64) -> usize {
        match self.last {
            Some((index, slot)) if index == block_index => slot,
            _ => {
                let slot = self.of.get(&block_index).copied().unwrap_or(0);
                self.last = Some((block_index, slot));
                slot
            }
        }
    }
}
