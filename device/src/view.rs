//! Regions of buffers, and copies between them and the host.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};

use crate::driver::{FOREIGN, Memory};
use crate::{Device, DeviceError, Element, Stream};

/// A region of a [`Buffer`](crate::Buffer) to read from.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    pub(crate) device: &'a Device,
    pub(crate) place: Place<'a, T>,
}

/// A region of a [`Buffer`](crate::Buffer) to write to; no other region of the same elements exists meanwhile.
pub struct ViewMut<'a, T> {
    pub(crate) device: &'a Device,
    pub(crate) place: PlaceMut<'a, T>,
}

/// Where the elements of a region are. `offset` is in bytes.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a, T> {
    Host(&'a [T]),
    Device { memory: &'a Memory, offset: u64, len: usize },
}

/// The same, to write.
pub(crate) enum PlaceMut<'a, T> {
    Host(&'a mut [T]),
    Device { memory: &'a Memory, offset: u64, len: usize },
}

/// The range as start and end, checked against `len`.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, DeviceError> {
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

/// The address of memory that is not ours, if it can be one of `len` elements.
fn foreign<T: Element>(device: &Device, address: u64, len: usize) -> Result<u64, DeviceError> {
    device.driver("an address")?;
    let end = len.checked_mul(size_of::<T>()).and_then(|bytes| address.checked_add(bytes as u64));
    match end {
        Some(_) if address.is_multiple_of(align_of::<T>() as u64) => Ok(address),
        _ => Err(DeviceError::BadAddress { device: device.to_string(), address, count: len, dtype: T::DTYPE }),
    }
}

/// Bytes of `count` elements.
fn bytes<T>(count: usize) -> u64 {
    (count * size_of::<T>()) as u64
}

impl<'a, T: Element> View<'a, T> {
    /// Memory of the host that is not ours, seen as a region of `device`: how an embedder's own array reaches a kernel
    /// without a copy.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn from_host(device: &'a Device, host: &'a [T]) -> Result<Self, DeviceError> {
        device.cpu_pool()?;
        Ok(View { device, place: Place::Host(host) })
    }

    /// Memory of `device` that is not ours, by the address of its first element: how an array that another runtime holds
    /// reaches a kernel. Nothing is read here, and the host never follows the address.
    ///
    /// The caller keeps the memory until the work given with this region is done, and orders it with all other work on it.
    /// An address that is wrong is like one that a kernel computes: a software device reports its use, on a GPU it can
    /// fault or change other memory of the process.
    ///
    /// # Errors
    /// [`DeviceError::NoKernels`] on the CPU, whose regions are slices; [`DeviceError::BadAddress`] for one that cannot hold
    /// the elements.
    pub fn of_device(device: &'a Device, address: u64, len: usize) -> Result<Self, DeviceError> {
        let offset = foreign::<T>(device, address, len)?;
        Ok(View { device, place: Place::Device { memory: &FOREIGN, offset, len } })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self.place {
            Place::Host(host) => host.len(),
            Place::Device { len, .. } => len,
        }
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device it lies on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The address of its first element, in the host's memory or the device's own.
    pub fn address(&self) -> u64 {
        match self.place {
            Place::Host(host) => host.as_ptr().addr() as u64,
            Place::Device { memory, offset, .. } => memory.address + offset,
        }
    }

    /// Whether its first element lies at a multiple of so many bytes.
    pub fn is_aligned(&self, to: usize) -> bool {
        self.address().is_multiple_of(to as u64)
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<View<'a, T>, DeviceError> {
        let range = resolve(range, self.len())?;
        let place = match self.place {
            Place::Host(host) => Place::Host(&host[range]),
            Place::Device { memory, offset, .. } => {
                Place::Device { memory, offset: offset + bytes::<T>(range.start), len: range.len() }
            }
        };
        Ok(View { device: self.device, place })
    }

    /// The elements themselves, where the host can address them.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn host(self) -> Result<&'a [T], DeviceError> {
        match self.place {
            Place::Host(host) => Ok(host),
            Place::Device { .. } => Err(not_host(self.device)),
        }
    }

    /// Its address on the device, and the memory to keep.
    pub(crate) fn pointer(&self) -> Result<(u64, Memory), DeviceError> {
        match self.place {
            Place::Host(_) => Err(DeviceError::NoKernels { what: "a region", device: self.device.to_string() }),
            Place::Device { memory, offset, .. } => Ok((memory.address + offset, memory.clone())),
        }
    }

    /// The elements, or a copy of those that the host cannot address, once all streams of the device have come so far.
    ///
    /// # Errors
    /// An error of the work before.
    pub fn to_host(self) -> Result<Cow<'a, [T]>, DeviceError> {
        match self.place {
            Place::Host(host) => Ok(Cow::Borrowed(host)),
            Place::Device { .. } => {
                self.device.synchronize()?;
                self.download(&self.device.stream()).map(Cow::Owned)
            }
        }
    }

    /// A copy on the host, once `stream` has come so far.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], or an error of the work before.
    pub fn download(self, stream: &Stream) -> Result<Vec<T>, DeviceError> {
        stream.same_device("the region", self.device)?;
        match self.place {
            Place::Host(host) => Ok(host.to_vec()),
            Place::Device { len, .. } => {
                let mut host = vec![T::zeroed(); len];
                self.copy_to_host(stream, &mut host)?;
                Ok(host)
            }
        }
    }

    /// Copies to host memory of the same length, once `stream` has come so far.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`], or an error of the work before.
    pub fn copy_to_host(self, stream: &Stream, host: &mut [T]) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        check_len("copy_to_host", host.len(), self.len())?;
        match self.place {
            Place::Host(from) => host.copy_from_slice(from),
            Place::Device { memory, offset, .. } => {
                stream.synchronize()?;
                stream.queue("a copy")?.read(memory, offset, bytemuck::cast_slice_mut(host))?;
            }
        }
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
        Ok(ViewMut { device, place: PlaceMut::Host(host) })
    }

    /// Memory of `device` that is not ours, to write to, by the address of its first element: see [`View::of_device`].
    ///
    /// # Errors
    /// As there.
    pub fn of_device(device: &'a Device, address: u64, len: usize) -> Result<Self, DeviceError> {
        let offset = foreign::<T>(device, address, len)?;
        Ok(ViewMut { device, place: PlaceMut::Device { memory: &FOREIGN, offset, len } })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match &self.place {
            PlaceMut::Host(host) => host.len(),
            PlaceMut::Device { len, .. } => *len,
        }
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device it lies on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The same region for a shorter while, so that it can be used again afterwards.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        let place = match &mut self.place {
            PlaceMut::Host(host) => PlaceMut::Host(host),
            PlaceMut::Device { memory, offset, len } => PlaceMut::Device { memory, offset: *offset, len: *len },
        };
        ViewMut { device: self.device, place }
    }

    /// The same region to read.
    pub fn as_view(&self) -> View<'_, T> {
        let place = match &self.place {
            PlaceMut::Host(host) => Place::Host(host),
            PlaceMut::Device { memory, offset, len } => Place::Device { memory, offset: *offset, len: *len },
        };
        View { device: self.device, place }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<ViewMut<'a, T>, DeviceError> {
        let range = resolve(range, self.len())?;
        let (_, rest) = self.split_at(range.start)?;
        Ok(rest.split_at(range.len())?.0)
    }

    /// Two parts: the first `middle` elements, and the rest.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn split_at(self, middle: usize) -> Result<(ViewMut<'a, T>, ViewMut<'a, T>), DeviceError> {
        resolve(..middle, self.len())?;
        let (left, right) = match self.place {
            PlaceMut::Host(host) => {
                let (left, right) = host.split_at_mut(middle);
                (PlaceMut::Host(left), PlaceMut::Host(right))
            }
            PlaceMut::Device { memory, offset, len } => (
                PlaceMut::Device { memory, offset, len: middle },
                PlaceMut::Device { memory, offset: offset + bytes::<T>(middle), len: len - middle },
            ),
        };
        let device = self.device;
        Ok((ViewMut { device, place: left }, ViewMut { device, place: right }))
    }

    /// The elements themselves, where the host can address them.
    ///
    /// # Errors
    /// [`DeviceError::NotHostMemory`] on a device whose memory is its own.
    pub fn host(self) -> Result<&'a mut [T], DeviceError> {
        match self.place {
            PlaceMut::Host(host) => Ok(host),
            PlaceMut::Device { .. } => Err(not_host(self.device)),
        }
    }

    /// Runs `work` on the elements, or on a copy of those that the host cannot address, which is copied back where `work`
    /// succeeds; once all streams of the device have come so far.
    ///
    /// # Errors
    /// What `work` says; an error of the work before.
    pub fn on_host<R, E: From<DeviceError>>(self, work: impl FnOnce(&mut [T]) -> Result<R, E>) -> Result<R, E> {
        match self.place {
            PlaceMut::Host(host) => work(host),
            PlaceMut::Device { .. } => {
                let mut copy = self.as_view().to_host()?.into_owned();
                let done = work(&mut copy)?;
                let stream = self.device.stream();
                self.copy_from_host(&stream, &copy)?;
                stream.synchronize()?;
                Ok(done)
            }
        }
    }

    /// Sets every element to `value`.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`].
    pub fn fill(self, stream: &Stream, value: T) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        match self.place {
            PlaceMut::Host(host) => host.fill(value),
            PlaceMut::Device { memory, offset, len } => {
                let value = bytemuck::bytes_of(&value);
                stream.queue("a fill")?.fill(memory, offset, bytes::<T>(len), value)?;
            }
        }
        Ok(())
    }

    /// Copies from host memory of the same length, which may be reused once the call returns.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`].
    pub fn copy_from_host(self, stream: &Stream, host: &[T]) -> Result<(), DeviceError> {
        stream.same_device("the region", self.device)?;
        check_len("copy_from_host", host.len(), self.len())?;
        match self.place {
            PlaceMut::Host(to) => to.copy_from_slice(host),
            PlaceMut::Device { memory, offset, .. } => {
                stream.queue("a copy")?.write(memory, offset, bytemuck::cast_slice(host))?;
            }
        }
        Ok(())
    }

    /// Copies from a region of the same length, on this device or another. The stream is the destination's; work of other
    /// streams that the source waits for needs an event between, and a source that only the host can bridge to is read at
    /// once.
    ///
    /// # Errors
    /// [`DeviceError::WrongDevice`], [`DeviceError::LengthMismatch`].
    pub fn copy_from(self, stream: &Stream, from: View<'_, T>) -> Result<(), DeviceError> {
        stream.same_device("the destination", self.device)?;
        check_len("copy_from", from.len(), self.len())?;
        match (self.place, from.place) {
            (PlaceMut::Host(to), Place::Host(from)) => to.copy_from_slice(from),
            (PlaceMut::Device { memory, offset, len }, Place::Device { memory: source, offset: start, .. })
                if self.device.beside(from.device) =>
            {
                stream.queue("a copy")?.copy(memory, offset, source, start, bytes::<T>(len))?;
            }
            (place, _) => {
                let host = from.download(&from.device.stream())?;
                ViewMut { device: self.device, place }.copy_from_host(stream, &host)?;
            }
        }
        Ok(())
    }
}

fn not_host(device: &Device) -> DeviceError {
    DeviceError::NotHostMemory { device: device.to_string() }
}

fn check_len(what: &'static str, given: usize, expected: usize) -> Result<(), DeviceError> {
    if given == expected { Ok(()) } else { Err(DeviceError::LengthMismatch { what, given, expected }) }
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
