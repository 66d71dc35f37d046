//! What a call takes as memory: host slices and regions of buffers, alike.

use std::fmt;

use warpweft_device::{Buffer, DeviceError, Element, View, ViewMut};

/// Elements to read: made from `&[T]`, `&Vec<T>`, an array, a [`View`] or a [`Buffer`].
#[derive(Clone, Copy)]
pub struct Region<'a, T>(Memory<'a, T>);

#[derive(Clone, Copy)]
enum Memory<'a, T> {
    Host(&'a [T]),
    Device(View<'a, T>),
}

/// Elements to write, to nobody else's sight meanwhile: made from `&mut [T]`, `&mut Vec<T>`, an array, a [`ViewMut`] or a
/// [`Buffer`].
pub struct RegionMut<'a, T>(MemoryMut<'a, T>);

enum MemoryMut<'a, T> {
    Host(&'a mut [T]),
    Device(ViewMut<'a, T>),
}

impl<'a, T: Element> Region<'a, T> {
    /// The elements, where the host can address them.
    pub(crate) fn host(self) -> Result<&'a [T], DeviceError> {
        match self.0 {
            Memory::Host(host) => Ok(host),
            Memory::Device(view) => view.host(),
        }
    }
}

impl<'a, T: Element> RegionMut<'a, T> {
    /// The elements, where the host can address them.
    pub(crate) fn host(self) -> Result<&'a mut [T], DeviceError> {
        match self.0 {
            MemoryMut::Host(host) => Ok(host),
            MemoryMut::Device(view) => view.host(),
        }
    }
}

impl<'a, T> From<&'a [T]> for Region<'a, T> {
    fn from(host: &'a [T]) -> Self {
        Self(Memory::Host(host))
    }
}

impl<'a, T> From<&'a Vec<T>> for Region<'a, T> {
    fn from(host: &'a Vec<T>) -> Self {
        Self(Memory::Host(host))
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Region<'a, T> {
    fn from(host: &'a [T; N]) -> Self {
        Self(Memory::Host(host))
    }
}

impl<'a, T> From<View<'a, T>> for Region<'a, T> {
    fn from(view: View<'a, T>) -> Self {
        Self(Memory::Device(view))
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for Region<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.as_view().into()
    }
}

impl<'a, T> From<&'a mut [T]> for RegionMut<'a, T> {
    fn from(host: &'a mut [T]) -> Self {
        Self(MemoryMut::Host(host))
    }
}

impl<'a, T> From<&'a mut Vec<T>> for RegionMut<'a, T> {
    fn from(host: &'a mut Vec<T>) -> Self {
        Self(MemoryMut::Host(host))
    }
}

impl<'a, T, const N: usize> From<&'a mut [T; N]> for RegionMut<'a, T> {
    fn from(host: &'a mut [T; N]) -> Self {
        Self(MemoryMut::Host(host))
    }
}

impl<'a, T> From<ViewMut<'a, T>> for RegionMut<'a, T> {
    fn from(view: ViewMut<'a, T>) -> Self {
        Self(MemoryMut::Device(view))
    }
}

impl<'a, T: Element> From<&'a mut Buffer<T>> for RegionMut<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.as_view_mut().into()
    }
}

/// Memory that a non-blocking call owns until it has finished.
pub trait OwnedRegion<T: Element>: Send + 'static {
    /// All its elements.
    fn region(&self) -> Region<'_, T>;
    /// All its elements, to write.
    fn region_mut(&mut self) -> RegionMut<'_, T>;
}

impl<T: Element> OwnedRegion<T> for Vec<T> {
    fn region(&self) -> Region<'_, T> {
        self.into()
    }
    fn region_mut(&mut self) -> RegionMut<'_, T> {
        self.into()
    }
}

impl<T: Element> OwnedRegion<T> for Buffer<T> {
    fn region(&self) -> Region<'_, T> {
        self.into()
    }
    fn region_mut(&mut self) -> RegionMut<'_, T> {
        self.into()
    }
}

impl<T> fmt::Debug for Region<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Region")
    }
}

impl<T> fmt::Debug for RegionMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegionMut")
    }
}
