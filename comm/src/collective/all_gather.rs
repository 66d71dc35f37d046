//! All-gather: every rank gets every rank's part.

use super::plan::{How, OUTPUT, Parts, Plan, Source, output};
use super::reduce_scatter::others;

/// Where the own part is read: in the output, or a region that holds nothing else.
fn own_part(rank: usize, parts: Parts<'_>, source: Source) -> super::plan::Span {
    let range = parts.range(rank);
    if source.0 == OUTPUT { output(range) } else { source.span(0..range.len()) }
}

/// Ring: p-1 rounds in which everybody passes on what came last.
pub(crate) fn ring(plan: &mut Plan, rank: usize, parts: Parts<'_>, source: Source) {
    plan.copy(own_part(rank, parts, source), output(parts.range(rank)));
    ring_rounds(plan, rank, parts, source);
}

/// The rounds of [`ring`], for an own part that needs no copy.
pub(crate) fn ring_rounds(plan: &mut Plan, rank: usize, parts: Parts<'_>, source: Source) {
    let world = parts.len();
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    for round in 0..world - 1 {
        let sent = parts.range((rank + world - round) % world);
        let from = if round == 0 { own_part(rank, parts, source) } else { output(sent) };
        plan.send(next, from);
        plan.recv(previous, output(parts.range((rank + 2 * world - 1 - round) % world)), How::Store);
        plan.end_round();
    }
}

/// Direct: one round in which everybody sends its part to everybody.
pub(crate) fn direct(plan: &mut Plan, rank: usize, parts: Parts<'_>, source: Source) {
    let own = own_part(rank, parts, source);
    plan.copy(own, output(parts.range(rank)));
    for peer in others(rank, parts.len()) {
        plan.send(peer, own);
    }
    for peer in others(rank, parts.len()) {
        plan.recv(peer, output(parts.range(peer)), How::Store);
    }
    plan.end_round();
}

/// One chunk of the parts, each from its place in the output to the same place of everybody; empty pieces are left out.
pub(crate) fn direct_messages(
    plan: &mut Plan,
    rank: usize,
    parts: Parts<'_>,
    source: Source,
    chunk: usize,
    size: usize,
) {
    let own = parts.piece(rank, chunk, size);
    if !own.is_empty() {
        for peer in others(rank, parts.len()) {
            plan.send(peer, source.span(own.clone()));
        }
    }
    for peer in others(rank, parts.len()) {
        let piece = parts.piece(peer, chunk, size);
        if !piece.is_empty() {
            plan.recv(peer, output(piece), How::Store);
        }
    }
}
