//! Host memory whose base is aligned to a cache line, without unsafe code: a vector of 64-byte chunks seen as elements.

use crate::Element;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Chunk([u8; 64]);

/// A zeroed, 64-byte aligned array of `len` elements.
pub(crate) struct Aligned<T> {
    chunks: Vec<Chunk>,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Aligned<T> {
    /// `None` where the size overflows or the memory is not to be had.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?;
        let count = bytes.div_ceil(size_of::<Chunk>());
        // Zeroed by the allocator, so that untouched pages of a large buffer cost nothing.
        let chunks = bytemuck::allocation::try_zeroed_vec(count).ok()?;
        Some(Self { chunks, len, element: std::marker::PhantomData })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.chunks)[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.chunks)[..self.len]
    }
}
