//! What can go wrong with a device, as one type.

use crate::DType;

/// An error of a device, its memory or its streams. Each says what was asked, what is there and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No such device on this machine or in this build.
    #[error("no device `{asked}`: {looked_for}. Available: {available}")]
    NoSuchDevice {
        /// The device as it was asked for.
        asked: String,
        /// What was looked for, and where.
        looked_for: String,
        /// The devices that can be opened.
        available: String,
    },
    /// A thread count that cannot be served.
    #[error("{asked} threads asked for on device `cpu`; 1 to {limit} are allowed")]
    BadThreads {
        /// The count asked for.
        asked: usize,
        /// The largest count allowed.
        limit: usize,
    },
    /// The thread pool of a device could not start.
    #[error("cannot start {threads} threads for device `cpu`: {reason}; lower the thread count or `ulimit -u`")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// A request for more memory than an address space has.
    #[error("cannot allocate {count} elements of {dtype} on `{device}`: more than the device can address or has free")]
    OutOfMemory {
        /// Elements asked for.
        count: usize,
        /// Their type.
        dtype: DType,
        /// The device.
        device: String,
    },
    /// An address of memory that is not ours, at which the elements cannot lie.
    #[error(
        "{count} elements of {dtype} cannot lie at address {address:#x} of `{device}`: it must be a multiple of {}, and the last one must have an address",
        .dtype.bytes()
    )]
    BadAddress {
        /// The device.
        device: String,
        /// The address given.
        address: u64,
        /// Elements.
        count: usize,
        /// Their type.
        dtype: DType,
    },
    /// A stream of another runtime that is none of this device.
    #[error("the stream cannot be one of device `{device}`: {reason}")]
    ForeignStream {
        /// The device.
        device: String,
        /// What it is.
        reason: String,
    },
    /// A region that is not inside its buffer.
    #[error("region {start}..{end} is not inside a buffer of {len} elements")]
    OutOfRange {
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// Two lengths that must be equal are not.
    #[error("{what}: {given} elements given, {expected} expected")]
    LengthMismatch {
        /// The operation and argument.
        what: &'static str,
        /// Elements given.
        given: usize,
        /// Elements expected.
        expected: usize,
    },
    /// Memory, stream or event of one device used with another.
    #[error("{what} is on device `{given}`, the stream is on `{expected}`; copy it there first")]
    WrongDevice {
        /// The argument.
        what: &'static str,
        /// Where it lies.
        given: String,
        /// Where it must lie.
        expected: String,
    },
    /// The host asked for a direct look at memory that it cannot address.
    #[error("memory of device `{device}` is not host memory; use download or copy_to_host")]
    NotHostMemory {
        /// The device.
        device: String,
    },
    /// Peer access between devices that cannot have it.
    #[error("kernels on `{device}` cannot reach the memory of `{to}`: both must be of one kind, and of one system")]
    NoPeer {
        /// Where the kernels run.
        device: String,
        /// Whose memory they would reach.
        to: String,
    },
    /// PTX for a device that runs none.
    #[error("{what} cannot be used on device `{device}`, which runs no PTX; open a software or cuda device")]
    NoKernels {
        /// What was to be used.
        what: &'static str,
        /// The device.
        device: String,
    },
    /// PTX that does not compile or load.
    #[error("device `{device}` cannot load the module: {log}")]
    Module {
        /// The device.
        device: String,
        /// The compiler's log.
        log: String,
    },
    /// A kernel or variable that a module does not have.
    #[error("device `{device}`: {reason}")]
    NoSymbol {
        /// The device.
        device: String,
        /// What was looked for and what is there.
        reason: String,
    },
    /// A launch that cannot begin.
    #[error("device `{device}` cannot launch: {reason}")]
    Launch {
        /// The device.
        device: String,
        /// The argument or limit, with the numbers.
        reason: String,
    },
    /// A kernel that failed, or in which a check found an error.
    #[error("device `{device}`: {report}")]
    Kernel {
        /// The device.
        device: String,
        /// The whole of what was found.
        report: String,
    },
    /// Wrong data that a kernel found, and on which nothing it wrote depends.
    #[error("device `{device}`: {what}: {value} in row {row}; it must be less than {limit}")]
    BadData {
        /// The device.
        device: String,
        /// The op and the argument.
        what: &'static str,
        /// The row.
        row: u64,
        /// What is there.
        value: u64,
        /// The first value that is not allowed.
        limit: u64,
    },
    /// A backend refused something that should have worked: an exhausted host, a lost device.
    #[error("device `{device}` failed: {reason}")]
    Backend {
        /// The device.
        device: String,
        /// The backend's reason.
        reason: String,
    },
}
