//! The allocations that a worker has used last, so that an access needs no look-up in the address space.

use std::sync::Arc;

use warpweft_ptxvm_isa::vectorised;

use super::words;
use super::worker::Context;
use crate::memory::{Allocation, FaultKind, Page};
use crate::registers::LANES;

/// Allocations remembered.
const ENTRIES: usize = 12;

/// An allocation.
struct Entry {
    base: u64,
    bytes: u64,
    allocation: Arc<Allocation>,
}

/// The allocations used last.
#[derive(Default)]
pub(super) struct Cache {
    entries: Vec<Entry>,
    /// The one to be replaced next.
    oldest: usize,
    /// The one used last.
    last: usize,
}

/// Lanes that all access one page.
pub(super) struct Span {
    /// Where in the cache the allocation is.
    entry: usize,
    /// The page.
    pub(super) page: usize,
    /// Offsets in it.
    pub(super) offsets: [u32; LANES],
    /// See [`words::step`].
    pub(super) step: u32,
}

impl Cache {
    /// The allocation of an address that the kernel may access.
    fn entry(&mut self, context: &Context<'_>, address: u64, write: bool) -> Result<usize, FaultKind> {
        let hit = |entry: &Entry| address.wrapping_sub(entry.base) < entry.bytes && !entry.allocation.freed();
        let found = match self.entries.get(self.last) {
            Some(entry) if hit(entry) => Some(self.last),
            _ => self.entries.iter().position(hit),
        };
        let at = match found {
            Some(at) => at,
            None => {
                let allocation = context.memory.resolve(context.launch.device, address, 1, write)?;
                let entry = Entry { base: allocation.base, bytes: allocation.bytes, allocation };
                if self.entries.len() < ENTRIES {
                    self.entries.push(entry);
                    self.entries.len() - 1
                } else {
                    self.oldest = (self.oldest + 1) % ENTRIES;
                    self.entries[self.oldest] = entry;
                    self.oldest
                }
            }
        };
        self.last = at;
        if write && self.entries[at].allocation.is_read_only() {
            return Err(FaultKind::ReadOnly);
        }
        Ok(at)
    }

    /// Where all lanes of a mask access the same page, aligned and in bounds.
    pub(super) fn span(
        &mut self,
        context: &Context<'_>,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u32,
        write: bool,
    ) -> Option<Span> {
        let first = addresses[mask.trailing_zeros() as usize & 31];
        let entry = self.entry(context, first, write).ok()?;
        let (base, size) = (self.entries[entry].base, self.entries[entry].bytes);
        let limit = size.checked_sub(u64::from(bytes))?;
        let origin = first.wrapping_sub(base);
        let mut offsets = [0; LANES];
        let (over, spread, low, step) = vectorised(
            #[inline(always)]
            || {
                let (mut over, mut spread, mut low) = (0, 0, 0);
                for lane in 0..LANES {
                    let on = u64::from(mask >> lane & 1).wrapping_neg();
                    let offset = (addresses[lane].wrapping_sub(base) & on) | (origin & !on);
                    over |= u64::from(offset > limit);
                    spread |= offset ^ origin;
                    low |= offset;
                    offsets[lane] = (offset & (Page::BYTES - 1)) as u32;
                }
                (over, spread, low, words::step(&offsets, mask))
            },
        );
        if over != 0 || spread >= Page::BYTES || low & (u64::from(bytes) - 1) != 0 {
            return None;
        }
        Some(Span { entry, page: Page::split(origin).0, offsets, step })
    }

    /// The allocation and offset of an access of one lane, alignment aside.
    pub(super) fn one(
        &mut self,
        context: &Context<'_>,
        address: u64,
        bytes: u32,
        write: bool,
    ) -> Result<(&Allocation, u64), FaultKind> {
        let at = self.entry(context, address, write)?;
        let allocation = &*self.entries[at].allocation;
        if !allocation.contains(address, u64::from(bytes)) {
            return Err(FaultKind::OutOfBounds);
        }
        Ok((allocation, address - allocation.base))
    }

    /// The page of a span: made where it is to be written; what an untouched one holds where it is read.
    #[inline(always)]
    pub(super) fn page(&self, span: &Span, write: bool) -> Result<&Page, u64> {
        let allocation = &self.entries[span.entry].allocation;
        if write { Ok(allocation.page_or_new(span.page)) } else { allocation.page(span.page) }
    }
}
