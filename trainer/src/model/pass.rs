//! What one micro-batch's way through the model needs to know.

use warpweft_device::{Buffer, Float, Stream, View, ViewMut};

use std::borrow::Cow;
use std::time::Instant;

use crate::TrainError;
use crate::model::parameters::Parameters;
use crate::report::trace::{Trace, Track};

/// One micro-batch: where it runs, with which weights, its tokens and sizes.
pub struct Pass<'a, T> {
    /// The order of the work.
    pub stream: &'a Stream,
    /// The weights.
    pub parameters: &'a Parameters<T>,
    /// The tokens `[B, T]`.
    pub ids: View<'a, u32>,
    /// Sequences, B.
    pub batch: usize,
    /// Tokens of each, T.
    pub tokens: usize,
    /// Where to record what takes how long, if anywhere.
    pub trace: Option<&'a Trace>,
}

impl<T> Pass<'_, T> {
    /// Rows of every activation, M = B T.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens
    }
}

impl<T: Float> Pass<'_, T> {
    /// The rows of this pass in a buffer made for at least as many, `width` elements each.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn of<'b, E: warpweft_device::Element>(
        &self,
        buffer: &'b Buffer<E>,
        width: usize,
    ) -> Result<View<'b, E>, TrainError> {
        Ok(buffer.view(..self.rows() * width)?)
    }

    /// The same to write.
    ///
    /// # Errors
    /// A pass larger than the buffers were made for.
    pub fn of_mut<'b, E: warpweft_device::Element>(
        &self,
        buffer: &'b mut Buffer<E>,
        width: usize,
    ) -> Result<ViewMut<'b, E>, TrainError> {
        Ok(buffer.view_mut(..self.rows() * width)?)
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
