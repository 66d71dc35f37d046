//! The search behind `auto`: the named schedules that fit, and orders in which each W waits for a gap, with the levers of each
//! rank set by trying; the best of them by cost. Every number of tries is fixed, and so are the random ones, so that the same
//! question has the same answer on all ranks and machines.

use super::levers::{Base, FILLS, Levers};
use super::weave::{Rules, weave};
use super::{Orders, make};
use crate::timeline::simulate;
use crate::{Costs, Kind, Name, Operation, Placement, ScheduleError, Timeline};

/// How many operations a search runs in thought: some seconds.
const EFFORT: usize = 6_000_000;
/// A rate of bubbles that is not worth a search.
const SMALL: f64 = 1e-5;

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
        // The coarse search says which placement is worth the fine one.
        let one = v.is_none_or(|v| v == 1).then(|| Base::round(p, m, limit));
        let two = v.is_none_or(|v| v == 2).then(|| Base::vee(p, m, 2 * limit));
        let coarse = [one, two].into_iter().flatten().filter_map(|base| {
            let search = Search::new(base, costs);
            search.grid().map(|found| (search, found))
        });
        if let Some((search, found)) = coarse.min_by(|a, b| a.1.1.1.total_cmp(&b.1.1.1)) {
            Found::keep(&mut best, search.run(found));
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

/// How good orders are: all ranks' idle times, in which the longest counts by far the most, and the cost.
type Score = (f64, f64);

/// What is tried: the order of F and B, and when gaps are filled.
#[derive(Clone)]
struct Try {
    base: Orders,
    fills: Vec<usize>,
}

struct Search<'a> {
    base: Base,
    costs: &'a Costs,
    work: f64,
    tries: usize,
    random: Random,
}

impl<'a> Search<'a> {
    fn new(base: Base, costs: &'a Costs) -> Self {
        let work = base.micro_batches as f64 * costs.compute();
        let operations = 3 * base.placement.chunks() * base.micro_batches;
        let tries = EFFORT / operations;
        Self { base, costs, work, tries, random: Random(0x9E37_79B9_7F4A_7C15) }
    }

    /// Refines what the grid has found.
    fn run(mut self, (mut levers, mut score): (Vec<Levers>, Score)) -> Option<Found> {
        self.tune(&mut levers, &mut score);
        let fills = levers.iter().map(|levers| levers.fill).collect();
        let best = self.mend(Try { base: self.base.pulled(&levers), fills })?;
        let (timeline, _) = self.score(&best)?;
        let order = |rank| timeline.rank(rank).iter().map(|span| span.operation).collect();
        let orders = (0..timeline.ranks()).map(order).collect();
        let chunks = self.base.placement.chunks_per_rank();
        let title = if chunks == 1 { "auto: one chunk a rank" } else { "auto: two chunks a rank in a V" }.to_owned();
        Found::new(self.base.placement, self.base.micro_batches, self.costs, orders, title)
    }

    fn score(&self, attempt: &Try) -> Option<(Timeline, Score)> {
        let Base { placement, micro_batches, limit, .. } = self.base;
        let rules: Vec<Rules> = attempt.fills.iter().map(|&fill| Rules { limit, fill: FILLS[fill] }).collect();
        let timeline = weave(&placement, micro_batches, self.costs, &attempt.base, &rules)?;
        let idle = |rank| ((timeline.span(rank) - self.work) / self.costs.compute()).max(0.0).powi(6);
        let score = ((0..timeline.ranks()).map(idle).sum(), timeline.cost());
        Some((timeline, score))
    }

    fn score_of(&self, levers: &[Levers]) -> Option<Score> {
        let fills = levers.iter().map(|levers| levers.fill).collect();
        self.score(&Try { base: self.base.pulled(levers), fills }).map(|(_, score)| score)
    }

    fn is_good(&self, (_, cost): Score) -> bool {
        cost - self.work <= SMALL * cost
    }

    /// Levers as the waits at both ends suggest them, rounded this way and that.
    fn grid(&self) -> Option<(Vec<Levers>, Score)> {
        let mut best: Option<(Vec<Levers>, Score)> = None;
        for fill in [0, 3] {
            for rounding in 0..25 {
                for behind in [false, true] {
                    let (near, all) = ((rounding % 5) as f64 / 4.0, (rounding / 5) as f64 / 4.0);
                    let levers: Vec<Levers> = (0..self.base.placement.ranks())
                        .map(|rank| self.suggested(rank, [near, all], behind, fill))
                        .collect();
                    let Some(score) = self.score_of(&levers) else { continue };
                    if best.as_ref().is_none_or(|(_, best)| score < *best) {
                        best = Some((levers, score));
                    }
                }
            }
        }
        best
    }

    /// As many operations of a chunk as fit the wait that communication (and with one chunk a rank, other stages) makes.
    fn suggested(&self, rank: usize, rounding: [f64; 2], behind: bool, fill: usize) -> Levers {
        let placement = &self.base.placement;
        let stages = placement.ranks() - 1;
        let after = (stages - rank) as f64;
        let Costs { forward, backward, comm, .. } = *self.costs;
        if placement.chunks_per_rank() == 1 {
            let wait = after * (backward + 2.0 * comm) / forward;
            let room = self.base.limit.saturating_sub((stages - rank).min(self.base.limit - 1) + 1);
            return Levers { ahead: [((wait + rounding[0]) as usize).min(room), 0], behind: [0; 2], fill };
        }
        let fits = |length: f64| {
            let count = |ranks: f64, more: f64| (ranks * 2.0 * comm / (length / 2.0) + more) as usize;
            let first = count(after, rounding[0]).min(self.base.micro_batches);
            [first, count(stages as f64, rounding[1]).min(self.base.micro_batches).saturating_sub(first)]
        };
        Levers { ahead: fits(forward), behind: if behind { fits(backward) } else { [0; 2] }, fill }
    }

    /// Levers moved at random, as long as it does not get worse.
    fn tune(&mut self, levers: &mut Vec<Levers>, score: &mut Score) {
        for _ in 0..(self.tries / 3).min(4000) {
            if self.is_good(*score) {
                return;
            }
            let mut moved = levers.clone();
            for _ in 0..=self.random.below(3) {
                let rank = self.random.below(moved.len());
                let step = |count: usize, random: &mut Random| (count + random.below(3)).saturating_sub(1);
                let lever = &mut moved[rank];
                match self.random.below(5) {
                    0 => lever.fill = self.random.below(FILLS.len()),
                    1 | 2 => {
                        let which = self.random.below(2);
                        lever.ahead[which] = step(lever.ahead[which], &mut self.random);
                    }
                    _ => {
                        let which = self.random.below(2);
                        lever.behind[which] = step(lever.behind[which], &mut self.random);
                    }
                }
            }
            if let Some(new) = self.score_of(&moved).filter(|new| new <= score) {
                (*levers, *score) = (moved, new);
            }
        }
    }

    /// Operations near a gap moved at random, as long as it does not get worse.
    fn mend(&mut self, mut best: Try) -> Option<Try> {
        let (mut timeline, mut score) = self.score(&best)?;
        for _ in 0..(self.tries / 2).min(20_000) {
            if self.is_good(score) {
                break;
            }
            let Some(moved) = self.moved(&best, &timeline) else { continue };
            if let Some((new_timeline, new)) = self.score(&moved).filter(|(_, new)| *new <= score) {
                (best, timeline, score) = (moved, new_timeline, new);
            }
        }
        Some(best)
    }

    fn moved(&mut self, from: &Try, timeline: &Timeline) -> Option<Try> {
        let ranks = timeline.ranks();
        let worst = (0..ranks).max_by(|&a, &b| timeline.span(a).total_cmp(&timeline.span(b)))?;
        let rank = if self.random.below(2) == 0 { worst } else { self.random.below(ranks) };
        let gap = |spans: &&[crate::Span]| spans[1].start > spans[0].end && spans[1].operation.kind != Kind::W;
        let gaps: Vec<Operation> = timeline.rank(rank).windows(2).filter(gap).map(|spans| spans[1].operation).collect();
        let late = *gaps.get(self.random.below(gaps.len().max(1)))?;
        let at = from.base[rank].iter().position(|operation| *operation == late)?;
        let mut moved = from.clone();
        let order = &mut moved.base[rank];
        let far = 1 + self.random.below(6);
        match self.random.below(4) {
            0 => moved.fills[rank] = self.random.below(FILLS.len()),
            1 | 2 if at + far < order.len() => {
                let operation = order.remove(at + far);
                order.insert(at, operation);
            }
            _ => {
                let operation = order.remove(at.saturating_sub(far));
                order.insert(at, operation);
            }
        }
        Some(moved)
    }
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
}
