//! The arrays of one call: each is checked, kept apart from the others, and made a region of the stream's device.
//!
//! An array whose bytes would overlap those of one that is written is refused before either becomes a slice or a region, so
//! no two of a call alias. The memory is the host's for the CPU and for communicators; on other devices an address is
//! only handed on.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;

use warpweft_device::{Device, Element, Stream, View, ViewMut};

use crate::element::count;
use crate::fault::Fault;
use crate::pointer::{Input, Output, Ref};

/// The arrays so far of a call on a handle, and the handle.
pub(crate) struct Arguments<'a, H> {
    pub(crate) handle: &'a H,
    /// What is written, by its first address: the end, and the name.
    written: BTreeMap<usize, (usize, &'static str)>,
    read: Vec<(Range<usize>, &'static str)>,
}

impl<'a, H> Arguments<'a, H> {
    /// None yet, of a call on the handle that the caller knows as `name`.
    pub(crate) fn of(name: &'static str, handle: &'a Ref<H>) -> Result<Self, Fault> {
        Ok(Self { handle: handle.get(name)?, written: BTreeMap::new(), read: Vec::new() })
    }

    /// An array of the host to read.
    pub(crate) fn slice<T: Element>(&mut self, name: &'static str, from: Input, len: usize) -> Result<&'a [T], Fault> {
        if !self.claim::<T>(name, from.0, len, false)? {
            return Ok(&[]);
        }
        // SAFETY: not null, aligned, and of a size that an array can have; the caller promises `len` valid elements
        // that stay so during the call (see `pointer`), any bytes are a valid `Element`, and nothing that is written is in it.
        Ok(unsafe { std::slice::from_raw_parts(from.0.cast(), len) })
    }

    /// An array of the host to write.
    pub(crate) fn slice_mut<T: Element>(
        &mut self,
        name: &'static str,
        to: Output,
        len: usize,
    ) -> Result<&'a mut [T], Fault> {
        if !self.claim::<T>(name, to.0, len, true)? {
            return Ok(&mut []);
        }
        // SAFETY: not null, aligned, and of a size that an array can have; the caller promises `len` valid elements
        // that nobody else touches during the call (see `pointer`), any bytes are a valid `Element`, and no other array of
        // the call lies in it.
        Ok(unsafe { std::slice::from_raw_parts_mut(to.0.cast(), len) })
    }

    /// Checks what a slice demands of a pointer, and that what is written overlaps nothing else. False: there is no
    /// element, and the pointer was not looked at.
    fn claim<T>(&mut self, name: &'static str, at: *const c_void, len: usize, write: bool) -> Result<bool, Fault> {
        let (argument, start) = (name, at.addr());
        if len == 0 {
            return Ok(false);
        }
        if start == 0 {
            return Err(Fault::Null { argument });
        }
        if !start.is_multiple_of(align_of::<T>()) {
            return Err(Fault::Misaligned { argument, address: start, alignment: align_of::<T>() });
        }
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let end = bytes.and_then(|bytes| start.checked_add(bytes)).ok_or(Fault::TooLarge { argument, len })?;
        // What is written lies apart, so of all that begins before `end` only the last can reach past `start`.
        if let Some((_, &(theirs, other))) = self.written.range(..end).next_back()
            && theirs > start
        {
            return Err(Fault::Overlap { argument, other });
        }
        if !write {
            self.read.push((start..end, name));
            return Ok(true);
        }
        match self.read.iter().find(|(theirs, _)| start < theirs.end && theirs.start < end) {
            Some((_, other)) => Err(Fault::Overlap { argument, other }),
            None => {
                self.written.insert(start, (end, name));
                Ok(true)
            }
        }
    }
}

impl<'a> Arguments<'a, Stream> {
    fn device(&self) -> &'a Device {
        self.handle.device()
    }

    /// The same for arrays of the host, which come after those of the device: addresses of two memories can be equal.
    pub(crate) fn host(&mut self) -> &mut Self {
        if self.device().cpu_pool().is_err() {
            self.written.clear();
            self.read.clear();
        }
        self
    }

    /// An array to read, of the product of `sizes` elements.
    pub(crate) fn read<T: Element>(
        &mut self,
        name: &'static str,
        from: Input,
        sizes: &[usize],
    ) -> Result<View<'a, T>, Fault> {
        let len = count(name, sizes)?;
        if self.device().cpu_pool().is_ok() {
            return Ok(View::from_host(self.device(), self.slice(name, from, len)?)?);
        }
        let address = if self.claim::<T>(name, from.0, len, false)? { from.address() } else { 0 };
        Ok(View::of_device(self.device(), address as u64, len)?)
    }

    /// An array to write.
    pub(crate) fn write<T: Element>(
        &mut self,
        name: &'static str,
        to: Output,
        sizes: &[usize],
    ) -> Result<ViewMut<'a, T>, Fault> {
        let len = count(name, sizes)?;
        if self.device().cpu_pool().is_ok() {
            return Ok(ViewMut::from_host(self.device(), self.slice_mut(name, to, len)?)?);
        }
        let address = if self.claim::<T>(name, to.0, len, true)? { to.address() } else { 0 };
        Ok(ViewMut::of_device(self.device(), address as u64, len)?)
    }

    /// An array to read that may be left out: null.
    pub(crate) fn read_if_given<T: Element>(
        &mut self,
        name: &'static str,
        from: Input,
        sizes: &[usize],
    ) -> Result<Option<View<'a, T>>, Fault> {
        if from.is_given() { self.read(name, from, sizes).map(Some) } else { Ok(None) }
    }

    /// An array to write that may be left out: null.
    pub(crate) fn write_if_given<T: Element>(
        &mut self,
        name: &'static str,
        to: Output,
        sizes: &[usize],
    ) -> Result<Option<ViewMut<'a, T>>, Fault> {
        if to.0.is_null() { Ok(None) } else { self.write(name, to, sizes).map(Some) }
    }
}
