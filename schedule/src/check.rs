//! The checker: one proof for any schedule, ours or one from elsewhere.

use crate::timeline::simulate;
use crate::{Content, Costs, Fault, Kind, Message, Operation, Placement, Proof, ScheduleError, Step, machine};

/// Proves that the lists are a schedule for these micro-batches: each F, B and W of each chunk and micro-batch stands in them
/// exactly once (a BW is both), after what it needs; they run to their end with room for `room` messages from one rank to
/// another (0: a send waits for its receive); no rank holds more than `memory` activations of a chunk. The first fault ends it.
pub fn check(
    placement: &Placement,
    micro_batches: usize,
    lists: &[Vec<Step>],
    costs: &Costs,
    room: usize,
    memory: Option<usize>,
) -> Result<Proof, ScheduleError> {
    let costs = costs.checked()?;
    if micro_batches == 0 {
        return Err(ScheduleError::Zero { what: "the number of micro-batches", flag: "--m" });
    }
    if lists.len() != placement.ranks() {
        return Err(Fault::Lists { lists: lists.len(), ranks: placement.ranks() }.into());
    }
    let mut book = Book { placement, micro_batches, done: vec![0; placement.chunks() * micro_batches] };
    let mut held = Vec::with_capacity(lists.len());
    for (rank, list) in lists.iter().enumerate() {
        held.push(book.walk(rank, list)?);
    }
    book.complete()?;
    machine::run(placement, lists, room)?;
    if let (Some(limit), Some((rank, most))) =
        (memory, held.iter().enumerate().max_by_key(|(_, held)| held.activations))
        && most.activations > limit
    {
        return Err(Fault::Memory { rank, held: most.activations, limit }.into());
    }
    let orders: Vec<Vec<Operation>> = lists.iter().map(|list| computations(list)).collect();
    let timeline = simulate(placement, micro_batches, &orders, &costs);
    let timeline = timeline.expect("what the machine has run to its end can be run in time");
    let cost = timeline.cost();
    Ok(Proof {
        room,
        cost,
        bubble_rate: ((cost - micro_batches as f64 * costs.compute()) / cost).max(0.0),
        peak_activations: held.iter().map(|held| held.activations).collect(),
        peak_received: held.iter().map(|held| held.received).collect(),
        sends: lists.iter().map(|list| list.iter().filter(|step| matches!(step, Step::Send(_))).count()).collect(),
        timeline,
    })
}

/// The computations of a list, in order.
pub(crate) fn computations(list: &[Step]) -> Vec<Operation> {
    let compute = |step: &Step| if let Step::Compute(operation) = step { Some(*operation) } else { None };
    list.iter().filter_map(compute).collect()
}

/// What has happened to one micro-batch in one chunk.
mod mark {
    pub(super) const F: u8 = 1;
    pub(super) const B: u8 = 2;
    pub(super) const W: u8 = 4;
    pub(super) const ACTIVATION_IN: u8 = 8;
    pub(super) const ERROR_IN: u8 = 16;
    pub(super) const ACTIVATION_OUT: u8 = 32;
    pub(super) const ERROR_OUT: u8 = 64;
}

/// The most that a rank holds at once.
#[derive(Default)]
struct Held {
    activations: usize,
    received: usize,
}

struct Book<'a> {
    placement: &'a Placement,
    micro_batches: usize,
    done: Vec<u8>,
}

impl Book<'_> {
    fn slot(&self, chunk: usize, micro_batch: usize) -> usize {
        chunk * self.micro_batches + micro_batch
    }

    /// Goes through one rank's list: places, doubles, and the order within the list.
    fn walk(&mut self, rank: usize, list: &[Step]) -> Result<Held, Fault> {
        let (mut now, mut most) = (Held::default(), Held::default());
        for (at, &step) in list.iter().enumerate() {
            let (chunk, micro_batch) = match step {
                Step::Compute(Operation { chunk, micro_batch, .. })
                | Step::Send(Message { chunk, micro_batch, .. })
                | Step::Recv(Message { chunk, micro_batch, .. }) => (chunk, micro_batch),
            };
            let here = chunk < self.placement.chunks()
                && micro_batch < self.micro_batches
                && self.placement.place(chunk) == rank
                && self.placement.carries(chunk, micro_batch);
            if !here || !self.has_peer(rank, step) {
                return Err(Fault::Place { rank, at, step });
            }
            let slot = self.slot(chunk, micro_batch);
            let marks = marks_of(step);
            if self.done[slot] & marks != 0 {
                return Err(Fault::Twice { rank, at, step });
            }
            if let Some(needs) = self.lacks(rank, step) {
                return Err(Fault::Early { rank, at, step, needs });
            }
            self.done[slot] |= marks;
            match step {
                Step::Compute(operation) => {
                    now.received -= usize::from(self.source(rank, operation).is_some());
                    now.activations += usize::from(operation.kind == Kind::F);
                    most.activations = most.activations.max(now.activations);
                    now.activations -= usize::from(operation.kind.frees());
                }
                Step::Recv(_) => now.received += 1,
                Step::Send(_) => {}
            }
            most.received = most.received.max(now.received);
        }
        Ok(most)
    }

    /// Whether a message goes to, or comes from, the rank that the placement says.
    fn has_peer(&self, rank: usize, step: Step) -> bool {
        let (message, other) = match step {
            Step::Compute(_) => return true,
            Step::Send(message) if message.content == Content::Activation => {
                (message, self.placement.after(message.chunk))
            }
            Step::Send(message) => (message, self.placement.before(message.chunk)),
            Step::Recv(message) if message.content == Content::Activation => {
                (message, self.placement.before(message.chunk))
            }
            Step::Recv(message) => (message, self.placement.after(message.chunk)),
        };
        other.is_some_and(|other| self.placement.place(other) == message.peer && message.peer != rank)
    }

    /// The chunk of another rank whose result an operation takes.
    fn source(&self, rank: usize, operation: Operation) -> Option<usize> {
        let chunk = match operation.kind {
            Kind::F => self.placement.before(operation.chunk),
            Kind::B | Kind::BW => self.placement.after(operation.chunk),
            Kind::W => None,
        };
        chunk.filter(|&chunk| self.placement.place(chunk) != rank)
    }

    /// What a step needs and what is not above it in the list.
    fn lacks(&self, rank: usize, step: Step) -> Option<&'static str> {
        match step {
            Step::Compute(operation) => {
                let Operation { kind, chunk, micro_batch } = operation;
                let has = |chunk, mark| self.done[self.slot(chunk, micro_batch)] & mark != 0;
                let (own, own_name) = match kind {
                    Kind::F => (0, ""),
                    Kind::B | Kind::BW => (mark::F, "its forward"),
                    Kind::W => (mark::B, "its backward to the input"),
                };
                if own != 0 && !has(chunk, own) {
                    return Some(own_name);
                }
                let (other, input, made, name) = match kind {
                    Kind::F => (self.placement.before(chunk), mark::ACTIVATION_IN, mark::F, "its input"),
                    Kind::B | Kind::BW => (self.placement.after(chunk), mark::ERROR_IN, mark::B, "the error for it"),
                    Kind::W => return None,
                };
                let other = other?;
                let there = if self.placement.place(other) == rank { has(other, made) } else { has(chunk, input) };
                (!there).then_some(name)
            }
            Step::Send(Message { content, chunk, micro_batch, .. }) => {
                let made = if content == Content::Activation { mark::F } else { mark::B };
                (self.done[self.slot(chunk, micro_batch)] & made == 0).then_some("what it carries is made")
            }
            Step::Recv(_) => None,
        }
    }

    /// Every operation is there.
    fn complete(&self) -> Result<(), Fault> {
        for chunk in 0..self.placement.chunks() {
            for micro_batch in (0..self.micro_batches).filter(|&micro| self.placement.carries(chunk, micro)) {
                let done = self.done[self.slot(chunk, micro_batch)];
                for (mark, kind) in [(mark::F, Kind::F), (mark::B, Kind::B), (mark::W, Kind::W)] {
                    if done & mark == 0 {
                        return Err(Fault::Missing(Operation::new(kind, chunk, micro_batch)));
                    }
                }
            }
        }
        Ok(())
    }
}

/// What a step leaves in the book.
fn marks_of(step: Step) -> u8 {
    match step {
        Step::Compute(operation) => match operation.kind {
            Kind::F => mark::F,
            Kind::B => mark::B,
            Kind::W => mark::W,
            Kind::BW => mark::B | mark::W,
        },
        Step::Send(message) if message.content == Content::Activation => mark::ACTIVATION_OUT,
        Step::Send(_) => mark::ERROR_OUT,
        Step::Recv(message) if message.content == Content::Activation => mark::ACTIVATION_IN,
        Step::Recv(_) => mark::ERROR_IN,
    }
}
