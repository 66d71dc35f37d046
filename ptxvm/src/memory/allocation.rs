//! One allocation: a range of addresses, its pages, and what kernels may do with it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::DeviceId;
use super::page::{Page, Slot, set_bits};

/// A range of device memory with one owner. Offsets given to its methods must lie inside it, and those of a value of
/// 2, 4 or 8 bytes must be a multiple of that; whoever calls has checked both.
pub struct Allocation {
    /// The first address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whose memory it is.
    pub device: DeviceId,
    /// What reports call it.
    pub tag: Arc<str>,
    /// Counts the allocations of the address space: no two are ever the same.
    pub id: u64,
    read_only: AtomicBool,
    freed: AtomicBool,
    /// All of it counts as having a value: something wrote it that nobody watched.
    assumed: AtomicBool,
    slots: Box<[Slot]>,
    births: Mutex<()>,
}

impl Allocation {
    pub(crate) fn new(base: u64, bytes: u64, device: DeviceId, tag: &str, id: u64) -> Allocation {
        Allocation {
            base,
            bytes,
            device,
            tag: tag.into(),
            id,
            read_only: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            assumed: AtomicBool::new(false),
            slots: (0..bytes.div_ceil(Page::BYTES)).map(|_| Slot::new()).collect(),
            births: Mutex::new(()),
        }
    }

    /// Whether `bytes` from `address` lie in it.
    #[inline(always)]
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    /// Whether it was given back: whoever keeps a handle across other people's steps asks again.
    #[inline(always)]
    pub fn freed(&self) -> bool {
        self.freed.load(Relaxed)
    }

    pub(crate) fn set_freed(&self) {
        self.freed.store(true, Relaxed);
    }

    /// Kernels may not write it.
    #[inline(always)]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Relaxed)
    }

    /// Allows or forbids kernels to write it; the host may always.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Relaxed);
    }

    /// Pages, touched or not.
    pub fn pages(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of a page: the last one may be short.
    fn page_bytes(&self, index: usize) -> u64 {
        (self.bytes - index as u64 * Page::BYTES).min(Page::BYTES)
    }

    /// A page, made if nobody has touched it.
    #[inline(always)]
    pub fn page_or_new(&self, index: usize) -> &Page {
        let slot = &self.slots[index];
        match slot.get() {
            Some(page) => page,
            None => slot.make(self.page_bytes(index), &self.births),
        }
    }

    /// A page, or what each 8 bytes of an untouched one hold: for reading without making it.
    #[inline(always)]
    pub fn page(&self, index: usize) -> Result<&Page, u64> {
        let slot = &self.slots[index];
        slot.get().ok_or_else(|| slot.pattern().0)
    }

    /// The word at an offset, for atomics.
    #[inline(always)]
    pub fn word(&self, offset: u64) -> &AtomicU32 {
        let (page, at) = Page::split(offset);
        &self.page_or_new(page).words()[at / 4]
    }

    /// Reads 4 bytes.
    #[inline(always)]
    pub fn load_u32(&self, offset: u64) -> u32 {
        let (page, at) = Page::split(offset);
        match self.page(page) {
            Ok(page) => page.words()[at / 4].load(Relaxed),
            Err(pattern) => (pattern >> (at % 8 / 4 * 32)) as u32,
        }
    }

    /// Reads 1 byte.
    #[inline(always)]
    pub fn load_u8(&self, offset: u64) -> u8 {
        (self.load_u32(offset & !3) >> (offset % 4 * 8)) as u8
    }

    /// Reads 2 bytes.
    #[inline(always)]
    pub fn load_u16(&self, offset: u64) -> u16 {
        (self.load_u32(offset & !3) >> (offset % 4 * 8)) as u16
    }

    /// Reads 8 bytes, in two steps: strong accesses hold the lock of the address space.
    #[inline(always)]
    pub fn load_u64(&self, offset: u64) -> u64 {
        u64::from(self.load_u32(offset)) | u64::from(self.load_u32(offset + 4)) << 32
    }

    /// Writes 1 byte.
    #[inline(always)]
    pub fn store_u8(&self, offset: u64, value: u8) {
        let shift = offset % 4 * 8;
        set_bits(self.word(offset & !3), 0xff << shift, u32::from(value) << shift);
    }

    /// Writes 2 bytes.
    #[inline(always)]
    pub fn store_u16(&self, offset: u64, value: u16) {
        let shift = offset % 4 * 8;
        set_bits(self.word(offset & !3), 0xffff << shift, u32::from(value) << shift);
    }

    /// Writes 4 bytes.
    #[inline(always)]
    pub fn store_u32(&self, offset: u64, value: u32) {
        self.word(offset).store(value, Relaxed);
    }

    /// Writes 8 bytes, in two steps.
    #[inline(always)]
    pub fn store_u64(&self, offset: u64, value: u64) {
        self.store_u32(offset, value as u32);
        self.store_u32(offset + 4, (value >> 32) as u32);
    }

    /// Reads any bytes.
    pub fn load(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        for (index, at, len) in parts(offset, out.len() as u64) {
            let part = &mut out[done..done + len];
            match self.page(index) {
                Ok(page) => page.read(at, part),
                Err(pattern) => {
                    let pattern = pattern.to_le_bytes();
                    for (lane, byte) in part.iter_mut().enumerate() {
                        *byte = pattern[(at + lane) % 8];
                    }
                }
            }
            done += len;
        }
    }

    /// Writes any bytes, without entering them as having a value: what the executor does.
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        for (index, at, len) in parts(offset, bytes.len() as u64) {
            self.page_or_new(index).write(at, &bytes[done..done + len]);
            done += len;
        }
    }

    /// Repeats 8 bytes: the byte at offset o is byte o % 8 of the pattern. `defined` is whether they count as a value.
    pub(crate) fn fill(&self, offset: u64, bytes: u64, pattern: u64, defined: bool) {
        for (index, at, len) in parts(offset, bytes) {
            self.slots[index].fill(at, len, self.page_bytes(index), (pattern, defined), &self.births);
        }
    }

    /// What an untouched page holds and whether that is a value; `None` for one that is there.
    pub(crate) fn untouched(&self, index: usize) -> Option<(u64, bool)> {
        let slot = &self.slots[index];
        slot.get().is_none().then(|| slot.pattern())
    }

    /// Which of up to 64 bytes have a value: bit i is byte i.
    pub fn defined(&self, offset: u64, bytes: u32) -> u64 {
        let all = u64::MAX >> (64 - bytes.clamp(1, 64));
        if self.assumed.load(Relaxed) {
            return all;
        }
        let mut mask = 0;
        let mut done = 0;
        for (index, at, len) in parts(offset, u64::from(bytes.min(64))) {
            let found = match self.slots[index].get() {
                Some(page) => {
                    let bits = page.defined();
                    let low = bits[at / 64].load(Relaxed) >> (at % 64);
                    let high = bits.get(at / 64 + 1).filter(|_| at % 64 > 0);
                    low | high.map_or(0, |bits| bits.load(Relaxed) << (64 - at % 64))
                }
                None if self.slots[index].pattern().1 => u64::MAX,
                None => 0,
            };
            mask |= (found & (u64::MAX >> (64 - len))) << done;
            done += len;
        }
        mask & all
    }

    /// Enters bytes as having a value, or as having none.
    pub fn set_defined(&self, offset: u64, bytes: u64, defined: bool) {
        for (index, at, len) in parts(offset, bytes) {
            self.page_or_new(index).set_defined(at, len, defined);
        }
    }

    /// Counts all of it as having a value from now on: something has written it that nobody watched.
    pub fn assume_defined(&self) {
        self.assumed.store(true, Relaxed);
    }
}

/// A range cut at the borders of pages: (page, byte in it, bytes).
fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset + bytes;
    let mut start = offset;
    std::iter::from_fn(move || {
        let (page, at) = Page::split(start);
        let len = (Page::BYTES - at as u64).min(end - start);
        start += len;
        (len > 0).then_some((page, at, len as usize))
    })
}

impl fmt::Debug for Allocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Allocation({self})")
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}` ({} bytes at {:#x} on {})", self.tag, self.bytes, self.base, self.device)
    }
}
