//! Orders of forwards and backwards with a few levers on each rank, for the search to pull.

use super::{Orders, fused, vee};
use crate::{Kind, Operation, Placement, Shape};

/// The position of a rank's levers. `near` is its chunk nearest to the input, `far` that nearest to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Levers {
    /// Forwards of `near` that run earlier: so many more before the first forward of `far`, and so many more than that before its
    /// first backward. They fill the wait for those two.
    pub(super) ahead: [usize; 2],
    /// The same from the end: backwards of `near` that run later.
    pub(super) behind: [usize; 2],
    /// Which of [`FILLS`] a gap must be to be filled.
    pub(super) fill: usize,
}

/// Shares of a W; a gap at least as large is filled with one.
pub(super) const FILLS: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.25];

/// Forwards and backwards alone, in the order of 1F1B (one chunk a rank) or ZB-V, within a limit of activations of a chunk.
pub(super) struct Base {
    pub(super) placement: Placement,
    pub(super) micro_batches: usize,
    pub(super) limit: usize,
    orders: Orders,
}

impl Base {
    /// 1F1B with at most `limit` forwards before the first backward.
    pub(super) fn round(p: usize, m: usize, limit: usize) -> Self {
        let orders = fused::warmed(p, m, |stage| (p - stage - 1).min(limit - 1));
        let orders = orders.into_iter().map(|order| {
            let split = |operation: Operation| match operation.kind {
                Kind::BW => Operation { kind: Kind::B, ..operation },
                _ => operation,
            };
            order.into_iter().map(split).collect()
        });
        Self { placement: Placement::new(Shape::Round, p, 1), micro_batches: m, limit, orders: orders.collect() }
    }

    /// ZB-V.
    pub(super) fn vee(p: usize, m: usize, limit: usize) -> Self {
        let mut orders = vee::order(p, m);
        orders.iter_mut().for_each(|order| order.retain(|operation| operation.kind != Kind::W));
        Self { placement: Placement::new(Shape::Vee, p, 2), micro_batches: m, limit, orders }
    }

    /// The orders with the levers pulled.
    pub(super) fn pulled(&self, levers: &[Levers]) -> Orders {
        let ranks = self.orders.iter().zip(levers).enumerate();
        ranks.map(|(rank, (order, levers))| self.pull(rank, order, levers)).collect()
    }

    fn pull(&self, rank: usize, order: &[Operation], levers: &Levers) -> Vec<Operation> {
        let near = rank;
        let far = self.placement.chunks_of(rank).last().unwrap_or(near);
        let [first, second] = levers.ahead;
        let mut order = advance(order, (Kind::F, near), [((Kind::F, far), first), ((Kind::B, far), first + second)]);
        let [first, second] = levers.behind;
        if first + second > 0 && far != near {
            order.reverse();
            order = advance(&order, (Kind::B, near), [((Kind::B, far), first), ((Kind::F, far), first + second)]);
            order.reverse();
        }
        order
    }
}

type Which = (Kind, usize);

fn is(operation: &Operation, (kind, chunk): Which) -> bool {
    operation.kind == kind && operation.chunk == chunk
}

/// The order with the operations of one kind and chunk moved up: from the first operation of each mark on, so many more of them
/// have run than in the order as it was. All others keep their order.
fn advance(order: &[Operation], moved: Which, marks: [(Which, usize); 2]) -> Vec<Operation> {
    let mut waiting = order.iter().filter(|operation| is(operation, moved)).copied();
    let mut out = Vec::with_capacity(order.len());
    let (mut seen, mut done, mut more) = (0, 0, 0);
    for operation in order {
        let own = is(operation, moved);
        seen += usize::from(own);
        for (mark, count) in marks {
            if !own && is(operation, mark) {
                more = more.max(count);
            }
        }
        while done < seen + more {
            let Some(next) = waiting.next() else { break };
            out.push(next);
            done += 1;
        }
        if !own {
            out.push(*operation);
        }
    }
    out
}
