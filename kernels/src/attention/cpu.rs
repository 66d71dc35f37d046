//! What the fast forward and backward paths share: tiles, loading and storing them.

use std::ops::Range;

use ndarray::{ArrayView, ArrayView2, ArrayViewMut, ArrayViewMut2, Axis, RemoveAxis, Slice};
use warpweft_device::Float;

use super::options::{Dropout, Shape, Window};
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

/// What the paths are told.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub(super) shape: Shape,
    pub(super) mask: Mask<'a>,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    /// A slope for each query head.
    pub(super) slopes: Option<&'a [f32]>,
    pub(super) dropout: Option<Dropout>,
    /// The index of the first sequence.
    pub(super) sequence: usize,
}

/// Which keys a query sees: a run of them, of which neither end falls from a query to the next.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a> {
    queries: usize,
    keys: usize,
    window: Window,
    /// Query i the first `seen[i]`, whatever the window's right end.
    seen: Option<&'a [u32]>,
}

impl<'a> Mask<'a> {
    pub(super) fn new(shape: Shape, window: Window, seen: Option<&'a [u32]>) -> Self {
        Self { queries: shape.queries, keys: shape.keys, window, seen }
    }

    /// The first key that a query sees, and the one after the last.
    #[inline(always)]
    pub(super) fn visible(&self, query: usize) -> Range<usize> {
        let beside = query.saturating_add(self.keys);
        let low = self.window.left.map_or(0, |left| beside.saturating_sub(self.queries.saturating_add(left)));
        let high = match (self.seen, self.window.right) {
            (Some(seen), _) => seen[query] as usize,
            (None, Some(right)) => beside.saturating_add(right).saturating_add(1).saturating_sub(self.queries),
            (None, None) => self.keys,
        };
        let high = high.min(self.keys);
        low.min(high)..high
    }

    /// The queries in `of` that see a key.
    #[inline(always)]
    fn seeing(&self, key: usize, of: &Range<usize>) -> Range<usize> {
        let high = |query| self.visible(query).end;
        let first = match (self.seen, self.window.right) {
            (Some(_), _) => partition(of, |query| high(query) <= key),
            (None, Some(right)) => {
                key.saturating_add(self.queries).saturating_sub(self.keys.saturating_add(right)).clamp(of.start, of.end)
            }
            (None, None) => of.start,
        };
        let end = match self.window.left {
            Some(left) => key
                .saturating_add(self.queries)
                .saturating_add(left)
                .saturating_add(1)
                .saturating_sub(self.keys)
                .clamp(of.start, of.end),
            None => of.end,
        };
        first..end.max(first)
    }
}

/// The first number of a range for which `before`, which holds for those before it, does not.
#[inline(always)]
fn partition(of: &Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (of.start, of.end);
    while from < to {
        let middle = from + (to - from) / 2;
        if before(middle) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

/// A block of queries against a tile of keys, and what a mask leaves of it. What it hides is left out of every sum.
pub(super) struct View<'a> {
    pub(super) mask: Mask<'a>,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

impl View<'_> {
    /// Whether no query of the block sees a key of the tile.
    #[inline(always)]
    pub(super) fn is_hidden(&self) -> bool {
        let (first, last) = (self.mask.visible(self.queries.start), self.mask.visible(self.queries.end - 1));
        last.end <= self.keys.start || first.start >= self.keys.end
    }

    /// Which of the tile's keys a row of the block sees.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize) -> Range<usize> {
        let within = |key: usize| key.saturating_sub(self.keys.start).min(self.keys.len());
        let Range { start, end } = self.mask.visible(self.queries.start + row);
        within(start)..within(end)
    }

    /// The rows of the block that see a key of the tile.
    #[inline(always)]
    pub(super) fn seeing(&self, key: usize) -> Range<usize> {
        let Range { start, end } = self.mask.seeing(self.keys.start + key, &self.queries);
        start - self.queries.start..end - self.queries.start
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
