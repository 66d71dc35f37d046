//! One training step of one rank: forward and backward over its micro-batches, gradients summed over the ranks
//! meanwhile, then one norm, clip and AdamW.
//!
//! The gradient is that of the mean loss over all tokens that count, of all ranks and micro-batches: each micro-batch is
//! scaled by one over their number, which is known before the first backward pass, and everything after that is sums.

use std::ops::Range;
use std::time::{Duration, Instant};

use warpweft_comm::Op;
use warpweft_device::{Buffer, DType, Device, DeviceError, Float, Stream};
use warpweft_kernels::norm;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Snapshot};
use crate::memory::{Account, Allocator, Class};
use crate::model::{
    IGNORE, MicroBatch, Model, ModelShape, Room, ShapeError, Slot, Spread, TensorId, Weights as Then, Work,
    from_tensors, to_tensors,
};
use crate::optimizer::{AdamW, Optimizer, Schedule, Update};
use crate::parallel::check::check_together;
use crate::parallel::context::{Context, Method};
use crate::parallel::digest;
use crate::parallel::gradients::{Gradients, Transfer};
use crate::parallel::layout::Axes;
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::share;
use crate::parallel::weights::{Weights, initial_units};
use crate::parallel::zero::{Sharding, Zero};
use crate::report::trace::{Trace, Track};

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
        }
    }

    /// The sequences of `count` that a data-parallel rank has.
    pub fn share(&self, mesh: &Mesh, count: usize) -> Range<usize> {
        share(count, mesh.sizes().dp, mesh.place().dp)
    }

    /// Micro-batches that every rank goes through for `count` sequences: those of the rank that has most.
    pub fn micro_batches(&self, mesh: &Mesh, count: usize) -> usize {
        share(count, mesh.sizes().dp, 0).len().div_ceil(self.micro_batch)
    }
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
    pub(crate) weights: Weights<T>,
    pub(crate) optimizer: Optimizer,
    pub(crate) gradients: Gradients,
    slot: Slot<T>,
    work: Work<T>,
    /// The error of the residual stream on its way back.
    error: Buffer<T>,
    pub(crate) mesh: Mesh,
    plan: Plan,
    sharding: Sharding,
    pub(crate) account: Account,
    pub(crate) recipe: Recipe,
    /// Bytes of the communicators' buffers that are in the account.
    communication_bytes: u64,
    /// Steps done.
    pub(crate) steps: u64,
}

impl<T: Float> Trainer<T> {
    /// A trainer with initial weights. The weights are f32, or rounded from f32 master weights to `T`.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory.
    pub fn new(shape: ModelShape, recipe: Recipe, device: &Device, mut mesh: Mesh) -> Result<Self, TrainError> {
        mesh.share_sequences(device, recipe.context, recipe.tokens)?;
        let spread = Spread::over(&shape, (mesh.sizes(), mesh.place()), recipe.sequence_parallel, 1, |_| 0)?;
        let model = Model::new(shape, spread)?;
        let mut account = Account::default();
        let mut allocator = Allocator { device, account: &mut account };
        let room = room(&shape, &recipe, &mesh)?;
        let mesh = match recipe.zero {
            Zero { stage: 1.., shards: Some(shards) } => mesh.sharded(shards)?,
            _ => mesh,
        };
        let table = model.table();
        let stream = device.stream();
        let plan = Plan { exact: recipe.exact, ..Plan::derive(table, &mesh, recipe.sequence_parallel, recipe.zero)? };
        plan.check(table, &mesh).map_err(Box::new)?;
        let sharding = Sharding::new(table, &mesh, &plan, recipe.zero)?;
        check_together(&plan, table, &sharding, &mesh)?;
        let mut weights = Weights::zeros(table, &sharding, &mut allocator)?;
        let mut gradients = Gradients::new(table, &mesh, &plan, &sharding, &mut allocator)?;
        if let (true, Some(moe)) = (recipe.exact, shape.moe) {
            return Err(TrainError::NotExactExperts { experts: moe.experts });
        }
        if recipe.exact {
            gradients = gradients.by_sample(table, &mesh, recipe.batch)?;
        }
        let master = size_of::<T>() < size_of::<f32>();
        let mut optimizer = Optimizer::new(table, &sharding, recipe.adamw, master, &mut allocator)?;
        let slot = model.slot(&model.spread().chunks[0], room, false, &mut allocator)?;
        let work = model.work(room, &mut allocator)?;
        let error = allocator.zeros(Class::Errors, room.stream_rows * shape.channels)?;
        for (unit, values) in initial_units(table, recipe.seed) {
            optimizer.set_unit(&stream, unit, &values, &mut weights)?;
        }
        let (communication_bytes, steps) = (0, 0);
        let mut trainer = Self {
            stream,
            model,
            weights,
            optimizer,
            gradients,
            slot,
            work,
            error,
            mesh,
            plan,
            sharding,
            account,
            recipe,
            communication_bytes,
            steps,
        };
        trainer.account_for_communication();
        Ok(trainer)
    }

    /// Enters what the communicators hold by now.
    fn account_for_communication(&mut self) {
        let bytes = self.mesh.buffer_bytes() as u64;
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
        let count = self.recipe.micro_batches(&self.mesh, self.recipe.batch);
        self.gradients.begin_step(&self.stream, count)?;
        let mut optimizer = clock.lap();
        let (mut forward, mut backward) = (Duration::ZERO, Duration::ZERO);
        let mut sum = [0.0f64; 2];
        let scale = 1.0 / valid.max(1) as f64;
        let first = self.recipe.share(&self.mesh, self.recipe.batch).start as u64;
        for index in 0..count {
            let first = first + (index * self.recipe.micro_batch) as u64;
            let [loss, tokens] = self.forward(first, sequences.micro_batch(&self.recipe, index), trace)?;
            sum = [sum[0] + loss, sum[1] + tokens];
            forward += clock.lap();
            self.backward(first, scale as f32, trace)?;
            backward += clock.lap();
        }
        let mut transfers = self.gradients.finish()?;
        let squares = self.gradients.sum_of_squares(&self.stream, self.model.table(), &self.plan)?;
        let started = Instant::now();
        let [loss, tokens, squares] = self.total([sum[0], sum[1], squares])?;
        let exposed = clock.lap();
        if self.mesh.world().world() > 1 {
            transfers.push(Transfer { unit: None, bytes: size_of_val(&sum), started, finished: clock.0 });
        }
        if tokens != valid as f64 {
            return Err(TrainError::Valid { told: valid, found: tokens as u64 });
        }
        let grad_norm = squares.sqrt();
        if !grad_norm.is_finite() {
            return Err(TrainError::NotFinite { step, loss: loss * scale, grad_norm });
        }
        let lr = self.recipe.schedule.rate(step);
        let coefficient = self.recipe.clip.map_or(1.0, |most| norm::clip_coefficient(grad_norm, most));
        let update = Update { step, lr, grad_scale: coefficient };
        self.optimizer.step(&self.stream, self.model.table(), update, &mut self.weights, &self.gradients)?;
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

    /// The sums over all ranks.
    fn total<const N: usize>(&self, mut sums: [f64; N]) -> Result<[f64; N], TrainError> {
        self.mesh.world().all_reduce(&mut sums[..], Op::Sum)?;
        Ok(sums)
    }

    /// Goes forward over one micro-batch: sum of the losses, and of the targets that count, on the one rank that counts
    /// them.
    fn forward(
        &mut self,
        first_sample: u64,
        sequences: Sequences<'_>,
        trace: Option<&Trace>,
    ) -> Result<[f64; 2], TrainError> {
        let Sequences { inputs, targets } = sequences;
        let tokens = self.recipe.tokens;
        let places = self.mesh.places(tokens);
        let mine = |whole: &[u32]| -> Vec<u32> {
            let of = |sequence: &[u32]| places.iter().map(|place| sequence[*place as usize]).collect::<Vec<_>>();
            whole.chunks_exact(tokens).flat_map(of).collect()
        };
        let batch = inputs.len() / tokens;
        self.slot.load(&self.stream, batch, (&mine(inputs), &places.repeat(batch), &mine(targets)))?;
        let Self { model, slot, work, weights, stream, mesh, plan, .. } = self;
        let (batch, tokens) = (slot.batch, places.len());
        let micro = MicroBatch { stream, mesh, plan, batch, tokens, first_sample, trace };
        model.forward(&model.spread().chunks[0], &micro, weights, slot, work)?;
        let sum = model.loss(&micro, weights, slot)?;
        let counted = f64::from(u8::from(self.mesh.place().tp == 0));
        Ok([counted * sum.loss, counted * sum.count as f64])
    }

    /// Goes back over the micro-batch that went forward last.
    fn backward(&mut self, first_sample: u64, scale: f32, trace: Option<&Trace>) -> Result<(), TrainError> {
        let Self { model, slot, work, error, weights, gradients, stream, mesh, plan, recipe, .. } = self;
        let (batch, tokens) = (slot.batch, mesh.places(recipe.tokens).len());
        let micro = MicroBatch { stream, mesh, plan, batch, tokens, first_sample, trace };
        let chunk = &model.spread().chunks[0];
        model.backward(chunk, &micro, weights, scale, slot, work, error, Then::Now(gradients))
    }

    /// Mean loss over `count` sequences that the ranks share out among them; nothing is learnt from them.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate(&mut self, sequences: Sequences<'_>, count: usize) -> Result<f64, TrainError> {
        self.check(sequences)?;
        self.on_pool(|trainer| {
            let mut sum = [0.0f64; 2];
            for index in 0..trainer.recipe.micro_batches(&trainer.mesh, count) {
                let [loss, tokens] = trainer.forward(0, sequences.micro_batch(&trainer.recipe, index), None)?;
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
        // Parts of a sequence are those of a whole one; what stands behind a token does not reach it.
        let whole = self.mesh.sequence().map_or(tokens.len(), |_| self.recipe.tokens);
        let mut inputs = tokens.to_vec();
        inputs.resize(whole, 0);
        let ignored = vec![IGNORE; whole];
        self.on_pool(|trainer| {
            let usual = std::mem::replace(&mut trainer.recipe.tokens, whole);
            let done = trainer.forward(0, Sequences { inputs: &inputs, targets: &ignored }, None);
            trainer.recipe.tokens = usual;
            done?;
            let places = trainer.mesh.places(whole);
            let mut logits = match places.iter().position(|place| *place as usize + 1 == tokens.len()) {
                Some(row) => trainer.last_logits(row + 1)?,
                None => vec![0.0; trainer.model.shape().vocab],
            };
            if trainer.mesh.sequence().is_some() {
                trainer.mesh.context().all_reduce(&mut logits, Op::Sum)?;
            }
            Ok(logits)
        })
    }

    /// The logits of token `tokens - 1` of the pass just done, of the whole vocabulary.
    fn last_logits(&self, tokens: usize) -> Result<Vec<f32>, TrainError> {
        let (vocab, tp) = (self.model.shape().vocab, self.mesh.sizes().tp);
        let counts: Vec<usize> = (0..tp).map(|index| share(vocab, tp, index).len()).collect();
        let own = counts[self.mesh.place().tp];
        let logits = self.slot.logits().ok_or(TrainError::NotHere { unit: 0 })?;
        let last = logits.slice((tokens - 1) * own..tokens * own)?.download(&self.stream)?;
        let last: Vec<f32> = last.into_iter().map(T::to_f32).collect();
        let Some(group) = self.mesh.groups(Axes::TENSOR)?.first().copied() else { return Ok(last) };
        let mut all = vec![0.0; vocab];
        group.all_gather_v(&last, &mut all, &counts)?;
        Ok(all)
    }

    /// Sets the weights from f32 values, for each parameter those that this rank holds.
    ///
    /// # Errors
    /// Not as many values as this rank holds of a parameter.
    pub fn set_weights(&mut self, values: impl Fn(TensorId) -> Vec<f32>) -> Result<(), TrainError> {
        for (unit, held) in self.model.table().units_here() {
            let values: Vec<f32> = held.ids().flat_map(&values).collect();
            self.optimizer.set_unit(&self.stream, unit, &values, &mut self.weights)?;
        }
        Ok(())
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
            weights: to_tensors(self.model.shape(), table, &self.weights)?,
            optimizer: self.optimizer.to_tensors(table)?,
        })
    }

    /// Goes on from a checkpoint.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or none of this model's.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let table = self.model.table();
        from_tensors(self.model.shape(), table, &checkpoint.weights, &mut self.weights)?;
        self.optimizer.read_tensors(table, &checkpoint.optimizer)?;
        self.steps = checkpoint.step;
        Ok(())
    }

    /// Waits until no weights are on their way from the last update.
    ///
    /// # Errors
    /// A peer that died.
    pub fn settle(&mut self) -> Result<(), TrainError> {
        self.weights.settle()
    }

    /// The SHA-256 of all weights and all state of the optimizer, of the whole tensors in a fixed order, which is the same
    /// at every layout where the numbers are ([`Recipe::exact`]). Collective over all ranks.
    ///
    /// # Errors
    /// A peer that died.
    pub fn state_sha256(&mut self) -> Result<String, TrainError> {
        self.settle()?;
        let Self { model, mesh, plan, sharding, weights, optimizer, .. } = &*self;
        digest::State { table: model.table(), mesh, plan, sharding, weights, optimizer }.sha256()
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
    pub fn weights(&self) -> &Weights<T> {
        &self.weights
    }

    /// The ranks.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The gradients of the last step.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }
}

impl<'a> Sequences<'a> {
    /// Those of one micro-batch; none where this rank has fewer than others.
    fn micro_batch(self, recipe: &Recipe, index: usize) -> Self {
        let (size, len) = (recipe.micro_batch * recipe.tokens, self.inputs.len());
        let range = (index * size).min(len)..((index + 1) * size).min(len);
        Self { inputs: &self.inputs[range.clone()], targets: &self.targets[range] }
    }
}

/// Rows of a micro-batch.
fn room(shape: &ModelShape, recipe: &Recipe, mesh: &Mesh) -> Result<Room, TrainError> {
    let Recipe { tokens, micro_batch, .. } = *recipe;
    for (what, size) in [("micro-batch", micro_batch), ("the length of a sequence", tokens)] {
        if size == 0 {
            return Err(ShapeError::Zero { what }.into());
        }
    }
    let rows = micro_batch.saturating_mul(mesh.sequence().map_or(tokens, Context::most_tokens));
    // The widest row of activations, so that no size computed from here on overflows.
    let widest = [shape.vocab, shape.hidden.saturating_mul(2), shape.channels.saturating_mul(3)].into_iter().max();
    let count = rows.saturating_mul(widest.unwrap_or(1));
    if count > isize::MAX as usize / size_of::<f32>() {
        return Err(DeviceError::OutOfMemory { count, dtype: DType::F32, device: "cpu".into() }.into());
    }
    let stream_rows = if recipe.sequence_parallel { rows.div_ceil(mesh.sizes().tp) } else { rows };
    Ok(Room { rows, stream_rows })
}

/// Draws when each transfer was on its way.
fn record(trace: &Trace, transfers: &[Transfer]) {
    for Transfer { unit, bytes, started, finished } in transfers {
        let what = unit.map_or_else(|| "losses".to_owned(), |unit| format!("unit {unit}"));
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
