//! The caller's pointers: the only place that reads or writes through them.

use std::ffi::{CStr, c_char, c_void};

use crate::status::Status;

/// Writes a result.
pub(crate) fn set<T>(out: *mut T, value: T) -> Result<(), Status> {
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the driver API has the caller pass a pointer to a place for the result; it is not null.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a result that the caller may leave out.
pub(crate) fn set_if_wanted<T>(out: *mut T, value: T) {
    let _ = set(out, value);
}

/// A string of the caller's.
pub(crate) fn text(pointer: *const c_char) -> Result<String, Status> {
    if pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the driver API has the caller pass a string that ends with a NUL; it is not null.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(str::to_owned).map_err(|_| Status::INVALID_VALUE)
}

/// `len` values of the caller's.
pub(crate) fn slice<'a, T>(pointer: *const T, len: usize) -> Result<&'a [T], Status> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the driver API has the caller pass `len` values at `pointer`, valid during the call; it is not null.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// `len` values of the caller's, to write.
pub(crate) fn slice_mut<'a, T>(pointer: *mut T, len: usize) -> Result<&'a mut [T], Status> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the driver API has the caller pass room for `len` values at `pointer`, which nobody else uses during the
    // call; it is not null.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Bytes of the caller's.
pub(crate) fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8], Status> {
    slice(pointer.cast(), len)
}

/// Bytes of the caller's, to write.
pub(crate) fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8], Status> {
    slice_mut(pointer.cast(), len)
}
