//! What needs no handle: the version, and the last error.

use std::ffi::{CStr, c_char};

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn ww_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version holds no zero byte"),
    };
    VERSION.as_ptr()
}

/// The sentence of the calling thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn ww_last_error() -> *const c_char {
    crate::fault::last()
}
