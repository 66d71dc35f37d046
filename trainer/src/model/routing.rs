//! What the routers did in a step, and the biases that keep experts evenly used without a loss.
//!
//! A bias is added to an expert's score for the choice alone; after each step it moves by the rate, up where the step used
//! the expert less than the mean of all, down where it used it more (Wang 2024, arXiv 2408.15664; DeepSeek-V3, arXiv
//! 2412.19437, section 2.1.2). The counts are those of all ranks and micro-batches of the step, so that biases are the same
//! at every layout; every rank has all of them.

use std::borrow::Cow;

use warpweft_device::{Buffer, Stream, View};
use warpweft_kernels::moe::balance;

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::shape::{ModelShape, MoeShape};

/// The margin below which rounding alone may send a token to another expert, at another layout or in another run.
pub const NARROW: f32 = 1e-6;

/// The biases of all routers, `[L, E]`; none where no rate moves them.
#[derive(Debug)]
pub struct Biases {
    values: Buffer<f32>,
    experts: usize,
    rate: f64,
}

impl Biases {
    /// Those of a model before its first step: zeros.
    ///
    /// # Errors
    /// No memory for them.
    pub fn zeros(shape: &ModelShape, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let (experts, rate) = shape.moe.map_or((0, 0.0), |moe| (moe.experts, moe.bias_rate));
        let count = if rate > 0.0 { shape.layers * experts } else { 0 };
        Ok(Self { values: allocator.zeros(Class::Parameters, count)?, experts, rate })
    }

    /// Those of a model whose experts have none.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn none(allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        Ok(Self { values: allocator.zeros(Class::Parameters, 0)?, experts: 0, rate: 0.0 })
    }

    /// Those of a block, where there are some.
    ///
    /// # Errors
    /// A block that the model does not have.
    pub fn of(&self, block: usize) -> Result<Option<View<'_, f32>>, TrainError> {
        if self.values.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.values.view(block * self.experts..(block + 1) * self.experts)?))
    }

    /// All of them, block after block.
    ///
    /// # Errors
    /// An error of the work before.
    pub fn values(&self) -> Result<Cow<'_, [f32]>, TrainError> {
        if self.values.is_empty() { Ok(Cow::Borrowed(&[])) } else { Ok(self.values.as_view().to_host()?) }
    }

    /// Sets them, from what they are, by `work`.
    ///
    /// # Errors
    /// What `work` says; an error of the work before.
    pub fn change(&mut self, work: impl FnOnce(&mut [f32]) -> Result<(), TrainError>) -> Result<(), TrainError> {
        if self.values.is_empty() { work(&mut []) } else { self.values.as_view_mut().on_host(work) }
    }

    /// Experts of a block.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Moves them after a step that used the experts so often, `[L, E]`.
    ///
    /// # Errors
    /// Counts of another model.
    pub fn step(&mut self, stream: &Stream, counts: &[f64]) -> Result<(), TrainError> {
        if self.values.is_empty() {
            return Ok(());
        }
        for (block, counts) in counts.chunks_exact(self.experts).enumerate() {
            let counts = stream.device().upload(counts)?;
            let bias = self.values.view_mut(block * self.experts..(block + 1) * self.experts)?;
            balance::move_bias(stream, self.rate as f32, counts.as_view(), bias)?;
        }
        Ok(())
    }
}

/// What the routers of one rank did in a step.
#[derive(Clone, Debug)]
pub struct Routed {
    /// How often each expert was chosen, `[L, E]`.
    counts: Vec<f64>,
    experts: usize,
    /// The auxiliary losses of all sequences and blocks.
    losses: f64,
    /// Assignments over an expert's capacity.
    dropped: f64,
    margin: f32,
}

impl Routed {
    /// Nothing yet; empty for a dense model.
    pub fn new(shape: &ModelShape) -> Self {
        let experts = shape.moe.map_or(0, |moe| moe.experts);
        Self { counts: vec![0.0; shape.layers * experts], experts, losses: 0.0, dropped: 0.0, margin: f32::INFINITY }
    }

    /// Adds what a pass did in a block, where this rank is the one that tells of it.
    pub(super) fn add(&mut self, block: usize, chosen: &[u32], dropped: usize, margin: f32) {
        let counts = &mut self.counts[block * self.experts..][..self.experts];
        chosen.iter().for_each(|expert| counts[*expert as usize] += 1.0);
        self.dropped += dropped as f64;
        self.margin = self.margin.min(margin);
    }

    /// Adds the auxiliary loss of a sequence in a block.
    pub(super) fn add_loss(&mut self, loss: f64) {
        self.losses += loss;
    }

    /// The smallest margin.
    pub fn margin(&self) -> f32 {
        self.margin
    }

    /// What is to be summed over the ranks.
    pub fn sums(&self) -> impl Iterator<Item = f64> + '_ {
        [self.losses, self.dropped].into_iter().chain(self.counts.iter().copied())
    }
}

/// What the routers of all ranks did in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// How near a choice came to be another one: the smallest difference, over all tokens and blocks, of the last value chosen
    /// and the best that was not. Infinite where all experts are chosen.
    pub margin: f32,
    /// The auxiliary loss, times its weight: in the gradients, and not in the reported loss. `None` where it has none.
    pub aux_loss: Option<f64>,
    /// Assignments that went nowhere, because an expert was at its capacity.
    pub dropped: u64,
    /// How often each expert was chosen, block after block.
    pub counts: Vec<f64>,
    /// How many times the mean of its block the most used expert was chosen; 1 is even use.
    pub load: f64,
}

impl Routing {
    /// From the [sums](Routed::sums) over all ranks and their smallest margin, where a token's loss has the weight `scale` and
    /// sequences have `tokens` tokens.
    pub fn new(of: &MoeShape, sums: &[f64], margin: f32, (scale, tokens): (f64, usize)) -> Self {
        let (losses, dropped, counts) = (sums[0], sums[1], &sums[2..]);
        let load = |counts: &[f64]| {
            let most = counts.iter().copied().fold(0.0, f64::max);
            most * counts.len() as f64 / counts.iter().sum::<f64>().max(1.0)
        };
        Self {
            margin,
            aux_loss: (of.balance > 0.0).then_some(of.balance * tokens as f64 * scale * losses),
            dropped: dropped as u64,
            load: counts.chunks_exact(of.experts).map(load).fold(0.0, f64::max),
            counts: counts.to_vec(),
        }
    }

    /// Whether rounding alone may have decided a choice.
    pub fn is_narrow(&self) -> bool {
        self.margin < NARROW
    }
}
