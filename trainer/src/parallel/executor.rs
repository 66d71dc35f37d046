//! Walks one rank through a schedule, which is data ([`warpweft_schedule`]): every schedule runs here, whatever its passes
//! compute ([`Passes`]).
//!
//! A message is a buffer that changes hands. Receives are posted one computation before the list asks for them, and sends
//! are looked after when their memory is needed again: both are earlier than in the list, which is proven to end even where
//! every send waits for its receive.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warpweft_device::{Buffer, Device, Element};
use warpweft_schedule::{Content, Kind, Message, Operation, Placement, Step};

use crate::TrainError;
use crate::memory::{Account, Allocator, Class};
use crate::parallel::links::{Arrival, Links, UNDER_WAY};
use crate::report::trace::{Trace, Track};

/// What a schedule's operations do: the passes of a model, or something that takes as long.
pub(crate) trait Passes<T: Element> {
    /// Goes forward from the model's own input, or from `input`; gives what the next chunk takes, where there is one.
    ///
    /// # Errors
    /// What the pass says.
    fn forward(
        &mut self,
        operation: Operation,
        input: Option<Buffer<T>>,
        hops: &mut Hops<T>,
    ) -> Result<Option<Buffer<T>>, TrainError>;

    /// Goes back from the loss, or from `error`, to input, weights or both; gives the error of the input, where it makes it.
    ///
    /// # Errors
    /// What the pass says.
    fn backward(
        &mut self,
        operation: Operation,
        error: Option<Buffer<T>>,
        hops: &mut Hops<T>,
    ) -> Result<Option<Buffer<T>>, TrainError>;

    /// Elements of a message of this micro-batch.
    fn message_len(&self, micro_batch: usize) -> usize;

    /// Sees a message that has come from another rank, before it is used.
    fn arrived(&mut self, _message: &Buffer<T>) {}

    /// Where to record what takes how long, if anywhere.
    fn trace(&self) -> Option<&Trace> {
        None
    }
}

/// Buffers of one micro-batch's rows between chunks that are in no use.
pub(crate) struct Hops<T> {
    free: Vec<Buffer<T>>,
    len: usize,
    device: Device,
    account: Account,
}

impl<T: Element> Hops<T> {
    /// As many as a walk needs at once, of `len` elements.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(count: usize, len: usize, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let free = (0..count).map(|_| allocator.zeros(Class::Errors, len)).collect::<Result<_, _>>()?;
        Ok(Self { free, len, device: allocator.device.clone(), account: allocator.account.clone() })
    }

    /// One of them.
    ///
    /// # Errors
    /// No memory for one more.
    pub(crate) fn take(&mut self) -> Result<Buffer<T>, TrainError> {
        match self.free.pop() {
            Some(free) => Ok(free),
            None => Ok(Allocator { device: &self.device, account: &self.account }.zeros(Class::Errors, self.len)?),
        }
    }

    /// Gives one back.
    pub(crate) fn give(&mut self, buffer: Buffer<T>) {
        self.free.push(buffer);
    }
}

/// An operation that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) operation: Operation,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}

/// What a walk came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Time in forward passes.
    pub(crate) forward: Duration,
    /// Time in backward passes.
    pub(crate) backward: Duration,
    /// Time without a computation, waiting for other stages.
    pub(crate) waiting: Duration,
    /// The most passes that were under way at once.
    pub(crate) peak: usize,
    /// All operations, in order.
    pub(crate) ran: Vec<Ran>,
    under_way: usize,
}

impl Tally {
    fn ran(&mut self, operation: Operation, begun: Instant, trace: Option<&Trace>) {
        let ended = Instant::now();
        match operation.kind {
            Kind::F => (self.forward, self.under_way) = (self.forward + (ended - begun), self.under_way + 1),
            kind => {
                self.backward += ended - begun;
                self.under_way -= usize::from(kind.frees());
            }
        }
        self.peak = self.peak.max(self.under_way);
        self.ran.push(Ran { operation, begun, ended });
        if let Some(trace) = trace {
            let Operation { kind, chunk, micro_batch } = operation;
            trace.add(Track::Passes, format!("{kind:?}{micro_batch} of chunk {chunk}"), begun, ended);
        }
    }

    fn waited(&mut self, begun: Instant, of: impl FnOnce() -> String, trace: Option<&Trace>) {
        let ended = Instant::now();
        self.waiting += ended - begun;
        if let Some(trace) = trace {
            trace.add(Track::Waiting, of(), begun, ended);
        }
    }

    /// From the start of the first operation to the end of the last.
    pub(crate) fn span(&self) -> Duration {
        match (self.ran.first(), self.ran.last()) {
            (Some(first), Some(last)) => last.ended - first.begun,
            _ => Duration::ZERO,
        }
    }
}

/// One rank's part in a pipeline.
pub(crate) struct Executor<T> {
    placement: Placement,
    stage: usize,
    links: Links<T>,
    hops: Hops<T>,
}

/// What is under way.
struct State<T> {
    arrivals: BTreeMap<(Content, usize, usize), Arrival<T>>,
    tally: Tally,
}

impl<T: Element> Executor<T> {
    /// The rank of `stage`, with its links and the buffers of messages.
    pub(crate) fn new(placement: Placement, stage: usize, links: Links<T>, hops: Hops<T>) -> Self {
        Self { placement, stage, links, hops }
    }

    /// Does all steps.
    ///
    /// # Errors
    /// What a pass or a message says.
    pub(crate) fn walk(&mut self, steps: &[Step], passes: &mut impl Passes<T>) -> Result<Tally, TrainError> {
        let mut state = State { arrivals: BTreeMap::new(), tally: Tally::default() };
        let mut posted = 0;
        for (at, step) in steps.iter().enumerate() {
            let Step::Compute(operation) = step else { continue };
            while posted < reach(steps, at) {
                if let Step::Recv(message) = &steps[posted] {
                    self.post(*message, passes, &mut state)?;
                }
                posted += 1;
            }
            self.compute(*operation, passes, &mut state)?;
        }
        let begun = Instant::now();
        for sent in self.links.finish(passes.trace())? {
            self.hops.give(sent);
        }
        state.tally.waited(begun, || "the last messages to leave".into(), passes.trace());
        Ok(state.tally)
    }

    fn post(&mut self, message: Message, passes: &impl Passes<T>, state: &mut State<T>) -> Result<(), TrainError> {
        let (buffer, len) = (self.hops.take()?, passes.message_len(message.micro_batch));
        let arrival = self.links.receive((message.peer, self.stage), buffer, len)?;
        state.arrivals.insert((message.content, message.chunk, message.micro_batch), arrival);
        Ok(())
    }

    fn compute(
        &mut self,
        operation: Operation,
        passes: &mut impl Passes<T>,
        state: &mut State<T>,
    ) -> Result<(), TrainError> {
        let (before, after) = (self.placement.before(operation.chunk), self.placement.after(operation.chunk));
        let (content, from, to) = match operation.kind {
            Kind::F => (Content::Activation, before, after),
            Kind::B | Kind::BW => (Content::Error, after, before),
            Kind::W => (Content::Error, None, None),
        };
        let taken = from.map(|_| self.take((content, operation), passes, state)).transpose()?;
        let begun = Instant::now();
        let made = match operation.kind {
            Kind::F => passes.forward(operation, taken, &mut self.hops)?,
            _ => passes.backward(operation, taken, &mut self.hops)?,
        };
        state.tally.ran(operation, begun, passes.trace());
        match (made, to) {
            (Some(made), Some(to)) => self.hand_over(made, (content, operation, to), passes, state)?,
            (made, _) => made.into_iter().for_each(|unused| self.hops.give(unused)),
        }
        Ok(())
    }

    /// Waits for what an operation takes.
    fn take(
        &self,
        (content, operation): (Content, Operation),
        passes: &mut impl Passes<T>,
        state: &mut State<T>,
    ) -> Result<Buffer<T>, TrainError> {
        let Operation { chunk, micro_batch, .. } = operation;
        let arrival = state.arrivals.remove(&(content, chunk, micro_batch));
        let arrival = arrival.ok_or(TrainError::OutOfOrder { operation })?;
        if let Arrival::Here(buffer) = arrival {
            return Ok(buffer);
        }
        let begun = Instant::now();
        let message = Message { content, chunk, micro_batch, peer: 0 };
        let buffer = arrival.wait(message, passes.trace())?;
        passes.arrived(&buffer);
        state.tally.waited(begun, || format!("for {}", named(message)), passes.trace());
        Ok(buffer)
    }

    /// Hands what an operation made to the chunk that takes it.
    fn hand_over(
        &mut self,
        buffer: Buffer<T>,
        (content, operation, to): (Content, Operation, usize),
        passes: &impl Passes<T>,
        state: &mut State<T>,
    ) -> Result<(), TrainError> {
        let Operation { chunk, micro_batch, .. } = operation;
        let peer = self.placement.place(to);
        if peer == self.stage {
            state.arrivals.insert((content, to, micro_batch), Arrival::Here(buffer));
            return Ok(());
        }
        let (begun, len) = (Instant::now(), passes.message_len(micro_batch));
        let message = Message { content, chunk, micro_batch, peer };
        if let Some(free) = self.links.send((self.stage, message), buffer, len, passes.trace())? {
            self.hops.give(free);
        }
        state.tally.waited(begun, || format!("to send {}", named(message)), passes.trace());
        Ok(())
    }

    /// Its links.
    pub(crate) fn links(&self) -> &Links<T> {
        &self.links
    }
}

/// What a message carries, for a trace.
pub(crate) fn named(Message { content, micro_batch, .. }: Message) -> String {
    let what = if content == Content::Activation { "activation" } else { "error" };
    format!("{what} of micro-batch {micro_batch}")
}

/// What of a list is computation.
pub(crate) fn computations(steps: &[Step]) -> impl Iterator<Item = &Operation> {
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
