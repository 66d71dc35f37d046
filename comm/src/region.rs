//! What a call takes as memory: host slices and regions of buffers, alike.
//!
//! Memory of a device that the host cannot address goes through a copy on the host, for which all streams of the device are
//! waited for.

use std::borrow::Cow;
use std::fmt;

use warpweft_device::{Buffer, DeviceError, DeviceKind, Element, View, ViewMut};

use crate::CommError;

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
    /// The elements, or a copy of those that the host cannot address.
    pub(crate) fn host(self) -> Result<Cow<'a, [T]>, DeviceError> {
        match self.0 {
            Memory::Host(host) => Ok(Cow::Borrowed(host)),
            Memory::Device(view) => view.to_host(),
        }
    }
}

impl<'a, T: Element> RegionMut<'a, T> {
    /// The elements; of those that the host cannot address a copy, which [`HostMut::finish`] brings back.
    pub(crate) fn host(self) -> Result<HostMut<'a, T>, DeviceError> {
        match self.0 {
            MemoryMut::Host(host) => Ok(HostMut { place: HostPlace::Here(host) }),
            MemoryMut::Device(view) if view.device().kind() == DeviceKind::Cpu => {
                Ok(HostMut { place: HostPlace::Here(view.host()?) })
            }
            MemoryMut::Device(view) => {
                Ok(HostMut { place: HostPlace::There(view.as_view().to_host()?.into_owned(), view) })
            }
        }
    }

    /// Runs `work` on the elements.
    pub(crate) fn on_host<R>(self, work: impl FnOnce(&mut [T]) -> Result<R, CommError>) -> Result<R, CommError> {
        match self.0 {
            MemoryMut::Host(host) => work(host),
            MemoryMut::Device(view) => view.on_host(work),
        }
    }
}

/// Elements to write, where the host can.
pub(crate) struct HostMut<'a, T> {
    place: HostPlace<'a, T>,
}

enum HostPlace<'a, T> {
    Here(&'a mut [T]),
    There(Vec<T>, ViewMut<'a, T>),
}

impl<T: Element> HostMut<'_, T> {
    pub(crate) fn slice(&mut self) -> &mut [T] {
        match &mut self.place {
            HostPlace::Here(host) => host,
            HostPlace::There(copy, _) => copy,
        }
    }

    /// Brings a copy back to where its elements belong.
    pub(crate) fn finish(self) -> Result<(), DeviceError> {
        match self.place {
            HostPlace::Here(_) => Ok(()),
            HostPlace::There(copy, view) => {
                let stream = view.device().stream();
                view.copy_from_host(&stream, &copy)?;
                stream.synchronize()
            }
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
