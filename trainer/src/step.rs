//! One training step of one rank: forward and backward over its micro-batches, gradients summed over the ranks
//! meanwhile, then one norm, clip and AdamW.
//!
//! The gradient is that of the mean loss over all tokens that count, of all ranks and micro-batches: each micro-batch is
//! scaled by one over their number, which is known before the first backward pass, and everything after that is sums.

use std::time::{Duration, Instant};

use warpweft_comm::Op;
use warpweft_device::{Device, Float, Stream};
use warpweft_kernels::optimizer::Step;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, Foreign, Snapshot};
use crate::data::Documents;
use crate::dump::{Kind, Recorder};
use crate::feed::Feed;
use crate::memory::{Account, Allocator, Class};
use crate::model::{Biases, IGNORE, Model, ModelShape, Routing, Spread, TensorId};
use crate::model::{restore, save, save_biases, take, wholes};
use crate::numbers::Numbers;
use crate::optimizer::Optimizer;
use crate::parallel::check::check_together;
use crate::parallel::executor::Tally;
use crate::parallel::gradients::{Gradients, Transfer};
use crate::parallel::mesh::Mesh;
use crate::parallel::pipeline::{Pipeline, Walk, Walked};
use crate::parallel::plan::Plan;
use crate::parallel::traffic::Traffic;
use crate::parallel::weights::{Weights, initial_units};
use crate::parallel::zero::{Sharding, Zero};
use crate::report::trace::{Trace, Track};

pub use crate::feed::{Packed, Sequences};
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
    /// Time of computation in forward passes, the loss included.
    pub forward: Duration,
    /// Time of computation in backward passes.
    pub backward: Duration,
    /// Time in which the passes waited for other stages.
    pub waiting: Duration,
    /// From the start of the first pass to the end of the last.
    pub span: Duration,
    /// The most passes of micro-batches through chunks that were under way at once.
    pub peak_passes: usize,
    /// Time in which this rank did nothing but wait for communication, other stages' passes not counted: what nothing hid.
    pub exposed: Duration,
    /// Time of computation in norm, clip and update.
    pub optimizer: Duration,
    /// Bytes that this rank sent, the gathers of new weights not yet among them where they are under way.
    pub traffic: Traffic,
    /// When what was communicated beside the passes was on its way: gradients and weights of units, at the end the losses.
    pub transfers: Vec<Transfer>,
    /// When the last backward pass ended.
    pub passes_ended: Instant,
}

/// A model in training on one rank.
pub struct Trainer<T> {
    pub(crate) stream: Stream,
    pub(crate) model: Model,
    pub(crate) weights: Weights<T>,
    pub(crate) optimizer: Optimizer,
    pub(crate) gradients: Gradients,
    numbers: Numbers,
    pub(crate) pipeline: Pipeline<T>,
    pub(crate) mesh: Mesh,
    pub(crate) plan: Plan,
    pub(crate) sharding: Sharding,
    pub(crate) account: Account,
    pub(crate) recipe: Recipe,
    /// Bytes of the communicators' buffers that are in the account.
    communication_bytes: u64,
    /// What was sent besides steps: to set up, for held-out losses, samples, digests.
    pub(crate) besides: Traffic,
    /// Steps done.
    pub(crate) steps: u64,
    /// Takes the next step down, if somebody asked for it.
    pub(crate) recorder: Option<Recorder>,
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
        if recipe.exact {
            gradients = gradients.by_sample(table, &mesh, recipe.batch)?;
        }
        let master = size_of::<T>() < size_of::<f32>();
        let mut optimizer = Optimizer::new(table, &sharding, recipe.adamw, master, &mut allocator)?;
        let pipeline = Pipeline::new(&passes, (&model, &mesh, room), recipe.recompute, &mut allocator)?;
        for (unit, values) in initial_units(table, recipe.seed) {
            optimizer.set_unit(&stream, unit, &values, &mut weights)?;
        }
        let (communication_bytes, besides, steps) = (0, Traffic::default(), 0);
        (weights.overlap, gradients.overlap) = (recipe.overlap, recipe.overlap);
        let mut trainer = Self {
            stream,
            model,
            weights,
            optimizer,
            gradients,
            numbers: Numbers::new(device)?,
            pipeline,
            mesh,
            plan,
            sharding,
            account,
            recipe,
            communication_bytes,
            besides,
            steps,
            recorder: None,
        };
        trainer.account_for_communication();
        // What setting up sent is no step's.
        trainer.besides = trainer.traffic();
        Ok(trainer)
    }

    /// Enters what the communicators hold by now.
    fn account_for_communication(&mut self) {
        let bytes = self.mesh.buffer_bytes() as u64 + self.pipeline.buffer_bytes();
        self.account.enter(Class::Communicators, bytes.saturating_sub(self.communication_bytes));
        self.communication_bytes = self.communication_bytes.max(bytes);
    }

    /// Runs `work` on the threads of a CPU, so that no kernel in it has to change over to them.
    pub(crate) fn on_pool<R: Send>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrainError> + Send,
    ) -> Result<R, TrainError> {
        let device = self.stream.device().clone();
        match device.cpu_pool() {
            Ok(pool) => pool.run(|| work(self)),
            Err(_) => work(self),
        }
    }

    /// One step over this rank's part of a batch whose parts have `valid` targets together.
    ///
    /// # Errors
    /// A token or target outside the vocabulary; a peer that died; targets that are not `valid` many.
    pub fn step<'a>(
        &mut self,
        sequences: impl Into<Packed<'a>>,
        valid: u64,
        trace: Option<&Trace>,
    ) -> Result<StepReport, TrainError> {
        let packed = sequences.into();
        self.on_pool(|trainer| trainer.step_here(packed, valid, trace))
    }

    fn step_here(&mut self, packed: Packed<'_>, valid: u64, trace: Option<&Trace>) -> Result<StepReport, TrainError> {
        self.check(packed)?;
        let step = self.steps + 1;
        let mut clock = Clock::start();
        self.dump_before(packed.sequences)?;
        let count = self.recipe.micro_batches(self.mesh.sizes(), self.recipe.batch);
        let (passes, before) = (self.passes(count), self.traffic());
        self.weights.take_transfers();
        self.gradients.begin_step(&self.stream, &passes)?;
        let mut optimizer = clock.lap();
        let scale = 1.0 / valid.max(1) as f64;
        let Walked { sums, exposed: [of_forward, of_backward], tally } =
            self.walk(packed, Go::Train { scale: scale as f32 }, trace)?;
        clock.lap();
        let passes_ended = clock.0;
        let mut transfers = self.gradients.finish()?;
        transfers.extend(self.weights.take_transfers());
        self.numbers.square(&self.stream, &self.gradients, (self.model.table(), &self.plan))?;
        let several = self.mesh.world().world() > 1;
        // The squares of several ranks meet on the host, with the losses.
        let own = if several { self.numbers.squares(&self.stream)? } else { 0.0 };
        let started = Instant::now();
        let ([loss, tokens, squares], routing) = self.total_with_routing([sums[0], sums[1], own], scale)?;
        let mut exposed = of_forward + of_backward + clock.lap();
        if several {
            self.numbers.set_squares(&self.stream, squares)?;
            let bytes = size_of::<[f64; 3]>();
            transfers.push(Transfer { what: "all_reduce", unit: None, bytes, started, finished: clock.0 });
        }
        if tokens != valid as f64 {
            return Err(TrainError::Valid { told: valid, found: tokens as u64 });
        }
        self.dump_gradients()?;
        let lr = self.recipe.schedule.rate(step);
        let (begun, waited) = (clock.0, self.mesh.waited());
        let numbers = Step { lr, number: step, grad_scale: 1.0 };
        let numbers = self.numbers.begin(&self.stream, numbers, self.recipe.clip)?;
        self.optimizer.step(&self.stream, self.model.table(), numbers, &mut self.weights, &self.gradients)?;
        // The host's first look: by a norm that is not finite nothing has been updated.
        let grad_norm = self.numbers.norm(&self.stream)?;
        if !grad_norm.is_finite() {
            return Err(TrainError::NotFinite { step, loss: loss * scale, grad_norm });
        }
        if let Some(routing) = &routing {
            self.weights.biases.step(&self.stream, &routing.counts)?;
        }
        let waited = self.mesh.waited() - waited;
        exposed += waited;
        optimizer += clock.lap().saturating_sub(waited);
        self.dump_weights(Kind::After)?;
        if let Some(trace) = trace {
            trace.add(Track::Compute, "optimizer", begun, clock.0);
            record(trace, &transfers);
        }
        self.steps = step;
        self.account_for_communication();
        let (loss, tokens, span) = (loss * scale, valid, tally.span());
        let Tally { forward, backward, waiting, peak: peak_passes, .. } = tally;
        Ok(StepReport {
            step,
            loss,
            tokens,
            grad_norm,
            lr,
            routing,
            forward: forward.saturating_sub(of_forward),
            backward: backward.saturating_sub(of_backward),
            waiting,
            span,
            peak_passes,
            exposed,
            optimizer,
            traffic: self.traffic() - before,
            transfers,
            passes_ended,
        })
    }

    /// Whether these are whole sequences, with a target for each of their tokens, and documents that fill them.
    pub(crate) fn check(
        &self,
        Packed { sequences: Sequences { inputs, targets }, documents }: Packed<'_>,
    ) -> Result<(), TrainError> {
        let tokens = self.recipe.tokens;
        if inputs.len() != targets.len() || !inputs.len().is_multiple_of(tokens) {
            return Err(TrainError::Sequences { inputs: inputs.len(), targets: targets.len(), tokens });
        }
        let sequences = inputs.len() / tokens;
        let fill = |documents: &Documents| documents.bounds().last() == Some(&(tokens as u32));
        if documents.is_empty() || documents.len() == sequences && documents.iter().all(fill) {
            return Ok(());
        }
        Err(TrainError::Documents { documents: documents.len(), sequences, tokens })
    }

    /// The sums over all ranks.
    pub(crate) fn total<const N: usize>(&self, mut sums: [f64; N]) -> Result<[f64; N], TrainError> {
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
    pub(crate) fn walk(&mut self, packed: Packed<'_>, go: Go, trace: Option<&Trace>) -> Result<Walked, TrainError> {
        let Self { stream, model, weights, gradients, pipeline, mesh, plan, recipe, recorder, .. } = self;
        let first = recipe.share(mesh, recipe.batch).start as u64;
        let feed = &Feed::new(packed, mesh, recipe.tokens, recipe.micro_batch, first);
        let (scale, dump) = match go {
            Go::Train { scale } => (scale, recorder.as_ref()),
            Go::Forward { .. } => (0.0, None),
        };
        let mut walk = Walk { stream, model, weights, mesh, plan, trace, dump, scale, feed };
        match go {
            Go::Train { .. } => pipeline.train(&mut walk, gradients),
            Go::Forward { micro_batches } => pipeline.forward(&mut walk, micro_batches),
        }
    }

    /// Bytes that this rank has sent for its steps, once no weights are on their way ([`settle`](Self::settle)).
    pub fn sent(&self) -> Traffic {
        self.traffic() - self.besides
    }

    /// Bytes that this rank has sent.
    pub(crate) fn traffic(&self) -> Traffic {
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
pub(crate) enum Go {
    /// Gradients of the losses times `scale`.
    Train { scale: f32 },
    /// The losses alone.
    Forward { micro_batches: usize },
}

/// Draws when each transfer was on its way.
fn record(trace: &Trace, transfers: &[Transfer]) {
    for Transfer { what, unit, bytes, started, finished } in transfers {
        let of = unit.map_or_else(|| "losses".to_owned(), |unit| format!("unit {unit}"));
        trace.add(Track::Communication, format!("{what} {of}, {bytes} bytes"), *started, *finished);
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
