//! All-reduce: every rank gets the combination of all ranks' elements.

use super::plan::{How, OUTPUT, Parts, Plan, Source, output, temp};
use super::{all_gather, reduce_scatter};

/// Ring: reduce-scatter, then all-gather. 2(p-1) rounds; each rank sends 2(p-1)/p of the elements.
///
/// Every element travels along the ring in the storage type, so that a narrow float is rounded p-1 times (each
/// addition itself is in f32); the order is that of the ring, from the rank after the owner to the owner.
pub(crate) fn ring(plan: &mut Plan, rank: usize, world: usize, count: usize, source: Source) {
    let parts = Parts::Even { count, parts: world };
    reduce_scatter::ring_keeping_places(plan, rank, parts, source);
    all_gather::ring_rounds(plan, rank, parts, Source::IN_PLACE);
}

/// Recursive doubling: partners exchange everything and combine. log2 p rounds, two more where p is no power of two:
/// then the first ranks pair up, one of each pair stands for both, and hands the result back.
///
/// A narrow float is rounded once a round. Partners combine the same two values, so that all ranks get the same bits.
pub(crate) fn recursive_doubling(plan: &mut Plan, rank: usize, world: usize, count: usize, source: Source) {
    let power = 1 << world.ilog2();
    let pairs = world - power;
    let all = || 0..count;
    let mut own = source;
    if rank < 2 * pairs {
        if rank.is_multiple_of(2) {
            plan.send(rank + 1, own.span(all()));
            plan.end_round();
            plan.recv(rank + 1, output(all()), How::Store);
            plan.end_round();
            return;
        }
        plan.recv(rank - 1, output(all()), How::Reduce { own: own.span(all()), finish: false, behind: false });
        plan.end_round();
        own = Source::IN_PLACE;
    }
    let virtual_rank = if rank < 2 * pairs { rank / 2 } else { rank - pairs };
    let mut mask = 1;
    while mask < power {
        let partner = virtual_rank ^ mask;
        let peer = if partner < pairs { 2 * partner + 1 } else { partner + pairs };
        let how = How::Reduce { own: own.span(all()), finish: 2 * mask == power, behind: own.0 == OUTPUT };
        plan.send(peer, own.span(all()));
        plan.recv(peer, output(all()), how);
        plan.end_round();
        own = Source::IN_PLACE;
        mask *= 2;
    }
    if rank < 2 * pairs {
        plan.send(rank - 1, output(all()));
        plan.end_round();
    }
}

/// One-shot: everybody sends everything to everybody, and each folds in rank order. One round, (p-1) times the
/// elements sent; a narrow float is rounded once.
pub(crate) fn one_shot(plan: &mut Plan, rank: usize, world: usize, count: usize, source: Source) {
    let own = source.span(0..count);
    if world == 2 {
        plan.send(1 - rank, own);
        let behind = source == Source::IN_PLACE;
        plan.recv(1 - rank, output(0..count), How::Reduce { own, finish: true, behind });
        plan.end_round();
        return;
    }
    for distance in 1..world {
        plan.send((rank + distance) % world, own);
    }
    for peer in (0..world).filter(|&peer| peer != rank) {
        let slot = peer - usize::from(peer > rank);
        plan.recv(peer, temp(slot * count..(slot + 1) * count), How::Store);
    }
    plan.fold(own, rank, world, 0, output(0..count));
    plan.end_round();
}

/// Two-shot: each rank folds its share in rank order, having got it from everybody, and sends the result to everybody.
/// Two rounds for every chunk, with the second of one chunk together with the first of the next; each rank sends
/// 2(p-1)/p of the elements. A narrow float is rounded once; the bits are those of [`one_shot`].
pub(crate) fn two_shot(plan: &mut Plan, rank: usize, world: usize, count: usize, source: Source, chunk: usize) {
    if world == 2 {
        // With two ranks the ring is the same exchange, and needs no memory to fold from.
        return ring(plan, rank, world, count, source);
    }
    let parts = Parts::Even { count, parts: world };
    let chunks = parts.largest().div_ceil(chunk).max(1);
    for round in 0..=chunks {
        if round < chunks {
            reduce_scatter::direct_messages(plan, rank, parts, source, round, chunk);
        }
        if round > 0 {
            all_gather::direct_messages(plan, rank, parts, Source::IN_PLACE, round - 1, chunk);
        }
        if round < chunks {
            let piece = parts.piece(rank, round, chunk);
            if !piece.is_empty() {
                plan.fold(source.span(piece.clone()), rank, world, 0, output(piece));
            }
        }
        plan.end_round();
    }
}
