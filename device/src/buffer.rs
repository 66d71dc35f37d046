//! Memory of one device with an owner.

use std::fmt;
use std::ops::RangeBounds;

use crate::aligned::Aligned;
use crate::driver::Memory;
use crate::view::{Place, PlaceMut};
use crate::{Device, DeviceError, Element, Stream, View, ViewMut};

/// An array of elements in the memory of one device, freed when dropped.
///
/// Its base is aligned to 64 bytes on the CPU and at least 256 on a GPU.
pub struct Buffer<T> {
    device: Device,
    store: Store<T>,
}

/// Where the elements are.
enum Store<T> {
    Host(Aligned<T>),
    Device(Memory, usize),
}

impl<T: Element> Buffer<T> {
    pub(crate) fn from_host(device: Device, memory: Aligned<T>) -> Self {
        Self { device, store: Store::Host(memory) }
    }

    pub(crate) fn from_device(device: Device, memory: Memory, len: usize) -> Self {
        Self { device, store: Store::Device(memory, len) }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match &self.store {
            Store::Host(memory) => memory.len(),
            Store::Device(_, len) => *len,
        }
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
        let place = match &self.store {
            Store::Host(memory) => Place::Host(memory.as_slice()),
            Store::Device(memory, len) => Place::Device { memory, offset: 0, len: *len },
        };
        View { device: &self.device, place }
    }

    /// The whole of it, to write.
    pub fn as_view_mut(&mut self) -> ViewMut<'_, T> {
        let place = match &mut self.store {
            Store::Host(memory) => PlaceMut::Host(memory.as_mut_slice()),
            Store::Device(memory, len) => PlaceMut::Device { memory, offset: 0, len: *len },
        };
        ViewMut { device: &self.device, place }
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
    /// [`DeviceError::WrongDevice`], or an error of the work before.
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>, DeviceError> {
        self.as_view().download(stream)
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>({} elements on {})", T::DTYPE, self.len(), self.device)
    }
}
