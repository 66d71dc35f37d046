//! Memory: one sparse 64-bit address space for all devices, with windows for shared and local memory.
//!
//! Addresses depend on the sequence of allocations and on nothing else, so that a run can be repeated to the byte.

mod allocation;
mod error;
mod page;
mod space;
mod transfer;

use std::fmt;

pub use allocation::Allocation;
pub use error::MemoryError;
pub use page::Page;
pub use space::{AddressSpace, DEFAULT_DEVICE_BYTES, MOST_DEVICE_BYTES, MOST_DEVICES, RED_ZONE};

use crate::types::Space;

/// A device of the system, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "device {}", self.0)
    }
}

/// Where the shared memory of the block that runs appears in the generic space. An address of `.shared` is an offset in it.
pub const SHARED_WINDOW: u64 = 0x7f00_0000_0000;
/// Where the local memory of the thread that runs appears in the generic space.
pub const LOCAL_WINDOW: u64 = 0x7f10_0000_0000;
/// Where the kernel's parameters appear in the generic space.
pub const PARAM_WINDOW: u64 = 0x7f20_0000_0000;
/// Bytes of each window.
pub const WINDOW_BYTES: u64 = 1 << 32;
/// The first address of global memory that an allocation may have.
pub const GLOBAL_BASE: u64 = 0x7fff_0000_0000 >> 8;

/// An access that cannot be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Lanes whose access is wrong.
    pub lanes: u32,
    /// The address of the first of them.
    pub address: u64,
    /// Bytes each lane accesses.
    pub bytes: u32,
    /// The space the instruction names.
    pub space: Space,
    /// Whether it writes.
    pub write: bool,
    /// The allocation nearest to it, in words: its tag, range, and how far outside the access is.
    pub allocation: Option<String>,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// In no allocation.
    OutOfBounds,
    /// In an allocation that was freed.
    UseAfterFree,
    /// The address is no multiple of the access's bytes.
    Misaligned,
    /// A write to constant or parameter memory, or to a read-only allocation.
    ReadOnly,
    /// The address is of another space than the instruction names.
    WrongSpace,
    /// The memory of another device without peer access.
    NoPeerAccess,
}

impl FaultKind {
    /// A stable word for reports.
    pub fn word(self) -> &'static str {
        match self {
            FaultKind::OutOfBounds => "out-of-bounds",
            FaultKind::UseAfterFree => "use-after-free",
            FaultKind::Misaligned => "misaligned",
            FaultKind::ReadOnly => "read-only",
            FaultKind::WrongSpace => "wrong-space",
            FaultKind::NoPeerAccess => "no-peer-access",
        }
    }
}
