//! Gradients of weights woven into an order of forwards and backwards: each waits until its rank would be idle or lacks memory.

use std::collections::VecDeque;

use super::base::{Base, Turn};
use crate::timeline::Ends;
use crate::{Costs, Kind, Operation, Span, Timeline};

/// What each rank does next, and when it does a W instead.
#[derive(Clone)]
pub(super) struct Plan {
    /// By rank: F and B alone.
    pub(super) turns: Vec<Vec<Turn>>,
    /// By rank: in the tail a gap is filled if it is at least this share of a W. Before it every gap is.
    pub(super) fills: Vec<f64>,
    /// By rank: the turn from which on it is the tail.
    pub(super) tails: Vec<usize>,
}

impl Plan {
    fn fill(&self, rank: usize, turn: usize) -> f64 {
        if turn < self.tails[rank] { LEAST } else { self.fills[rank] }
    }

    /// The turn of a rank from which on two plans differ.
    fn parting(&self, other: &Self, rank: usize) -> usize {
        let mut pairs = self.turns[rank].iter().zip(&other.turns[rank]);
        let turn = pairs.position(|(one, other)| one != other).unwrap_or(usize::MAX);
        let same = (self.fills[rank], self.tails[rank]) == (other.fills[rank], other.tails[rank]);
        if same { turn } else { turn.min(self.tails[rank]).min(other.tails[rank]) }
    }
}

/// The share of a W below which a gap is rounding and no gap.
pub(super) const LEAST: f64 = 0.02;

/// A plan in time.
#[derive(Clone)]
pub(super) struct Woven {
    pub(super) plan: Plan,
    pub(super) timeline: Timeline,
    /// The sum of the fourth powers of the ranks' idle times: the longest counts most, and none is forgotten.
    pub(super) badness: f64,
    /// The loom on the way, for plans that begin the same.
    marks: Vec<Loom>,
}

impl Woven {
    /// Marks its way at each eighth, for the plans that come after it. Marks of a plan before it are taken over where they go for
    /// this one too.
    pub(super) fn marked(mut self, base: &Base, costs: &Costs, before: Option<Woven>) -> Self {
        self.marks = before.map_or_else(Vec::new, |mut before| {
            before.marks.truncate(before.shared(&self.plan));
            before.marks
        });
        let mut loom = self.marks.last().cloned().unwrap_or_else(|| Loom::new(base, costs));
        while loom.step(base, &self.plan) {
            if self.marks.len() < loom.steps * 8 / (base.operations() + 1) {
                self.marks.push(loom.clone());
            }
        }
        self
    }

    /// How many of its marks lie before all that another plan does otherwise.
    fn shared(&self, plan: &Plan) -> usize {
        let parting: Vec<usize> = (0..plan.turns.len()).map(|rank| plan.parting(&self.plan, rank)).collect();
        let before = |mark: &&Loom| mark.ranks.iter().zip(&parting).all(|(rank, parting)| rank.turn < *parting);
        self.marks.iter().take_while(before).count()
    }
}

#[derive(Clone, Default)]
struct Rank {
    free: f64,
    idle: f64,
    held: usize,
    turn: usize,
    /// By chunk of the rank: forwards and backwards so far.
    done: [[usize; 2]; 2],
    weights: VecDeque<Operation>,
    spans: Vec<Span>,
}

/// A plan as it is woven.
#[derive(Clone)]
struct Loom {
    ends: Ends,
    /// By rank: when it decides again what to do; infinity while it waits for something that nobody has begun.
    wakes: Vec<f64>,
    ranks: Vec<Rank>,
    comm: f64,
    steps: usize,
    badness: f64,
}

/// The plan in time with all W put in, or nothing where it does not end within the memory, or is worse than `worst`. A plan that
/// is nearly `like` another takes up where they part.
pub(super) fn weave(base: &Base, costs: &Costs, plan: Plan, worst: f64, like: Option<&Woven>) -> Option<Woven> {
    let mark = like.and_then(|like| like.marks[..like.shared(&plan)].last());
    let mut loom = mark.cloned().unwrap_or_else(|| Loom::new(base, costs));
    while loom.step(base, &plan) {
        if loom.badness > worst {
            return None;
        }
    }
    let whole = |(rank, turns): (&Rank, &Vec<Turn>)| rank.turn == turns.len() && rank.weights.is_empty();
    let all = loom.ranks.iter().zip(&plan.turns).all(whole);
    let timeline = all.then(|| Timeline::new(loom.ranks.into_iter().map(|rank| rank.spans).collect()))?;
    Some(Woven { plan, timeline, badness: loom.badness, marks: Vec::new() })
}

impl Loom {
    fn new(base: &Base, costs: &Costs) -> Self {
        let ends = Ends::new(&base.placement, base.micro_batches, costs);
        let ranks = vec![Rank::default(); base.placement.ranks()];
        Self { ends, wakes: vec![0.0; ranks.len()], ranks, comm: costs.comm, steps: 0, badness: 0.0 }
    }

    /// The rank that decides next does so. False where all are done, or wait for what never comes.
    fn step(&mut self, base: &Base, plan: &Plan) -> bool {
        let wakes = self.wakes.iter().copied().enumerate();
        let Some((index, now)) = wakes.reduce(|best, next| if next.1 < best.1 { next } else { best }) else {
            return false;
        };
        if now == f64::INFINITY {
            return false;
        }
        match self.choose(base, plan, index, now) {
            Ok(operation) => self.run(base, index, operation, now),
            Err(wake) => self.wakes[index] = wake,
        }
        true
    }

    /// What a rank does now, or when it decides again.
    fn choose(&mut self, base: &Base, plan: &Plan, index: usize, now: f64) -> Result<Operation, f64> {
        let rank = &mut self.ranks[index];
        let next = plan.turns[index].get(rank.turn).map(|&(kind, chunk)| {
            Operation::new(kind, base.chunks[index][chunk], rank.done[chunk][usize::from(kind.makes_error())])
        });
        let fits = |next: &Operation| next.kind != Kind::F || rank.held < base.limit;
        let from = next.filter(fits).and_then(|next| self.ends.ready(next)).unwrap_or(f64::INFINITY);
        if from <= now {
            return next.ok_or(from);
        }
        let worth = from - now >= plan.fill(index, rank.turn) * self.ends.length(Kind::W);
        worth.then(|| rank.weights.pop_front()).flatten().ok_or(from)
    }

    fn run(&mut self, base: &Base, index: usize, operation: Operation, now: f64) {
        let rank = &mut self.ranks[index];
        let chunk = usize::from(operation.chunk != base.chunks[index][0]);
        match operation.kind {
            Kind::F => rank.held += 1,
            Kind::B | Kind::BW => rank.weights.push_back(Operation { kind: Kind::W, ..operation }),
            Kind::W => rank.held -= 1,
        }
        if operation.kind != Kind::W {
            rank.turn += 1;
            rank.done[chunk][usize::from(operation.kind.makes_error())] += 1;
        }
        if now > rank.free && !rank.spans.is_empty() {
            self.badness -= fourth(rank.idle);
            rank.idle += now - rank.free;
            self.badness += fourth(rank.idle);
        }
        let end = self.ends.run(operation, now);
        (rank.free, self.wakes[index]) = (end, end);
        rank.spans.push(Span { operation, start: now, end });
        self.steps += 1;
        // One that is busy, or knows how long it waits, decides later anyway.
        if let Some(receiver) = self.ends.receiver(operation)
            && self.wakes[receiver] == f64::INFINITY
        {
            self.wakes[receiver] = self.ranks[receiver].free.max(end + self.comm);
        }
    }
}

fn fourth(time: f64) -> f64 {
    time * time * time * time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_takes_up_where_it_parts_from_another_comes_out_as_from_the_start() {
        let costs = Costs { forward: 3.0, backward: 2.9, weight: 1.7, comm: 0.2 };
        let base = Base::vee(4, 24, 16);
        let plan = Plan { turns: base.filled(&costs, [0.5; 2]), fills: vec![0.5; 4], tails: vec![48; 4] };
        let woven =
            weave(&base, &costs, plan.clone(), f64::INFINITY, None).expect("it ends").marked(&base, &costs, None);
        assert_eq!(woven.marks.len(), 7);
        let mut taken_up = 0;
        for at in 0..95 {
            let mut moved = plan.clone();
            moved.turns[at % 4].swap(at, at + 1);
            moved.fills[at % 3] = if at > 90 { LEAST } else { 0.5 };
            taken_up += usize::from(woven.shared(&moved) > 0);
            let timeline = |like| weave(&base, &costs, moved.clone(), f64::INFINITY, like).map(|woven| woven.timeline);
            assert_eq!(timeline(Some(&woven)), timeline(None), "turn {at}");
        }
        assert!(taken_up > 60, "{taken_up}");
    }
}
