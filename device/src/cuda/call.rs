//! Calls of the driver, and what they answer.

use std::ffi::CStr;
use std::fmt;

use cudarc::driver::sys::{self, CUresult};

/// A call that did not succeed: its name and the driver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    call: &'static str,
    result: CUresult,
}

/// Calls a function of the driver by its name. The arguments are the driver's contract; each use is a block of its own.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the driver is there (a context is only opened after `driver_is_there`), handles are live as their owners
        // hold them, and pointers are to places that outlive the call.
        let result = unsafe { cudarc::driver::sys::$name($($argument),*) };
        $crate::cuda::call::Failure::check(stringify!($name), result)
    }};
}
pub(crate) use call;

/// Whether the driver's library can be opened.
pub(crate) fn driver_is_there() -> bool {
    // SAFETY: opening the library runs its initialisers, which a driver's library is made for.
    unsafe { sys::is_culib_present() }
}

impl Failure {
    pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), Failure> {
        if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failure { call, result }) }
    }

    /// The driver's answer.
    pub(crate) fn result(self) -> CUresult {
        self.result
    }

    /// Whether it comes from a kernel that ran earlier: the device is then lost to this process.
    pub(crate) fn is_of_a_kernel(self) -> bool {
        use CUresult::*;
        matches!(
            self.result,
            CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_ASSERT
                | CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUDA_ERROR_INVALID_PC
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_LAUNCH_FAILED
                | CUDA_ERROR_LAUNCH_TIMEOUT
        )
    }

    fn words(self) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes the address of a string of its own, which lives as long as the library.
        let answer = unsafe { sys::cuGetErrorString(self.result, &mut text) };
        if answer != CUresult::CUDA_SUCCESS || text.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: as above: a string that ends with a NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {:?})", self.words(), self.call, self.result)
    }
}
