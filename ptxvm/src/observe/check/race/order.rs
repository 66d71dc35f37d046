//! What is ordered before what: the knowledge of the threads of a block, and how barriers, fences and releases spread it.
//!
//! A thread knows (all of it earlier than anything it does now):
//! - of each warp of its block, the accesses up to a tick ([`Warp::knows`]; all lanes of the warp know the same);
//! - what its block learnt from others at its last full barrier ([`Block::far`]);
//! - what it learnt alone ([`Lane::known`]): by a barrier of some lanes, or from memory.

use std::sync::Arc;

use super::clock::{Clock, Shared, Stamp, Ticks, Who, join};
use super::shadow::Strength;
use crate::registers::LANES;

/// Warps of a block, at most.
pub(super) const WARPS: usize = 32;
/// Barriers of a block.
const BARRIERS: usize = 16;

/// A block that runs.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) serial: u32,
    pub(super) warps: Vec<Warp>,
    /// All accesses of the block up to here are known to all its threads: the last full barrier.
    pub(super) floor: u32,
    /// What all its threads know of other blocks.
    pub(super) far: Shared,
    /// What all its threads have seen published by `fence.sc`, and know once they execute one.
    fenced: Shared,
    /// Those who came to a barrier without waiting.
    arrived: Vec<Vec<Arrival>>,
}

/// A warp of it.
#[derive(Debug)]
pub(super) struct Warp {
    /// The tick of its last synchronisation: its accesses are stamped with it.
    pub(super) now: u32,
    /// Lanes that it began with.
    born: u32,
    /// Lanes that have not exited.
    pub(super) live: u32,
    /// Accesses of each warp of the block up to this tick are known to all its lanes.
    pub(super) knows: [u32; WARPS],
    /// What single lanes have of their own; `None` while none has anything.
    pub(super) lanes: Option<Box<[Lane; LANES]>>,
}

/// What a lane has of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// What it knows beside its warp and block.
    pub(super) known: Shared,
    /// What its strong writes publish to its block: its knowledge at its last fence.
    pub(super) release_block: Published,
    /// The same to all threads: at its last fence of device scope.
    pub(super) release_device: Published,
    /// What it has read from strong writes of its block, and knows once it executes a fence.
    pub(super) pending_block: Shared,
    /// The same from other blocks: it takes a fence of device scope.
    pub(super) pending_device: Shared,
    /// As [`Block::fenced`].
    pub(super) fenced: Shared,
    /// Its own accesses up to this tick are published so, too.
    fenced_tick: u32,
}

/// What a lane knew at some moment, itself included. The lanes of a warp mostly know the same, and share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// Of all others; `None` where nothing is published.
    base: Shared,
    /// Its own accesses up to here.
    tick: u32,
}

impl Published {
    /// Nothing is published.
    pub(super) fn is_nothing(&self) -> bool {
        self.base.is_none()
    }

    /// Whether the two are of the same moment.
    pub(super) fn same(&self, other: &Published) -> bool {
        let bases = self.base.as_ref().zip(other.base.as_ref());
        self.tick == other.tick && bases.is_some_and(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Adds it to what is known, as published by this lane.
    pub(super) fn join_to(&self, into: &mut Shared, serial: u32, warp: u32, lane: u32) {
        if self.base.is_some() {
            join(into, &self.base);
            raise(into, Who::lane(serial, warp, lane), self.tick);
        }
    }
}

/// Adds one entry to what is known.
fn raise(into: &mut Shared, who: Who, tick: u32) {
    let clock = into.get_or_insert_with(Arc::default);
    if clock.of(who) < tick {
        Arc::make_mut(clock).raise(who, tick);
    }
}

/// Lanes that came to a barrier and went on: what they had done by then.
#[derive(Debug)]
struct Arrival {
    warp: u32,
    mask: u32,
    /// All its live lanes came.
    whole: bool,
    tick: u32,
    knows: [u32; WARPS],
    known: Shared,
    fenced: Shared,
}

/// One who asks whether others' accesses are ordered before his own.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) serial: u32,
    pub(super) warp: u32,
    pub(super) now: u32,
    pub(super) floor: u32,
    knows: &'a [u32; WARPS],
    far: &'a Shared,
    lanes: Option<&'a [Lane; LANES]>,
}

impl View<'_> {
    /// Whether the access of one lane is ordered before what `lane` does now.
    #[inline(always)]
    pub(super) fn ordered(&self, lane: u32, before: Stamp) -> bool {
        if before.serial() == self.serial {
            let same = before.warp() == self.warp && before.lane() == lane;
            if same || before.tick() <= self.knows[before.warp() as usize] {
                return true;
            }
        }
        self.learnt(lane, before)
    }

    /// Whether the accesses of all `lanes` of a warp are.
    #[inline(always)]
    pub(super) fn all_ordered(&self, lane: u32, before: Stamp, mut lanes: u32) -> bool {
        if before.serial() == self.serial {
            if before.tick() <= self.knows[before.warp() as usize] {
                return true;
            }
            if before.warp() == self.warp {
                lanes &= !(1 << lane);
            }
            if lanes == 0 {
                return true;
            }
        }
        self.unordered(lane, before, lanes) == 0
    }

    /// Those of `lanes` whose access is not.
    pub(super) fn unordered(&self, lane: u32, before: Stamp, lanes: u32) -> u32 {
        let open = |&other: &u32| lanes >> other & 1 == 1 && !self.ordered(lane, before.of_lane(other));
        (0..LANES as u32).filter(open).fold(0, |mask, other| mask | 1 << other)
    }

    fn learnt(&self, lane: u32, before: Stamp) -> bool {
        let knows = |clock: &Shared| {
            let known = clock.as_ref().map(|clock| clock.known(before.serial(), before.warp(), before.lane()));
            known.is_some_and(|known| known >= before.tick())
        };
        knows(self.far) || self.lanes.is_some_and(|lanes| knows(&lanes[lane as usize].known))
    }
}

impl Warp {
    fn new(threads: u32, now: u32) -> Warp {
        let born = lanes_of(threads);
        Warp { now, born, live: born, knows: [0; WARPS], lanes: None }
    }

    /// The lanes' own state, made when the first has any.
    pub(super) fn lanes_mut(&mut self) -> &mut [Lane; LANES] {
        self.lanes.get_or_insert_with(Box::default)
    }

    /// What any of the lanes in `mask` knows of its own.
    fn known(&self, mask: u32) -> Shared {
        let mut all = None;
        if let Some(lanes) = &self.lanes {
            bits(mask).for_each(|lane| join(&mut all, &lanes[lane as usize].known));
        }
        all
    }

    /// What any of them has seen published by `fence.sc`.
    fn fenced(&self, serial: u32, warp: u32, mask: u32) -> Shared {
        let Some(lanes) = &self.lanes else { return None };
        let mut all = None;
        bits(mask).for_each(|lane| join(&mut all, &lanes[lane as usize].fenced));
        let tick = |lane: u32| lanes[lane as usize].fenced_tick;
        let mut ticks = bits(mask).map(tick);
        let first = ticks.next().unwrap_or(0);
        if mask == self.live && ticks.all(|tick| tick == first) {
            if first > 0 {
                raise(&mut all, Who::warp(serial, warp), first);
            }
        } else {
            let own = bits(mask).filter(|&lane| tick(lane) > 0);
            own.for_each(|lane| raise(&mut all, Who::lane(serial, warp, lane), tick(lane)));
        }
        all
    }
}

/// The lanes of a warp of so many threads.
fn lanes_of(threads: u32) -> u32 {
    if threads >= 32 { u32::MAX } else { (1 << threads) - 1 }
}

/// The lanes of a mask, ascending.
#[inline(always)]
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

impl Block {
    /// A block of so many threads begins.
    pub(super) fn new(serial: u32, threads: u32, ticks: &mut Ticks) -> Block {
        let now = ticks.next();
        let warps = (0..threads.div_ceil(32).clamp(1, WARPS as u32)).map(|warp| Warp::new(threads - warp * 32, now));
        Block {
            serial,
            warps: warps.collect(),
            floor: 0,
            far: None,
            fenced: None,
            arrived: (0..BARRIERS).map(|_| Vec::new()).collect(),
        }
    }

    /// The eyes of a warp.
    pub(super) fn view(&self, warp: u32) -> View<'_> {
        let of = &self.warps[warp as usize];
        View {
            serial: self.serial,
            warp,
            now: of.now,
            floor: self.floor,
            knows: &of.knows,
            far: &self.far,
            lanes: of.lanes.as_deref(),
        }
    }

    /// The lanes leave: barriers do not wait for them, and order what they did as if they had come.
    pub(super) fn exit(&mut self, warp: u32, mask: u32) {
        self.warps[warp as usize].live &= !mask;
    }

    /// All that a lane knows now, and its own accesses so far.
    pub(super) fn knowledge(&self, warp: u32, lane: u32) -> Published {
        let of = &self.warps[warp as usize];
        let own = of.lanes.as_ref().and_then(|lanes| lanes[lane as usize].known.clone());
        Published { base: Some(Arc::new(self.base(warp, &own))), tick: of.now }
    }

    /// What a lane of a warp knows that has learnt `own` alone.
    fn base(&self, warp: u32, own: &Shared) -> Clock {
        let of = &self.warps[warp as usize];
        let mut all = self.far.clone();
        join(&mut all, own);
        let mut clock = all.map(Arc::unwrap_or_clone).unwrap_or_default();
        clock.raise(Who::block(self.serial), self.floor);
        for other in 0..self.warps.len() as u32 {
            if of.knows[other as usize] > self.floor {
                clock.raise(Who::warp(self.serial, other), of.knows[other as usize]);
            }
        }
        clock
    }

    /// `bar.warp.sync` of the lanes in `mask`: each knows what each did and knows.
    pub(super) fn warp_barrier(&mut self, warp: u32, mask: u32, ticks: &mut Ticks) {
        let serial = self.serial;
        let of = &mut self.warps[warp as usize];
        let mut known = of.known(mask);
        let fenced = of.fenced(serial, warp, mask);
        let tick = ticks.next();
        if mask & of.live == of.live {
            of.knows[warp as usize] = tick - 1;
        } else {
            let mut met = Clock::default();
            bits(mask).for_each(|lane| met.raise(Who::lane(serial, warp, lane), of.now));
            join(&mut known, &Some(Arc::new(met)));
        }
        of.now = tick;
        if known.is_some() || fenced.is_some() {
            let lanes = of.lanes_mut();
            for lane in bits(mask) {
                lanes[lane as usize].known.clone_from(&known);
                lanes[lane as usize].fenced.clone_from(&fenced);
                lanes[lane as usize].fenced_tick = 0;
            }
        }
    }

    /// Lanes come to a barrier and go on: what they do from now on is not part of it.
    pub(super) fn arrive(&mut self, barrier: u32, warp: u32, mask: u32, ticks: &mut Ticks) {
        let arrival = self.arrival(warp, mask);
        if let Some(arrived) = self.arrived.get_mut(barrier as usize) {
            arrived.push(arrival);
        }
        self.warps[warp as usize].now = ticks.next();
    }

    fn arrival(&self, warp: u32, mask: u32) -> Arrival {
        let of = &self.warps[warp as usize];
        Arrival {
            warp,
            mask,
            whole: mask & of.live == of.live,
            tick: of.now,
            knows: of.knows,
            known: of.known(mask),
            fenced: of.fenced(self.serial, warp, mask),
        }
    }

    /// A barrier is complete: those who waited know what all who came had done. A barrier without a count (`whole`) is
    /// one of all threads of the block, and those who have exited count as come.
    pub(super) fn barrier(&mut self, barrier: u32, whole: bool, came: &[(u32, u32, bool)], ticks: &mut Ticks) {
        let mut waiting = [0u32; WARPS];
        for &(warp, mask, waited) in came {
            if waited {
                waiting[warp as usize % WARPS] |= mask;
            }
        }
        let mut arrived = self.arrived.get_mut(barrier as usize).map(std::mem::take).unwrap_or_default();
        let those = |of: &Warp| if whole { of.live } else { of.born };
        if arrived.is_empty() && self.warps.iter().zip(waiting).all(|(warp, mask)| those(warp) & !mask == 0) {
            return self.full_barrier(ticks);
        }
        for warp in 0..self.warps.len() as u32 {
            let waits = waiting[warp as usize];
            let left = whole && self.warps[warp as usize].live == 0 && arrived.iter().all(|one| one.warp != warp);
            if waits != 0 || left {
                arrived.push(self.arrival(warp, waits));
            }
        }
        self.partial_barrier(&waiting, &arrived, ticks);
    }

    fn full_barrier(&mut self, ticks: &mut Ticks) {
        let tick = ticks.next();
        self.floor = tick - 1;
        for (number, warp) in self.warps.iter_mut().enumerate() {
            (warp.now, warp.knows) = (tick, [tick - 1; WARPS]);
            join(&mut self.fenced, &warp.fenced(self.serial, number as u32, warp.live));
            let Some(lanes) = &mut warp.lanes else { continue };
            for lane in lanes.iter_mut() {
                join(&mut self.far, &lane.known.take());
                (lane.fenced, lane.fenced_tick) = (None, 0);
            }
        }
        let own = self.far.as_ref().is_some_and(|far| far.known_of(self.serial));
        if let (true, Some(far)) = (own, &mut self.far) {
            let far = Arc::make_mut(far);
            far.forget(self.serial);
            if far.is_empty() {
                self.far = None;
            }
        }
    }

    fn partial_barrier(&mut self, waiting: &[u32; WARPS], came: &[Arrival], ticks: &mut Ticks) {
        let (mut knows, mut known, mut fenced) = ([0; WARPS], None, None);
        let mut lanes = Clock::default();
        for arrival in came {
            for (all, one) in knows.iter_mut().zip(arrival.knows) {
                *all = one.max(*all);
            }
            if arrival.whole {
                let own = &mut knows[arrival.warp as usize];
                *own = arrival.tick.max(*own);
            } else {
                let raise = |lane| lanes.raise(Who::lane(self.serial, arrival.warp, lane), arrival.tick);
                bits(arrival.mask).for_each(raise);
            }
            join(&mut known, &arrival.known);
            join(&mut fenced, &arrival.fenced);
        }
        if !lanes.is_empty() {
            join(&mut known, &Some(Arc::new(lanes)));
        }
        let tick = ticks.next();
        for (at, &mask) in waiting.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            self.learn(at, mask, &knows, &known, &fenced);
            self.warps[at].now = tick;
        }
    }

    /// Lanes learn what a barrier of some threads told.
    fn learn(&mut self, warp: usize, mask: u32, knows: &[u32; WARPS], known: &Shared, fenced: &Shared) {
        let (serial, floor) = (self.serial, self.floor);
        let of = &mut self.warps[warp];
        let mut known = known.clone();
        if mask & of.live == of.live {
            for (mine, new) in of.knows.iter_mut().zip(knows) {
                *mine = (*mine).max(*new);
            }
        } else {
            let mut dense = Clock::default();
            for (other, &tick) in knows.iter().enumerate().filter(|(_, tick)| **tick > floor) {
                dense.raise(Who::warp(serial, other as u32), tick);
            }
            join(&mut known, &Some(Arc::new(dense)));
        }
        if known.is_some() || fenced.is_some() {
            let lanes = of.lanes_mut();
            for lane in bits(mask) {
                join(&mut lanes[lane as usize].known, &known);
                join(&mut lanes[lane as usize].fenced, fenced);
            }
        }
    }

    /// A fence of the lanes in `mask`: they know what they had read from strong writes, and their strong writes from now
    /// on publish what they know.
    pub(super) fn fence(&mut self, warp: u32, mask: u32, scope: Strength, sequential: bool, ticks: &mut Ticks) {
        let device = scope == Strength::Device;
        let published = self.fenced.clone();
        let tick = self.warps[warp as usize].now;
        // Lanes that know the same publish the same.
        let mut last: Option<(Shared, Shared)> = None;
        for lane in bits(mask) {
            let own = &mut self.warps[warp as usize].lanes_mut()[lane as usize];
            let pending = own.pending_block.take();
            join(&mut own.known, &pending);
            if device {
                let pending = own.pending_device.take();
                join(&mut own.known, &pending);
            }
            if device && sequential {
                join(&mut own.known, &published);
                let fenced = own.fenced.take();
                join(&mut own.known, &fenced);
            }
            let known = own.known.clone();
            let base = match last {
                Some((of, base)) if same(&of, &known) => base,
                _ => Some(Arc::new(self.base(warp, &known))),
            };
            let own = &mut self.warps[warp as usize].lanes_mut()[lane as usize];
            own.release_block = Published { base: base.clone(), tick };
            if device {
                own.release_device = own.release_block.clone();
            }
            if device && sequential {
                (own.fenced, own.fenced_tick) = (base.clone(), tick);
            }
            last = Some((known, base));
        }
        self.warps[warp as usize].now = ticks.next();
    }

    /// Adds what a lane has seen published by `fence.sc` in its past.
    pub(super) fn join_fenced(&self, into: &mut Shared, warp: u32, lane: u32) {
        join(into, &self.fenced);
        let Some(lanes) = &self.warps[warp as usize].lanes else { return };
        let own = &lanes[lane as usize];
        join(into, &own.fenced);
        if own.fenced_tick > 0 {
            raise(into, Who::lane(self.serial, warp, lane), own.fenced_tick);
        }
    }

    /// Whether there is any.
    pub(super) fn has_fenced(&self, warp: u32, lane: u32) -> bool {
        let lanes = self.warps[warp as usize].lanes.as_ref();
        self.fenced.is_some() || lanes.is_some_and(|lanes| lanes[lane as usize].fenced.is_some())
    }
}

fn same(a: &Shared, b: &Shared) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}
