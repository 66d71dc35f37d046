//! Attention over packed documents: one call for each document of each sequence, since none sees anything of another.
//!
//! Rows of a document are neighbours in its sequence, and so they are in what a rank has of it, whose positions ascend. The
//! LSE of a sequence's documents lies where their rows do, `[H, tokens]` for each.

use std::ops::Range;

use warpweft_device::{DeviceError, Element, View, ViewMut};
use warpweft_kernels::attention::Shape;

use crate::data::Documents;

/// The rows of one call of attention, in the buffers of all sequences.
pub(crate) struct Call {
    pub(crate) shape: Shape,
    queries: Range<usize>,
    keys: Range<usize>,
    /// By query: how many of the keys it may look at, where that is not what the shape says.
    pub(super) seen: Vec<u32>,
}

impl Call {
    /// The calls over whole sequences: one for all of them, or one a document.
    pub(crate) fn whole(shape: Shape, documents: &[Documents]) -> Vec<Self> {
        if documents.is_empty() {
            let (queries, keys) = (0..shape.batch * shape.queries, 0..shape.batch * shape.keys);
            return vec![Self { shape, queries, keys, seen: Vec::new() }];
        }
        let of_document = |(sequence, ends): (usize, &[u32])| {
            let rows = sequence * shape.queries + ends[0] as usize..sequence * shape.queries + ends[1] as usize;
            let shape = Shape { batch: 1, queries: rows.len(), keys: rows.len(), ..shape };
            Self { shape, queries: rows.clone(), keys: rows, seen: Vec::new() }
        };
        bounds(documents).map(of_document).collect()
    }

    /// The calls of a part of each sequence's queries, at the positions `own`, over a part of its keys, at `theirs`.
    pub(super) fn parts(shape: Shape, documents: &[Documents], own: &[u32], theirs: &[u32]) -> Vec<Self> {
        let within = |positions: &[u32], ends: &[u32]| {
            positions.partition_point(|position| *position < ends[0])
                ..positions.partition_point(|position| *position < ends[1])
        };
        let of_document = |(sequence, ends): (usize, &[u32])| {
            let (queries, keys) = (within(own, ends), within(theirs, ends));
            let visible = |own: &u32| theirs[keys.clone()].partition_point(|theirs| theirs <= own) as u32;
            let seen = own[queries.clone()].iter().map(visible).collect();
            let shape = Shape { batch: 1, queries: queries.len(), keys: keys.len(), ..shape };
            let at = |rows: Range<usize>, all: usize| sequence * all + rows.start..sequence * all + rows.end;
            Self { shape, queries: at(queries, own.len()), keys: at(keys, theirs.len()), seen }
        };
        bounds(documents).map(of_document).filter(|call| call.shape.queries > 0 && call.shape.keys > 0).collect()
    }

    /// The rows of its queries, `width` elements each.
    pub(crate) fn queries<'a, T: Element>(&self, all: View<'a, T>, width: usize) -> Result<View<'a, T>, DeviceError> {
        all.slice(self.queries.start * width..self.queries.end * width)
    }

    /// The same to write.
    pub(crate) fn queries_mut<'a, T: Element>(
        &self,
        all: ViewMut<'a, T>,
        width: usize,
    ) -> Result<ViewMut<'a, T>, DeviceError> {
        all.slice(self.queries.start * width..self.queries.end * width)
    }

    /// The rows of its keys.
    pub(super) fn keys<'a, T: Element>(&self, all: View<'a, T>, width: usize) -> Result<View<'a, T>, DeviceError> {
        all.slice(self.keys.start * width..self.keys.end * width)
    }

    /// The same to write.
    pub(super) fn keys_mut<'a, T: Element>(
        &self,
        all: ViewMut<'a, T>,
        width: usize,
    ) -> Result<ViewMut<'a, T>, DeviceError> {
        all.slice(self.keys.start * width..self.keys.end * width)
    }
}

/// The first token of each document and the one behind it, with the number of its sequence.
fn bounds(documents: &[Documents]) -> impl Iterator<Item = (usize, &[u32])> {
    documents.iter().enumerate().flat_map(|(sequence, of)| of.bounds().windows(2).map(move |ends| (sequence, ends)))
}
