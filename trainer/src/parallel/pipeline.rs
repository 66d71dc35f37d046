//! Pipeline parallelism: the model's passes as the operations of a schedule, which the [executor](super::executor) walks.
//!
//! What a chunk makes leaves its slot, and what arrives is put in place of the next chunk's input, so that nothing is copied
//! on a rank.
//!
//! Bytes: each micro-batch of M rows crosses each border between stages as M C elements forward, and as many back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warpweft_device::{Buffer, Float, Stream};
use warpweft_schedule::{Content, Kind, Message, Operation, Placement, Schedule, Step};

use crate::TrainError;
use crate::dump::Recorder;
use crate::feed::Feed;
use crate::memory::Allocator;
use crate::model::{MicroBatch, Model, Recompute, Room, Routed, Slot, Weights as Then, Work};
use crate::parallel::executor::{Executor, Hops, Passes, Tally, computations, most_blocks, most_hops, most_passes};
use crate::parallel::gradients::Gradients;
use crate::parallel::links::{Links, directions};
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
    executor: Executor<T>,
    memory: Memory<T>,
}

/// The memory of passes.
struct Memory<T> {
    /// Of passes that are not under way, by chunk.
    slots: Vec<Vec<Slot<T>>>,
    work: Work<T>,
}

/// What a walk works with.
pub(crate) struct Walk<'a, T> {
    pub(crate) stream: &'a Stream,
    pub(crate) model: &'a Model,
    pub(crate) weights: &'a mut Weights<T>,
    pub(crate) mesh: &'a Mesh,
    pub(crate) plan: &'a Plan,
    pub(crate) trace: Option<&'a Trace>,
    /// Where the step is taken down, if it is.
    pub(crate) dump: Option<&'a Recorder>,
    /// Of the losses, in the backward pass.
    pub(crate) scale: f32,
    /// The micro-batches of this rank.
    pub(crate) feed: &'a Feed<'a>,
}

impl<'a, T> Walk<'a, T> {
    fn micro(&self, index: usize) -> MicroBatch<'a> {
        let Self { stream, mesh, plan, trace, dump, feed, .. } = *self;
        let (batch, tokens, first_sample) = (feed.batch(index), feed.tokens(), feed.first_sample(index));
        let (plain, documents) = (feed.is_plain(), feed.documents(index));
        MicroBatch { stream, mesh, plan, batch, tokens, plain, documents, first_sample, trace, dump }
    }
}

/// What the passes of a walk came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walked {
    /// Sum of the losses, and of the targets that count, on the one rank that counts them.
    pub(crate) sums: [f64; 2],
    /// Time of the forward passes, and of the backward passes, in which communication was waited for.
    pub(crate) exposed: [Duration; 2],
    /// What the executor counted.
    pub(crate) tally: Tally,
}

/// The passes of a model.
struct ModelPasses<'p, 'w, T> {
    walk: &'p mut Walk<'w, T>,
    memory: &'p mut Memory<T>,
    /// None where nothing goes back.
    gradients: Option<&'p mut Gradients>,
    /// What is under way, by chunk and micro-batch.
    under_way: BTreeMap<(usize, usize), Slot<T>>,
    walked: Walked,
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
        let mut slots = Vec::with_capacity(placement.chunks());
        for (index, chunk) in model.spread().chunks.iter().enumerate() {
            // A forward pass without a step needs one, too.
            let count = if chunk.here { most_passes(&steps, index).max(1) } else { 0 };
            let made = (0..count).map(|_| model.slot(chunk, room, (splits, recompute), allocator));
            slots.push(made.collect::<Result<Vec<_>, _>>()?);
        }
        let hop = room.stream_rows * model.shape().channels;
        let hops = Hops::new(most_hops(&steps, &placement, stage), hop, allocator)?;
        let blocks = |chunk: usize| model.spread().chunks[chunk].blocks.len();
        let work = model.work(room, (recompute, most_blocks(&steps, blocks)), allocator)?;
        let memory = Memory { slots, work };
        let executor = Executor::new(placement, stage, Links::new(mesh, &directions(schedule))?, hops);
        Ok(Self { placement, steps, stage, executor, memory })
    }

    /// Goes through all of the schedule.
    ///
    /// # Errors
    /// What a pass or a message says.
    pub(crate) fn train(&mut self, walk: &mut Walk<'_, T>, gradients: &mut Gradients) -> Result<Walked, TrainError> {
        let steps = self.steps.clone();
        self.walk(&steps, walk, Some(gradients))
    }

    /// Goes forward alone, over this many micro-batches.
    ///
    /// # Errors
    /// What a pass or a message says.
    pub(crate) fn forward(&mut self, walk: &mut Walk<'_, T>, micro_batches: usize) -> Result<Walked, TrainError> {
        let steps = forward_steps(&self.placement, self.stage, micro_batches);
        self.walk(&steps, walk, None)
    }

    fn walk(
        &mut self,
        steps: &[Step],
        walk: &mut Walk<'_, T>,
        gradients: Option<&mut Gradients>,
    ) -> Result<Walked, TrainError> {
        let (under_way, walked) = (BTreeMap::new(), Walked::default());
        let mut passes = ModelPasses { walk, memory: &mut self.memory, gradients, under_way, walked };
        let tally = self.executor.walk(steps, &mut passes)?;
        Ok(Walked { tally, ..passes.walked })
    }

    /// The memory of the pass that went through the end of the model last; none on other stages.
    pub(crate) fn ended(&self, model: &Model) -> Option<&Slot<T>> {
        let chunk = model.spread().chunks.iter().position(|chunk| chunk.here && chunk.ends && chunk.copy == 0)?;
        self.memory.slots[chunk].last()
    }

    /// What the routers did since this was asked last.
    pub(crate) fn take_routed(&mut self, model: &Model) -> Routed {
        std::mem::replace(&mut self.memory.work.routed, Routed::new(model.shape()))
    }

    /// Bytes that this rank has sent to other stages.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.executor.links().sent_bytes()
    }

    /// Bytes that the communicators of its links hold.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.executor.links().buffer_bytes() as u64
    }
}

impl<T: Float> ModelPasses<'_, '_, T> {
    /// Puts a pass aside until it goes back, or gives its memory back.
    fn put(&mut self, Operation { chunk, micro_batch, .. }: Operation, slot: Slot<T>, over: bool) {
        match over {
            true => self.memory.slots[chunk].push(slot),
            false => drop(self.under_way.insert((chunk, micro_batch), slot)),
        }
    }
}

impl<T: Float> Passes<T> for ModelPasses<'_, '_, T> {
    fn forward(
        &mut self,
        operation: Operation,
        input: Option<Buffer<T>>,
        hops: &mut Hops<T>,
    ) -> Result<Option<Buffer<T>>, TrainError> {
        let Operation { chunk: index, micro_batch, .. } = operation;
        let Self { walk, memory, walked, .. } = self;
        let model = walk.model;
        let chunk = &model.spread().chunks[index];
        let mut slot = memory.slots[index].pop().ok_or(TrainError::OutOfOrder { operation })?;
        if let Some(input) = input {
            hops.give(std::mem::replace(&mut slot.stream[0], input));
        }
        let exposed = walk.mesh.waited();
        walk.feed.load(micro_batch, walk.stream, &mut slot)?;
        let micro = walk.micro(micro_batch);
        model.forward(chunk, &micro, walk.weights, &mut slot, &mut memory.work)?;
        let sum = model.loss(&micro, walk.weights, &mut slot)?;
        if walk.mesh.place().tp == 0 {
            let [loss, count] = &mut walked.sums;
            (*loss, *count) = (*loss + sum.loss, *count + sum.count as f64);
        }
        walked.exposed[0] += walk.mesh.waited() - exposed;
        let made = match (chunk.ends, slot.stream.last_mut()) {
            (false, Some(last)) => Some(std::mem::replace(last, hops.take()?)),
            _ => None,
        };
        let over = self.gradients.is_none();
        self.put(operation, slot, over);
        Ok(made)
    }

    fn backward(
        &mut self,
        operation: Operation,
        error: Option<Buffer<T>>,
        hops: &mut Hops<T>,
    ) -> Result<Option<Buffer<T>>, TrainError> {
        let Operation { kind, chunk: index, micro_batch } = operation;
        let Self { walk, memory: Memory { work, .. }, gradients, under_way, walked } = self;
        let gradients = gradients.as_deref_mut().ok_or(TrainError::OutOfOrder { operation })?;
        let (micro, model, mesh, scale) = (walk.micro(micro_batch), walk.model, walk.mesh, walk.scale);
        let weights = &mut *walk.weights;
        let chunk = &model.spread().chunks[index];
        let mut slot = under_way.remove(&(index, micro_batch)).ok_or(TrainError::OutOfOrder { operation })?;
        let mut error = match error {
            None if kind.makes_error() => Some(hops.take()?),
            error => error,
        };
        let exposed = mesh.waited();
        match &mut error {
            Some(error) => {
                let then = if kind.frees() { Then::Now(gradients) } else { Then::Later };
                model.backward(chunk, &micro, weights, scale, &mut slot, work, error, then)?;
            }
            None => model.backward_weight(chunk, &micro, weights, &mut slot, work, gradients)?,
        }
        walked.exposed[1] += mesh.waited() - exposed;
        self.put(operation, slot, kind.frees());
        Ok(error)
    }

    fn message_len(&self, micro_batch: usize) -> usize {
        self.walk.micro(micro_batch).stream_rows().len() * self.walk.model.shape().channels
    }

    fn trace(&self) -> Option<&Trace> {
        self.walk.trace
    }
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
