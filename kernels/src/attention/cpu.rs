//! What the fast forward and backward paths share: tiles, loading and storing them.

use std::ops::Range;

use ndarray::{ArrayView, ArrayView2, ArrayViewMut, ArrayViewMut2, Axis, RemoveAxis, Slice};
use warpweft_device::Float;

use super::{Options, Shape};
use crate::Write;
use crate::tile::padded;

/// Queries of a block: its scores against [`KEYS`] keys fit the first-level cache beside the operands.
pub(super) const QUERIES: usize = 64;

/// Keys of a tile.
pub(super) const KEYS: usize = 64;

/// The blocks of `len`, each at most `size` long.
pub(super) fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..(start + size).min(len))
}

/// Which keys a query sees: always the first so many, and no fewer than the query before it.
#[derive(Clone, Copy)]
pub(super) enum Mask<'a> {
    /// As shape and options say.
    Aligned(Shape, Options),
    /// Query i the first `seen[i]`.
    Seen(&'a [u32]),
}

impl Mask<'_> {
    /// The keys that a query sees are the first so many.
    #[inline(always)]
    pub(super) fn visible(&self, query: usize) -> usize {
        match self {
            Self::Aligned(shape, options) => shape.visible(*options, query),
            Self::Seen(seen) => seen[query] as usize,
        }
    }

    /// The first of `queries` that sees a key; all after it do too.
    #[inline(always)]
    fn first_query(&self, key: usize, queries: &Range<usize>) -> usize {
        match self {
            Self::Aligned(shape, options) => shape.first_query(*options, key).clamp(queries.start, queries.end),
            Self::Seen(seen) => {
                queries.start + seen[queries.start..queries.end].partition_point(|&seen| seen as usize <= key)
            }
        }
    }
}

/// A block of queries against a tile of keys, and what a mask leaves of it. What it hides is left out of every sum.
pub(super) struct Window<'a> {
    pub(super) mask: Mask<'a>,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

impl Window<'_> {
    /// Whether no query of the block sees a key of the tile.
    #[inline(always)]
    pub(super) fn is_hidden(&self) -> bool {
        self.seen(self.queries.len() - 1) == 0
    }

    /// How many of the tile's keys a row of the block sees: the first ones.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize) -> usize {
        self.mask.visible(self.queries.start + row).saturating_sub(self.keys.start).min(self.keys.len())
    }

    /// The rows of the block that see a key of the tile.
    #[inline(always)]
    pub(super) fn seeing(&self, key: usize) -> Range<usize> {
        self.mask.first_query(self.keys.start + key, &self.queries) - self.queries.start..self.queries.len()
    }
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
pub(super) fn load<T: Float>(from: ArrayView2<'_, T>, factor: f32, to: &mut [f32]) {
    let width = padded(from.ncols());
    for (from, to) in from.rows().into_iter().zip(to.chunks_exact_mut(width)) {
        let from = from.to_slice().expect("a head is contiguous");
        let (to, padding) = to.split_at_mut(from.len());
        for (to, from) in to.iter_mut().zip(from) {
            *to = factor * from.to_f32();
        }
        padding.fill(0.0);
    }
}

/// A tile of at most [`KEYS`] padded rows turned into columns: element d of row i goes to `to[d * KEYS + i]`.
#[inline(always)]
pub(super) fn transpose(rows: &[f32], width: usize, head_size: usize, to: &mut [f32]) {
    for (column, row) in rows.chunks_exact(width).enumerate() {
        for (row, to) in row[..head_size].iter().zip(to.chunks_exact_mut(KEYS)) {
            to[column] = *row;
        }
    }
}

/// Rounds padded rows times `factor` to the rows of a head, or adds them to what is there.
#[inline(always)]
pub(super) fn store<T: Float>(from: &[f32], factor: f32, write: Write, mut to: ArrayViewMut2<'_, T>) {
    let width = padded(to.ncols());
    for (from, to) in from.chunks_exact(width).zip(to.rows_mut()) {
        let to = to.into_slice().expect("a head is contiguous");
        match write {
            Write::Set => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = T::from_f32(factor * from);
                }
            }
            Write::Add => {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = T::from_f32(factor.mul_add(*from, to.to_f32()));
                }
            }
        }
    }
}
