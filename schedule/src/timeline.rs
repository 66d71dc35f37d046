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
    pub(crate) fn new(ranks: Vec<Vec<Span>>) -> Self {
        Self { ranks }
    }

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

/// A chunk among its neighbours: the search asks too often to work it out each time.
#[derive(Clone, Copy)]
struct Links {
    rank: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// When each operation has ended, by operation.
#[derive(Clone)]
pub(crate) struct Ends {
    at: Vec<f64>,
    micro_batches: usize,
    links: Vec<Links>,
    /// F, B, W, BW in one chunk.
    lengths: [f64; 4],
    comm: f64,
}

impl Ends {
    pub(crate) fn new(placement: &Placement, micro_batches: usize, costs: &Costs) -> Self {
        let links = |chunk| Links {
            rank: placement.place(chunk),
            before: placement.before(chunk),
            after: placement.after(chunk),
        };
        Self {
            at: vec![f64::NAN; 3 * placement.chunks() * micro_batches],
            micro_batches,
            links: (0..placement.chunks()).map(links).collect(),
            lengths: [Kind::F, Kind::B, Kind::W, Kind::BW].map(|kind| costs.of(kind, placement)),
            comm: costs.comm,
        }
    }

    fn index(&self, operation: Operation) -> usize {
        let kind = match operation.kind {
            Kind::F => 0,
            Kind::B | Kind::BW => 1,
            Kind::W => 2,
        };
        (operation.chunk * 3 + kind) * self.micro_batches + operation.micro_batch
    }

    fn get(&self, kind: Kind, chunk: usize, micro_batch: usize) -> Option<f64> {
        let end = self.at[self.index(Operation { kind, chunk, micro_batch })];
        if end.is_nan() { None } else { Some(end) }
    }

    /// How long an operation of this kind takes.
    pub(crate) fn length(&self, kind: Kind) -> f64 {
        match kind {
            Kind::F => self.lengths[0],
            Kind::B => self.lengths[1],
            Kind::W => self.lengths[2],
            Kind::BW => self.lengths[3],
        }
    }

    /// Runs an operation from a time on; when it ends.
    pub(crate) fn run(&mut self, operation: Operation, start: f64) -> f64 {
        let end = start + self.length(operation.kind);
        let index = self.index(operation);
        self.at[index] = end;
        end
    }

    /// From when an operation can run, or nothing where what it needs has not run yet.
    pub(crate) fn ready(&self, operation: Operation) -> Option<f64> {
        let Operation { kind, chunk, micro_batch } = operation;
        let links = self.links[chunk];
        let (own, neighbour) = match kind {
            Kind::F => (0.0, links.before.map(|chunk| (Kind::F, chunk))),
            Kind::B | Kind::BW => (self.get(Kind::F, chunk, micro_batch)?, links.after.map(|chunk| (Kind::B, chunk))),
            Kind::W => (self.get(Kind::B, chunk, micro_batch)?, None),
        };
        let Some((kind, other)) = neighbour else { return Some(own) };
        let way = if self.links[other].rank == links.rank { 0.0 } else { self.comm };
        Some(own.max(self.get(kind, other, micro_batch)? + way))
    }

    /// The rank that waits for the result of this operation, if it is another one.
    pub(crate) fn receiver(&self, operation: Operation) -> Option<usize> {
        let links = self.links[operation.chunk];
        let chunk = match operation.kind {
            Kind::F => links.after,
            Kind::B | Kind::BW => links.before,
            Kind::W => None,
        };
        chunk.map(|chunk| self.links[chunk].rank).filter(|&rank| rank != links.rank)
    }
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
    let mut ends = Ends::new(placement, micro_batches, costs);
    let mut ranks: Vec<Vec<Span>> = orders.iter().map(|order| Vec::with_capacity(order.len())).collect();
    let mut runnable: Vec<usize> = (0..orders.len()).collect();
    while let Some(rank) = runnable.pop() {
        let spans = &mut ranks[rank];
        while let Some(&operation) = orders[rank].get(spans.len()) {
            let Some(from) = ends.ready(operation) else { break };
            let start = spans.last().map_or(from, |last| last.end.max(from));
            let end = ends.run(operation, start);
            spans.push(Span { operation, start, end });
            runnable.extend(ends.receiver(operation));
        }
    }
    let all = ranks.iter().zip(orders).all(|(spans, order)| spans.len() == order.len());
    all.then_some(Timeline { ranks })
}
