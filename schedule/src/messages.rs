//! Sends and receives for an order of computations.
//!
//! All steps of all ranks are put into one line that respects every dependency, sorted by the time at which they would run; a
//! message enters it as one event, when what it carries is made. Each rank's list is that line without the others' steps. So
//! the step that comes first in the line among those not yet done can always be done, whatever the room for messages: if it
//! is half a message, its other half is its peer's next step as well. No deadlock is possible.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::timeline::{receiver, simulate};
use crate::{Content, Costs, Kind, Message, Operation, Placement, Step};

/// Something that happens at a time: a message first, then what could start by it.
#[derive(PartialEq)]
struct Event {
    time: f64,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Message(Operation),
    Compute(usize),
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then_with(|| self.what.cmp(&other.what))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What two ranks exchange after an operation: the send, the receive and the receiver.
fn exchange(operation: Operation, placement: &Placement) -> Option<(Message, Message)> {
    let to = receiver(operation, placement)?;
    let content = if operation.kind == Kind::F { Content::Activation } else { Content::Error };
    let message = |chunk, peer| Message { content, chunk, micro_batch: operation.micro_batch, peer };
    Some((message(operation.chunk, placement.place(to)), message(to, placement.place(operation.chunk))))
}

/// The orders with the messages between ranks put in, or nothing where the orders cannot be run to their end.
pub fn with_messages(
    placement: &Placement,
    micro_batches: usize,
    orders: &[Vec<Operation>],
    costs: &Costs,
) -> Option<Vec<Vec<Step>>> {
    let timeline = simulate(placement, micro_batches, orders, costs)?;
    let mut lists: Vec<Vec<Step>> = orders.iter().map(|order| Vec::with_capacity(2 * order.len())).collect();
    let mut next = vec![0; orders.len()];
    let mut waiting = vec![true; orders.len()];
    // Two for each chunk and micro-batch: its input, and the error for it.
    let mut arrived = vec![[false; 2]; placement.chunks() * micro_batches];
    let slot = |chunk: usize, micro_batch: usize| chunk * micro_batches + micro_batch;
    let mut line = BinaryHeap::new();
    let enqueue = |rank: usize,
                   next: &[usize],
                   waiting: &mut [bool],
                   arrived: &[[bool; 2]],
                   line: &mut BinaryHeap<Reverse<Event>>| {
        let Some(span) = timeline.rank(rank).get(next[rank]) else { return };
        let Operation { kind, chunk, micro_batch } = span.operation;
        let (from, which) = match kind {
            Kind::F => (placement.before(chunk), 0),
            Kind::B | Kind::BW => (placement.after(chunk), 1),
            Kind::W => (None, 0),
        };
        let remote = from.is_some_and(|from| placement.place(from) != rank);
        if waiting[rank] && (!remote || arrived[slot(chunk, micro_batch)][which]) {
            waiting[rank] = false;
            line.push(Reverse(Event { time: span.start, what: What::Compute(rank) }));
        }
    };
    for rank in 0..orders.len() {
        enqueue(rank, &next, &mut waiting, &arrived, &mut line);
    }
    while let Some(Reverse(event)) = line.pop() {
        let rank = match event.what {
            What::Compute(rank) => {
                let span = timeline.rank(rank)[next[rank]];
                lists[rank].push(Step::Compute(span.operation));
                if receiver(span.operation, placement).is_some() {
                    line.push(Reverse(Event { time: span.end, what: What::Message(span.operation) }));
                }
                next[rank] += 1;
                waiting[rank] = true;
                rank
            }
            What::Message(operation) => {
                let (send, recv) = exchange(operation, placement)?;
                lists[recv.peer].push(Step::Send(send));
                lists[send.peer].push(Step::Recv(recv));
                arrived[slot(recv.chunk, recv.micro_batch)][usize::from(recv.content == Content::Error)] = true;
                send.peer
            }
        };
        enqueue(rank, &next, &mut waiting, &arrived, &mut line);
    }
    Some(lists)
}
