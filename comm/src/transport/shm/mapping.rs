//! Mapped memory that several ranks use at once, and the only place that touches it through raw pointers.
//!
//! Nothing here is ever lent as a `&[T]`: another process may write at any time, so control words are atomics and
//! payload is copied in and out.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

/// A shared, zero-initialised, page-aligned piece of memory, unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is plain bytes with no thread affinity; it is reached only through atomics and through copies
// whose callers own the range for the time of the copy.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out atomics, and the copies are `unsafe fn` with ownership of the range as contract.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process alone, shared among its threads. Pages appear when first touched.
    pub(super) fn private(bytes: usize) -> rustix::io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses overlaps nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Self::new(base, bytes)
    }

    /// The first `bytes` of a file, shared with everybody who maps it. The file must be at least that long and its
    /// pages allocated: a missing page would raise SIGBUS.
    pub(super) fn of_file(file: &File, bytes: usize) -> rustix::io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing; that others write to the
        // file is what this type is for.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        Self::new(base, bytes)
    }

    fn new(base: *mut std::ffi::c_void, bytes: usize) -> rustix::io::Result<Self> {
        NonNull::new(base.cast()).map(|base| Self { base, bytes }).ok_or(rustix::io::Errno::NOMEM)
    }

    /// The address of `length` bytes at `offset`, which must lie inside and be aligned to `align`.
    fn at(&self, offset: usize, length: usize, align: usize) -> NonNull<u8> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        assert!(inside && offset.is_multiple_of(align), "{length} bytes at {offset} of a mapping of {}", self.bytes);
        // SAFETY: `offset` is within the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    /// The control word at `offset`.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        let address = self.at(offset, 4, 4).as_ptr().cast();
        // SAFETY: inside the mapping, aligned (the base is page-aligned), lives as long as `self`, and control words are
        // only ever accessed as atomics.
        unsafe { AtomicU32::from_ptr(address) }
    }

    /// The counter at `offset`.
    pub(super) fn counter(&self, offset: usize) -> &AtomicU64 {
        let address = self.at(offset, 8, 8).as_ptr().cast();
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// No control word lies in the range, and no thread of this process reads or writes it during the call.
    pub(super) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len(), 1).as_ptr();
        // SAFETY: the target is inside the mapping; a `&[u8]` of safe code cannot overlap memory that is never lent.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes from `offset` to `into`.
    ///
    /// # Safety
    /// No control word lies in the range, and no thread of this process writes it during the call.
    pub(super) unsafe fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len(), 1).as_ptr();
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and nothing borrowed from `self` outlives it. A failure would leave
        // the range mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
