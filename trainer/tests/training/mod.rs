//! A training whose batches are formulas, for tests of what does not change its numbers.

use std::sync::Arc;

use warpweft_comm::Communicator;
use warpweft_device::{Device, Float};
use warpweft_schedule::Name;
use warpweft_trainer::model::{IGNORE, ModelShape, Recompute, Spread};
use warpweft_trainer::optimizer::Schedule;
use warpweft_trainer::parallel::context::Method;
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Sequences, StepReport, Trainer, valid_targets};

use crate::common::ranks;

/// What one rank does, micro-batch after micro-batch.
pub(crate) const ONE_RANK: (Name, Option<usize>) = (Name::OneForwardOneBackward, None);

/// A training whose batches are a formula of step and sequence.
#[derive(Clone, Copy)]
pub(crate) struct Training {
    pub(crate) shape: ModelShape,
    pub(crate) batch: usize,
    pub(crate) micro_batch: usize,
    pub(crate) steps: u64,
    pub(crate) threads: usize,
    /// Whether two of three sequences count only their first three targets.
    pub(crate) ragged: bool,
    /// The ranks, but for data parallelism, of which there may be any number.
    pub(crate) sizes: Sizes,
    /// Whether tensor-parallel ranks share out the rows of the residual stream.
    pub(crate) sequence_parallel: bool,
    /// How context-parallel ranks bring the parts of a sequence together.
    pub(crate) context: Method,
    /// What data ranks share out.
    pub(crate) zero: Zero,
    /// Whether sums are the same bits at every layout.
    pub(crate) exact: bool,
    /// Whether gradients and weights are on their way while passes compute.
    pub(crate) overlap: bool,
    /// The schedule of the passes, and pieces of the model on a stage.
    pub(crate) pipeline: (Name, Option<usize>),
    /// What of the activations is computed again.
    pub(crate) recompute: Recompute,
}

/// What a rank saw: loss and norm of each step, and its part of the weights at the end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    pub(crate) weights: Vec<f64>,
    /// Digest of all state at the end, where sums are exact.
    pub(crate) state: Option<String>,
}

impl Training {
    /// A training of this model on one rank in one micro-batch.
    pub(crate) fn of(shape: ModelShape, batch: usize, steps: u64) -> Self {
        Self {
            shape,
            batch,
            micro_batch: batch,
            steps,
            threads: 1,
            ragged: false,
            sizes: Sizes::ONE,
            sequence_parallel: false,
            context: Method::Ring,
            zero: Zero::NONE,
            exact: false,
            overlap: true,
            pipeline: ONE_RANK,
            recompute: Recompute::None,
        }
    }

    /// Trains on `dp` times the other ranks; gives what each saw.
    pub(crate) fn run<T: Float>(self, dp: usize) -> Vec<Seen> {
        self.run_then(dp, |trainer: &mut Trainer<T>, reports| {
            trainer.settle().expect("weights that arrive");
            let losses = reports.iter().map(|report| report.loss).collect();
            let norms = reports.iter().map(|report| report.grad_norm).collect();
            let state = self.exact.then(|| trainer.state_sha256().expect("whole tensors"));
            Seen { losses, norms, weights: weights(trainer), state }
        })
    }

    /// Trains on `dp` times the other ranks, and lets each see its trainer and the reports of all steps.
    pub(crate) fn run_then<T: Float, R: Send>(
        self,
        dp: usize,
        then: impl Fn(&mut Trainer<T>, &[StepReport]) -> R + Sync,
    ) -> Vec<R> {
        let training = Self { sizes: Sizes { dp, ..self.sizes }, ..self };
        ranks(training.sizes.ranks(), |communicator| training.rank(Arc::new(communicator), &then))
    }

    /// What it does at each step.
    pub(crate) fn recipe(&self) -> Recipe {
        let schedule = Schedule { peak: 3e-3, warmup: 10, steps: self.steps };
        let Self { sequence_parallel, context, zero, exact, pipeline: (pipeline, chunks), micro_batch, .. } = *self;
        let recipe = Recipe {
            sequence_parallel,
            context,
            zero,
            exact,
            pipeline,
            chunks,
            micro_batch,
            schedule,
            recompute: self.recompute,
            overlap: self.overlap,
            ..Recipe::new(self.shape.context, self.batch)
        };
        Recipe { clip: Some(1.0), seed: 7, ..recipe }
    }

    fn rank<T: Float, R>(
        self,
        communicator: Arc<Communicator>,
        then: impl Fn(&mut Trainer<T>, &[StepReport]) -> R,
    ) -> R {
        let recipe = self.recipe();
        let device = Device::cpu_with_threads(self.threads).expect("threads");
        let kv = Spread::ranks_to_a_head(&self.shape, self.sizes.tp).expect("heads that the ranks can share");
        let mesh = Mesh::new(communicator, self.sizes, kv).expect("a mesh");
        let mine = recipe.share(&mesh, self.batch);
        let mut trainer = Trainer::<T>::new(self.shape, recipe, &device, mesh).expect("a trainer");
        let steps = (1..=self.steps).map(|step| {
            let (inputs, targets) = self.sequences(step, mine.clone());
            let valid = valid_targets(&self.sequences(step, 0..self.batch).1);
            trainer.step(Sequences { inputs: &inputs, targets: &targets }, valid, None).expect("a step")
        });
        let reports: Vec<_> = steps.collect();
        then(&mut trainer, &reports)
    }

    /// Sequences that count upwards in steps of their own, from a start of their own, with some disturbance: something
    /// to learn, and not at once.
    pub(crate) fn sequences(&self, step: u64, mine: std::ops::Range<usize>) -> (Vec<u32>, Vec<u32>) {
        let (tokens, vocab) = (self.shape.context as u64, self.shape.vocab as u64);
        let place = |row: u64, t: u64| {
            let number = step * 1009 + row * 31;
            let disturbed = u64::from((number + t * t).is_multiple_of(11));
            ((number + t * (1 + number % 3) + 5 * disturbed) % vocab) as u32
        };
        let places = mine.flat_map(|row| (0..tokens).map(move |t| (row as u64, t)));
        let counts = |row: u64, t: u64| !self.ragged || row.is_multiple_of(3) || t < 3;
        places.map(|(row, t)| (place(row, t), if counts(row, t) { place(row, t + 1) } else { IGNORE })).unzip()
    }
}

/// A rank's part of all weights, unit after unit: all of them where nothing is shared out.
pub(crate) fn weights<T: Float>(trainer: &Trainer<T>) -> Vec<f64> {
    let view = |id| trainer.weights().part(id).and_then(|view| Ok(view.host()?.to_vec())).expect("host memory");
    trainer.model().table().units_here().flat_map(|(id, _)| view(id)).map(|w: T| w.to_f64()).collect()
}
