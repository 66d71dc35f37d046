//! DualPipe (DeepSeek-V3 report, 2024): two copies of the model fed from both ends of the pipeline, in the eight steps of its
//! published program. A rank of the second half takes the directions the other way round.

use std::collections::VecDeque;

use super::{Orders, without_padding};
use crate::{Kind, Operation, Placement, ScheduleError, Shape};

/// One rank's order as it grows. `near` is the direction that starts at this rank's end of the pipeline, `far` the other.
struct Rank {
    order: Vec<Operation>,
    /// By direction (near, far): the chunk, and whether its micro-batches are the odd ones.
    chunks: [(usize, usize); 2],
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// Gradients of weights put off.
    weights: VecDeque<Operation>,
}

const NEAR: usize = 0;
const FAR: usize = 1;

impl Rank {
    fn new(rank: usize, placement: &Placement) -> Self {
        let p = placement.ranks();
        let down = (rank, 0);
        let up = (p + p - 1 - rank, 1);
        let chunks = if rank < p / 2 { [down, up] } else { [up, down] };
        Self { order: Vec::new(), chunks, forwards: [0; 2], backwards: [0; 2], weights: VecDeque::new() }
    }

    fn operation(&self, kind: Kind, direction: usize, count: usize) -> Operation {
        let (chunk, odd) = self.chunks[direction];
        Operation::new(kind, chunk, 2 * count + odd)
    }

    fn forward(&mut self, direction: usize) {
        self.order.push(self.operation(Kind::F, direction, self.forwards[direction]));
        self.forwards[direction] += 1;
    }

    fn backward(&mut self, direction: usize) {
        self.order.push(self.operation(Kind::BW, direction, self.backwards[direction]));
        self.backwards[direction] += 1;
    }

    fn backward_input(&mut self, direction: usize) {
        let count = self.backwards[direction];
        self.order.push(self.operation(Kind::B, direction, count));
        self.weights.push_back(self.operation(Kind::W, direction, count));
        self.backwards[direction] += 1;
    }

    fn weight(&mut self) {
        self.order.extend(self.weights.pop_front());
    }

    /// The steps of the published program for `pairs` micro-batches of each direction, at least `p` of them.
    fn run(mut self, p: usize, pairs: usize, depth: usize) -> Vec<Operation> {
        let half = p / 2;
        let outer = half - depth - 1;
        (0..2 * outer).for_each(|_| self.forward(NEAR));
        for _ in 0..=depth {
            self.forward(NEAR);
            self.forward(FAR);
        }
        for _ in 0..outer {
            self.backward_input(FAR);
            self.weight();
            self.forward(FAR);
        }
        for _ in 0..pairs - p + depth + 1 {
            self.forward(NEAR);
            self.backward(FAR);
            self.forward(FAR);
            self.backward(NEAR);
        }
        for _ in 0..outer {
            self.backward(FAR);
            self.forward(FAR);
            self.backward(NEAR);
        }
        let mut put_off = false;
        for index in 0..=depth {
            let turn = index == depth.div_ceil(2);
            put_off |= turn && depth % 2 == 1;
            if put_off {
                self.backward_input(FAR)
            } else {
                self.backward(FAR)
            }
            put_off |= turn && depth.is_multiple_of(2);
            if put_off { self.backward_input(NEAR) } else { self.backward(NEAR) }
        }
        for _ in 0..outer {
            self.weight();
            self.backward_input(NEAR);
        }
        while !self.weights.is_empty() {
            self.weight();
        }
        self.order
    }
}

/// The order for any number of micro-batches: that for the next even number of at least `2p`, without those that are not there.
pub(super) fn order(p: usize, m: usize) -> Result<Orders, ScheduleError> {
    if !p.is_multiple_of(2) {
        return Err(ScheduleError::Odd { p });
    }
    let placement = Placement::new(Shape::Both, p, 2);
    let pairs = m.div_ceil(2).max(p);
    let orders = (0..p).map(|rank| Rank::new(rank, &placement).run(p, pairs, rank.min(p - 1 - rank)));
    Ok(without_padding(orders.collect(), m))
}
