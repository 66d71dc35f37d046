//! What can go wrong with memory when the host asks.

use super::DeviceId;

/// A request of the host that memory cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A device that the system does not have.
    #[error("there is no {device}: the system has {devices}, counted from 0")]
    NoSuchDevice {
        /// The one named.
        device: DeviceId,
        /// How many there are.
        devices: u32,
    },
    /// A number of devices that cannot be had.
    #[error("{asked} devices asked for; 1 to {most} are possible")]
    Devices {
        /// The number asked for.
        asked: u64,
        /// The most.
        most: u32,
    },
    /// A device's memory size that cannot be had.
    #[error("a device memory of {asked} bytes asked for; at most {most} are possible")]
    DeviceBytes {
        /// The size asked for.
        asked: u64,
        /// The most.
        most: u64,
    },
    /// More than the device has left.
    #[error("cannot allocate {asked} bytes for `{tag}` on {device}: {free} of {total} bytes are free")]
    OutOfMemory {
        /// What it is for.
        tag: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes not in use.
        free: u64,
        /// Bytes of the device.
        total: u64,
        /// Where.
        device: DeviceId,
    },
    /// An alignment that is no power of two, or absurd.
    #[error("an alignment of {asked} bytes asked for; a power of two up to {most} is possible")]
    Alignment {
        /// The alignment asked for.
        asked: u64,
        /// The most.
        most: u64,
    },
    /// A range that is not inside one allocation.
    #[error("cannot {operation} {bytes} bytes at {address:#x}: {nearest}")]
    Range {
        /// `read`, `write`, `fill`...
        operation: &'static str,
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Where that is, in words.
        nearest: String,
    },
    /// An address to free at which nothing begins.
    #[error("cannot free {address:#x}: {nearest}")]
    NotAllocated {
        /// The address.
        address: u64,
        /// Where that is, in words.
        nearest: String,
    },
    /// A pattern that cannot be repeated there.
    #[error(
        "cannot fill {bytes} bytes at {address:#x} with a value of {pattern} bytes: a value has 1, 2, 4 or 8 bytes, and address and length are multiples of that"
    )]
    Pattern {
        /// First address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// Bytes of the value.
        pattern: usize,
    },
}
