//! What a training does at each step, besides the model.

use std::ops::Range;

use warpweft_device::{DType, DeviceError};
use warpweft_schedule::{Costs, Name, Schedule as Passes};

use crate::TrainError;
use crate::config::Config;
use crate::model::{ModelShape, Recompute, Room, ShapeError};
use crate::optimizer::{AdamW, Schedule};
use crate::parallel::context::Method;
use crate::parallel::mesh::{Mesh, Sizes};
use crate::parallel::share;
use crate::parallel::zero::Zero;

/// What a training does at each step, besides the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Tokens of a sequence, at most the model's context.
    pub tokens: usize,
    /// Sequences of a step, over all ranks and micro-batches.
    pub batch: usize,
    /// Sequences that go through the model at once on one rank.
    pub micro_batch: usize,
    /// The optimizer's constants.
    pub adamw: AdamW,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// The largest norm of the gradient, to which a larger one is scaled down; `None` leaves all as they are.
    pub clip: Option<f64>,
    /// Of the initial weights.
    pub seed: u64,
    /// Whether the rows of the residual stream are shared out over the tensor-parallel ranks.
    pub sequence_parallel: bool,
    /// How context-parallel ranks bring the parts of a sequence together.
    pub context: Method,
    /// What data ranks share out of weights, gradients and the optimizer's state.
    pub zero: Zero,
    /// Whether sums are the same bits for any number of data ranks, stages and micro-batches.
    pub exact: bool,
    /// The order of the passes over micro-batches and stages.
    pub pipeline: Name,
    /// Pieces of the model on a stage, where the schedule leaves a choice.
    pub chunks: Option<usize>,
    /// What of the activations is computed again in backward passes; the numbers do not depend on it.
    pub recompute: Recompute,
    /// Whether gradients and weights are on their way while passes compute; the numbers do not depend on it.
    pub overlap: bool,
}

impl Recipe {
    /// A recipe for steps of `batch` sequences of `tokens` tokens in one micro-batch, without warm-up and clipping.
    pub fn new(tokens: usize, batch: usize) -> Self {
        Self {
            tokens,
            batch,
            micro_batch: batch,
            adamw: AdamW::default(),
            schedule: Schedule { peak: 1e-3, warmup: 0, steps: 1 },
            clip: None,
            seed: 1,
            sequence_parallel: false,
            context: Method::Ring,
            zero: Zero::NONE,
            exact: false,
            pipeline: Name::OneForwardOneBackward,
            chunks: None,
            recompute: Recompute::None,
            overlap: true,
        }
    }

    /// What a configuration asks for.
    pub fn of(config: &Config) -> Self {
        // The same on all ranks, of which the first has most.
        let most = share(config.batch, config.sizes.dp, 0).len().max(1);
        Self {
            micro_batch: config.micro_batch.map_or(most, |micro_batch| micro_batch.min(most)),
            adamw: AdamW { weight_decay: config.weight_decay, ..AdamW::default() },
            schedule: Schedule { peak: config.lr, warmup: config.warmup, steps: config.steps },
            clip: config.clip,
            seed: config.seed,
            sequence_parallel: config.sequence_parallel,
            context: config.cp_method,
            zero: config.zero,
            exact: config.exact,
            pipeline: config.schedule,
            chunks: config.chunks,
            recompute: config.recompute,
            overlap: config.overlap,
            ..Self::new(config.context, config.batch)
        }
    }

    /// The sequences of `count` that a data-parallel rank has.
    pub fn share(&self, mesh: &Mesh, count: usize) -> Range<usize> {
        share(count, mesh.sizes().dp, mesh.place().dp)
    }

    /// What every rank does in a step, and when.
    ///
    /// # Errors
    /// A schedule that there is not for so many stages and chunks.
    pub fn passes(&self, sizes: Sizes) -> Result<Passes, TrainError> {
        let micro_batches = self.micro_batches(sizes, self.batch).max(1);
        let made = Passes::new(self.pipeline, sizes.pp, micro_batches, self.chunks, Costs::default(), None);
        Ok(made.map_err(Box::new)?)
    }

    /// Micro-batches that every rank goes through for `count` sequences: those of the rank that has most.
    pub fn micro_batches(&self, sizes: Sizes, count: usize) -> usize {
        share(count, sizes.dp, 0).len().div_ceil(self.micro_batch)
    }

    /// The rows that the memory of a micro-batch is made for.
    ///
    /// # Errors
    /// No rows, or more than can be addressed.
    pub(crate) fn room(&self, shape: &ModelShape, sizes: Sizes) -> Result<Room, TrainError> {
        let Self { tokens, micro_batch, .. } = *self;
        for (what, size) in [("micro-batch", micro_batch), ("the length of a sequence", tokens)] {
            if size == 0 {
                return Err(ShapeError::Zero { what }.into());
            }
        }
        let rows = micro_batch.saturating_mul(self.context.cut().most(tokens, sizes.cp));
        // The widest row of activations, so that no size computed from here on overflows.
        let widest = [shape.vocab, shape.hidden.saturating_mul(2), shape.channels.saturating_mul(3)].into_iter().max();
        let count = rows.saturating_mul(widest.unwrap_or(1));
        if count > isize::MAX as usize / size_of::<f32>() {
            return Err(DeviceError::OutOfMemory { count, dtype: DType::F32, device: "cpu".into() }.into());
        }
        let stream_rows = if self.sequence_parallel { rows.div_ceil(sizes.tp) } else { rows };
        Ok(Room { rows, stream_rows })
    }
}
