//! Reduce-scatter: every rank gets the combination of all ranks' elements for its own part.

use std::ops::Range;

use super::plan::{How, OUTPUT, Parts, Plan, Source, Span, output, temp};

/// The peers of `rank`, the next one first, so that not everybody sends to the same rank first.
pub(crate) fn others(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |distance| (rank + distance) % world)
}

/// Ring within one region: the result of each part lies where the part lay, and partial results lie in the other
/// parts of the output afterwards. p-1 rounds; everything but the own part is sent once.
pub(crate) fn ring_keeping_places(plan: &mut Plan, rank: usize, parts: Parts<'_>, source: Source) {
    let world = parts.len();
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    for round in 0..world - 1 {
        let sent = parts.range((rank + 2 * world - 1 - round) % world);
        let received = parts.range((rank + 2 * world - 2 - round) % world);
        let from = if round == 0 { source.span(sent) } else { output(sent) };
        plan.send(next, from);
        let how = How::Reduce { own: source.span(received.clone()), finish: round == world - 2, behind: false };
        plan.recv(previous, output(received), how);
        plan.end_round();
    }
}

/// Ring into a region that holds only the own part: partial results travel through two slots of temporary memory.
pub(crate) fn ring(plan: &mut Plan, rank: usize, parts: Parts<'_>) {
    let world = parts.len();
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    let slot = |round: usize, len: usize| {
        let start = (round % 2) * parts.largest();
        temp(start..start + len)
    };
    for round in 0..world - 1 {
        let sent = parts.range((rank + 2 * world - 1 - round) % world);
        let received = parts.range((rank + 2 * world - 2 - round) % world);
        let from = if round == 0 { Source::APART.span(sent) } else { slot(round - 1, sent.len()) };
        plan.send(next, from);
        let last = round == world - 2;
        let into = if last { output(0..received.len()) } else { slot(round, received.len()) };
        plan.recv(previous, into, How::Reduce { own: Source::APART.span(received), finish: last, behind: false });
        plan.end_round();
    }
}

/// Direct: each rank gets its part from everybody, in chunks, and folds in rank order. One round a chunk; a narrow
/// float is rounded once. With [`Source::IN_PLACE`] the result lies where the part lay, else at the start of the output.
pub(crate) fn direct(plan: &mut Plan, rank: usize, parts: Parts<'_>, source: Source, chunk: usize) {
    let world = parts.len();
    let own = parts.range(rank);
    let result = |piece: Range<usize>| match source.0 {
        OUTPUT => output(piece),
        _ => output(piece.start - own.start..piece.end - own.start),
    };
    if world == 2 {
        plan.send(1 - rank, source.span(parts.range(1 - rank)));
        let how = How::Reduce { own: source.span(own.clone()), finish: true, behind: false };
        plan.recv(1 - rank, result(own.clone()), how);
        plan.end_round();
        return;
    }
    for round in 0..parts.largest().div_ceil(chunk).max(1) {
        direct_messages(plan, rank, parts, source, round, chunk);
        let piece = parts.piece(rank, round, chunk);
        if !piece.is_empty() {
            plan.fold(source.span(piece.clone()), rank, world, 0, result(piece));
        }
        plan.end_round();
    }
}

/// The messages of one chunk: to each rank its piece, and from each rank the own one, side by side in temporary memory.
/// Only the first chunk has empty messages, since each pair must exchange at least one.
pub(crate) fn direct_messages(
    plan: &mut Plan,
    rank: usize,
    parts: Parts<'_>,
    source: Source,
    chunk: usize,
    size: usize,
) {
    let world = parts.len();
    for peer in others(rank, world) {
        let piece = parts.piece(peer, chunk, size);
        if chunk == 0 || !piece.is_empty() {
            plan.send(peer, source.span(piece));
        }
    }
    let own = parts.piece(rank, chunk, size).len();
    if chunk > 0 && own == 0 {
        return;
    }
    for peer in (0..world).filter(|&peer| peer != rank) {
        let slot = peer - usize::from(peer > rank);
        let into: Span = temp(slot * own..(slot + 1) * own);
        plan.recv(peer, into, How::Store);
    }
}
