//! ZB-V (Qi et al. 2024): two chunks a rank, down the ranks and up again, so that every rank is near the input with one chunk and
//! near the loss with the other. `near` is the chunk on the way down, `far` that on the way up.

use super::{Order, Orders, without_padding};
use crate::Kind;

/// One rank's order as it grows: counts of what each chunk has done.
struct Rank {
    order: Order,
    chunks: [usize; 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    weights: [usize; 2],
}

const NEAR: usize = 0;
const FAR: usize = 1;

impl Rank {
    fn new(rank: usize, p: usize) -> Self {
        let none = [0; 2];
        let chunks = [rank, 2 * p - 1 - rank];
        Self { order: Order::default(), chunks, forwards: none, backwards: none, weights: none }
    }

    fn forward(&mut self, side: usize) {
        self.order.push(Kind::F, self.chunks[side], self.forwards[side]);
        self.forwards[side] += 1;
    }

    fn backward(&mut self, side: usize) {
        self.order.push(Kind::B, self.chunks[side], self.backwards[side]);
        self.backwards[side] += 1;
    }

    fn weight(&mut self, side: usize) {
        self.order.push(Kind::W, self.chunks[side], self.weights[side]);
        self.weights[side] += 1;
    }

    /// The order for `m` micro-batches, at least `2p - 1` of them.
    fn run(mut self, rank: usize, p: usize, m: usize) -> Order {
        (0..2 * (p - rank) - 1).for_each(|_| self.forward(NEAR));
        for _ in 0..rank {
            self.forward(FAR);
            self.forward(NEAR);
        }
        for _ in rank..p {
            self.forward(FAR);
            self.backward(FAR);
            self.weight(FAR);
        }
        while self.forwards[FAR] < m {
            if self.forwards[NEAR] < m {
                self.forward(NEAR);
            }
            self.backward(NEAR);
            self.weight(NEAR);
            self.forward(FAR);
            self.backward(FAR);
            self.weight(FAR);
        }
        for _ in 0..rank {
            self.backward(NEAR);
            self.backward(FAR);
        }
        for _ in rank..p {
            self.backward(NEAR);
            self.weight(NEAR);
        }
        for side in [FAR, NEAR] {
            (self.weights[side]..m).for_each(|_| self.weight(side));
        }
        self.order
    }
}

/// The order for any number of micro-batches: that for at least `2p`, without those that are not there.
pub(super) fn order(p: usize, m: usize) -> Orders {
    let order = |rank| Rank::new(rank, p).run(rank, p, m.max(2 * p)).0;
    without_padding((0..p).map(order).collect(), m)
}
