//! The pointers that come from C: null and misaligned ones are errors that name the argument.
//!
//! The types here have no constructor but null: any other value arrives as an argument of an `extern "C"` function, whose caller
//! is bound by the header to pass null or a pointer to as many valid elements as the other arguments say, which stay
//! valid during the call. That promise is what each `SAFETY` below rests on. Arrays are followed in `arguments` only.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use crate::fault::Fault;

/// An array that is read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Input(pub(crate) *const c_void);

/// An array that is written, and perhaps read before.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Output(pub(crate) *mut c_void);

/// A handle or a struct that is read.
#[repr(transparent)]
pub struct Ref<T>(*const T);

/// A struct of settings, which says its size.
#[repr(transparent)]
pub struct Settings<T>(*const T);

/// Where a result goes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A handle that is given back, to be freed.
#[repr(transparent)]
pub struct Owned<T>(*mut T);

/// A string.
#[repr(transparent)]
pub struct Text(*const c_char);

/// Structs of settings begin with their size as the caller knows them, so that later versions can have more fields: those
/// that a caller does not know are zero, which means that nothing changes.
///
/// # Safety
/// `repr(C)`, a `usize` first, and every field is valid when its bytes are zero.
pub unsafe trait Versioned: Copy {}

/// No struct of the header comes near it: a larger size is memory that nobody wrote.
const LARGEST_STRUCT: usize = 4096;

/// Whether a pointer leads to a `T`.
fn check<T>(argument: &'static str, address: usize) -> Result<(), Fault> {
    if address == 0 {
        return Err(Fault::Null { argument });
    }
    if !address.is_multiple_of(align_of::<T>()) {
        return Err(Fault::Misaligned { argument, address, alignment: align_of::<T>() });
    }
    Ok(())
}

impl Input {
    /// No array.
    pub(crate) const NULL: Input = Input(std::ptr::null());

    /// Whether it is not null.
    pub(crate) fn is_given(self) -> bool {
        !self.0.is_null()
    }

    /// The address, to see whether an operation is in place.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }
}

impl Output {
    /// The address, to see whether an operation is in place.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// The array that begins `bytes` before this one, of which this is a part: how the in-place form of a reduce-scatter
    /// is given.
    pub(crate) fn back(self, bytes: usize) -> Self {
        Self(self.0.wrapping_byte_sub(bytes))
    }
}

impl<T> Ref<T> {
    /// What it points to.
    pub(crate) fn get(&self, argument: &'static str) -> Result<&T, Fault> {
        check::<T>(argument, self.0.addr())?;
        // SAFETY: not null and aligned; the caller promises a valid value that is only read during the call: a struct
        // of the header, or a handle that this library made and has not freed.
        Ok(unsafe { &*self.0 })
    }

    /// The `len` values that it points to.
    pub(crate) fn list(&self, argument: &'static str, len: usize) -> Result<&[T], Fault> {
        if len == 0 {
            return Ok(&[]);
        }
        check::<T>(argument, self.0.addr())?;
        if len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Fault::TooLarge { argument, len });
        }
        // SAFETY: not null, aligned, and of a size that an array can have; the caller promises `len` valid values that are
        // only read during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, len) })
    }
}

impl<T: Versioned> Settings<T> {
    /// The settings; null stands for a struct in which everything is zero.
    pub(crate) fn get(&self, argument: &'static str) -> Result<T, Fault> {
        match self.0.is_null() {
            true => Ok(zeroed()),
            false => self.of_size(argument, self.size(argument)?, 0),
        }
    }

    /// The settings, where nothing stands for them.
    pub(crate) fn required(&self, argument: &'static str) -> Result<T, Fault> {
        if self.0.is_null() { Err(Fault::Null { argument }) } else { self.get(argument) }
    }

    /// The settings of each of a list, all of the size that the first one says.
    pub(crate) fn list(&self, argument: &'static str, len: usize) -> Result<Vec<T>, Fault> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let size = self.size(argument)?;
        if len.checked_mul(size).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(Fault::TooLarge { argument, len });
        }
        (0..len).map(|index| self.of_size(argument, size, index)).collect()
    }

    fn size(&self, argument: &'static str) -> Result<usize, Fault> {
        check::<T>(argument, self.0.addr())?;
        // SAFETY: not null and aligned; the caller promises a struct that begins with its size.
        let size = unsafe { self.0.cast::<usize>().read() };
        if !(size_of::<usize>()..=LARGEST_STRUCT).contains(&size) || !size.is_multiple_of(align_of::<T>()) {
            return Err(Fault::StructSize { argument, size, known: size_of::<T>() });
        }
        Ok(size)
    }

    fn of_size(&self, argument: &'static str, size: usize, index: usize) -> Result<T, Fault> {
        let place = self.0.cast::<u8>().wrapping_add(index * size);
        let known = size.min(size_of::<T>());
        // SAFETY: the caller promises as many bytes as it says the struct has, `index` times before this one too.
        let extra = unsafe { std::slice::from_raw_parts(place.wrapping_add(known), size - known) };
        if extra.iter().any(|&byte| byte != 0) {
            return Err(Fault::StructSize { argument, size, known: size_of::<T>() });
        }
        let mut settings = zeroed::<T>();
        let to = (&raw mut settings).cast::<u8>();
        // SAFETY: `known` bytes are there, as above, and are no more than a `T` has.
        unsafe { to.copy_from_nonoverlapping(place, known) };
        Ok(settings)
    }
}

fn zeroed<T: Versioned>() -> T {
    // SAFETY: zeros are valid, as `Versioned` says.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl<T> Out<T> {
    /// Checks that something can be written there, before the work is done.
    pub(crate) fn check(&self, argument: &'static str) -> Result<(), Fault> {
        check::<T>(argument, self.0.addr())
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

impl<T> Out<T> {
    /// [`check`](Self::check) of a result that null leaves out.
    pub(crate) fn check_if_wanted(&self, argument: &'static str) -> Result<(), Fault> {
        if self.0.is_null() { Ok(()) } else { self.check(argument) }
    }

    /// [`set`](Self::set) of a result that null leaves out.
    pub(crate) fn set_if_wanted(self, argument: &'static str, value: T) -> Result<(), Fault> {
        if self.0.is_null() { Ok(()) } else { self.set(argument, value) }
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
