//! The search behind `auto`: the named schedules that fit, and orders of turns in which each W waits for a gap, the turns moved at
//! random; the best of them by cost. Every number of tries is fixed, and so are the random ones, so that the same
//! question has the same answer on all ranks and machines.

use super::base::{Base, Turn, nth};
use super::weave::{LEAST, Plan, Woven, weave};
use super::{Orders, make};
use crate::timeline::simulate;
use crate::{Costs, Kind, Name, Operation, Placement, ScheduleError};

/// How many looks at ranks a search takes: a few seconds.
const EFFORT: usize = 3_000_000_000;
/// The most orders that a search tries.
const TRIES: usize = 40_000;
/// Too few to be worth trying.
const FEW: usize = 500;
/// A rate of bubbles that is not worth a search.
const SMALL: f64 = 1e-5;
/// How far from a gap a turn is moved.
const NEAR: usize = 8;
/// Shares of a W: from which size on a rank fills its gaps.
const FILLS: [f64; 7] = [LEAST, 0.2, 0.33, 0.4, 0.5, 0.75, 1.0];
/// How many short searches there are.
const STARTS: usize = 4;

/// The best orders for these costs, within so many micro-batches of one stage (twice those of 1F1B if nothing is said).
pub(super) fn auto(
    p: usize,
    m: usize,
    v: Option<usize>,
    costs: &Costs,
    memory: Option<usize>,
) -> Result<(Placement, Orders, String), ScheduleError> {
    let limit = memory.unwrap_or(2 * p).min(m);
    let mut best: Option<Found> = None;
    let mut least: Option<(usize, usize)> = None;
    for name in [Name::OneForwardOneBackward, Name::GPipe, Name::ZbH1, Name::ZbH2, Name::Interleaved, Name::ZbV] {
        let own = match name {
            Name::Interleaved => v.unwrap_or(2),
            Name::ZbV => 2,
            _ => 1,
        };
        if v.is_some_and(|v| v != own) || (name == Name::Interleaved && own == 1) {
            continue;
        }
        let (placement, orders, title) = make(name, p, m, (own > 1).then_some(own), costs, None)?;
        let (held, per_stage) = (most_held(&orders), placement.chunks_per_stage());
        if least.is_none_or(|(least, of)| held * of < least * per_stage) {
            least = Some((held, per_stage));
        }
        if held <= limit * per_stage {
            Found::keep(&mut best, Found::new(placement, m, costs, orders, title));
        }
    }
    if limit > 0 {
        // The start says which placement is worth the search.
        let one = v.is_none_or(|v| v == 1).then(|| Base::round(p, m, limit));
        let two = v.is_none_or(|v| v == 2).then(|| Base::vee(p, m, 2 * limit));
        let starts = [one, two].into_iter().flatten().filter_map(|base| {
            let search = Search::new(base, costs);
            search.start().map(|start| (search, start))
        });
        if let Some((search, start)) = starts.min_by(|a, b| a.1.timeline.cost().total_cmp(&b.1.timeline.cost())) {
            Found::keep(&mut best, search.run(start));
        }
    }
    best.map(|found| (found.placement, found.orders, found.title)).ok_or_else(|| {
        // One chunk a rank goes with one micro-batch at a time.
        let (held, of) = if v.is_none_or(|v| v == 1) { (1, 1) } else { least.unwrap_or((1, 1)) };
        let needed = if of == 1 { held.to_string() } else { format!("{held}/{of}") };
        let fix = format!("allow {}{}", held.div_ceil(of), if of > 1 { ", or leave v out" } else { "" });
        ScheduleError::Memory { name: Name::Auto, needed, limit: memory.unwrap_or(limit), fix }
    })
}

/// Orders and what they cost.
struct Found {
    placement: Placement,
    orders: Orders,
    title: String,
    cost: f64,
}

impl Found {
    fn new(placement: Placement, m: usize, costs: &Costs, orders: Orders, title: String) -> Option<Self> {
        let cost = simulate(&placement, m, &orders, costs)?.cost();
        Some(Self { placement, orders, title, cost })
    }

    /// Keeps the better of two; the one that was there, if they are equal up to rounding.
    fn keep(best: &mut Option<Self>, new: Option<Self>) {
        if let Some(new) = new
            && best.as_ref().is_none_or(|best| new.cost < best.cost * (1.0 - 1e-12))
        {
            *best = Some(new);
        }
    }
}

/// The most activations that a rank holds.
fn most_held(orders: &[Vec<Operation>]) -> usize {
    let held = |order: &Vec<Operation>| {
        let mut now = 0usize;
        let counts = order.iter().map(|operation| {
            now += usize::from(operation.kind == Kind::F);
            let held = now;
            now -= usize::from(operation.kind.frees());
            held
        });
        counts.max().unwrap_or(0)
    };
    orders.iter().map(held).max().unwrap_or(0)
}

struct Search<'a> {
    base: Base,
    costs: &'a Costs,
    work: f64,
    random: Random,
}

impl<'a> Search<'a> {
    fn new(base: Base, costs: &'a Costs) -> Self {
        let work = base.micro_batches as f64 * costs.compute();
        Self { base, costs, work, random: Random(0x9E37_79B9_7F4A_7C15) }
    }

    fn weave(&self, plan: Plan, worst: f64, like: Option<&Woven>) -> Option<Woven> {
        weave(&self.base, self.costs, plan, worst, like)
    }

    /// The best of the orders to start from: waits at the start filled, rounded this way and that.
    fn start(&self) -> Option<Woven> {
        let (p, m) = (self.base.placement.ranks(), self.base.micro_batches);
        let tail = 2 * self.base.placement.chunks_per_rank() * m.saturating_sub(2 * p).max(m / 2);
        let mut best: Option<Woven> = None;
        let mut attempt = |turns, fill| {
            let worst = best.as_ref().map_or(f64::INFINITY, |best: &Woven| best.badness);
            let plan = Plan { turns, fills: vec![fill; p], tails: vec![tail; p] };
            let new = self.weave(plan, worst, None);
            let better = new.is_some();
            best = new.or(best.take());
            better
        };
        let mut more = [0.0; 2];
        for (one, other) in (0..5).flat_map(|one| (0..5).map(move |other| (one, other))) {
            let rounding = [one, other].map(|more| f64::from(more) / 4.0);
            if attempt(self.base.filled(self.costs, rounding), LEAST) {
                more = rounding;
            }
        }
        let turns = self.base.filled(self.costs, more);
        for fill in FILLS {
            for (late, early) in (0..3).flat_map(|late| (0..4).map(move |early| (late, early))) {
                attempt(self.base.hurried(turns.clone(), [late, early]), fill);
            }
        }
        best
    }

    /// The best of some short searches, searched on.
    fn run(mut self, start: Woven) -> Option<Found> {
        // Each operation looks at all ranks for the one that comes next.
        let tries = EFFORT / (self.base.operations() * (8 + self.base.placement.ranks()));
        let tries = if tries < FEW { 0 } else { tries.min(TRIES) };
        let first = (0..STARTS).map(|_| self.improve(start.clone(), tries / 2 / STARTS));
        let first = first.min_by(|one, other| one.timeline.cost().total_cmp(&other.timeline.cost()))?;
        let best = self.improve(first, tries / 2);
        let order = |rank| best.timeline.rank(rank).iter().map(|span| span.operation).collect();
        let orders = (0..best.timeline.ranks()).map(order).collect();
        let Base { placement, micro_batches, .. } = self.base;
        let title =
            if placement.chunks_per_rank() == 1 { "auto: one chunk a rank" } else { "auto: two chunks a rank in a V" };
        Found::new(placement, micro_batches, self.costs, orders, title.to_owned())
    }

    /// Turns moved at random, as long as it does not get worse; the cheapest on the way.
    fn improve(&mut self, start: Woven, tries: usize) -> Woven {
        if tries == 0 {
            return start;
        }
        let (mut now, mut best) = (start.clone().marked(&self.base, self.costs, None), start);
        for _ in 0..tries {
            if best.timeline.cost() - self.work <= SMALL * self.work {
                break;
            }
            let Some(moved) = self.moved(&now) else { continue };
            if let Some(new) = self.weave(moved, now.badness, Some(&now)) {
                now = new.marked(&self.base, self.costs, Some(now));
                if now.timeline.cost() < best.timeline.cost() {
                    best = now.clone();
                }
            }
        }
        best
    }

    /// A turn moved to where another stands, one of the two near a gap of some rank; on one rank or on several, since what holds
    /// up a micro-batch on one holds it up on all. Sometimes another choice of the gaps that are filled.
    fn moved(&mut self, from: &Woven) -> Option<Plan> {
        let ranks = from.timeline.ranks();
        let rank = self.random.below(ranks);
        let mut plan = from.plan.clone();
        if self.random.below(8) == 0 {
            match self.random.below(2) {
                0 => plan.tails[rank] = self.near_gap(from, rank)?,
                _ => plan.fills[rank] = FILLS[self.random.below(FILLS.len())],
            }
            return Some(plan);
        }
        let at = self.near_gap(from, rank)?;
        let last = plan.turns[rank].len() - 1;
        let to = if self.random.below(4) == 0 { self.random.below(last + 1) } else { self.random.near(at, last) };
        let (at, to) = if self.random.below(2) == 0 { (at, to) } else { (to, at) };
        let (moved, mark) = (which(&plan.turns[rank], at), which(&plan.turns[rank], to));
        let other = if self.random.below(4) == 0 { rank } else { self.random.below(ranks) };
        for turns in &mut plan.turns[rank.min(other)..=rank.max(other)] {
            let (Some(at), Some(to)) = (nth(turns, moved.0, moved.1), nth(turns, mark.0, mark.1)) else { continue };
            let turn = turns.remove(at);
            turns.insert(to, turn);
        }
        (plan.turns != from.plan.turns).then_some(plan)
    }

    /// A turn of a rank at about the time of a gap, of the rank that idles most or any other.
    fn near_gap(&mut self, woven: &Woven, rank: usize) -> Option<usize> {
        let timeline = &woven.timeline;
        let ranks = timeline.ranks();
        let worst = (0..ranks).max_by(|&a, &b| timeline.span(a).total_cmp(&timeline.span(b)))?;
        let idle = if self.random.below(2) == 0 { worst } else { self.random.below(ranks) };
        let least = LEAST * self.costs.of(Kind::W, &self.base.placement);
        let gaps = timeline.rank(idle).windows(2).filter(|spans| spans[1].start - spans[0].end > least);
        let gaps: Vec<f64> = gaps.map(|spans| spans[1].start).collect();
        let time = *gaps.get(self.random.below(gaps.len()))?;
        let before = timeline.rank(rank).iter().take_while(|span| span.start < time);
        let turn = before.filter(|span| span.operation.kind != Kind::W).count();
        Some(self.random.near(turn, woven.plan.turns[rank].len() - 1))
    }
}

/// The turn that stands there, and how many like it stand before.
fn which(turns: &[Turn], at: usize) -> (Turn, usize) {
    (turns[at], turns[..at].iter().filter(|turn| **turn == turns[at]).count())
}

/// Xorshift (Marsaglia 2003): the same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// A place near another, at most `last`.
    fn near(&mut self, place: usize, last: usize) -> usize {
        (place + self.below(2 * NEAR + 1)).saturating_sub(NEAR).min(last)
    }
}
