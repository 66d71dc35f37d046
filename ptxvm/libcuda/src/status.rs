//! Results of the driver API (`CUresult`), and the guard around every entry point.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpweft_ptxvm::memory::MemoryError;
use warpweft_ptxvm::system::SystemError;

/// A result by its number in `cuda.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) i32);

impl Status {
    pub(crate) const INVALID_VALUE: Status = Status(1);
    pub(crate) const OUT_OF_MEMORY: Status = Status(2);
    pub(crate) const NOT_INITIALIZED: Status = Status(3);
    pub(crate) const INVALID_DEVICE: Status = Status(101);
    pub(crate) const INVALID_IMAGE: Status = Status(200);
    pub(crate) const INVALID_CONTEXT: Status = Status(201);
    pub(crate) const NO_BINARY_FOR_GPU: Status = Status(209);
    pub(crate) const PEER_ACCESS_UNSUPPORTED: Status = Status(217);
    pub(crate) const INVALID_PTX: Status = Status(218);
    pub(crate) const INVALID_HANDLE: Status = Status(400);
    pub(crate) const NOT_FOUND: Status = Status(500);
    pub(crate) const NOT_READY: Status = Status(600);
    pub(crate) const ILLEGAL_ADDRESS: Status = Status(700);
    pub(crate) const OUT_OF_RESOURCES: Status = Status(701);
    pub(crate) const TIMEOUT: Status = Status(702);
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Status = Status(704);
    pub(crate) const ASSERT: Status = Status(710);
    pub(crate) const ILLEGAL_INSTRUCTION: Status = Status(715);
    pub(crate) const MISALIGNED_ADDRESS: Status = Status(716);
    pub(crate) const LAUNCH_FAILED: Status = Status(719);
    pub(crate) const NOT_SUPPORTED: Status = Status(801);
    pub(crate) const UNKNOWN: Status = Status(999);
}

impl From<SystemError> for Status {
    fn from(error: SystemError) -> Status {
        match error {
            SystemError::Memory(error) => error.into(),
            SystemError::Compile(_) => Status::INVALID_PTX,
            SystemError::Target { .. } => Status::NO_BINARY_FOR_GPU,
            SystemError::NoKernel { .. } | SystemError::NoVariable { .. } => Status::NOT_FOUND,
            SystemError::Cluster { .. } => Status::NOT_SUPPORTED,
            SystemError::Launch(_) => Status::OUT_OF_RESOURCES,
            SystemError::Stopped { .. } => Status::LAUNCH_FAILED,
            SystemError::ArgumentCount { .. } | SystemError::Argument { .. } | SystemError::Ragged { .. } => {
                Status::INVALID_VALUE
            }
            _ => Status::UNKNOWN,
        }
    }
}

impl From<MemoryError> for Status {
    fn from(error: MemoryError) -> Status {
        match error {
            MemoryError::OutOfMemory { .. } => Status::OUT_OF_MEMORY,
            MemoryError::NoSuchDevice { .. } => Status::INVALID_DEVICE,
            _ => Status::INVALID_VALUE,
        }
    }
}

/// Runs the body of an entry point; what fails is its status, and no panic leaves it.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Status>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status.0,
        Err(_) => Status::UNKNOWN.0,
    }
}
