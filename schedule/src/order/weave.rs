//! Gradients of weights woven into an order of forwards and backwards: each waits until its rank would be idle or lacks memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::timeline::Ends;
use crate::{Costs, Kind, Operation, Placement, Span, Timeline};

/// Times in a heap.
#[derive(PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// When a rank does something else than the next of its order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    /// Most activations of a chunk on it.
    pub(super) limit: usize,
    /// A gap is filled if it is at least this share of a W.
    pub(super) fill: f64,
}

#[derive(Default)]
struct Rank {
    next: usize,
    held: usize,
    free: f64,
    weights: VecDeque<Operation>,
    spans: Vec<Span>,
}

/// The orders with all W put in, in time, or nothing where they do not end within the memory. `base` holds F and B alone.
pub(super) fn weave(
    placement: &Placement,
    micro_batches: usize,
    costs: &Costs,
    base: &[Vec<Operation>],
    rules: &[Rules],
) -> Option<Timeline> {
    let mut ends = Ends::new(placement, micro_batches, costs);
    let mut ranks: Vec<Rank> = base.iter().map(|_| Rank::default()).collect();
    let mut wake: BinaryHeap<_> = (0..base.len()).map(|rank| Reverse((Time(0.0), rank))).collect();
    while let Some(Reverse((Time(now), index))) = wake.pop() {
        let rank = &mut ranks[index];
        if rank.free > now {
            continue;
        }
        let next = base[index].get(rank.next).copied();
        let from = next.and_then(|next| ends.ready(next));
        let full = next.is_some_and(|next| next.kind == Kind::F) && rank.held >= rules[index].limit;
        let gap = if full { f64::INFINITY } else { from.map_or(f64::INFINITY, |from| from - now) };
        let operation = if gap <= 0.0 {
            rank.next += 1;
            next
        } else if gap >= rules[index].fill * ends.length(Kind::W) {
            rank.weights.pop_front()
        } else {
            None
        };
        let Some(operation) = operation else { continue };
        match operation.kind {
            Kind::F => rank.held += 1,
            Kind::B | Kind::BW => rank.weights.push_back(Operation { kind: Kind::W, ..operation }),
            Kind::W => rank.held -= 1,
        }
        let end = ends.run(operation, now);
        rank.free = end;
        rank.spans.push(Span { operation, start: now, end });
        wake.push(Reverse((Time(end), index)));
        if let Some(receiver) = ends.receiver(operation)
            && ranks[receiver].free <= end + costs.comm
        {
            wake.push(Reverse((Time(end + costs.comm), receiver)));
        }
    }
    let whole = |(rank, base): (&Rank, &Vec<Operation>)| rank.next == base.len() && rank.weights.is_empty();
    let all = ranks.iter().zip(base).all(whole);
    all.then(|| Timeline::new(ranks.into_iter().map(|rank| rank.spans).collect()))
}
