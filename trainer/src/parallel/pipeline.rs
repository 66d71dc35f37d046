//! Pipeline parallelism: walks one rank through a schedule, which is data ([`warpweft_schedule`]): every schedule runs here.
//!
//! A message is a buffer that changes hands. What a chunk makes leaves its slot, and what arrives is put in place of the
//! next chunk's input, so that nothing is copied on a rank. Receives are posted one computation before the list asks for them,
//! and sends are looked after when their memory is needed again: both are earlier than in the list, which is proven to end
//! even where every send waits for its receive.
//!
//! Bytes: each micro-batch of M rows crosses each border between stages as M C elements forward, and as many back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweft_device::{Buffer, Float, Stream};
use warpweft_schedule::{Content, Kind, Message, Operation, Placement, Schedule, Step};

use crate::TrainError;
use crate::feed::Feed;
use crate::memory::{Account, Allocator, Class};
use crate::model::{MicroBatch, Model, Recompute, Room, Routed, Slot, Weights as Then, Work};
use crate::parallel::gradients::Gradients;
use crate::parallel::links::{Arrival, Links, UNDER_WAY, directions};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::weights::Weights;
use crate::report::trace::Trace;

/// One rank's part of a pipeline: its lists, links and memory.
pub(crate) struct Pipeline<T> {
    placement: Placement,
    /// What this rank does in a step.
    steps: Arc<[Step]>,
    stage: usize,
    links: Links<T>,
    /// Memory of passes that are not under way, by chunk.
    slots: Vec<Vec<Slot<T>>>,
    /// Buffers of one micro-batch's rows between stages that are in no use.
    hops: Vec<Buffer<T>>,
    work: Work<T>,
    /// Elements of a buffer between stages.
    hop: usize,
    /// Where buffers that are made later are entered.
    account: Account,
}

/// What a walk works with.
pub(crate) struct Walk<'a, T> {
    pub(crate) stream: &'a Stream,
    pub(crate) model: &'a Model,
    pub(crate) weights: &'a mut Weights<T>,
    pub(crate) mesh: &'a Mesh,
    pub(crate) plan: &'a Plan,
    pub(crate) trace: Option<&'a Trace>,
    /// Of the losses, in the backward pass.
    pub(crate) scale: f32,
    /// The micro-batches of this rank.
    pub(crate) feed: &'a Feed<'a>,
}

impl<'a, T> Walk<'a, T> {
    fn micro(&self, index: usize) -> MicroBatch<'a> {
        let Self { stream, mesh, plan, trace, feed, .. } = *self;
        let (batch, tokens, first_sample) = (feed.batch(index), feed.tokens(), feed.first_sample(index));
        MicroBatch { stream, mesh, plan, batch, tokens, first_sample, trace }
    }
}

/// What a walk came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Sum of the losses, and of the targets that count, on the one rank that counts them.
    pub(crate) sums: [f64; 2],
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    /// Time without a computation, waiting for other stages.
    pub(crate) waiting: Duration,
    /// The most passes that were under way at once.
    pub(crate) peak: usize,
}

/// What is under way.
struct State<T> {
    passes: BTreeMap<(usize, usize), Slot<T>>,
    arrivals: BTreeMap<(Content, usize, usize), Arrival<T>>,
    tally: Tally,
}

impl<T: Float> Pipeline<T> {
    /// The memory and the links for a schedule.
    ///
    /// Collective over the world of the mesh.
    ///
    /// # Errors
    /// No memory; a failed split.
    pub(crate) fn new(
        schedule: &Schedule,
        (model, mesh, room): (&Model, &Mesh, Room),
        recompute: Recompute,
        allocator: &mut Allocator<'_>,
    ) -> Result<Self, TrainError> {
        let (stage, placement) = (mesh.place().pp, *schedule.placement());
        let steps: Arc<[Step]> = schedule.rank(stage).into();
        let splits = computations(&steps).any(|operation| operation.kind == Kind::B);
        let hop = room.stream_rows * model.shape().channels;
        let mut slots = Vec::with_capacity(placement.chunks());
        for (index, chunk) in model.spread().chunks.iter().enumerate() {
            // A forward pass without a step needs one, too.
            let count = if chunk.here { most_passes(&steps, index).max(1) } else { 0 };
            let made = (0..count).map(|_| model.slot(chunk, room, (splits, recompute), allocator));
            slots.push(made.collect::<Result<Vec<_>, _>>()?);
        }
        let hops = (0..most_hops(&steps, &placement, stage)).map(|_| allocator.zeros(Class::Errors, hop));
        let hops = hops.collect::<Result<_, _>>()?;
        let blocks = |chunk: usize| model.spread().chunks[chunk].blocks.len();
        let work = model.work(room, (recompute, most_blocks(&steps, blocks)), allocator)?;
        let links = Links::new(mesh, &directions(schedule))?;
        let account = allocator.account.clone();
        Ok(Self { placement, steps, stage, links, slots, hops, work, hop, account })
    }

    /// Goes through all of the schedule.
    ///
    /// # Errors
    /// What a pass or a message says.
    pub(crate) fn train(&mut self, walk: &mut Walk<'_, T>, gradients: &mut Gradients) -> Result<Tally, TrainError> {
        let steps = self.steps.clone();
        self.walk(&steps, walk, Some(gradients))
    }

    /// Goes forward alone, over this many micro-batches.
    ///
    /// # Errors
    /// What a pass or a message says.
    pub(crate) fn forward(&mut self, walk: &mut Walk<'_, T>, micro_batches: usize) -> Result<Tally, TrainError> {
        let steps = forward_steps(&self.placement, self.stage, micro_batches);
        self.walk(&steps, walk, None)
    }

    fn walk(
        &mut self,
        steps: &[Step],
        walk: &mut Walk<'_, T>,
        mut gradients: Option<&mut Gradients>,
    ) -> Result<Tally, TrainError> {
        let mut state = State { passes: BTreeMap::new(), arrivals: BTreeMap::new(), tally: Tally::default() };
        let mut posted = 0;
        for (at, step) in steps.iter().enumerate() {
            let Step::Compute(operation) = step else { continue };
            while posted < reach(steps, at) {
                if let Step::Recv(message) = &steps[posted] {
                    self.post(message, walk, &mut state)?;
                }
                posted += 1;
            }
            match operation.kind {
                Kind::F => self.go_forward(*operation, walk, &mut state, gradients.is_some())?,
                _ => {
                    let gradients = gradients.as_deref_mut().ok_or(TrainError::OutOfOrder { operation: *operation })?;
                    self.go_back(*operation, walk, &mut state, gradients)?;
                }
            }
        }
        let begun = Instant::now();
        self.hops.extend(self.links.finish()?);
        state.tally.waiting += begun.elapsed();
        Ok(state.tally)
    }

    /// Elements of a message of this micro-batch.
    fn message_len(&self, walk: &Walk<'_, T>, micro_batch: usize) -> usize {
        walk.micro(micro_batch).pass(walk.weights).stream_rows().len() * walk.model.shape().channels
    }

    /// A free buffer for a message.
    fn hop(&mut self, walk: &Walk<'_, T>) -> Result<Buffer<T>, TrainError> {
        if let Some(free) = self.hops.pop() {
            return Ok(free);
        }
        let mut allocator = Allocator { device: walk.stream.device(), account: &self.account };
        Ok(allocator.zeros(Class::Errors, self.hop)?)
    }

    fn post(&mut self, message: &Message, walk: &Walk<'_, T>, state: &mut State<T>) -> Result<(), TrainError> {
        let (buffer, len) = (self.hop(walk)?, self.message_len(walk, message.micro_batch));
        let arrival = self.links.receive((message.peer, self.stage), buffer, len)?;
        state.arrivals.insert((message.content, message.chunk, message.micro_batch), arrival);
        Ok(())
    }

    /// Hands what an operation made to the chunk that takes it.
    fn hand_over(
        &mut self,
        buffer: Buffer<T>,
        (content, to, micro_batch): (Content, usize, usize),
        walk: &Walk<'_, T>,
        state: &mut State<T>,
    ) -> Result<(), TrainError> {
        let peer = self.placement.place(to);
        if peer == self.stage {
            state.arrivals.insert((content, to, micro_batch), Arrival::Here(buffer));
            return Ok(());
        }
        let (begun, len) = (Instant::now(), self.message_len(walk, micro_batch));
        self.hops.extend(self.links.send((self.stage, peer), buffer, len)?);
        state.tally.waiting += begun.elapsed();
        Ok(())
    }

    /// Waits for what an operation takes.
    fn take(&self, of: (Content, Operation), state: &mut State<T>) -> Result<Buffer<T>, TrainError> {
        let (content, operation) = of;
        let arrival = state.arrivals.remove(&(content, operation.chunk, operation.micro_batch));
        let arrival = arrival.ok_or(TrainError::OutOfOrder { operation })?;
        let begun = Instant::now();
        let buffer = arrival.wait()?;
        state.tally.waiting += begun.elapsed();
        Ok(buffer)
    }

    fn go_forward(
        &mut self,
        operation: Operation,
        walk: &mut Walk<'_, T>,
        state: &mut State<T>,
        kept: bool,
    ) -> Result<(), TrainError> {
        let Operation { chunk: index, micro_batch, .. } = operation;
        let chunk = &walk.model.spread().chunks[index];
        let mut slot = self.slots[index].pop().ok_or(TrainError::OutOfOrder { operation })?;
        if !chunk.embeds {
            let input = self.take((Content::Activation, operation), state)?;
            self.hops.push(std::mem::replace(&mut slot.stream[0], input));
        }
        let begun = Instant::now();
        walk.feed.load(micro_batch, walk.stream, &mut slot)?;
        let micro = walk.micro(micro_batch);
        walk.model.forward(chunk, &micro, walk.weights, &mut slot, &mut self.work)?;
        let sum = walk.model.loss(&micro, walk.weights, &mut slot)?;
        if walk.mesh.place().tp == 0 {
            let [loss, count] = &mut state.tally.sums;
            (*loss, *count) = (*loss + sum.loss, *count + sum.count as f64);
        }
        state.tally.forward += begun.elapsed();
        if let Some(after) = self.placement.after(index) {
            let free = self.hop(walk)?;
            let output = slot.stream.last_mut().map(|last| std::mem::replace(last, free));
            let output = output.ok_or(TrainError::OutOfOrder { operation })?;
            self.hand_over(output, (Content::Activation, after, micro_batch), walk, state)?;
        }
        match kept {
            true => drop(state.passes.insert((index, micro_batch), slot)),
            false => self.slots[index].push(slot),
        }
        state.tally.peak = state.tally.peak.max(state.passes.len());
        Ok(())
    }

    fn go_back(
        &mut self,
        operation: Operation,
        walk: &mut Walk<'_, T>,
        state: &mut State<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let Operation { kind, chunk: index, micro_batch } = operation;
        let chunk = &walk.model.spread().chunks[index];
        let slot = state.passes.remove(&(index, micro_batch));
        let mut slot = slot.ok_or(TrainError::OutOfOrder { operation })?;
        let mut error = match (kind.makes_error(), chunk.ends) {
            (false, _) => None,
            (true, true) => Some(self.hop(walk)?),
            (true, false) => Some(self.take((Content::Error, operation), state)?),
        };
        let begun = Instant::now();
        let micro = walk.micro(micro_batch);
        match &mut error {
            Some(error) => {
                let then = if kind.frees() { Then::Now(gradients) } else { Then::Later };
                walk.model.backward(chunk, &micro, walk.weights, walk.scale, &mut slot, &mut self.work, error, then)?;
            }
            None => walk.model.backward_weight(chunk, &micro, walk.weights, &mut slot, &mut self.work, gradients)?,
        }
        state.tally.backward += begun.elapsed();
        match kind.frees() {
            true => self.slots[index].push(slot),
            false => drop(state.passes.insert((index, micro_batch), slot)),
        }
        match (error, self.placement.before(index)) {
            (Some(error), Some(before)) => {
                self.hand_over(error, (Content::Error, before, micro_batch), walk, state)?;
            }
            (error, _) => self.hops.extend(error),
        }
        Ok(())
    }

    /// The memory of the pass that went through the end of the model last; none on other stages.
    pub(crate) fn ended(&self, model: &Model) -> Option<&Slot<T>> {
        let chunk = model.spread().chunks.iter().position(|chunk| chunk.here && chunk.ends && chunk.copy == 0)?;
        self.slots[chunk].last()
    }

    /// What the routers did since this was asked last.
    pub(crate) fn take_routed(&mut self, model: &Model) -> Routed {
        std::mem::replace(&mut self.work.routed, Routed::new(model.shape()))
    }

    /// Bytes that this rank has sent to other stages.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.links.sent_bytes()
    }

    /// Bytes that the communicators of its links hold.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.links.buffer_bytes() as u64
    }
}

fn computations(steps: &[Step]) -> impl Iterator<Item = &Operation> {
    steps.iter().filter_map(|step| if let Step::Compute(operation) = step { Some(operation) } else { None })
}

/// Up to where receives are posted before the computation at `at`: to the computation after the next.
fn reach(steps: &[Step], at: usize) -> usize {
    let is_compute = |step: &Step| matches!(step, Step::Compute(_));
    let next = |from: usize| steps[from..].iter().position(is_compute).map_or(steps.len(), |more| from + more);
    next(at + 1)
}

/// The most micro-batches of a chunk that are under way at once.
pub(crate) fn most_passes(steps: &[Step], chunk: usize) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for operation in computations(steps).filter(|operation| operation.chunk == chunk) {
        match operation.kind {
            Kind::F => now += 1,
            kind => now -= usize::from(kind.frees()),
        }
        most = most.max(now);
    }
    most
}

/// The most blocks that are at work, or wait for the gradients of their weights after their backward pass to the input, at
/// once; `blocks` has those of a chunk.
pub(crate) fn most_blocks(steps: &[Step], blocks: impl Fn(usize) -> usize) -> usize {
    let (mut waiting, mut most) = (0, 1);
    for operation in computations(steps) {
        match operation.kind {
            Kind::B => waiting += blocks(operation.chunk),
            Kind::W => waiting -= blocks(operation.chunk),
            Kind::F | Kind::BW => most = most.max(waiting + 1),
        }
        most = most.max(waiting);
    }
    most
}

/// The most buffers between stages that a walk needs at once.
pub(crate) fn most_hops(steps: &[Step], placement: &Placement, stage: usize) -> usize {
    let (mut used, mut most, mut posted) = (0usize, 0, 0);
    let mut sending: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        let Step::Compute(Operation { kind, chunk, .. }) = step else { continue };
        let end = reach(steps, at);
        used += steps[posted..end].iter().filter(|step| matches!(step, Step::Recv(_))).count();
        posted = end;
        most = most.max(used);
        let (takes, gives) = match kind {
            Kind::F => (placement.before(*chunk), placement.after(*chunk)),
            Kind::B | Kind::BW => (placement.after(*chunk), placement.before(*chunk)),
            Kind::W => continue,
        };
        // An input takes the place of a slot's own buffer, an error that of nothing; what is made is in use until it is sent.
        used -= usize::from(takes.is_some());
        most = most.max(used + 1);
        let Some(to) = gives else { continue };
        used += 1;
        let peer = placement.place(to);
        if peer != stage {
            let under_way = sending.entry(peer).or_default();
            match *under_way < UNDER_WAY {
                true => *under_way += 1,
                false => used -= 1,
            }
        }
    }
    most
}

/// A rank's list where nothing goes back: every micro-batch through every chunk, in an order that all ranks have in common.
fn forward_steps(placement: &Placement, rank: usize, micro_batches: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let elsewhere = |chunk: Option<usize>| chunk.map(|chunk| placement.place(chunk)).filter(|place| *place != rank);
    for micro_batch in 0..micro_batches {
        let chunks = (0..placement.chunks()).filter(|chunk| placement.carries(*chunk, micro_batch));
        for chunk in chunks.filter(|chunk| placement.place(*chunk) == rank) {
            let message = |peer| Message { content: Content::Activation, chunk, micro_batch, peer };
            steps.extend(elsewhere(placement.before(chunk)).map(|peer| Step::Recv(message(peer))));
            steps.push(Step::Compute(Operation::new(Kind::F, chunk, micro_batch)));
            steps.extend(elsewhere(placement.after(chunk)).map(|peer| Step::Send(message(peer))));
        }
    }
    steps
}
