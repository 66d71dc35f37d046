//! Every plan, for every world up to 64.

use super::super::plan::{Parts, Plan, Source};
use super::super::{all_gather, all_reduce, all_to_all, barrier, broadcast, reduce_scatter};
use super::{Symbol, own, simulate};

/// 0, 1, 2, 3, around the world size and a prime; fewer for large worlds, whose plans are long.
fn counts(world: usize) -> Vec<usize> {
    if world > 12 { vec![0, 1, world + 1] } else { vec![0, 1, 2, 3, world - 1, world, world + 1, 31] }
}

/// A list with zeros for `world` ranks.
fn uneven(world: usize, count: usize) -> Vec<usize> {
    (0..world).map(|rank| if rank % 3 == 1 { 0 } else { count % 4 + rank % 2 }).collect()
}

/// The worlds checked: every one up to 64.
fn worlds() -> impl Iterator<Item = usize> {
    2..=64
}

/// Memory of a call that reduces `count` elements: apart with `len` elements of output, or in place.
fn reducing(source: Source, rank: usize, count: usize, len: usize) -> (Vec<Symbol>, Vec<Symbol>) {
    match source {
        Source::IN_PLACE => (Vec::new(), own(rank, count)),
        _ => (own(rank, count), vec![Symbol::NOTHING; len]),
    }
}

type AllReduce = fn(&mut Plan, usize, usize, usize, Source);
/// The elements that all ranks of a world send for a count.
type Sends<'a> = &'a dyn Fn(usize, usize) -> usize;

#[test]
fn all_reduce_plans() {
    let two_shot: AllReduce =
        |plan, rank, world, count, source| all_reduce::two_shot(plan, rank, world, count, source, 3);
    let doubling_sends = |world: usize, count: usize| {
        let power: usize = 1 << world.ilog2();
        (power * power.ilog2() as usize + 2 * (world - power)) * count
    };
    let algorithms: [(AllReduce, Sends<'_>); 4] = [
        (all_reduce::ring, &|world, count| 2 * (world - 1) * count),
        (all_reduce::recursive_doubling, &doubling_sends),
        (all_reduce::one_shot, &|world, count| world * (world - 1) * count),
        (two_shot, &|world, count| 2 * (world - 1) * count),
    ];
    for world in worlds() {
        for count in counts(world) {
            let want: Vec<Symbol> = (0..count).map(|index| Symbol::of_all(world, index)).collect();
            for source in [Source::IN_PLACE, Source::APART] {
                for (algorithm, sends) in algorithms {
                    let plan = |plan: &mut Plan, rank| algorithm(plan, rank, world, count, source);
                    let (outputs, sent) = simulate(world, plan, |rank| reducing(source, rank, count, count));
                    assert!(outputs.iter().all(|output| *output == want), "{world} ranks, {count} elements");
                    assert_eq!(sent, sends(world, count), "{world} ranks, {count} elements");
                }
            }
        }
    }
}

#[test]
fn reduce_scatter_plans() {
    for world in worlds() {
        for count in counts(world) {
            let listed = uneven(world, count);
            for parts in [Parts::Even { count, parts: world }, Parts::Listed(&listed)] {
                let all = parts.range(world - 1).end;
                for (ring, source) in
                    [true, false].into_iter().flat_map(|ring| [(ring, Source::IN_PLACE), (ring, Source::APART)])
                {
                    let plan = |plan: &mut Plan, rank| match (ring, source) {
                        (true, Source::IN_PLACE) => reduce_scatter::ring_keeping_places(plan, rank, parts, source),
                        (true, _) => reduce_scatter::ring(plan, rank, parts),
                        (false, _) => reduce_scatter::direct(plan, rank, parts, source, 3),
                    };
                    let memory = |rank| reducing(source, rank, all, parts.range(rank).len());
                    let (outputs, sent) = simulate(world, plan, memory);
                    for (rank, output) in outputs.iter().enumerate() {
                        let range = parts.range(rank);
                        let want: Vec<Symbol> = range.clone().map(|index| Symbol::of_all(world, index)).collect();
                        let got = if source == Source::IN_PLACE { &output[range] } else { &output[..] };
                        assert_eq!(got, want, "{world} ranks, {parts:?}");
                    }
                    assert_eq!(sent, (world - 1) * all, "{world} ranks, {parts:?}");
                }
            }
        }
    }
}

#[test]
fn all_gather_plans() {
    for world in worlds() {
        for count in counts(world) {
            let listed = uneven(world, count);
            for parts in [Parts::Equal { each: count % 5, parts: world }, Parts::Listed(&listed)] {
                let all = parts.range(world - 1).end;
                let part = |rank: usize| own(rank, parts.range(rank).len());
                let want: Vec<Symbol> = (0..world).flat_map(part).collect();
                for source in [Source::IN_PLACE, Source::APART] {
                    let memory = |rank| {
                        let mut output = vec![Symbol::NOTHING; all];
                        if source == Source::IN_PLACE {
                            output[parts.range(rank)].copy_from_slice(&part(rank));
                        }
                        (part(rank), output)
                    };
                    for algorithm in [all_gather::ring, all_gather::direct] {
                        let plan = |plan: &mut Plan, rank| algorithm(plan, rank, parts, source);
                        let (outputs, sent) = simulate(world, plan, memory);
                        assert!(outputs.iter().all(|output| *output == want), "{world} ranks, {parts:?}");
                        assert_eq!(sent, (world - 1) * all, "{world} ranks, {parts:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn broadcast_plans() {
    for world in worlds() {
        for count in counts(world) {
            for root in [0, world / 2, world - 1] {
                let memory =
                    |rank| (Vec::new(), if rank == root { own(root, count) } else { vec![Symbol::NOTHING; count] });
                for chain in [false, true] {
                    let plan = |plan: &mut Plan, rank| {
                        if chain {
                            broadcast::chain(plan, rank, world, count, root, 3);
                        } else {
                            broadcast::binomial(plan, rank, world, count, root);
                        }
                    };
                    let (outputs, sent) = simulate(world, plan, memory);
                    assert!(outputs.iter().all(|output| *output == own(root, count)), "{world} ranks from {root}");
                    assert_eq!(sent, (world - 1) * count, "{world} ranks from {root}");
                }
            }
        }
    }
}

#[test]
fn all_to_all_plans() {
    for world in worlds() {
        let count =
            |from: usize, to: usize| if (from * 5 + to).is_multiple_of(4) { 0 } else { 1 + (from + 2 * to) % 3 };
        let sent: Vec<Vec<usize>> = (0..world).map(|from| (0..world).map(|to| count(from, to)).collect()).collect();
        let received: Vec<Vec<usize>> = (0..world).map(|to| (0..world).map(|from| count(from, to)).collect()).collect();
        let moved: usize = (0..world).map(|from| sent[from].iter().sum::<usize>() - sent[from][from]).sum();
        let part = |from: usize, to: usize| {
            let start: usize = sent[from][..to].iter().sum();
            (start..start + count(from, to)).map(move |index| Symbol::of(from, index))
        };
        let memory = |rank: usize| {
            let len = received[rank].iter().sum();
            (own(rank, sent[rank].iter().sum()), vec![Symbol::NOTHING; len])
        };
        for algorithm in [all_to_all::pairwise, all_to_all::direct] {
            let plan = |plan: &mut Plan, rank: usize| {
                algorithm(plan, rank, Parts::Listed(&sent[rank]), Parts::Listed(&received[rank]));
            };
            let (outputs, on_links) = simulate(world, plan, memory);
            for (rank, output) in outputs.iter().enumerate() {
                let want: Vec<Symbol> = (0..world).flat_map(|from| part(from, rank)).collect();
                assert_eq!(*output, want, "{world} ranks");
            }
            assert_eq!(on_links, moved, "{world} ranks");
        }
    }
}

#[test]
fn barrier_plans() {
    for world in worlds() {
        let (_, sent) =
            simulate(world, |plan, rank| barrier::dissemination(plan, rank, world), |_| (Vec::new(), Vec::new()));
        assert_eq!(sent, 0);
        let mut plan = Plan::default();
        barrier::dissemination(&mut plan, 0, world);
        assert_eq!(plan.rounds(), world.next_power_of_two().ilog2() as usize, "ceil(log2 {world}) rounds");
    }
}
