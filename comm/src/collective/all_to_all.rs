//! All-to-all: from every rank to every rank its own elements.

use super::plan::{How, Parts, Plan, Source, output};

/// Pairwise: p-1 rounds, in round k to the rank k after and from the rank k before, so that no rank is sent to by two.
pub(crate) fn pairwise(plan: &mut Plan, rank: usize, sent: Parts<'_>, received: Parts<'_>) {
    let world = sent.len();
    plan.copy(Source::APART.span(sent.range(rank)), output(received.range(rank)));
    for round in 1..world {
        exchange(plan, rank, round, sent, received);
        plan.end_round();
    }
}

/// Direct: all in one round. For few elements, or few ranks.
pub(crate) fn direct(plan: &mut Plan, rank: usize, sent: Parts<'_>, received: Parts<'_>) {
    plan.copy(Source::APART.span(sent.range(rank)), output(received.range(rank)));
    for round in 1..sent.len() {
        exchange(plan, rank, round, sent, received);
    }
    plan.end_round();
}

fn exchange(plan: &mut Plan, rank: usize, distance: usize, sent: Parts<'_>, received: Parts<'_>) {
    let world = sent.len();
    let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
    plan.send(to, Source::APART.span(sent.range(to)));
    plan.recv(from, output(received.range(from)), How::Store);
}
