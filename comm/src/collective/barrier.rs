//! Barrier: no rank leaves before every rank has come.

use super::plan::{How, Plan, Span};

/// Dissemination: ceil(log2 p) rounds; in round k a message to the rank 2^k after and one from the rank 2^k before.
pub(crate) fn dissemination(plan: &mut Plan, rank: usize, world: usize) {
    let mut distance = 1;
    while distance < world {
        plan.send((rank + distance) % world, Span::EMPTY);
        plan.recv((rank + world - distance) % world, Span::EMPTY, How::Store);
        plan.end_round();
        distance *= 2;
    }
}
