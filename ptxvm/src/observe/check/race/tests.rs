//! The engine alone: events as an executor would tell them, and what must and must not be a race.

use super::report::Hazard;
use super::*;
use crate::program::Order;

const ALL: u32 = u32::MAX;
const DATA: u64 = 0x10_0000;
const FLAG: u64 = 0x20_0000;
const GPU: Scope = Scope::Gpu;
const CTA: Scope = Scope::Cta;

/// Blocks of so many threads, all running.
struct World {
    race: Race,
    site: u32,
}

/// Where lanes access: the same place, or one after the other.
#[derive(Clone, Copy)]
enum Place {
    One(Space, u64),
    Each(Space, u64, u32),
}

use Place::{Each, One};
use Space::{Global, Shared};

impl World {
    fn new(blocks: usize, threads: u32) -> World {
        let mut race = Race::new();
        (0..blocks).for_each(|slot| race.begin(slot, slot as u64, threads));
        World { race, site: 0 }
    }

    /// One access by lanes of (block, warp); the kinds of the races it ran into.
    fn access(&mut self, (slot, warp): (usize, u32), mask: u32, kind: AccessKind, place: Place, order: Order) -> Races {
        self.valued((slot, warp), mask, kind, place, order, None)
    }

    fn valued(
        &mut self,
        (slot, warp): (usize, u32),
        mask: u32,
        kind: AccessKind,
        place: Place,
        order: Order,
        values: Option<&[[u8; 32]; 32]>,
    ) -> Races {
        let (space, bytes, addresses) = match place {
            One(space, address) => (space, 4, [address; 32]),
            Each(space, from, bytes) => {
                (space, bytes, std::array::from_fn(|lane| from + u64::from(bytes) * lane as u64))
            }
        };
        self.site += 1;
        let actor = Actor { slot, warp, site: self.site, non_coherent: false, returns: true };
        let access = MemoryAccess { kind, space, addresses: &addresses, mask, bytes, order, values, wrote: mask };
        self.race.access(actor, &access);
        self.race.conflicts.iter().map(|found| (found.hazard, found.lanes)).collect()
    }

    fn read(&mut self, who: (usize, u32), mask: u32, place: Place) -> Races {
        self.access(who, mask, AccessKind::Read, place, Order::Weak)
    }

    fn write(&mut self, who: (usize, u32), mask: u32, place: Place) -> Races {
        self.access(who, mask, AccessKind::Write, place, Order::Weak)
    }

    fn write_value(&mut self, who: (usize, u32), mask: u32, place: Place, value: impl Fn(usize) -> u8) -> Races {
        let values = std::array::from_fn(|lane| [value(lane); 32]);
        self.valued(who, mask, AccessKind::Write, place, Order::Weak, Some(&values))
    }

    fn load(&mut self, who: (usize, u32), lane: u32, address: u64, order: Order) -> Races {
        self.access(who, 1 << lane, AccessKind::Read, One(Global, address), order)
    }

    fn store(&mut self, who: (usize, u32), lane: u32, address: u64, order: Order) -> Races {
        self.access(who, 1 << lane, AccessKind::Write, One(Global, address), order)
    }

    fn atomic(&mut self, who: (usize, u32), lane: u32, address: u64, order: Order) -> Races {
        self.access(who, 1 << lane, AccessKind::Atomic, One(Global, address), order)
    }

    /// `bar.sync 0` of all warps.
    fn barrier(&mut self, slot: usize, warps: u32) {
        let participants: Vec<(u32, u32, bool)> = (0..warps).map(|warp| (warp, ALL, true)).collect();
        self.race.barrier(slot, 0, true, &participants);
    }

    fn membar(&mut self, (slot, warp): (usize, u32), mask: u32, scope: Scope) {
        self.race.fence(slot, warp, mask, scope, true);
    }

    fn fence(&mut self, (slot, warp): (usize, u32), mask: u32, scope: Scope) {
        self.race.fence(slot, warp, mask, scope, false);
    }
}

type Races = Vec<(Hazard, u32)>;

const NONE: Races = Vec::new();
const RELAXED: Order = Order::Relaxed(GPU);

#[test]
fn lanes_are_in_order_with_themselves_and_not_with_each_other() {
    let mut world = World::new(1, 64);
    let each = Each(Shared, 0, 4);
    assert_eq!(world.write((0, 0), ALL, each), NONE);
    assert_eq!(world.read((0, 0), ALL, each), NONE);
    // Each lane reads its neighbour's.
    assert_eq!(world.read((0, 0), ALL >> 1, Each(Shared, 4, 4)), [(Hazard::ReadAfterWrite, ALL >> 1)]);
    world.race.warp_barrier(0, 0, ALL);
    assert_eq!(world.read((0, 0), ALL >> 1, Each(Shared, 4, 4)), NONE);
    // ... and overwrites what the neighbour has read since.
    assert_eq!(world.write((0, 0), ALL, each), [(Hazard::WriteAfterRead, ALL << 1)]);
}

#[test]
fn a_partial_warp_barrier_orders_its_members_only() {
    let mut world = World::new(1, 32);
    world.write((0, 0), ALL, Each(Shared, 0, 4));
    world.race.warp_barrier(0, 0, 0xffff);
    let shifted: [u64; 32] = std::array::from_fn(|lane| (lane as u64 ^ 8) * 4);
    let mut read = |mask| {
        let access = MemoryAccess {
            kind: AccessKind::Read,
            space: Shared,
            addresses: &shifted,
            mask,
            bytes: 4,
            order: Order::Weak,
            values: None,
            wrote: 0,
        };
        let actor = Actor { slot: 0, warp: 0, site: 9, non_coherent: false, returns: true };
        world.race.access(actor, &access);
        world.race.conflicts.iter().map(|found| (found.hazard, found.lanes)).collect::<Races>()
    };
    assert_eq!(read(0xffff), NONE);
    assert_eq!(read(0xffff_0000), [(Hazard::ReadAfterWrite, 0xffff_0000)]);
}

#[test]
fn a_block_barrier_orders_all_its_warps() {
    let mut world = World::new(1, 128);
    world.write((0, 3), ALL, Each(Shared, 0, 4));
    assert_eq!(world.read((0, 0), 1, One(Shared, 8)), [(Hazard::ReadAfterWrite, 1)]);
    world.barrier(0, 4);
    assert_eq!(world.read((0, 0), ALL, Each(Shared, 0, 4)), NONE);
    assert_eq!(world.write((0, 1), 1, One(Shared, 0)), [(Hazard::WriteAfterRead, 1)]);
    world.barrier(0, 4);
    assert_eq!(world.write((0, 2), 1, One(Shared, 0)), NONE);
}

#[test]
fn every_reader_since_the_barrier_counts() {
    let mut world = World::new(1, 128);
    for warp in 0..3 {
        world.read((0, warp), 1, One(Shared, 0));
    }
    // Warps 1 and 2 meet warp 3, warp 0 does not: its read is the oldest and must not be forgotten.
    world.race.barrier(0, 1, false, &[(1, ALL, true), (2, ALL, true), (3, ALL, true)]);
    assert_eq!(world.write((0, 3), 1, One(Shared, 0)), [(Hazard::WriteAfterRead, 1)]);
}

#[test]
fn readers_of_other_blocks_count_however_old() {
    let mut world = World::new(3, 32);
    for block in 0..2 {
        world.load((block, 0), 0, DATA, Order::Weak);
    }
    world.barrier(2, 1);
    // Block 1 was the last to read, and releases; block 0 does not.
    world.store((1, 0), 0, FLAG, Order::Release(GPU));
    world.load((2, 0), 0, FLAG, Order::Acquire(GPU));
    assert_eq!(world.store((2, 0), 0, DATA, Order::Weak), [(Hazard::WriteAfterRead, 1)]);
}

#[test]
fn those_who_have_exited_do_not_hold_up_the_order() {
    let mut world = World::new(1, 64);
    world.write((0, 1), ALL, Each(Shared, 0, 4));
    world.race.exit(0, 1, ALL);
    world.race.barrier(0, 0, true, &[(0, ALL, true)]);
    assert_eq!(world.read((0, 0), ALL, Each(Shared, 0, 4)), NONE);
    // A barrier of a count does not count them, nor what they did after they had arrived at one.
    for whole in [true, false] {
        let mut world = World::new(1, 64);
        world.race.arrive(0, 1, 1, ALL);
        world.write((0, 1), ALL, Each(Shared, 0, 4));
        world.race.exit(0, 1, ALL);
        world.race.barrier(0, 1, whole, &[(1, ALL, false), (0, ALL, true)]);
        assert_eq!(world.read((0, 0), ALL, Each(Shared, 0, 4)), [(Hazard::ReadAfterWrite, ALL)]);
    }
}

#[test]
fn neighbouring_bytes_are_different_places() {
    let mut world = World::new(1, 64);
    assert_eq!(world.write((0, 0), ALL, Each(Shared, 0, 1)), NONE);
    assert_eq!(world.write((0, 1), ALL, Each(Shared, 32, 1)), NONE);
    assert_eq!(world.write((0, 0), ALL, Each(Global, DATA, 2)), NONE);
    assert_eq!(world.write((0, 1), 1, Each(Global, DATA + 4, 4)), [(Hazard::WriteAfterWrite, 1)]);
}

#[test]
fn a_barrier_of_some_warps_orders_those() {
    let mut world = World::new(1, 128);
    world.write((0, 0), ALL, Each(Shared, 0, 4));
    world.race.barrier(0, 1, false, &[(0, ALL, true), (1, ALL, true)]);
    assert_eq!(world.read((0, 1), ALL, Each(Shared, 0, 4)), NONE);
    assert_eq!(world.read((0, 2), 1, One(Shared, 0)), [(Hazard::ReadAfterWrite, 1)]);
    // Warp 1 passes on what it knows.
    world.race.barrier(0, 2, false, &[(1, ALL, true), (3, ALL, true)]);
    assert_eq!(world.read((0, 3), 1, One(Shared, 4)), NONE);
}

#[test]
fn what_comes_after_an_arrival_is_not_ordered() {
    let mut world = World::new(1, 64);
    world.write((0, 0), 1, One(Shared, 0));
    world.race.arrive(0, 1, 0, ALL);
    world.write((0, 0), 1, One(Shared, 4));
    world.race.barrier(0, 1, false, &[(0, ALL, false), (1, ALL, true)]);
    assert_eq!(world.read((0, 1), 1, One(Shared, 0)), NONE);
    assert_eq!(world.read((0, 1), 1, One(Shared, 4)), [(Hazard::ReadAfterWrite, 1)]);
    // The one who arrived has not learnt anything.
    world.write((0, 1), 1, One(Shared, 8));
    assert_eq!(world.read((0, 0), 1, One(Shared, 8)), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn lanes_that_write_one_place_in_one_instruction() {
    let mut world = World::new(1, 64);
    assert_eq!(world.write_value((0, 0), ALL, One(Shared, 0), |_| 7), [(Hazard::SameValue, ALL << 1)]);
    // Each of them reads what it wrote itself.
    assert_eq!(world.read((0, 0), ALL, One(Shared, 0)), NONE);
    assert_eq!(
        world.write_value((0, 1), ALL, One(Shared, 64), |lane| lane as u8),
        [(Hazard::OneInstruction, ALL << 1)]
    );
}

#[test]
fn the_same_value_from_another_warp_is_a_class_of_its_own() {
    let mut world = World::new(1, 64);
    assert_eq!(world.write_value((0, 0), 1, One(Shared, 0), |_| 7), NONE);
    assert_eq!(world.write_value((0, 1), 1, One(Shared, 0), |_| 7), [(Hazard::SameValue, 1)]);
    assert_eq!(world.read((0, 0), 1, One(Shared, 0)), NONE);
    assert_eq!(world.read((0, 1), 1, One(Shared, 0)), NONE);
    let different = world.write_value((0, 1), 1, One(Shared, 0), |_| 8);
    assert_eq!(different, [(Hazard::WriteAfterWrite, 1), (Hazard::WriteAfterRead, 1)]);
}

#[test]
fn atomics_do_not_race_and_weak_accesses_with_them_do() {
    let mut world = World::new(2, 64);
    for (block, warp) in [(0, 0), (0, 1), (1, 0)] {
        assert_eq!(world.atomic((block, warp), 3, DATA, RELAXED), NONE);
    }
    assert_eq!(world.load((0, 0), 0, DATA, Order::Volatile), NONE);
    // That read has observed the atomics, so its lane is ordered after them; other lanes are not.
    assert_eq!(world.load((0, 0), 0, DATA, Order::Weak), NONE);
    assert_eq!(world.load((0, 0), 1, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 2)]);
    // A scope that does not include the other block.
    assert_eq!(world.atomic((0, 0), 0, FLAG, Order::Relaxed(CTA)), NONE);
    assert_eq!(world.atomic((0, 1), 0, FLAG, Order::Relaxed(CTA)), NONE);
    assert_eq!(world.atomic((1, 0), 0, FLAG, RELAXED), [(Hazard::WriteAfterWrite, 1)]);
}

/// Data, release, flag; flag, acquire, data: between blocks.
fn message(world: &mut World, release: impl Fn(&mut World), acquire: impl Fn(&mut World)) -> Races {
    world.store((0, 0), 5, DATA, Order::Weak);
    release(world);
    acquire(world);
    world.load((1, 0), 7, DATA, Order::Weak)
}

#[test]
fn release_and_acquire_pass_a_message_between_blocks() {
    let race = [(Hazard::ReadAfterWrite, 1 << 7)];
    let store = |order| move |world: &mut World| drop(world.store((0, 0), 5, FLAG, order));
    let load = |order| move |world: &mut World| drop(world.load((1, 0), 7, FLAG, order));
    let fenced_store = |scope, order| {
        move |world: &mut World| {
            world.fence((0, 0), 1 << 5, scope);
            world.store((0, 0), 5, FLAG, order);
        }
    };
    let fenced_load = |scope, order| {
        move |world: &mut World| {
            world.load((1, 0), 7, FLAG, order);
            world.fence((1, 0), 1 << 7, scope);
        }
    };
    let (release, acquire) = (Order::Release(GPU), Order::Acquire(GPU));
    let new = || World::new(2, 64);
    assert_eq!(message(&mut new(), store(release), load(acquire)), NONE);
    assert_eq!(message(&mut new(), store(release), fenced_load(GPU, RELAXED)), NONE);
    assert_eq!(message(&mut new(), fenced_store(GPU, RELAXED), load(acquire)), NONE);
    assert_eq!(message(&mut new(), fenced_store(GPU, Order::Volatile), fenced_load(GPU, Order::Volatile)), NONE);
    assert_eq!(message(&mut new(), fenced_store(Scope::System, RELAXED), fenced_load(GPU, RELAXED)), NONE);
    // Something is missing, or too narrow.
    assert_eq!(message(&mut new(), store(RELAXED), load(acquire)), race);
    assert_eq!(message(&mut new(), store(release), load(RELAXED)), race);
    assert_eq!(message(&mut new(), fenced_store(CTA, RELAXED), fenced_load(GPU, RELAXED)), race);
    assert_eq!(message(&mut new(), fenced_store(GPU, RELAXED), fenced_load(CTA, RELAXED)), race);
    assert_eq!(message(&mut new(), store(Order::Release(CTA)), load(acquire)), race);
    assert_eq!(message(&mut new(), fenced_store(GPU, Order::Weak), fenced_load(GPU, RELAXED)), race);
}

#[test]
fn a_fence_covers_what_stands_before_it_only() {
    let mut world = World::new(2, 64);
    world.fence((0, 0), 1, GPU);
    world.store((0, 0), 0, DATA, Order::Weak);
    world.store((0, 0), 0, FLAG, RELAXED);
    world.load((1, 0), 0, FLAG, RELAXED);
    world.fence((1, 0), 1, GPU);
    assert_eq!(world.load((1, 0), 0, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn a_block_releases_and_acquires_through_one_thread_and_barriers() {
    let mut world = World::new(2, 64);
    world.write((0, 1), ALL, Each(Global, DATA, 4));
    world.barrier(0, 2);
    world.fence((0, 0), 1, GPU);
    world.store((0, 0), 0, FLAG, RELAXED);
    world.load((1, 1), 3, FLAG, RELAXED);
    world.fence((1, 1), 1 << 3, GPU);
    // Others of the block know nothing yet.
    assert_eq!(world.read((1, 0), 1, One(Global, DATA)), [(Hazard::ReadAfterWrite, 1)]);
    world.barrier(1, 2);
    assert_eq!(world.read((1, 0), ALL, Each(Global, DATA, 4)), NONE);
    // Without the barrier before the release, only the releasing thread's own writes are covered.
    let mut world = World::new(2, 64);
    world.write((0, 1), ALL, Each(Global, DATA, 4));
    world.fence((0, 0), 1, GPU);
    world.store((0, 0), 0, FLAG, RELAXED);
    world.load((1, 1), 3, FLAG, Order::Acquire(GPU));
    assert_eq!(world.read((1, 1), 1 << 3, One(Global, DATA)), [(Hazard::ReadAfterWrite, 1 << 3)]);
}

#[test]
fn fences_before_a_barrier_count_when_they_are_sequential() {
    for sequential in [true, false] {
        let mut world = World::new(2, 64);
        world.write((0, 1), ALL, Each(Global, DATA, 4));
        world.race.fence(0, 1, ALL, GPU, sequential);
        world.barrier(0, 2);
        world.atomic((0, 0), 0, FLAG, RELAXED);
        world.atomic((1, 0), 0, FLAG, RELAXED);
        world.barrier(1, 2);
        world.race.fence(1, 1, ALL, GPU, sequential);
        let races = world.read((1, 1), 1, One(Global, DATA));
        assert_eq!(races, if sequential { NONE } else { vec![(Hazard::ReadAfterWrite, 1)] });
    }
}

#[test]
fn the_last_block_of_a_reduction_sees_all_partial_sums() {
    let blocks = 5;
    let mut world = World::new(blocks, 64);
    for block in 0..blocks {
        world.store((block, 0), 0, DATA + 4 * block as u64, Order::Weak);
        world.membar((block, 0), 1, GPU);
        assert_eq!(world.atomic((block, 0), 0, FLAG, RELAXED), NONE);
        world.barrier(block, 2);
    }
    let last = blocks - 1;
    world.membar((last, 1), ALL, GPU);
    assert_eq!(world.read((last, 1), 0b11111, Each(Global, DATA, 4)), NONE);
    // It resets the counter with an ordinary store: it has observed all atomics.
    assert_eq!(world.store((last, 0), 0, FLAG, Order::Weak), NONE);
    // Without the fence of the reader there is a race.
    let mut world = World::new(2, 64);
    world.store((0, 0), 0, DATA, Order::Weak);
    world.membar((0, 0), 1, GPU);
    world.atomic((0, 0), 0, FLAG, RELAXED);
    world.atomic((1, 0), 0, FLAG, RELAXED);
    assert_eq!(world.load((1, 0), 0, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn a_lock_orders_its_critical_sections() {
    let mut world = World::new(3, 64);
    let acquire = Order::Acquire(GPU);
    for block in [0, 2, 1, 0] {
        assert_eq!(world.atomic((block, 0), 0, FLAG, acquire), NONE);
        world.barrier(block, 2);
        assert_eq!(world.read((block, 1), ALL, Each(Global, DATA, 4)), NONE);
        assert_eq!(world.write((block, 1), ALL, Each(Global, DATA, 4)), NONE);
        world.barrier(block, 2);
        assert_eq!(world.atomic((block, 0), 0, FLAG, Order::Release(GPU)), NONE);
    }
    // Unlocked by an ordinary store: the next owner knows nothing.
    world.atomic((0, 0), 0, FLAG, acquire);
    world.store((0, 0), 0, DATA, Order::Weak);
    assert_eq!(world.store((0, 0), 0, FLAG, Order::Weak), NONE);
    assert_eq!(world.atomic((1, 0), 0, FLAG, acquire), [(Hazard::WriteAfterWrite, 1)]);
    assert_eq!(world.load((1, 0), 0, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn a_chain_of_blocks_passes_everything_on() {
    let blocks = 6;
    let mut world = World::new(blocks, 32);
    for block in 0..blocks {
        if block > 0 {
            let before = FLAG + 4 * (block as u64 - 1);
            assert_eq!(world.load((block, 0), 0, before, Order::Acquire(GPU)), NONE);
            assert_eq!(world.load((block, 0), 0, DATA + 4 * (block as u64 - 1), Order::Weak), NONE);
            assert_eq!(world.load((block, 0), 0, DATA, Order::Weak), NONE);
        }
        world.store((block, 0), 0, DATA + 4 * block as u64, Order::Weak);
        world.store((block, 0), 0, FLAG + 4 * block as u64, Order::Release(GPU));
    }
}

#[test]
fn reductions_are_no_acquire() {
    let mut world = World::new(2, 32);
    world.store((0, 0), 0, DATA, Order::Weak);
    world.store((0, 0), 0, FLAG, Order::Release(GPU));
    world.site += 1;
    let actor = Actor { slot: 1, warp: 0, site: world.site, non_coherent: false, returns: false };
    let access = MemoryAccess {
        kind: AccessKind::Atomic,
        space: Global,
        addresses: &[FLAG; 32],
        mask: 1,
        bytes: 4,
        order: RELAXED,
        values: None,
        wrote: 1,
    };
    world.race.access(actor, &access);
    world.fence((1, 0), 1, GPU);
    assert_eq!(world.load((1, 0), 0, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn a_copy_is_written_when_it_has_been_waited_for() {
    let mut world = World::new(1, 64);
    world.access((0, 0), 1, AccessKind::AsyncIssue, One(Shared, 0), Order::Weak);
    world.barrier(0, 2);
    world.race.landed(0, 0, 0, 0, 4);
    assert_eq!(world.read((0, 1), 1, One(Shared, 0)), [(Hazard::ReadAfterWrite, 1)]);
    assert_eq!(world.read((0, 0), 1, One(Shared, 0)), NONE);
    world.barrier(0, 2);
    assert_eq!(world.read((0, 1), 1, One(Shared, 0)), NONE);
    // The next copy into the same place is issued before the readers are done.
    assert_eq!(
        world.access((0, 0), 1, AccessKind::AsyncIssue, One(Shared, 0), Order::Weak),
        [(Hazard::WriteAfterRead, 1)]
    );
}

#[test]
fn blocks_that_follow_each_other_in_a_slot_are_different_blocks() {
    let mut world = World::new(1, 32);
    world.store((0, 0), 0, DATA, Order::Weak);
    world.write((0, 0), 1, One(Shared, 0));
    world.race.end(0);
    world.race.begin(0, 1, 32);
    assert_eq!(world.read((0, 0), 2, One(Shared, 0)), NONE);
    assert_eq!(world.load((0, 0), 0, DATA, Order::Weak), [(Hazard::ReadAfterWrite, 1)]);
}

#[test]
fn a_read_through_the_read_only_path_of_what_was_written() {
    let mut world = World::new(1, 32);
    world.store((0, 0), 0, DATA, Order::Weak);
    let actor = Actor { slot: 0, warp: 0, site: 50, non_coherent: true, returns: true };
    let access = MemoryAccess {
        kind: AccessKind::Read,
        space: Global,
        addresses: &[DATA; 32],
        mask: 1,
        bytes: 4,
        order: Order::Weak,
        values: None,
        wrote: 0,
    };
    world.race.access(actor, &access);
    assert_eq!(world.race.conflicts.len(), 1);
    assert_eq!(world.race.conflicts[0].hazard, Hazard::NonCoherent);
}
