//! Orders of forwards and backwards that the search starts from: those of 1F1B (one chunk a rank) or ZB-V, with a few forwards
//! ahead of their turn.

use super::{Orders, fused, vee};
use crate::{Costs, Kind, Operation, Placement, Shape};

/// A turn of a rank: F or B of one of its chunks (0 the nearest to the input), for the next micro-batch. An order of turns stays an
/// order wherever one is moved to.
pub(super) type Turn = (Kind, usize);

/// Forwards and backwards alone, within a limit of activations of a chunk.
pub(super) struct Base {
    pub(super) placement: Placement,
    pub(super) micro_batches: usize,
    pub(super) limit: usize,
    /// By rank: its chunks.
    pub(super) chunks: Vec<Vec<usize>>,
    turns: Vec<Vec<Turn>>,
}

impl Base {
    /// 1F1B with at most `limit` forwards before the first backward.
    pub(super) fn round(p: usize, m: usize, limit: usize) -> Self {
        let orders = fused::warmed(p, m, |stage| (p - stage - 1).min(limit - 1));
        Self::new(Placement::new(Shape::Round, p, 1), m, limit, orders)
    }

    /// ZB-V.
    pub(super) fn vee(p: usize, m: usize, limit: usize) -> Self {
        Self::new(Placement::new(Shape::Vee, p, 2), m, limit, vee::order(p, m))
    }

    fn new(placement: Placement, micro_batches: usize, limit: usize, orders: Orders) -> Self {
        let chunks: Vec<Vec<usize>> = (0..placement.ranks()).map(|rank| placement.chunks_of(rank).collect()).collect();
        let turn = |chunks: &[usize], operation: &Operation| {
            let kind = if operation.kind == Kind::F { Kind::F } else { Kind::B };
            let chunk = chunks.iter().position(|chunk| *chunk == operation.chunk)?;
            (operation.kind != Kind::W).then_some((kind, chunk))
        };
        let turns = orders.iter().zip(&chunks);
        let turns = turns.map(|(order, chunks)| order.iter().filter_map(|operation| turn(chunks, operation)).collect());
        Self { placement, micro_batches, limit, turns: turns.collect(), chunks }
    }

    /// Operations of a whole order, W too.
    pub(super) fn operations(&self) -> usize {
        3 * self.placement.chunks() * self.micro_batches
    }

    /// The orders with as many forwards ahead as fit the waits at the start, each of two kinds of wait with a share of one more.
    pub(super) fn filled(&self, costs: &Costs, more: [f64; 2]) -> Vec<Vec<Turn>> {
        let fill = |(rank, turns): (usize, &Vec<Turn>)| {
            let mut turns = turns.clone();
            let far = self.placement.chunks_per_rank() - 1;
            let [before_forward, before_backward] = self.fitting(rank, costs, more);
            advance(&mut turns, (Kind::F, 0), (Kind::F, far), before_forward);
            advance(&mut turns, (Kind::F, 0), (Kind::B, far), before_backward);
            turns
        };
        self.turns.iter().enumerate().map(fill).collect()
    }

    /// Orders with another end: on all ranks but the last, so many backwards of the chunk nearest to the input come only after the
    /// last of the other chunk; on the last rank, the last forwards come so many backwards earlier. Both make the last errors
    /// return sooner.
    pub(super) fn hurried(&self, mut turns: Vec<Vec<Turn>>, [late, early]: [usize; 2]) -> Vec<Vec<Turn>> {
        let (p, m) = (self.placement.ranks(), self.micro_batches);
        let Some((last, others)) = turns.split_last_mut().filter(|_| self.placement.chunks_per_rank() == 2) else {
            return turns;
        };
        for turns in others {
            for _ in 0..late {
                let from = nth(turns, (Kind::F, 1), m.saturating_sub(1 + p / 2)).unwrap_or(0);
                let moved = turns[from..].iter().position(|turn| *turn == (Kind::B, 0)).map(|at| from + at);
                let last = turns.iter().rposition(|turn| *turn == (Kind::B, 1));
                if let (Some(moved), Some(last)) = (moved, last)
                    && moved < last
                {
                    turns[moved..=last].rotate_left(1);
                }
            }
        }
        for micro_batch in m.saturating_sub(p)..m {
            let mut at = nth(last, (Kind::F, 1), micro_batch).unwrap_or(0);
            for _ in 0..early {
                if at > 0 && last[at - 1].0 == Kind::B {
                    last.swap(at - 1, at);
                    at -= 1;
                }
            }
        }
        turns
    }

    /// How many forwards fit the wait for the first forward of the rank's chunk nearest to the loss, and for its first backward.
    /// With two chunks a rank it is communication alone that makes them wait, with one it is all stages after.
    fn fitting(&self, rank: usize, costs: &Costs, more: [f64; 2]) -> [usize; 2] {
        let stages = self.placement.ranks() - 1;
        let after = (stages - rank) as f64;
        if self.placement.chunks_per_rank() == 1 {
            let wait = after * (costs.backward + 2.0 * costs.comm) / costs.forward;
            let room = self.limit.saturating_sub((stages - rank).min(self.limit - 1) + 1);
            return [0, ((wait + more[0]) as usize).min(room)];
        }
        let length = costs.of(Kind::F, &self.placement);
        let count = |ranks: f64, more: f64| (ranks * 2.0 * costs.comm / length + more) as usize;
        let first = count(after, more[0]);
        [first, count(stages as f64, more[1]).saturating_sub(first)]
    }
}

/// So many more of a turn before the first of another: its last ones, since any micro-batch takes the next turn.
fn advance(turns: &mut [Turn], moved: Turn, mark: Turn, count: usize) {
    let Some(at) = turns.iter().position(|turn| *turn == mark) else { return };
    for _ in 0..count {
        let Some(last) = turns[at..].iter().rposition(|turn| *turn == moved) else { return };
        turns[at..=at + last].rotate_right(1);
    }
}

/// Where the turn of this kind for a micro-batch stands.
pub(super) fn nth(turns: &[Turn], turn: Turn, micro_batch: usize) -> Option<usize> {
    turns.iter().enumerate().filter(|(_, other)| **other == turn).nth(micro_batch).map(|(at, _)| at)
}
