//! The arguments that come from C: null, misaligned and overlapping ones are errors that name the argument.
//!
//! The types here have no constructor but null: any other value arrives as an argument of an `extern "C"` function, whose caller
//! is bound by the header to pass null or a pointer to as many valid elements as the other arguments say, which stay
//! valid during the call. That promise is what each `SAFETY` below rests on.

use std::ffi::{CStr, c_char, c_void};
use std::ops::Range;

use warpweft_device::Element;

use crate::fault::Fault;

/// An array that is read.
#[repr(transparent)]
pub struct Input(*const c_void);

/// An array that is written, and perhaps read before.
#[repr(transparent)]
pub struct Output(*mut c_void);

/// A handle or a struct that is read.
#[repr(transparent)]
pub struct Ref<T>(*const T);

/// Where a result goes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A handle that is given back, to be freed.
#[repr(transparent)]
pub struct Owned<T>(*mut T);

/// A string.
#[repr(transparent)]
pub struct Text(*const c_char);

/// The bytes of an array as addresses, to compare; `None` where it has no element.
type Extent = Option<Range<usize>>;

/// Checks what a slice demands of a pointer. `None`: there is no element and the pointer is not looked at.
fn checked<T>(argument: &'static str, address: usize, len: usize) -> Result<Extent, Fault> {
    if len == 0 {
        return Ok(None);
    }
    if address == 0 {
        return Err(Fault::Null { argument });
    }
    if !address.is_multiple_of(align_of::<T>()) {
        return Err(Fault::Misaligned { argument, address, alignment: align_of::<T>() });
    }
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    let end = bytes.and_then(|bytes| address.checked_add(bytes)).ok_or(Fault::TooLarge { argument, len })?;
    Ok(Some(address..end))
}

impl Input {
    /// No array.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null())
    }

    /// The address, to see whether an operation is in place.
    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }

    /// Its `len` elements.
    pub(crate) fn slice<T: Element>(&self, argument: &'static str, len: usize) -> Result<&[T], Fault> {
        if checked::<T>(argument, self.0.addr(), len)?.is_none() {
            return Ok(&[]);
        }
        // SAFETY: not null, aligned, and of a size that an array can have; the caller promises `len` valid elements
        // (see the module), and any bytes are a valid `Element`. Whoever writes has called `disjoint` before.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }

    /// Its `len` elements, or nothing where it is null.
    pub(crate) fn optional<T: Element>(&self, argument: &'static str, len: usize) -> Result<Option<&[T]>, Fault> {
        if self.0.is_null() { Ok(None) } else { self.slice(argument, len).map(Some) }
    }

    /// Where its `len` elements lie.
    pub(crate) fn extent<T>(&self, argument: &'static str, len: usize) -> Result<(&'static str, Extent), Fault> {
        if self.0.is_null() {
            return Ok((argument, None));
        }
        Ok((argument, checked::<T>(argument, self.0.addr(), len)?))
    }
}

impl Output {
    /// No array.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The array of a struct that the caller gave to be read: the struct is not ours to change, the array is.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }

    /// The address, to see whether an operation is in place.
    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }

    /// The array that begins `bytes` before this one, of which this is a part: how the in-place form of a reduce-scatter
    /// is given. Takes the part, so that only one of the two exists.
    pub(crate) fn back(self, bytes: usize) -> Self {
        Self(self.0.wrapping_byte_sub(bytes))
    }

    /// Its `len` elements.
    pub(crate) fn slice<T: Element>(&mut self, argument: &'static str, len: usize) -> Result<&mut [T], Fault> {
        if checked::<T>(argument, self.0.addr(), len)?.is_none() {
            return Ok(&mut []);
        }
        // SAFETY: not null, aligned, and of a size that an array can have; the caller promises `len` valid elements
        // that nobody else touches during the call (see the module), any bytes are a valid `Element`, and each
        // function has checked with `disjoint` that no other argument of it lies in them.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }

    /// Its `len` elements, or nothing where it is null.
    pub(crate) fn optional<T: Element>(
        &mut self,
        argument: &'static str,
        len: usize,
    ) -> Result<Option<&mut [T]>, Fault> {
        if self.0.is_null() { Ok(None) } else { self.slice(argument, len).map(Some) }
    }

    /// Where its `len` elements lie.
    pub(crate) fn extent<T>(&self, argument: &'static str, len: usize) -> Result<(&'static str, Extent), Fault> {
        if self.0.is_null() {
            return Ok((argument, None));
        }
        Ok((argument, checked::<T>(argument, self.0.addr(), len)?))
    }
}

/// Checks that what is written overlaps nothing else.
pub(crate) fn disjoint(written: &[(&'static str, Extent)], read: &[(&'static str, Extent)]) -> Result<(), Fault> {
    for (index, (argument, extent)) in written.iter().enumerate() {
        let Some(extent) = extent else { continue };
        for (other, theirs) in written[index + 1..].iter().chain(read) {
            if theirs.as_ref().is_some_and(|theirs| extent.start < theirs.end && theirs.start < extent.end) {
                return Err(Fault::Overlap { argument, other });
            }
        }
    }
    Ok(())
}

impl<T> Ref<T> {
    /// What it points to.
    pub(crate) fn get(&self, argument: &'static str) -> Result<&T, Fault> {
        self.optional(argument)?.ok_or(Fault::Null { argument })
    }

    /// What it points to, or nothing where it is null.
    pub(crate) fn optional(&self, argument: &'static str) -> Result<Option<&T>, Fault> {
        if checked::<T>(argument, self.0.addr(), usize::from(!self.0.is_null()))?.is_none() {
            return Ok(None);
        }
        // SAFETY: not null and aligned; the caller promises a valid value that is only read during the call: a struct
        // of the header, or a handle that this library made and has not freed.
        Ok(Some(unsafe { &*self.0 }))
    }
}

impl<T> Out<T> {
    /// Checks that something can be written there, before the work is done.
    pub(crate) fn check(&self, argument: &'static str) -> Result<(), Fault> {
        checked::<T>(argument, self.0.addr(), 1).map(|_| ())
    }

    /// Writes the result.
    pub(crate) fn set(self, argument: &'static str, value: T) -> Result<(), Fault> {
        self.check(argument)?;
        // SAFETY: not null and aligned; the caller promises room for one value. Nothing that was there is dropped,
        // as it may be uninitialised.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

impl<T> Out<*mut T> {
    /// Writes a new handle.
    pub(crate) fn handle(self, argument: &'static str, value: T) -> Result<(), Fault> {
        self.check(argument)?;
        self.set(argument, Box::into_raw(Box::new(value)))
    }
}

impl<T> Owned<T> {
    /// The value behind the handle; nothing where it is null.
    pub(crate) fn take(self) -> Option<Box<T>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller promises a handle that `Out::handle` made, that was not freed before and that
        // nobody uses any more.
        Some(unsafe { Box::from_raw(self.0) })
    }
}

impl Text {
    /// The string; nothing where it is null. What is no UTF-8 is replaced, for it only ends in messages and names.
    pub(crate) fn get(&self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; the caller promises a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_string_lossy().into_owned())
    }
}
