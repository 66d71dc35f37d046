//! The memory that steps work on: spans of a plan as bytes, and the steps that no message is part of.

use std::ops::Range;

use super::plan::{Place, Span, Step};
use crate::reduce::{self, Contributions, Reduction};

/// The memory of a call, as bytes.
pub(crate) struct Memory<'m, 'a> {
    pub(crate) inputs: &'m [&'a [u8]],
    pub(crate) outputs: &'m mut [&'a mut [u8]],
}

/// The memory of a call together with the engine's own, in elements of `size` bytes.
pub(super) struct Ground<'g, 'm, 'a> {
    pub(super) memory: &'g mut Memory<'m, 'a>,
    pub(super) temp: &'g mut [u64],
    pub(super) size: usize,
}

/// The bytes of a span, to read.
pub(super) fn source<'s>(memory: &'s Memory<'_, '_>, temp: &'s [u64], span: Span, size: usize) -> &'s [u8] {
    let whole = match span.place {
        Place::Input(index) => memory.inputs[index],
        Place::Output(index) => &*memory.outputs[index],
        Place::Temp => bytemuck::cast_slice(temp),
    };
    &whole[span.start * size..(span.start + span.len) * size]
}

impl Ground<'_, '_, '_> {
    /// The bytes of a span, to write.
    pub(super) fn target(&mut self, span: Span) -> &mut [u8] {
        let whole = match span.place {
            Place::Output(index) => &mut *self.memory.outputs[index],
            Place::Temp => bytemuck::cast_slice_mut(self.temp),
            Place::Input(_) => unreachable!("no plan writes to an input"),
        };
        &mut whole[span.start * self.size..(span.start + span.len) * self.size]
    }

    /// Combines the bytes `range` of `own` with what came in, into the same bytes of `into`.
    pub(super) fn combine(
        &mut self,
        reduction: Reduction,
        (into, own): (Span, Span),
        range: Range<usize>,
        incoming: &[u8],
        finish: bool,
    ) {
        let outside = match own.place {
            Place::Input(index) => Some(&self.memory.inputs[index][own.start * self.size..][range.clone()]),
            // Every plan that reads its own part from the output writes the result to the same place.
            _ => {
                debug_assert_eq!(own, into);
                None
            }
        };
        reduce::combine(reduction, &mut self.target(into)[range], outside, incoming, finish);
    }

    /// [`Step::Copy`].
    pub(super) fn copy(&mut self, from: Span, into: Span) {
        let bytes = |span: Span| span.start * self.size..(span.start + span.len) * self.size;
        match (from.place, into.place) {
            (Place::Input(input), Place::Output(out)) => {
                self.memory.outputs[out][bytes(into)].copy_from_slice(&self.memory.inputs[input][bytes(from)]);
            }
            (Place::Output(a), Place::Output(b)) if a == b => {
                self.memory.outputs[a].copy_within(bytes(from), into.start * self.size);
            }
            _ => unreachable!("no plan copies from or to temporary memory, or between results"),
        }
    }

    /// [`Step::Fold`].
    pub(super) fn fold(&mut self, reduction: Reduction, step: &Step) {
        let &Step::Fold { own, position, parts, others, into } = step else { return };
        let Place::Output(out) = into.place else { return };
        let bytes = into.len * self.size;
        let others = &bytemuck::cast_slice::<u64, u8>(self.temp)[others * self.size..][..(parts - 1) * bytes];
        let outside = match own.place {
            Place::Input(input) => Some(&self.memory.inputs[input][own.start * self.size..][..bytes]),
            _ => None,
        };
        let out = &mut self.memory.outputs[out][into.start * self.size..][..bytes];
        reduce::fold(reduction, out, Contributions { own: outside, position, others });
    }
}
