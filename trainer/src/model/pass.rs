//! What one micro-batch's way through the model needs to know.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use warpweft_device::{Buffer, Element, Stream, View, ViewMut};

use crate::TrainError;
use crate::parallel::layout::{Axis, Placement};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::share;
use crate::parallel::weights::Weights;
use crate::report::trace::{Trace, Track};

/// One micro-batch: where it runs, with which weights, its sizes.
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
    /// Where to record what takes how long, if anywhere.
    pub trace: Option<&'a Trace>,
}

impl<T> Pass<'_, T> {
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
        match self.plan.stream.over(Axis::Tp) {
            Placement::Sharded(_) => share(self.rows(), self.mesh.sizes().tp, tp),
            Placement::Replicated | Placement::Partial => 0..self.rows(),
        }
    }

    /// The rows of this pass in a buffer made for at least as many, `width` elements each.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn of<'b, E: Element>(&self, buffer: &'b Buffer<E>, width: usize) -> Result<View<'b, E>, TrainError> {
        Ok(buffer.view(..self.rows() * width)?)
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
        Ok(buffer.view_mut(..self.rows() * width)?)
    }

    /// The residual stream's rows of this pass, `width` elements each.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn stream_of<'b, E: Element>(&self, buffer: &'b Buffer<E>, width: usize) -> Result<View<'b, E>, TrainError> {
        Ok(buffer.view(..self.stream_rows().len() * width)?)
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
        Ok(buffer.view_mut(..self.stream_rows().len() * width)?)
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
