//! One training step of one rank: forward and backward over its micro-batches, gradients summed over the ranks
//! meanwhile, then one norm, clip and AdamW.
//!
//! The gradient is that of the mean loss over all tokens that count, of all ranks and micro-batches: each micro-batch is
//! scaled by one over their number, which is known before the first backward pass, and everything after that is sums.

use std::time::{Duration, Instant};

use warpweft_comm::Op;
use warpweft_device::{Device, Float, Stream};
use warpweft_kernels::norm;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Foreign, Snapshot};
use crate::feed::Feed;
use crate::memory::{Account, Allocator, Class};
use crate::model::{Biases, IGNORE, Model, ModelShape, Routing, Spread, TensorId};
use crate::model::{restore, save, save_biases, take, wholes};
use crate::optimizer::{Optimizer, Update};
use crate::parallel::check::check_together;
use crate::parallel::digest;
use crate::parallel::gradients::{Gradients, Transfer};
use crate::parallel::layout::Axes;
use crate::parallel::mesh::{Mesh, Sizes};
use crate::parallel::pipeline::{Pipeline, Tally, Walk};
use crate::parallel::plan::Plan;
use crate::parallel::share;
use crate::parallel::traffic::Traffic;
use crate::parallel::weights::{Weights, initial_units};
use crate::parallel::zero::{Sharding, Zero};
use crate::report::trace::{Trace, Track};

pub use crate::feed::Sequences;
pub use crate::recipe::Recipe;

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
    /// What the routers did, where there are some.
    pub routing: Option<Routing>,
    /// Time in forward passes, the loss included.
    pub forward: Duration,
    /// Time in backward passes.
    pub backward: Duration,
    /// Time in which the passes waited for other stages.
    pub waiting: Duration,
    /// The most passes of micro-batches through chunks that were under way at once.
    pub peak_passes: usize,
    /// Time from the last backward pass until all gradients were summed: communication that nothing hid.
    pub exposed: Duration,
    /// Time in norm, clip and update.
    pub optimizer: Duration,
    /// Bytes that this rank sent, the gathers of new weights not yet among them where they are under way.
    pub traffic: Traffic,
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
    pipeline: Pipeline<T>,
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
        let account = Account::default();
        mesh.share_sequences(device, &account, (recipe.context, recipe.tokens))?;
        let room = recipe.room(&shape, mesh.sizes())?;
        let passes = recipe.passes(mesh.sizes())?;
        let at = (mesh.sizes(), mesh.place());
        let spread = Spread::over(&shape, at, recipe.sequence_parallel, passes.placement())?;
        let model = Model::new(shape, spread)?;
        let mut allocator = Allocator { device, account: &account };
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
        weights.biases = Biases::zeros(&shape, &mut allocator)?;
        let mut gradients = Gradients::new(table, &mesh, &plan, &sharding, &mut allocator)?;
        if let (true, Some(moe)) = (recipe.exact, shape.moe) {
            return Err(TrainError::NotExactExperts { experts: moe.experts });
        }
        if recipe.exact {
            gradients = gradients.by_sample(table, &mesh, recipe.batch)?;
        }
        let master = size_of::<T>() < size_of::<f32>();
        let mut optimizer = Optimizer::new(table, &sharding, recipe.adamw, master, &mut allocator)?;
        let pipeline = Pipeline::new(&passes, (&model, &mesh, room), recipe.recompute, &mut allocator)?;
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
            pipeline,
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
        let bytes = self.mesh.buffer_bytes() as u64 + self.pipeline.buffer_bytes();
        self.account.enter(Class::Communicators, bytes.saturating_sub(self.communication_bytes));
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
        let count = self.recipe.micro_batches(self.mesh.sizes(), self.recipe.batch);
        let (passes, before) = (self.passes(count), self.traffic());
        self.gradients.begin_step(&self.stream, &passes)?;
        let mut optimizer = clock.lap();
        let scale = 1.0 / valid.max(1) as f64;
        let tally = self.walk(sequences, Go::Train { scale: scale as f32 }, trace)?;
        clock.lap();
        let mut transfers = self.gradients.finish()?;
        let squares = self.gradients.sum_of_squares(&self.stream, self.model.table(), &self.plan)?;
        let started = Instant::now();
        let ([loss, tokens, squares], routing) =
            self.total_with_routing([tally.sums[0], tally.sums[1], squares], scale)?;
        let exposed = clock.lap();
        if self.mesh.world().world() > 1 {
            transfers.push(Transfer { unit: None, bytes: size_of::<[f64; 3]>(), started, finished: clock.0 });
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
        if let Some(routing) = &routing {
            self.weights.biases.step(&self.stream, &routing.counts)?;
        }
        let begun = clock.0;
        optimizer += clock.lap();
        if let Some(trace) = trace {
            trace.add(Track::Compute, "optimizer", begun, clock.0);
            record(trace, &transfers);
        }
        self.steps = step;
        self.account_for_communication();
        let (loss, tokens) = (loss * scale, valid);
        let Tally { forward, backward, waiting, peak: peak_passes, .. } = tally;
        Ok(StepReport {
            step,
            loss,
            tokens,
            grad_norm,
            lr,
            routing,
            forward,
            backward,
            waiting,
            peak_passes,
            exposed,
            optimizer,
            traffic: self.traffic() - before,
            transfers,
        })
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

    /// The sums over all ranks, and what the routers of all did in the step, a token's loss having the weight `scale`.
    fn total_with_routing<const N: usize>(
        &mut self,
        sums: [f64; N],
        scale: f64,
    ) -> Result<([f64; N], Option<Routing>), TrainError> {
        let Some(moe) = self.model.shape().moe else { return Ok((self.total(sums)?, None)) };
        let routed = self.pipeline.take_routed(&self.model);
        let mut all: Vec<f64> = sums.into_iter().chain(routed.sums()).collect();
        let mut margin = [routed.margin()];
        self.mesh.world().all_reduce(&mut all[..], Op::Sum)?;
        self.mesh.world().all_reduce(&mut margin[..], Op::Min)?;
        let routing = Routing::new(&moe, &all[N..], margin[0], (scale, self.recipe.tokens));
        Ok((std::array::from_fn(|index| all[index]), Some(routing)))
    }

    /// Goes through the micro-batches of some sequences.
    fn walk(&mut self, sequences: Sequences<'_>, go: Go, trace: Option<&Trace>) -> Result<Tally, TrainError> {
        let Self { stream, model, weights, gradients, pipeline, mesh, plan, recipe, .. } = self;
        let first = recipe.share(mesh, recipe.batch).start as u64;
        let feed = &Feed::new(sequences, mesh, recipe.tokens, recipe.micro_batch, first);
        let scale = if let Go::Train { scale } = go { scale } else { 0.0 };
        let mut walk = Walk { stream, model, weights, mesh, plan, trace, scale, feed };
        match go {
            Go::Train { .. } => pipeline.train(&mut walk, gradients),
            Go::Forward { micro_batches } => pipeline.forward(&mut walk, micro_batches),
        }
    }

    /// Mean loss over `count` sequences that the ranks share out among them; nothing is learnt from them.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate(&mut self, sequences: Sequences<'_>, count: usize) -> Result<f64, TrainError> {
        self.check(sequences)?;
        self.on_pool(|trainer| {
            let micro_batches = trainer.recipe.micro_batches(trainer.mesh.sizes(), count);
            let tally = trainer.walk(sequences, Go::Forward { micro_batches }, None)?;
            let [loss, tokens] = trainer.total(tally.sums)?;
            Ok(loss / tokens.max(1.0))
        })
    }

    /// The logits of the last of `tokens` (at most the context) as f32, for sampling.
    ///
    /// # Errors
    /// A token outside the vocabulary; more tokens than the context.
    pub fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        // Parts of a sequence are those of a whole one; what stands behind a token does not reach it.
        let whole = self.mesh.sequence().map_or(tokens.len(), |_| self.recipe.tokens);
        let mut inputs = tokens.to_vec();
        inputs.resize(whole, 0);
        let ignored = vec![IGNORE; whole];
        self.on_pool(|trainer| {
            let usual = std::mem::replace(&mut trainer.recipe.tokens, whole);
            let sequences = Sequences { inputs: &inputs, targets: &ignored };
            let done = trainer.walk(sequences, Go::Forward { micro_batches: 1 }, None);
            trainer.recipe.tokens = usual;
            done?;
            let places = trainer.mesh.places(whole);
            trainer.logits_of(places.iter().position(|place| *place as usize + 1 == tokens.len()))
        })
    }

    /// The logits of a row of the pass just done, which one of the context-parallel ranks has: of the whole vocabulary, on
    /// every rank.
    fn logits_of(&self, row: Option<usize>) -> Result<Vec<f32>, TrainError> {
        let (vocab, Sizes { pp, dp, cp, tp, .. }) = (self.model.shape().vocab, self.mesh.sizes());
        let mut all = vec![0.0; vocab];
        if let (Some(slot), Some(row)) = (self.pipeline.ended(&self.model), row) {
            let counts: Vec<usize> = (0..tp).map(|index| share(vocab, tp, index).len()).collect();
            let own = counts[self.mesh.place().tp];
            let logits = slot.logits().ok_or(TrainError::NotHere { unit: 0 })?;
            let last = logits.slice(row * own..(row + 1) * own)?.download(&self.stream)?;
            let last: Vec<f32> = last.into_iter().map(T::to_f32).collect();
            match self.mesh.groups(Axes::TENSOR)?.first() {
                Some(group) => group.all_gather_v(&last, &mut all, &counts)?,
                None => all = last,
            }
        }
        if self.mesh.sequence().is_some() {
            self.mesh.context().all_reduce(&mut all, Op::Sum)?;
        }
        if pp > 1 {
            let chunks = &self.model.spread().chunks;
            let stage = chunks.iter().find(|chunk| chunk.ends).map_or(0, |chunk| chunk.stage);
            self.mesh.world().broadcast(&mut all[..], stage * dp * cp * tp)?;
        }
        Ok(all)
    }

    /// Bytes that this rank has sent.
    fn traffic(&self) -> Traffic {
        let mesh = self.mesh.traffic();
        Traffic { pipeline: mesh.pipeline + self.pipeline.sent_bytes(), ..mesh }
    }

    /// How many passes of a step over `micro_batches` each unit has a part in.
    fn passes(&self, micro_batches: usize) -> Vec<usize> {
        let copies = if self.model.spread().is_there_twice() { 2 } else { 1 };
        self.model.passes(|copy| (0..micro_batches).filter(|micro_batch| micro_batch % copies == copy).count())
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

    /// What this rank has of all that a run needs to go on from here.
    ///
    /// # Errors
    /// State that is not in host memory.
    pub fn snapshot(&mut self, data_tokens: u64, config: String) -> Result<Snapshot, TrainError> {
        self.settle()?;
        let (step, seed, wholes) = (self.steps, self.recipe.seed, wholes(&self.model));
        let (mut weights, optimizer) = save(self.model.table(), &self.plan, &self.weights, &self.optimizer)?;
        if self.mesh.world().rank() == 0 {
            weights.extend(save_biases(&self.model, self.weights.biases())?);
        }
        Ok(Snapshot { step, seed, data_tokens, config, wholes, weights, optimizer })
    }

    /// Takes the weights of a safetensors file with Hugging Face's names, and says what a user should know of it.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, or none of this model's.
    pub fn take_weights(&mut self, file: &Foreign) -> Result<Vec<String>, TrainError> {
        take(&self.model, &self.stream, file, &mut self.weights, &mut self.optimizer)
    }

    /// Goes on from a checkpoint of any layout.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or none of this model's.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        restore(&self.model, &self.stream, checkpoint, &mut self.weights, &mut self.optimizer)?;
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

/// What a walk through micro-batches is for.
#[derive(Clone, Copy)]
enum Go {
    /// Gradients of the losses times `scale`.
    Train { scale: f32 },
    /// The losses alone.
    Forward { micro_batches: usize },
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
