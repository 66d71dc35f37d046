//! The address space: devices, allocation, finding, and what to say of an address that is in no allocation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::{Allocation, DeviceId, Fault, FaultKind, GLOBAL_BASE, MemoryError};
use crate::types::Space;

/// Bytes of a device's memory unless the caller says otherwise: 80 GiB.
pub const DEFAULT_DEVICE_BYTES: u64 = 80 << 30;
/// The most that a device can have: 256 GiB.
pub const MOST_DEVICE_BYTES: u64 = 256 << 30;
/// The most devices of a system.
pub const MOST_DEVICES: u32 = 64;
/// Addresses between two allocations, in none of which anything lies.
pub const RED_ZONE: u64 = 64 << 10;

/// Addresses of one device. Only a part of them can be in use, so that freed ones rest before they are used again.
const DEVICE_SPAN: u64 = 1 << 40;
/// An allocation begins at a multiple of it, as the CUDA driver promises.
const LEAST_ALIGN: u64 = 256;
const MOST_ALIGN: u64 = 1 << 30;
/// Freed allocations that are remembered, to name a use after free.
const REMEMBERED: usize = 4096;
const LOCKS: usize = 256;

/// All global memory of a system of devices.
pub struct AddressSpace {
    totals: Vec<u64>,
    peers: Vec<AtomicBool>,
    state: RwLock<State>,
    locks: Vec<Mutex<()>>,
}

#[derive(Default)]
struct State {
    live: BTreeMap<u64, Arc<Allocation>>,
    freed: BTreeMap<u64, Freed>,
    order: VecDeque<u64>,
    devices: Vec<Usage>,
    allocations: u64,
}

#[derive(Clone, Copy)]
struct Usage {
    next: u64,
    used: u64,
}

struct Freed {
    bytes: u64,
    words: String,
}

impl AddressSpace {
    /// A space for devices with so many bytes each.
    ///
    /// # Errors
    /// [`MemoryError::Devices`], [`MemoryError::DeviceBytes`].
    pub fn new(totals: &[u64]) -> Result<AddressSpace, MemoryError> {
        let most = MOST_DEVICES;
        let count = u32::try_from(totals.len()).unwrap_or(u32::MAX);
        if count == 0 || count > most {
            return Err(MemoryError::Devices { asked: totals.len() as u64, most });
        }
        if let Some(&asked) = totals.iter().find(|&&bytes| bytes > MOST_DEVICE_BYTES) {
            return Err(MemoryError::DeviceBytes { asked, most: MOST_DEVICE_BYTES });
        }
        let devices = (0..count).map(|device| Usage { next: first_address(device), used: 0 }).collect();
        Ok(AddressSpace {
            totals: totals.to_vec(),
            peers: (0..totals.len() * totals.len()).map(|_| AtomicBool::new(false)).collect(),
            state: RwLock::new(State { devices, ..State::default() }),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        })
    }

    fn read_state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many devices there are.
    pub fn devices(&self) -> u32 {
        self.totals.len() as u32
    }

    fn check_device(&self, device: DeviceId) -> Result<usize, MemoryError> {
        let at = device.0 as usize;
        if at < self.totals.len() { Ok(at) } else { Err(MemoryError::NoSuchDevice { device, devices: self.devices() }) }
    }

    /// Bytes of a device that are free, and bytes in all.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchDevice`].
    pub fn usage(&self, device: DeviceId) -> Result<(u64, u64), MemoryError> {
        let at = self.check_device(device)?;
        let total = self.totals[at];
        Ok((total - self.read_state().devices[at].used, total))
    }

    /// Reserves memory. Nothing in it has a value.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`], [`MemoryError::Alignment`], [`MemoryError::NoSuchDevice`].
    pub fn allocate(&self, device: DeviceId, bytes: u64, align: u64, tag: &str) -> Result<u64, MemoryError> {
        let at = self.check_device(device)?;
        if !align.is_power_of_two() || align > MOST_ALIGN {
            return Err(MemoryError::Alignment { asked: align, most: MOST_ALIGN });
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let (total, used) = (self.totals[at], state.devices[at].used);
        let full = || MemoryError::OutOfMemory { tag: tag.to_owned(), asked: bytes, free: total - used, total, device };
        let charged = charge(bytes).filter(|&charged| charged <= total - used).ok_or_else(full)?;
        let base = state.place(device, bytes, align.max(LEAST_ALIGN)).ok_or_else(full)?;
        state.devices[at].used += charged;
        state.allocations += 1;
        let allocation = Allocation::new(base, bytes, device, tag, state.allocations);
        state.live.insert(base, Arc::new(allocation));
        Ok(base)
    }

    /// Gives an allocation back. Its contents are gone; that it was there is remembered for a while.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] where no allocation begins at `address`.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let Some(allocation) = state.live.remove(&address) else {
            return Err(MemoryError::NotAllocated { address, nearest: state.nearest(address, 1) });
        };
        allocation.set_freed();
        state.devices[allocation.device.0 as usize].used -= charge(allocation.bytes).unwrap_or(0);
        state.freed.insert(address, Freed { bytes: allocation.bytes, words: allocation.to_string() });
        state.order.push_back(address);
        while state.order.len() > REMEMBERED {
            let oldest = state.order.pop_front();
            oldest.map(|address| state.freed.remove(&address));
        }
        Ok(())
    }

    /// The allocation that an address lies in.
    pub fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        self.read_state().find(address)
    }

    /// All allocations, in order of their addresses.
    pub fn allocations(&self) -> Vec<Arc<Allocation>> {
        self.read_state().live.values().cloned().collect()
    }

    /// The allocation of a range that a kernel on `from` may access, or what is wrong with the access.
    ///
    /// # Errors
    /// The kind of fault, alignment aside.
    pub fn resolve(&self, from: DeviceId, address: u64, bytes: u64, write: bool) -> Result<Arc<Allocation>, FaultKind> {
        let state = self.read_state();
        match state.find(address) {
            Some(allocation) if !allocation.contains(address, bytes) => Err(FaultKind::OutOfBounds),
            Some(allocation) if !self.reachable(from, allocation.device) => Err(FaultKind::NoPeerAccess),
            Some(allocation) if write && allocation.is_read_only() => Err(FaultKind::ReadOnly),
            Some(allocation) => Ok(allocation),
            None if state.freed_at(address).is_some() => Err(FaultKind::UseAfterFree),
            None => Err(FaultKind::OutOfBounds),
        }
    }

    /// Says what is wrong with an access of `bytes` at `address`; the caller enters the lanes. An access with which
    /// nothing is wrong is of a wrong space.
    pub fn fault(&self, from: DeviceId, address: u64, bytes: u32, space: Space, write: bool) -> Fault {
        let kind = match self.resolve(from, address, u64::from(bytes), write) {
            _ if bytes > 0 && !address.is_multiple_of(u64::from(bytes)) => FaultKind::Misaligned,
            Ok(_) => FaultKind::WrongSpace,
            Err(kind) => kind,
        };
        let allocation = Some(self.nearest(address, u64::from(bytes)));
        Fault { kind, lanes: 0, address, bytes, space, write, allocation }
    }

    /// Where a range lies, in words: the allocation it is in, or the nearest one and how far that is.
    pub fn nearest(&self, address: u64, bytes: u64) -> String {
        self.read_state().nearest(address, bytes)
    }

    /// Lets kernels of `from` reach the memory of `to`.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchDevice`].
    pub fn enable_peer(&self, from: DeviceId, to: DeviceId) -> Result<(), MemoryError> {
        self.set_peer(from, to, true)
    }

    /// Takes that back.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchDevice`].
    pub fn disable_peer(&self, from: DeviceId, to: DeviceId) -> Result<(), MemoryError> {
        self.set_peer(from, to, false)
    }

    fn set_peer(&self, from: DeviceId, to: DeviceId, on: bool) -> Result<(), MemoryError> {
        let (from, to) = (self.check_device(from)?, self.check_device(to)?);
        self.peers[from * self.totals.len() + to].store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Whether kernels of `from` reach the memory of `to`: their own always.
    #[inline]
    pub fn reachable(&self, from: DeviceId, to: DeviceId) -> bool {
        let at = from.0 as usize * self.totals.len() + to.0 as usize;
        from == to || self.peers.get(at).is_some_and(|peer| peer.load(Ordering::Relaxed))
    }

    /// The lock for accesses of more than 32 bits that must not be torn, and for atomics on them.
    pub fn lock(&self, address: u64) -> MutexGuard<'_, ()> {
        self.locks[(address >> 4) as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts all memory as having a value: a kernel has run that initcheck did not watch.
    pub fn assume_defined(&self) {
        for allocation in self.read_state().live.values() {
            allocation.assume_defined();
        }
    }
}

/// What an allocation costs of its device: a granule at least, as the driver's do.
fn charge(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(LEAST_ALIGN)
}

/// Where the addresses of a device begin.
fn first_address(device: u32) -> u64 {
    GLOBAL_BASE + u64::from(device) * DEVICE_SPAN
}

impl State {
    fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        allocation.contains(address, 1).then(|| Arc::clone(allocation))
    }

    fn freed_at(&self, address: u64) -> Option<&Freed> {
        let (&base, freed) = self.freed.range(..=address).next_back()?;
        (address - base < freed.bytes).then_some(freed)
    }

    /// A base for a new allocation: after all others, and where addresses run out, in the first gap.
    fn place(&mut self, device: DeviceId, bytes: u64, align: u64) -> Option<u64> {
        let end = first_address(device.0) + DEVICE_SPAN - RED_ZONE;
        let fits = |start: u64, end: u64| {
            let base = start.checked_next_multiple_of(align)?;
            (base.checked_add(bytes)? <= end).then_some(base)
        };
        let mut base = fits(self.devices[device.0 as usize].next, end);
        if base.is_none() {
            let mut start = first_address(device.0);
            for allocation in self.live.values().filter(|allocation| allocation.device == device) {
                base = base.or_else(|| fits(start, allocation.base.saturating_sub(RED_ZONE)));
                start = allocation.base + allocation.bytes + RED_ZONE;
            }
            base = base.or_else(|| fits(start, end));
        }
        let base = base?;
        let next = &mut self.devices[device.0 as usize].next;
        *next = (*next).max(base + bytes + RED_ZONE);
        self.freed.retain(|&start, freed| start + freed.bytes <= base || start >= base + bytes);
        Some(base)
    }

    fn nearest(&self, address: u64, bytes: u64) -> String {
        if let Some(allocation) = self.find(address) {
            let offset = address - allocation.base;
            if allocation.contains(address, bytes) {
                return format!("at byte {offset} of {allocation}");
            }
            let over = bytes - (allocation.bytes - offset);
            return format!("at byte {offset} of {allocation}, {over} bytes past its end");
        }
        if let Some(freed) = self.freed_at(address) {
            return format!("in {}, which was freed", freed.words);
        }
        let before = self.live.range(..=address).next_back().map(|(_, allocation)| {
            let end = allocation.base + allocation.bytes;
            (address - end, format!("{} bytes past the end of {allocation}", address - end))
        });
        let after = self
            .live
            .range(address..)
            .next()
            .map(|(&base, allocation)| (base - address, format!("{} bytes before {allocation}", base - address)));
        let nearest = before.into_iter().chain(after).min_by_key(|(distance, _)| *distance);
        nearest.map_or_else(|| "nothing is allocated".to_owned(), |(_, words)| words)
    }
}

impl std::fmt::Debug for AddressSpace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "AddressSpace({} devices, {} allocations)", self.devices(), self.read_state().live.len())
    }
}
