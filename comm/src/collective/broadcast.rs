//! Broadcast: every rank gets the root's elements.
//!
//! Acknowledgements (messages without elements, each of which carries the operation's descriptor) run the other way, from
//! the leaves to the root and independently of the elements: so a rank that called something else is known to all,
//! the root too, before the operation ends anywhere above it.

use super::plan::{How, Plan, Span, output};

/// Binomial tree: log2 p rounds on the longest path. For few elements.
pub(crate) fn binomial(plan: &mut Plan, rank: usize, world: usize, count: usize, root: usize) {
    let relative = (rank + world - root) % world;
    let real = |relative: usize| (relative + root) % world;
    // A node's children are at distances below its lowest set bit; the root has them at all.
    let reach = if relative == 0 { world.next_power_of_two() } else { 1 << relative.trailing_zeros() };
    let children = || {
        let mut distance = reach / 2;
        std::iter::from_fn(move || {
            while distance > 0 {
                let child = relative + distance;
                distance /= 2;
                if child < world {
                    return Some(child);
                }
            }
            None
        })
    };
    let parent = (relative > 0).then(|| real(relative - reach));
    if let Some(parent) = parent {
        plan.recv(parent, output(0..count), How::Store);
        if children().next().is_none() {
            plan.send(parent, Span::EMPTY);
        }
        plan.end_round();
    }
    if children().next().is_some() {
        for child in children() {
            plan.send(real(child), output(0..count));
            plan.recv(real(child), Span::EMPTY, How::Store);
        }
        plan.end_round();
        if let Some(parent) = parent {
            plan.send(parent, Span::EMPTY);
            plan.end_round();
        }
    }
}

/// Pipelined chain: each rank passes chunk after chunk on to the next. Every link carries the elements once, and all
/// links work at once. For many elements.
pub(crate) fn chain(plan: &mut Plan, rank: usize, world: usize, count: usize, root: usize, chunk: usize) {
    let relative = (rank + world - root) % world;
    let previous = (relative > 0).then(|| (rank + world - 1) % world);
    let next = (relative + 1 < world).then(|| (rank + 1) % world);
    let chunks = count.div_ceil(chunk).max(1);
    let piece = |index: usize| output(index * chunk..((index + 1) * chunk).min(count).max(index * chunk));
    for round in 0..=chunks {
        // The root sends a chunk in its own round, everybody else in the round after it came.
        let outgoing = round.checked_sub(usize::from(previous.is_some())).filter(|&index| index < chunks);
        if let (Some(next), Some(index)) = (next, outgoing) {
            plan.send(next, piece(index));
        }
        if let (Some(previous), true) = (previous, round < chunks) {
            plan.recv(previous, piece(round), How::Store);
        }
        plan.end_round();
    }
    if let Some(next) = next {
        plan.recv(next, Span::EMPTY, How::Store);
        plan.end_round();
    }
    if let Some(previous) = previous {
        plan.send(previous, Span::EMPTY);
        plan.end_round();
    }
}
