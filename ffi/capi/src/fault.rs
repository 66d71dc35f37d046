//! From a Rust error to a status and a sentence.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use warpweft_comm::{Cause, CommError};
use warpweft_device::DeviceError;
use warpweft_kernels::KernelError;

/// What can go wrong in a call from C.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("`{argument}` is null")]
    Null { argument: &'static str },
    #[error("`{argument}` is at address {address:#x}, which is not aligned to its type ({alignment} bytes)")]
    Misaligned { argument: &'static str, address: usize, alignment: usize },
    #[error("`{argument}` would have {len} elements, more than memory can address; check the sizes given")]
    TooLarge { argument: &'static str, len: usize },
    #[error("`{argument}` overlaps `{other}`; give separate memory, or exactly the in-place form where there is one")]
    Overlap { argument: &'static str, other: &'static str },
    #[error("`{argument}` is {given}; use {allowed}")]
    Value { argument: &'static str, given: i64, allowed: &'static str },
    #[error(
        "`{argument}.size` is {size}; set it to sizeof the struct ({known} in this library), and what this library does not know to 0"
    )]
    StructSize { argument: &'static str, size: usize, known: usize },
    #[error("`{argument}` goes with no {by}")]
    Excluded { argument: &'static str, by: &'static str },
    #[error("`{argument}`: {what} is {given}; it must be {expected}")]
    Tensor { argument: String, what: &'static str, given: String, expected: String },
    #[error("`seconds` is {given}; give a number more than 0")]
    Seconds { given: f64 },
    #[error("`rank` is {rank} in a job of {world}; use 0 to {}", .world.saturating_sub(1))]
    Rank { rank: usize, world: usize },
    #[error("`world` is {given}, but another rank of this id said {expected}; all ranks must say the same")]
    World { given: usize, expected: usize },
    #[error("rank {rank} of this id is taken; each rank is made once, and an id names one job")]
    Taken { rank: usize },
    #[error(
        "no launcher's environment: neither torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) nor mpirun's or srun's are set; start the program with one of them, or use ww_comm_create"
    )]
    NoEnvironment,
    #[error("cannot get random bytes for an id: {reason}")]
    Random { reason: getrandom::Error },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// The codes of the header.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Status {
    Ok = 0,
    InvalidArgument = 1,
    NoDevice = 2,
    OutOfMemory = 3,
    PeerFailed = 4,
    TimedOut = 5,
    Aborted = 6,
    Mismatch = 7,
    System = 8,
    Internal = 9,
    KernelFailed = 10,
    BadData = 11,
}

fn of_device(error: &DeviceError) -> Status {
    match error {
        DeviceError::NoSuchDevice { .. } => Status::NoDevice,
        DeviceError::OutOfMemory { .. } => Status::OutOfMemory,
        DeviceError::Threads { .. } | DeviceError::Backend { .. } => Status::System,
        DeviceError::Kernel { .. } => Status::KernelFailed,
        DeviceError::BadData { .. } => Status::BadData,
        _ => Status::InvalidArgument,
    }
}

fn of_comm(error: &CommError) -> Status {
    match error {
        CommError::Failed(failure) => match failure.cause {
            Cause::TimedOut { .. } => Status::TimedOut,
            Cause::Aborted { .. } => Status::Aborted,
            Cause::Mismatch { .. } => Status::Mismatch,
            _ => Status::PeerFailed,
        },
        CommError::System { .. } => Status::System,
        CommError::Device(error) => of_device(error),
        _ => Status::InvalidArgument,
    }
}

impl Fault {
    fn status(&self) -> Status {
        match self {
            Fault::Device(error) | Fault::Kernel(KernelError::Device(error)) => of_device(error),
            Fault::Comm(error) => of_comm(error),
            Fault::Random { .. } => Status::System,
            _ => Status::InvalidArgument,
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn remember(sentence: String) {
    let bytes: Vec<u8> = sentence.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
    // No zero byte is left, so this cannot fail; an empty sentence would be the fallback.
    let sentence = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has no place for it any more, and nobody to read it.
    let _ = LAST.try_with(|last| last.replace(sentence));
}

/// Runs `work` for the function `call`; an error or a panic becomes a status, with its sentence kept for the thread.
pub(crate) fn guard(call: &'static str, work: impl FnOnce() -> Result<(), Fault>) -> i32 {
    let status = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(fault)) => {
            remember(format!("{call}: {fault}"));
            fault.status()
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            remember(format!("{call}: a defect of warpweft, please report it: {text}"));
            Status::Internal
        }
    };
    status as i32
}

/// The calling thread's last sentence; the pointer is valid until its next error.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_sentence() {
        assert_eq!(guard("ww_test", || panic!("seven {}", 7)), Status::Internal as i32);
        LAST.with(|last| {
            let sentence = last.borrow().to_string_lossy().into_owned();
            assert!(sentence.starts_with("ww_test: ") && sentence.ends_with("seven 7"), "{sentence}");
        });
    }

    #[test]
    fn a_success_keeps_the_last_sentence() {
        assert_eq!(guard("ww_test", || Err(Fault::Null { argument: "x" })), Status::InvalidArgument as i32);
        assert_eq!(guard("ww_other", || Ok(())), 0);
        LAST.with(|last| assert_eq!(last.borrow().as_c_str(), c"ww_test: `x` is null"));
    }
}
