//! What a micro-batch's way through the model needs to know.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use warpweft_device::{Buffer, Element, Float, Stream, View, ViewMut};

use crate::TrainError;
use crate::data::Documents;
use crate::dump::{Kind, Recorder};
use crate::parallel::layout::{Axis, Placement};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::share;
use crate::parallel::weights::Weights;
use crate::report::trace::{Trace, Track};

/// One micro-batch of one chunk: where it runs and its sizes, before any weights are there.
#[derive(Clone, Copy)]
pub struct MicroBatch<'a> {
    /// The order of the work.
    pub stream: &'a Stream,
    /// The ranks.
    pub mesh: &'a Mesh,
    /// What they communicate.
    pub plan: &'a Plan,
    /// Sequences, B.
    pub batch: usize,
    /// Tokens of each on this rank, T.
    pub tokens: usize,
    /// Whether the positions in each sequence are 0, 1, ..
    pub plain: bool,
    /// The documents of each sequence, where several lie side by side; empty where each is one.
    pub documents: &'a [Documents],
    /// Index of the first sequence in the step's batch of all ranks.
    pub first_sample: u64,
    /// Where to record what takes how long, if anywhere.
    pub trace: Option<&'a Trace>,
    /// Where to take down what it computes, if anywhere.
    pub(crate) dump: Option<&'a Recorder>,
}

impl<'a> MicroBatch<'a> {
    /// Its pass through layers whose weights are there, and tokens that stand at `positions`.
    pub fn pass<'w, T>(&self, weights: &'w Weights<T>, positions: &'w Buffer<u32>) -> Pass<'w, T>
    where
        'a: 'w,
    {
        let Self { stream, mesh, plan, batch, tokens, plain, documents, trace, .. } = *self;
        let positions = (!plain).then_some(positions);
        Pass { stream, weights, mesh, plan, batch, tokens, positions, documents, skipped: 0, trace }
    }

    /// The rows of the residual stream that this rank has of it.
    pub fn stream_rows(&self) -> Range<usize> {
        rows_of(self.plan, self.mesh, self.batch * self.tokens, self.mesh.place().tp)
    }

    /// Takes down the rows of the residual stream in `buffer`, or of its error, where a step is dumped.
    pub(crate) fn dump<T: Float>(
        &self,
        what: (Kind, impl FnOnce() -> String),
        pass: &Pass<'_, T>,
        buffer: &Buffer<T>,
        channels: usize,
    ) -> Result<(), TrainError> {
        let Some(dump) = self.dump else { return Ok(()) };
        let (kind, which) = what;
        dump.stream((kind, &which()), (self, pass), buffer, channels)
    }

    /// Does `work`, and records how long it took.
    pub(crate) fn timed<R>(&self, name: impl FnOnce() -> Cow<'static, str>, work: impl FnOnce() -> R) -> R {
        let Some(trace) = self.trace else { return work() };
        let start = Instant::now();
        let result = work();
        trace.add(Track::Compute, name(), start, Instant::now());
        result
    }
}

/// A micro-batch, or one sequence of it, on its way through layers: where it runs, with which weights, its sizes.
pub struct Pass<'a, T> {
    /// The order of the work.
    pub stream: &'a Stream,
    /// The weights.
    pub weights: &'a Weights<T>,
    /// The ranks.
    pub mesh: &'a Mesh,
    /// What they communicate.
    pub plan: &'a Plan,
    /// Sequences, B.
    pub batch: usize,
    /// Tokens of each on this rank, T.
    pub tokens: usize,
    /// The positions of all tokens of the micro-batch, where not each sequence's are 0, 1, ..
    pub positions: Option<&'a Buffer<u32>>,
    /// The documents of each sequence, where several lie side by side; empty where each is one.
    pub documents: &'a [Documents],
    /// Rows of other sequences that lie before this pass's in every buffer.
    pub skipped: usize,
    /// Where to record what takes how long, if anywhere.
    pub trace: Option<&'a Trace>,
}

impl<T> Pass<'_, T> {
    /// The pass of one of the sequences alone, whose rows lie where they are.
    pub fn of_sequence(&self, index: usize) -> Self {
        let Self { stream, weights, mesh, plan, tokens, positions, trace, .. } = *self;
        let documents = self.documents.get(index..=index).unwrap_or_default();
        let skipped = self.skipped + index * tokens;
        Self { stream, weights, mesh, plan, batch: 1, tokens, positions, documents, skipped, trace }
    }

    /// Rows of an activation inside a region, M = B T.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    /// The rows of the residual stream that this rank has: all, or its share with sequence parallelism.
    pub fn stream_rows(&self) -> Range<usize> {
        self.rows_of(self.mesh.place().tp)
    }

    /// The rows of the residual stream that a tensor-parallel rank has.
    pub fn rows_of(&self, tp: usize) -> Range<usize> {
        rows_of(self.plan, self.mesh, self.rows(), tp)
    }

    /// Where `rows` rows of `width` elements each lie in a buffer.
    fn within(&self, rows: usize, width: usize) -> Range<usize> {
        self.skipped * width..(self.skipped + rows) * width
    }

    /// The rows of this pass in a buffer made for at least as many, `width` elements each.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn of<'b, E: Element>(&self, buffer: &'b Buffer<E>, width: usize) -> Result<View<'b, E>, TrainError> {
        Ok(buffer.view(self.within(self.rows(), width))?)
    }

    /// The same to write.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn of_mut<'b, E: Element>(
        &self,
        buffer: &'b mut Buffer<E>,
        width: usize,
    ) -> Result<ViewMut<'b, E>, TrainError> {
        Ok(buffer.view_mut(self.within(self.rows(), width))?)
    }

    /// The residual stream's rows of this pass, `width` elements each.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn stream_of<'b, E: Element>(&self, buffer: &'b Buffer<E>, width: usize) -> Result<View<'b, E>, TrainError> {
        Ok(buffer.view(self.within(self.stream_rows().len(), width))?)
    }

    /// The same to write.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn stream_of_mut<'b, E: Element>(
        &self,
        buffer: &'b mut Buffer<E>,
        width: usize,
    ) -> Result<ViewMut<'b, E>, TrainError> {
        Ok(buffer.view_mut(self.within(self.stream_rows().len(), width))?)
    }
}

/// Which of `rows` rows of the residual stream a tensor-parallel rank has.
fn rows_of(plan: &Plan, mesh: &Mesh, rows: usize, tp: usize) -> Range<usize> {
    match plan.stream.over(Axis::Tp) {
        Placement::Sharded(_) => share(rows, mesh.sizes().tp, tp),
        Placement::Replicated | Placement::Partial => 0..rows,
    }
}
