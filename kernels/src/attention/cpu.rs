//! What the fast forward and backward paths share: tiles, loading and storing them.

use std::ops::Range;

use ndarray::{ArrayView, ArrayView2, ArrayViewMut, ArrayViewMut2, Axis, RemoveAxis, Slice};
use warpweft_device::Float;

use crate::tile::padded;

/// Queries of a block: its scores against [`KEYS`] keys fit the first-level cache beside the operands.
pub(super) const QUERIES: usize = 64;

/// Keys of a tile.
pub(super) const KEYS: usize = 64;

/// The blocks of `len`, each at most `size` long.
pub(super) fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..(start + size).min(len))
}

/// A range of an axis.
#[inline(always)]
pub(super) fn part<T, D: RemoveAxis>(
    mut view: ArrayView<'_, T, D>,
    axis: Axis,
    range: Range<usize>,
) -> ArrayView<'_, T, D> {
    view.slice_axis_inplace(axis, Slice::from(range));
    view
}

/// What lies at each index of an axis.
pub(super) fn each<T, D: RemoveAxis>(view: ArrayViewMut<'_, T, D>, axis: Axis) -> Vec<ArrayViewMut<'_, T, D::Smaller>> {
    let (mut parts, mut rest) = (Vec::with_capacity(view.len_of(axis)), view);
    while rest.len_of(axis) > 0 {
        let (first, after) = rest.split_at(axis, 1);
        parts.push(first.index_axis_move(axis, 0));
        rest = after;
    }
    parts
}

/// Rows of a head as f32 times `factor`, each padded with zeros to a whole number of vectors.
#[inline(always)]
pub(super) fn load<T: Float>(from: ArrayView2<'_, T>, rows: Range<usize>, factor: f32, to: &mut [f32]) {
    let width = padded(from.ncols());
    for (from, to) in part(from, Axis(0), rows).rows().into_iter().zip(to.chunks_exact_mut(width)) {
        let from = from.to_slice().expect("a head is contiguous");
        let (to, padding) = to.split_at_mut(from.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = factor * from.to_f32());
        padding.fill(0.0);
    }
}

/// Rows of a head turned into columns: element d of row i goes to `to[d * KEYS + i]`.
#[inline(always)]
pub(super) fn load_transposed<T: Float>(from: ArrayView2<'_, T>, rows: Range<usize>, to: &mut [f32]) {
    for (column, from) in part(from, Axis(0), rows).rows().into_iter().enumerate() {
        let from = from.to_slice().expect("a head is contiguous");
        for (d, from) in from.iter().enumerate() {
            to[d * KEYS + column] = from.to_f32();
        }
    }
}

/// Rounds padded rows times `factor` to the rows of a head.
#[inline(always)]
pub(super) fn store<T: Float>(from: &[f32], factor: f32, mut to: ArrayViewMut2<'_, T>) {
    let width = padded(to.ncols());
    for (from, to) in from.chunks_exact(width).zip(to.rows_mut()) {
        let to = to.into_slice().expect("a head is contiguous");
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f32(factor * from));
    }
}
