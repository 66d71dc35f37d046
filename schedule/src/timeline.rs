//! When each operation runs: at the end of the one before on its rank, or when its input is there, whichever is later.

use crate::{Costs, Kind, Operation, Placement};

/// An operation in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// What runs.
    pub operation: Operation,
    /// From when.
    pub start: f64,
    /// Until when.
    pub end: f64,
}

/// All operations in time, by rank and in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    ranks: Vec<Vec<Span>>,
}

impl Timeline {
    /// What a rank runs.
    pub fn rank(&self, rank: usize) -> &[Span] {
        &self.ranks[rank]
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// From the start of a rank's first operation to the end of its last.
    pub fn span(&self, rank: usize) -> f64 {
        let spans = &self.ranks[rank];
        spans.last().map_or(0.0, |last| last.end - spans[0].start)
    }

    /// The longest span of a rank.
    pub fn cost(&self) -> f64 {
        (0..self.ranks()).map(|rank| self.span(rank)).fold(0.0, f64::max)
    }

    /// The end of the last operation, from the start of the first.
    pub fn length(&self) -> f64 {
        self.ranks.iter().filter_map(|spans| spans.last()).map(|span| span.end).fold(0.0, f64::max)
    }
}

/// When each operation has ended, by operation.
pub(crate) struct Ends {
    at: Vec<f64>,
    micro_batches: usize,
}

impl Ends {
    pub(crate) fn new(placement: &Placement, micro_batches: usize) -> Self {
        Self { at: vec![f64::NAN; 3 * placement.chunks() * micro_batches], micro_batches }
    }

    fn index(&self, operation: Operation) -> usize {
        let kind = match operation.kind {
            Kind::F => 0,
            Kind::B | Kind::BW => 1,
            Kind::W => 2,
        };
        (operation.chunk * 3 + kind) * self.micro_batches + operation.micro_batch
    }

    pub(crate) fn set(&mut self, operation: Operation, end: f64) {
        let index = self.index(operation);
        self.at[index] = end;
    }

    pub(crate) fn get(&self, operation: Operation) -> Option<f64> {
        Some(self.at[self.index(operation)]).filter(|end| !end.is_nan())
    }
}

/// From when an operation can run, or nothing where what it needs has not run yet.
pub(crate) fn ready(operation: Operation, placement: &Placement, comm: f64, ends: &Ends) -> Option<f64> {
    let Operation { kind, chunk, micro_batch } = operation;
    let end = |kind, chunk| ends.get(Operation::new(kind, chunk, micro_batch));
    let neighbour = match kind {
        Kind::F => placement.before(chunk).map(|chunk| (Kind::F, chunk)),
        Kind::B | Kind::BW => placement.after(chunk).map(|chunk| (Kind::B, chunk)),
        Kind::W => None,
    };
    let own = match kind {
        Kind::F => 0.0,
        Kind::B | Kind::BW => end(Kind::F, chunk)?,
        Kind::W => end(Kind::B, chunk)?,
    };
    let Some((kind, other)) = neighbour else { return Some(own) };
    let way = if placement.place(other) == placement.place(chunk) { 0.0 } else { comm };
    Some(own.max(end(kind, other)? + way))
}

/// The chunk whose operation waits for this one, if it is one of another rank.
pub(crate) fn receiver(operation: Operation, placement: &Placement) -> Option<usize> {
    let chunk = match operation.kind {
        Kind::F => placement.after(operation.chunk),
        Kind::B | Kind::BW => placement.before(operation.chunk),
        Kind::W => None,
    };
    chunk.filter(|&chunk| placement.place(chunk) != placement.place(operation.chunk))
}

/// Runs the orders in thought. Nothing, if they never end.
pub(crate) fn simulate(
    placement: &Placement,
    micro_batches: usize,
    orders: &[Vec<Operation>],
    costs: &Costs,
) -> Option<Timeline> {
    let mut ends = Ends::new(placement, micro_batches);
    let mut ranks: Vec<Vec<Span>> = orders.iter().map(|order| Vec::with_capacity(order.len())).collect();
    let mut runnable: Vec<usize> = (0..orders.len()).collect();
    while let Some(rank) = runnable.pop() {
        let spans = &mut ranks[rank];
        while let Some(&operation) = orders[rank].get(spans.len()) {
            let Some(from) = ready(operation, placement, costs.comm, &ends) else { break };
            let start = spans.last().map_or(from, |last| last.end.max(from));
            let end = start + costs.of(operation.kind, placement);
            spans.push(Span { operation, start, end });
            ends.set(operation, end);
            runnable.extend(receiver(operation, placement).map(|chunk| placement.place(chunk)));
        }
    }
    let all = ranks.iter().zip(orders).all(|(spans, order)| spans.len() == order.len());
    all.then_some(Timeline { ranks })
}
