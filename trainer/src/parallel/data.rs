//! Data parallelism: gradients in flat buckets that are summed over the ranks while the backward pass goes on.
//!
//! The gradients lie in the order in which a backward pass finishes them, cut into buckets at the borders of groups (a
//! weight and its bias). Layers add to their gradients through [`Gradients::view`] and say [`Gradients::done`]; when the
//! last gradient of a bucket is done in the last micro-batch of the step, its all-reduce starts on the communicator's
//! progress thread, which owns the bucket until [`Gradients::finish`]. Every rank starts the buckets in the same order,
//! one that had no sample as well (its summand is zero).
//!
//! What is reduced is f32 whatever the weights are, so that the sum over ranks rounds as the sum over micro-batches does.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use warpweft_comm::{Communicator, Op, Pending};
use warpweft_device::{Buffer, Stream, View, ViewMut};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::{Table, TensorId};
use crate::parallel::layout::{Layout, Reduction};

/// A bucket is closed at the first border of groups after this many bytes: long enough that its transfer, not its
/// start, is what takes time; short enough that a small model has several.
pub const BUCKET_BYTES: usize = 512 << 10;

/// The part of `count` things that rank `rank` of `world` has: an even split, the first ranks one more where it is uneven.
pub fn share(count: usize, world: usize, rank: usize) -> Range<usize> {
    let (each, more) = (count / world, count % world);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// The gradients of one rank.
pub struct Gradients {
    buckets: Vec<Bucket>,
    places: Vec<Place>,
    communicator: Arc<Communicator>,
    /// Whether the micro-batch under way is the last of the step.
    last: bool,
    /// Whether this rank had a micro-batch in this step.
    fed: bool,
    /// Buckets whose reduction has started in this step.
    started: usize,
}

/// Where a parameter's gradient lies.
struct Place {
    bucket: usize,
    range: Range<usize>,
}

struct Bucket {
    state: State,
    layout: Layout,
    target: Layout,
    /// Additions that one backward pass makes to it.
    uses: usize,
    /// Additions that the micro-batch under way has yet to make.
    left: usize,
}

enum State {
    Here(Buffer<f32>),
    Reducing(Pending<Buffer<f32>>),
    /// Only after a failed reduction, which ends the training.
    Lost,
}

/// When something was on its way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The bucket's number; `None` for the sum of the losses.
    pub bucket: Option<usize>,
    /// Its bytes.
    pub bytes: usize,
    /// When its reduction started.
    pub started: Instant,
    /// When it was complete on this rank.
    pub finished: Instant,
}

impl Gradients {
    /// Zeroed gradients for the parameters of `table`, to be summed over the ranks of `communicator`.
    ///
    /// # Errors
    /// No memory for them.
    pub fn new(
        table: &Table,
        communicator: Arc<Communicator>,
        allocator: &mut Allocator<'_>,
    ) -> Result<Self, TrainError> {
        let mut places: Vec<Place> = table.iter().map(|_| Place { bucket: 0, range: 0..0 }).collect();
        let mut sizes = vec![(0usize, 0usize)];
        let mut group = None;
        for id in table.flat_order() {
            let border = group.replace(table.group_of(id)) != Some(table.group_of(id));
            let full = sizes.last().is_some_and(|(elements, _)| elements * size_of::<f32>() >= BUCKET_BYTES);
            if border && full {
                sizes.push((0, 0));
            }
            let bucket = sizes.len() - 1;
            let (elements, uses) = &mut sizes[bucket];
            places[id.0] = Place { bucket, range: *elements..*elements + table.get(id).len() };
            *elements += table.get(id).len();
            *uses += table.get(id).uses;
        }
        let mut buckets = Vec::with_capacity(sizes.len());
        for (elements, uses) in sizes {
            let state = State::Here(allocator.zeros(Class::Gradients, elements)?);
            let target = Layout::REPLICATED;
            // What all its parameters have: no parallelism yet gives one another layout.
            debug_assert!(table.parameters().iter().all(|parameter| parameter.layout == target));
            buckets.push(Bucket { state, layout: target.of_local_gradient(), target, uses, left: 0 });
        }
        Ok(Self { buckets, places, communicator, last: false, fed: false, started: 0 })
    }

    /// Sets all gradients to zero for a new step.
    ///
    /// # Errors
    /// A bucket that is still under way, or was lost.
    pub fn begin_step(&mut self, stream: &Stream) -> Result<(), TrainError> {
        self.started = 0;
        self.last = false;
        self.fed = false;
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            bucket.layout = bucket.target.of_local_gradient();
            here_mut(index, &mut bucket.state)?.as_view_mut().fill(stream, 0.0)?;
        }
        Ok(())
    }

    /// Begins a micro-batch; the buckets that the last one of a step completes are reduced.
    pub fn begin_micro_batch(&mut self, last: bool) {
        self.last = last;
        self.fed = true;
        for bucket in &mut self.buckets {
            bucket.left = bucket.uses;
        }
    }

    /// The gradient of a parameter, to add to.
    ///
    /// # Errors
    /// A bucket that is being reduced.
    pub fn view(&mut self, id: TensorId) -> Result<ViewMut<'_, f32>, TrainError> {
        let Place { bucket, range } = &self.places[id.0];
        Ok(here_mut(*bucket, &mut self.buckets[*bucket].state)?.view_mut(range.clone())?)
    }

    /// The gradients of two parameters of one group, the second entered right after the first.
    ///
    /// # Errors
    /// A bucket that is being reduced.
    pub fn pair(
        &mut self,
        first: TensorId,
        second: TensorId,
    ) -> Result<(ViewMut<'_, f32>, ViewMut<'_, f32>), TrainError> {
        let (left, right) = (&self.places[first.0], &self.places[second.0]);
        debug_assert!(left.bucket == right.bucket && left.range.end == right.range.start);
        let buffer = here_mut(left.bucket, &mut self.buckets[left.bucket].state)?;
        let both = buffer.view_mut(left.range.start..right.range.end)?;
        Ok(both.split_at(left.range.len())?)
    }

    /// Says that a layer has added its part to a parameter's gradient; may start the reduction of its bucket.
    ///
    /// # Errors
    /// A reduction that could not start.
    pub fn done(&mut self, id: TensorId) -> Result<(), TrainError> {
        let bucket = &mut self.buckets[self.places[id.0].bucket];
        debug_assert!(bucket.left > 0, "more additions to a bucket than its parameters have uses");
        bucket.left -= 1;
        if self.last {
            self.start_complete()?;
        }
        Ok(())
    }

    /// Starts what is complete, in the order of the buckets, which is the same on all ranks.
    fn start_complete(&mut self) -> Result<(), TrainError> {
        while let Some(bucket) = self.buckets.get_mut(self.started).filter(|bucket| bucket.left == 0) {
            match bucket.layout.reduction_to(bucket.target)? {
                Reduction::AllReduce if self.communicator.world() > 1 => {
                    if let State::Here(buffer) = std::mem::replace(&mut bucket.state, State::Lost) {
                        bucket.state = State::Reducing(self.communicator.start_all_reduce(buffer, Op::Sum));
                    }
                }
                Reduction::AllReduce | Reduction::Nothing => bucket.layout = bucket.target,
            }
            self.started += 1;
        }
        Ok(())
    }

    /// Waits until all buckets are summed, having started them where this rank had no micro-batch. Gives when each was on
    /// its way.
    ///
    /// # Errors
    /// The first reduction that failed; a bucket that the last micro-batch has not completed.
    pub fn finish(&mut self) -> Result<Vec<Transfer>, TrainError> {
        if !self.fed {
            self.buckets.iter_mut().for_each(|bucket| bucket.left = 0);
            self.start_complete()?;
        }
        if self.started < self.buckets.len() {
            return Err(TrainError::Bucket { bucket: self.started });
        }
        let mut transfers = Vec::new();
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            match std::mem::replace(&mut bucket.state, State::Lost) {
                State::Reducing(pending) => {
                    let done = pending.wait().map_err(|error| error.error)?;
                    let bytes = done.buffer.bytes();
                    bucket.state = State::Here(done.buffer);
                    bucket.layout = bucket.target;
                    let (started, finished) = (done.started, done.finished);
                    transfers.push(Transfer { bucket: Some(index), bytes, started, finished });
                }
                state => bucket.state = state,
            }
        }
        Ok(transfers)
    }

    /// The summed gradients of all parameters, in the order of flat memory.
    ///
    /// # Errors
    /// A bucket that is not summed.
    pub fn summed(&self) -> Result<Vec<View<'_, f32>>, TrainError> {
        let views = self.buckets.iter().enumerate().map(|(index, bucket)| match &bucket.state {
            State::Here(buffer) if bucket.layout == bucket.target => Ok(buffer.as_view()),
            _ => Err(TrainError::Bucket { bucket: index }),
        });
        views.collect()
    }

    /// The summed gradient of one parameter.
    ///
    /// # Errors
    /// A bucket that is not summed.
    pub fn summed_of(&self, id: TensorId) -> Result<View<'_, f32>, TrainError> {
        let Place { bucket, range } = &self.places[id.0];
        match &self.buckets[*bucket] {
            Bucket { state: State::Here(buffer), layout, target, .. } if layout == target => {
                Ok(buffer.view(range.clone())?)
            }
            _ => Err(TrainError::Bucket { bucket: *bucket }),
        }
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }
}

fn here_mut(index: usize, state: &mut State) -> Result<&mut Buffer<f32>, TrainError> {
    match state {
        State::Here(buffer) => Ok(buffer),
        State::Reducing(_) | State::Lost => Err(TrainError::Bucket { bucket: index }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_once() {
        for (count, world) in [(12, 1), (12, 4), (7, 3), (2, 4), (0, 2)] {
            let parts: Vec<usize> = (0..world).flat_map(|rank| share(count, world, rank)).collect();
            assert_eq!(parts, (0..count).collect::<Vec<_>>(), "{count} over {world}");
        }
    }
}
