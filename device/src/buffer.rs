//! Memory of one device, and regions of it.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use crate::aligned::Aligned;
use crate::{Device, DeviceError, Element, Stream};

/// An array of elements in the memory of one device, freed when dropped.
///
/// Its base is aligned to 64 bytes on the CPU and at least 256 on a GPU.
pub struct Buffer<T> {
    device: Device,
    memory: Aligned<T>,
}

/// A region of a [`Buffer`] to read from.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    device: &'a Device,
    host: &'a [T],
}

/// A region of a [`Buffer`] to write to; no other region of the same elements exists meanwhile.
pub struct ViewMut<'a, T> {
    device: &'a Device,
    host: &'a mut [T],
}

/// The range as start and end, checked against `len`.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<std::ops::Range<usize>, DeviceError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        return Err(DeviceError::OutOfRange { start, end, len });
    }
    Ok(start..end)
}

impl<T: Element> Buffer<T> {
    pub(crate) fn from_host(device: Device, memory: Aligned<T>) -> Self {
        Self { device, memory }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The whole of it, to read.
    pub fn as_view(&self) -> View<'_, T> {
        View { device: &self.device, host: self.memory.as_slice() }
    }

    /// The whole of it, to write.
    pub fn as_view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { device: &self.device, host: self.memory.as_mut_slice() }
    }

    /// A region to read.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn view(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T>, DeviceError> {
        self.as_view().slice(range)
    }

    /// A region to write.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn view_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>, DeviceError> {
        self.as_view_mut().slice(range)
    }

    /// A copy of its elements on the host, once `stream` has come so far.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`].
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>, DeviceError> {
        self.as_view().download(stream)
    }
}

impl<'a, T: Element> View<'a, T> {
    /// Memory of the host that is not ours, seen as a region of `device`: how an embedder's own array reaches a kernel
    /// without a copy.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn from_host(device: &'a Device, host: &'a [T]) -> Result<Self, DeviceError> {
        device.cpu_pool()?;
        Ok(View { device, host })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    /// The device it lies on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<View<'a, T>, DeviceError> {
        let range = resolve(range, self.len())?;
        Ok(View { device: self.device, host: &self.host[range] })
    }

    /// The elements themselves, where the host can address them.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn host(self) -> Result<&'a [T], DeviceError> {
        Ok(self.host)
    }

    /// A copy on the host, once `stream` has come so far.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`].
    pub fn download(self, stream: &Stream) -> Result<Vec<T>, DeviceError> {
        stream.same_device("the region", self.device)?;
        Ok(self.host.to_vec())
    }

    /// Copies to host memory of the same length, once `stream` has come so far.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`].
    pub fn copy_to_host(self, stream: &Stream, host: &mut [T]) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        check_len("copy_to_host", host.len(), self.len())?;
        host.copy_from_slice(self.host);
        Ok(())
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Memory of the host that is not ours, seen as a region of `device` to write to.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn from_host(device: &'a Device, host: &'a mut [T]) -> Result<Self, DeviceError> {
        device.cpu_pool()?;
        Ok(ViewMut { device, host })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.host.len()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    /// The device it lies on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The same region for a shorter while, so that it can be used again afterwards.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { device: self.device, host: self.host }
    }

    /// The same region to read.
    pub fn as_view(&self) -> View<'_, T> {
        View { device: self.device, host: self.host }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<ViewMut<'a, T>, DeviceError> {
        let range = resolve(range, self.len())?;
        Ok(ViewMut { device: self.device, host: &mut self.host[range] })
    }

    /// Two parts: the first `middle` elements, and the rest.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn split_at(self, middle: usize) -> Result<(ViewMut<'a, T>, ViewMut<'a, T>), DeviceError> {
        resolve(..middle, self.len())?;
        let (left, right) = self.host.split_at_mut(middle);
        Ok((ViewMut { device: self.device, host: left }, ViewMut { device: self.device, host: right }))
    }

    /// The elements themselves, where the host can address them.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn host(self) -> Result<&'a mut [T], DeviceError> {
        Ok(self.host)
    }

    /// Sets every element to `value`.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`].
    pub fn fill(self, stream: &Stream, value: T) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        self.host.fill(value);
        Ok(())
    }

    /// Copies from host memory of the same length, which may be reused once the call returns.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`].
    pub fn copy_from_host(self, stream: &Stream, host: &[T]) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        check_len("copy_from_host", host.len(), self.len())?;
        self.host.copy_from_slice(host);
        Ok(())
    }

    /// Copies from a region of the same length on the same device.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`].
    pub fn copy_from(self, stream: &Stream, from: View<'_, T>) -> Result<(), DeviceError> {
        stream.same_device("the destination", self.device)?;
        stream.same_device("the source", from.device)?;
        check_len("copy_from", from.len(), self.len())?;
        self.host.copy_from_slice(from.host);
        Ok(())
    }
}

fn check_len(what: &'static str, given: usize, expected: usize) -> Result<(), DeviceError> {
    if given == expected { Ok(()) } else { Err(DeviceError::LengthMismatch { what, given, expected }) }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>({} elements on {})", T::DTYPE, self.len(), self.device)
    }
}

impl<T: Element> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View<{}>({} elements on {})", T::DTYPE, self.len(), self.device)
    }
}

impl<T: Element> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ViewMut<{}>({} elements on {})", T::DTYPE, self.len(), self.device)
    }
}
