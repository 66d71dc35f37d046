//! Which bytes of global memory have a value: the address space itself remembers it, from launch to launch.

use std::sync::Arc;

use super::lanes;
use super::window::{Bytes, ones};
use crate::memory::{AddressSpace, Allocation};
use crate::registers::LANES;

/// Allocations that were met last: most accesses go where the ones before them went.
const RECENT: usize = 4;

/// The address space, and a short memory of where accesses went.
#[derive(Default)]
pub(super) struct Global {
    memory: Option<Arc<AddressSpace>>,
    recent: [Option<Arc<Allocation>>; RECENT],
    next: usize,
}

impl Global {
    pub(super) fn new(memory: Option<Arc<AddressSpace>>) -> Global {
        Global { memory, ..Global::default() }
    }

    fn allocation(&mut self, address: u64, bytes: u64) -> Option<&Allocation> {
        let holds = |kept: &Option<Arc<Allocation>>| {
            kept.as_ref().is_some_and(|kept| kept.contains(address, bytes) && !kept.freed())
        };
        let at = match self.recent.iter().position(holds) {
            Some(at) => at,
            None => {
                let found = self.memory.as_ref()?.find(address).filter(|found| found.contains(address, bytes))?;
                self.next = (self.next + 1) % RECENT;
                self.recent[self.next] = Some(found);
                self.next
            }
        };
        self.recent[at].as_deref()
    }

    /// The addresses from the first byte to the last that the lanes access.
    fn span(addresses: &[u64; LANES], mask: u32, bytes: u32) -> (u64, u64) {
        let (mut low, mut high) = (u64::MAX, 0);
        for (lane, &address) in addresses.iter().enumerate() {
            let on = mask >> lane & 1 == 1;
            low = if on { low.min(address) } else { low };
            high = if on { high.max(address) } else { high };
        }
        (low, high.saturating_add(u64::from(bytes)))
    }

    /// Whether all bytes between the lanes' first and last have a value, where that is quickly seen.
    fn all_defined(&mut self, (low, high): (u64, u64)) -> bool {
        let bytes = high.saturating_sub(low);
        if bytes > 1024 {
            return false;
        }
        let Some(allocation) = self.allocation(low, bytes) else { return false };
        let start = low - allocation.base;
        (start..start + bytes).step_by(64).all(|offset| {
            let count = (start + bytes - offset).min(64) as u32;
            allocation.defined(offset, count) == ones(count)
        })
    }

    /// The undefined bytes of an access; `None` where there are none.
    pub(super) fn read(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32) -> Option<Bytes> {
        if self.memory.is_none() || self.all_defined(Self::span(addresses, mask, bytes)) {
            return None;
        }
        let mut out = [0; LANES];
        let mut any = 0;
        for lane in lanes(mask) {
            let address = addresses[lane];
            let Some(allocation) = self.allocation(address, u64::from(bytes)) else { continue };
            out[lane] = !allocation.defined(address - allocation.base, bytes) & ones(bytes);
            any |= out[lane];
        }
        (any != 0).then_some(out)
    }

    /// Each lane has written a value.
    pub(super) fn write(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32) {
        let (low, high) = Self::span(addresses, mask, bytes);
        if self.memory.is_none() || self.all_defined((low, high)) {
            return;
        }
        let dense = (0..LANES).all(|lane| addresses[lane] == low + lane as u64 * u64::from(bytes));
        if dense
            && mask == u32::MAX
            && let Some(allocation) = self.allocation(low, high - low)
        {
            return allocation.set_defined(low - allocation.base, high - low, true);
        }
        for lane in lanes(mask) {
            let address = addresses[lane];
            if let Some(allocation) = self.allocation(address, u64::from(bytes)) {
                allocation.set_defined(address - allocation.base, u64::from(bytes), true);
            }
        }
    }

    /// The allocation in words.
    pub(super) fn describe(&mut self, address: u64) -> Option<String> {
        self.allocation(address, 1).map(ToString::to_string)
    }
}

impl std::fmt::Debug for Global {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Global")
    }
}
