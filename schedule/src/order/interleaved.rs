//! Interleaved 1F1B (Narayanan et al. 2021) in Megatron's order: `v` chunks a rank, taken in turn by groups of `p` micro-batches.

use super::{Order, Orders, without_padding};
use crate::Kind;

/// The order for any number of micro-batches: that for the next multiple of `p`, without those that are not there.
pub(super) fn order(p: usize, m: usize, v: usize) -> Orders {
    let padded = m.div_ceil(p) * p;
    // The i-th piece of a rank's work: groups of p micro-batches go through chunk after chunk.
    let piece = |index: usize| (index % (p * v) / p, index / (p * v) * p + index % p);
    let order = |rank: usize| {
        let all = padded * v;
        let warm = (2 * (p - rank - 1) + (v - 1) * p).min(all);
        let mut order = Order::default();
        let forward = |order: &mut Order, index| {
            let (turn, micro) = piece(index);
            order.push(Kind::F, turn * p + rank, micro);
        };
        (0..warm).for_each(|index| forward(&mut order, index));
        for index in 0..all {
            if warm + index < all {
                forward(&mut order, warm + index);
            }
            let (turn, micro) = piece(index);
            order.push(Kind::BW, (v - 1 - turn) * p + rank, micro);
        }
        order.0
    };
    without_padding((0..p).map(order).collect(), m)
}
