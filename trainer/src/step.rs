//! One training step of one rank: forward and backward over its micro-batches, gradients summed over the ranks
//! meanwhile, then one norm, clip and AdamW.
//!
//! The gradient is that of the mean loss over all tokens that count, of all ranks and micro-batches: each micro-batch is
//! scaled by one over their number, which is known before the first backward pass, and everything after that is sums.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweft_comm::{Communicator, Op};
use warpweft_device::{Buffer, DType, Device, DeviceError, Float, Stream, View};
use warpweft_kernels::norm;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Snapshot};
use crate::memory::{Account, Allocator, Class};
use crate::model::{
    Activations, Errors, IGNORE, Model, ModelShape, Parameters, Pass, ShapeError, from_tensors, initial_values,
    to_tensors,
};
use crate::optimizer::{AdamW, Optimizer, Schedule};
use crate::parallel::data::{Gradients, Transfer};
use crate::report::trace::{Trace, Track};

/// What a training does at each step, besides the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Tokens of a sequence, at most the model's context.
    pub tokens: usize,
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
}

/// A rank's part of a batch: sequences of `tokens` tokens each, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// What goes in.
    pub inputs: &'a [u32],
    /// What is to come out at each place; [`IGNORE`] counts for nothing.
    pub targets: &'a [u32],
}

/// What a step did.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over all tokens of the global batch that count, in nats, before the update.
    pub loss: f64,
    /// Tokens that count, of all ranks.
    pub tokens: u64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Time in forward passes, the loss included.
    pub forward: Duration,
    /// Time in backward passes.
    pub backward: Duration,
    /// Time from the last backward pass until all gradients were summed: communication that nothing hid.
    pub exposed: Duration,
    /// Time in norm, clip and update.
    pub optimizer: Duration,
    /// When each bucket was on its way, and the sum of the losses at the end.
    pub transfers: Vec<Transfer>,
}

/// A model in training on one rank.
pub struct Trainer<T> {
    pub(crate) stream: Stream,
    pub(crate) model: Model,
    pub(crate) parameters: Parameters<T>,
    pub(crate) optimizer: Optimizer,
    pub(crate) gradients: Gradients,
    activations: Activations<T>,
    errors: Errors<T>,
    ids: Buffer<u32>,
    targets: Buffer<u32>,
    pub(crate) communicator: Arc<Communicator>,
    pub(crate) account: Account,
    pub(crate) recipe: Recipe,
    /// Bytes of the communicator's buffers that are in the account.
    communication_bytes: u64,
    /// Steps done.
    pub(crate) steps: u64,
}

impl<T: Float> Trainer<T> {
    /// A trainer with initial weights. The weights are f32, or rounded from f32 master weights to `T`.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory.
    pub fn new(
        shape: ModelShape,
        recipe: Recipe,
        device: &Device,
        communicator: Arc<Communicator>,
    ) -> Result<Self, TrainError> {
        let model = Model::new(shape)?;
        let mut account = Account::default();
        let mut allocator = Allocator { device, account: &mut account };
        let rows = rows(&shape, &recipe)?;
        let table = model.table();
        let stream = device.stream();
        let mut parameters = Parameters::zeros(table, &mut allocator)?;
        let gradients = Gradients::new(table, communicator.clone(), &mut allocator)?;
        let master = size_of::<T>() < size_of::<f32>();
        let mut optimizer = Optimizer::new(table, recipe.adamw, master, &mut allocator)?;
        let activations = model.activations(rows, &mut allocator)?;
        let errors = model.errors(rows, &mut allocator)?;
        let ids = allocator.zeros(Class::Buffers, rows)?;
        let targets = allocator.zeros(Class::Buffers, rows)?;
        optimizer.set_weights(&stream, &initial_values(table, recipe.seed), &mut parameters)?;
        let mut trainer = Self {
            stream,
            model,
            parameters,
            optimizer,
            gradients,
            activations,
            errors,
            ids,
            targets,
            communicator,
            account,
            recipe,
            communication_bytes: 0,
            steps: 0,
        };
        trainer.account_for_communication();
        Ok(trainer)
    }

    /// Enters what the communicator holds by now.
    fn account_for_communication(&mut self) {
        let bytes = self.communicator.buffer_bytes() as u64;
        self.account.enter(Class::Buffers, bytes.saturating_sub(self.communication_bytes));
        self.communication_bytes = self.communication_bytes.max(bytes);
    }

    /// Runs `work` on the device's threads, so that no kernel in it has to change over to them.
    pub(crate) fn on_pool<R: Send>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrainError> + Send,
    ) -> Result<R, TrainError> {
        let device = self.stream.device().clone();
        device.cpu_pool()?.run(|| work(self))
    }

    /// One step over this rank's part of a batch whose parts have `valid` targets together.
    ///
    /// # Errors
    /// A token or target outside the vocabulary; a peer that died; targets that are not `valid` many.
    pub fn step(
        &mut self,
        sequences: Sequences<'_>,
        valid: u64,
        trace: Option<&Trace>,
    ) -> Result<StepReport, TrainError> {
        self.on_pool(|trainer| trainer.step_here(sequences, valid, trace))
    }

    fn step_here(
        &mut self,
        sequences: Sequences<'_>,
        valid: u64,
        trace: Option<&Trace>,
    ) -> Result<StepReport, TrainError> {
        self.check(sequences)?;
        let step = self.steps + 1;
        let mut clock = Clock::start();
        self.gradients.begin_step(&self.stream)?;
        let mut optimizer = clock.lap();
        let (mut forward, mut backward) = (Duration::ZERO, Duration::ZERO);
        let mut sum = [0.0f64; 2];
        let scale = 1.0 / valid.max(1) as f64;
        let size = self.recipe.micro_batch * self.recipe.tokens;
        let count = sequences.inputs.len().div_ceil(size);
        let micro_batches = sequences.inputs.chunks(size).zip(sequences.targets.chunks(size));
        for (index, (inputs, targets)) in micro_batches.enumerate() {
            let [loss, tokens] = self.forward(inputs, targets, trace)?;
            sum = [sum[0] + loss, sum[1] + tokens];
            forward += clock.lap();
            self.gradients.begin_micro_batch(index + 1 == count);
            self.backward(inputs.len(), scale as f32, trace)?;
            backward += clock.lap();
        }
        let mut transfers = self.gradients.finish()?;
        let started = Instant::now();
        let [loss, tokens] = self.total(sum)?;
        let exposed = clock.lap();
        if self.communicator.world() > 1 {
            transfers.push(Transfer { bucket: None, bytes: size_of_val(&sum), started, finished: clock.0 });
        }
        if tokens != valid as f64 {
            return Err(TrainError::Valid { told: valid, found: tokens as u64 });
        }
        let grad_norm = norm::sum_of_squares(&self.stream, &self.gradients.summed()?)?.sqrt();
        if !grad_norm.is_finite() {
            return Err(TrainError::NotFinite { step, loss: loss * scale, grad_norm });
        }
        let lr = self.recipe.schedule.rate(step);
        let coefficient = self.recipe.clip.map_or(1.0, |most| norm::clip_coefficient(grad_norm, most));
        let table = self.model.table();
        let how = (step, lr, coefficient);
        self.optimizer.step(&self.stream, table, how, &mut self.parameters, &self.gradients)?;
        let begun = clock.0;
        optimizer += clock.lap();
        if let Some(trace) = trace {
            trace.add(Track::Compute, "optimizer", begun, clock.0);
            record(trace, &transfers);
        }
        self.steps = step;
        self.account_for_communication();
        let loss = loss * scale;
        Ok(StepReport { step, loss, tokens: valid, grad_norm, lr, forward, backward, exposed, optimizer, transfers })
    }

    /// Whether these are whole sequences, with a target for each of their tokens.
    fn check(&self, Sequences { inputs, targets }: Sequences<'_>) -> Result<(), TrainError> {
        let tokens = self.recipe.tokens;
        if inputs.len() == targets.len() && inputs.len().is_multiple_of(tokens) {
            return Ok(());
        }
        Err(TrainError::Sequences { inputs: inputs.len(), targets: targets.len(), tokens })
    }

    /// Sum of the losses of all ranks, and their targets.
    fn total(&self, mut sum: [f64; 2]) -> Result<[f64; 2], TrainError> {
        self.communicator.all_reduce(&mut sum[..], Op::Sum)?;
        Ok(sum)
    }

    /// Goes forward over one micro-batch: sum of the losses, and of the targets that count.
    fn forward(&mut self, inputs: &[u32], targets: &[u32], trace: Option<&Trace>) -> Result<[f64; 2], TrainError> {
        let stream = &self.stream;
        self.ids.view_mut(..inputs.len())?.copy_from_host(stream, inputs)?;
        self.targets.view_mut(..inputs.len())?.copy_from_host(stream, targets)?;
        let pass = pass(stream, &self.parameters, self.ids.view(..inputs.len())?, self.recipe.tokens, trace);
        self.model.forward(&pass, &mut self.activations)?;
        let sum = self.model.loss(&pass, self.targets.view(..inputs.len())?, &mut self.activations)?;
        Ok([sum.loss, sum.count as f64])
    }

    /// Goes back over the micro-batch that went forward last.
    fn backward(&mut self, tokens: usize, scale: f32, trace: Option<&Trace>) -> Result<(), TrainError> {
        let pass = pass(&self.stream, &self.parameters, self.ids.view(..tokens)?, self.recipe.tokens, trace);
        let targets = self.targets.view(..tokens)?;
        let (kept, errors) = (&mut self.activations, &mut self.errors);
        self.model.backward(&pass, (targets, scale), kept, errors, &mut self.gradients)
    }

    /// Mean loss over sequences that the ranks share out among them; nothing is learnt from them.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate(&mut self, sequences: Sequences<'_>) -> Result<f64, TrainError> {
        self.check(sequences)?;
        self.on_pool(|trainer| {
            let mut sum = [0.0f64; 2];
            let size = trainer.recipe.micro_batch * trainer.recipe.tokens;
            for (inputs, targets) in sequences.inputs.chunks(size).zip(sequences.targets.chunks(size)) {
                let [loss, tokens] = trainer.forward(inputs, targets, None)?;
                sum = [sum[0] + loss, sum[1] + tokens];
            }
            let [loss, tokens] = trainer.total(sum)?;
            Ok(loss / tokens.max(1.0))
        })
    }

    /// The logits of the last of `tokens` (at most the context) as f32, for sampling.
    ///
    /// # Errors
    /// A token outside the vocabulary; more tokens than the context.
    pub(crate) fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        self.on_pool(|trainer| {
            trainer.ids.view_mut(..tokens.len())?.copy_from_host(&trainer.stream, tokens)?;
            let ids = trainer.ids.view(..tokens.len())?;
            let pass = pass(&trainer.stream, &trainer.parameters, ids, tokens.len(), None);
            trainer.model.forward(&pass, &mut trainer.activations)?;
            let vocab = trainer.model.shape().vocab;
            let last = trainer.activations.logits().slice((tokens.len() - 1) * vocab..tokens.len() * vocab)?;
            Ok(last.download(&trainer.stream)?.into_iter().map(T::to_f32).collect())
        })
    }

    /// Sets the weights from f32 values in the order of flat memory.
    ///
    /// # Errors
    /// Not as many values as the model has weights.
    pub fn set_weights(&mut self, values: &[f32]) -> Result<(), TrainError> {
        self.optimizer.set_weights(&self.stream, values, &mut self.parameters)
    }

    /// All that a run needs to go on from here.
    ///
    /// # Errors
    /// State that is not in host memory.
    pub fn snapshot(&self, data_tokens: u64, config: String) -> Result<Snapshot, TrainError> {
        let table = self.model.table();
        Ok(Snapshot {
            step: self.steps,
            seed: self.recipe.seed,
            data_tokens,
            config,
            weights: to_tensors(self.model.shape(), table, &self.parameters)?,
            optimizer: self.optimizer.to_tensors(table)?,
        })
    }

    /// Goes on from a checkpoint.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or none of this model's.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let table = self.model.table();
        from_tensors(self.model.shape(), table, &checkpoint.weights, &mut self.parameters)?;
        self.optimizer.read_tensors(table, &checkpoint.optimizer)?;
        self.steps = checkpoint.step;
        Ok(())
    }

    /// The bytes that it holds and held, by class.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The weights.
    pub fn parameters(&self) -> &Parameters<T> {
        &self.parameters
    }

    /// The gradients of the last step.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }
}

/// Rows of a micro-batch.
fn rows(shape: &ModelShape, recipe: &Recipe) -> Result<usize, TrainError> {
    let Recipe { tokens, micro_batch, .. } = *recipe;
    for (what, size) in [("micro-batch", micro_batch), ("the length of a sequence", tokens)] {
        if size == 0 {
            return Err(ShapeError::Zero { what }.into());
        }
    }
    let rows = micro_batch.saturating_mul(tokens);
    // The widest row of activations, so that no size computed from here on overflows.
    let widest = [shape.vocab, shape.hidden.saturating_mul(2), shape.channels.saturating_mul(3)].into_iter().max();
    let count = rows.saturating_mul(widest.unwrap_or(1));
    if count > isize::MAX as usize / size_of::<f32>() {
        return Err(DeviceError::OutOfMemory { count, dtype: DType::F32, device: "cpu".into() }.into());
    }
    Ok(rows)
}

/// A pass over `ids` in sequences of `tokens`.
fn pass<'a, T: Float>(
    stream: &'a Stream,
    parameters: &'a Parameters<T>,
    ids: View<'a, u32>,
    tokens: usize,
    trace: Option<&'a Trace>,
) -> Pass<'a, T> {
    Pass { stream, parameters, ids, batch: ids.len() / tokens, tokens, trace }
}

/// Draws when each transfer was on its way.
fn record(trace: &Trace, transfers: &[Transfer]) {
    for Transfer { bucket, bytes, started, finished } in transfers {
        let what = bucket.map_or_else(|| "losses".to_owned(), |bucket| format!("bucket {bucket}"));
        let name = format!("all_reduce {what}, {bytes} bytes");
        trace.add(Track::Communication, name, *started, *finished);
    }
}

/// Tokens that count.
pub fn valid_targets(targets: &[u32]) -> u64 {
    targets.iter().filter(|target| **target != IGNORE).count() as u64
}

/// A stopwatch.
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the last lap.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
