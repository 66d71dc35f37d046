//! Time for racecheck: the stamp of an access, and what a thread knows of the others'.
//!
//! One counter ticks through the whole launch, at every synchronisation. A warp stamps its accesses with the tick of its
//! own last one, so that "everything of warp w up to tick t" is one comparison, and a block whose threads have met at a
//! barrier needs no vector of clocks. What does not fit that (single lanes, other blocks) is in sparse [`Clock`]s.

use std::sync::Arc;

use bytemuck::Zeroable;

/// The ticking of a launch.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    last: u32,
}

impl Ticks {
    /// A new tick, later than all before. It stays at the last one where there are no more: see [`Ticks::spent`].
    pub(super) fn next(&mut self) -> u32 {
        self.last = self.last.saturating_add(1);
        self.last
    }

    /// No tick is left to tell moments apart.
    pub(super) fn spent(&self) -> bool {
        self.last == u32::MAX
    }
}

/// When and by whom: tick, block, warp, lane in one word. Zero is "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
#[repr(transparent)]
pub(super) struct Stamp(u64);

impl Stamp {
    pub(super) const NEVER: Stamp = Stamp(0);
    /// Blocks of a launch that stamps can tell apart.
    pub(super) const BLOCKS: u32 = 1 << 22;

    pub(super) fn new(tick: u32, serial: u32, warp: u32, lane: u32) -> Stamp {
        Stamp(u64::from(tick) << 32 | u64::from(serial << 10 | warp << 5 | lane))
    }

    pub(super) fn tick(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Number of the block, in the order in which blocks began.
    pub(super) fn serial(self) -> u32 {
        self.0 as u32 >> 10
    }

    pub(super) fn warp(self) -> u32 {
        self.0 as u32 >> 5 & 31
    }

    pub(super) fn lane(self) -> u32 {
        self.0 as u32 & 31
    }

    /// Block, warp and lane without the tick.
    pub(super) fn thread(self) -> u32 {
        self.0 as u32
    }

    /// A thread, at no tick.
    pub(super) fn of_thread(thread: u32) -> Stamp {
        Stamp(u64::from(thread))
    }

    /// The same moment of another lane of the warp.
    pub(super) fn of_lane(self, lane: u32) -> Stamp {
        Stamp(self.0 & !31 | u64::from(lane))
    }

    /// The same thread later.
    pub(super) fn at_tick(self, tick: u32) -> Stamp {
        Stamp(u64::from(tick) << 32 | u64::from(self.thread()))
    }
}

/// What a clock speaks of: a whole block, a warp or a lane, ordered so that a block's entries lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who(u64);

impl Who {
    const PART: u64 = (1 << 12) - 1;

    pub(super) fn block(serial: u32) -> Who {
        Who(u64::from(serial) << 12)
    }

    pub(super) fn warp(serial: u32, warp: u32) -> Who {
        Who(u64::from(serial) << 12 | u64::from(1 + warp))
    }

    pub(super) fn lane(serial: u32, warp: u32, lane: u32) -> Who {
        Who(u64::from(serial) << 12 | u64::from(64 + (warp << 5 | lane)))
    }

    fn serial(self) -> u32 {
        (self.0 >> 12) as u32
    }

    /// Whether it speaks of this lane.
    fn includes(self, warp: u32, lane: u32) -> bool {
        let part = self.0 & Who::PART;
        part == 0 || part == u64::from(1 + warp) || part == u64::from(64 + (warp << 5 | lane))
    }
}

/// Up to which tick the accesses of blocks, warps and lanes are known to be done: a sparse vector clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// Sorted by whom.
    entries: Vec<(Who, u32)>,
}

impl Clock {
    /// Up to which tick this lane's accesses are known.
    pub(super) fn known(&self, serial: u32, warp: u32, lane: u32) -> u32 {
        let from = self.entries.partition_point(|&(who, _)| who < Who::block(serial));
        let of_block = self.entries[from..].iter().take_while(|(who, _)| who.serial() == serial);
        of_block.filter(|(who, _)| who.includes(warp, lane)).map(|&(_, tick)| tick).max().unwrap_or(0)
    }

    /// Up to which tick it has an entry of just this.
    pub(super) fn of(&self, who: Who) -> u32 {
        self.entries.binary_search_by_key(&who, |&(known, _)| known).map_or(0, |at| self.entries[at].1)
    }

    /// Knows of `who` up to `tick` at least.
    pub(super) fn raise(&mut self, who: Who, tick: u32) {
        match self.entries.binary_search_by_key(&who, |&(known, _)| known) {
            Ok(at) => self.entries[at].1 = self.entries[at].1.max(tick),
            Err(at) => self.entries.insert(at, (who, tick)),
        }
    }

    /// Whether `other` tells nothing new. It may answer no too often: it compares entry by entry.
    fn covers(&self, other: &Clock) -> bool {
        let mut mine = self.entries.iter();
        other.entries.iter().all(|(who, tick)| {
            mine.by_ref().find(|(known, _)| known >= who).is_some_and(|(known, has)| known == who && has >= tick)
        })
    }

    fn joined(&self, other: &Clock) -> Clock {
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()) + 4);
        let (mut a, mut b) = (self.entries.iter().copied().peekable(), other.entries.iter().copied().peekable());
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    let tick = y.1;
                    b.next();
                    a.next().map(|(who, own)| (who, own.max(tick)))
                }
                (Some(x), Some(y)) if x.0 < y.0 => a.next(),
                (Some(_), None) => a.next(),
                _ => b.next(),
            };
            match next {
                Some(entry) => entries.push(entry),
                None => return Clock { entries },
            }
        }
    }

    /// Without what it says of a block: that block's own threads have it in a denser form.
    pub(super) fn forget(&mut self, serial: u32) {
        self.entries.retain(|(who, _)| who.serial() != serial);
    }

    /// Whether it says anything of a block.
    pub(super) fn known_of(&self, serial: u32) -> bool {
        let from = self.entries.partition_point(|&(who, _)| who < Who::block(serial));
        self.entries.get(from).is_some_and(|(who, _)| who.serial() == serial)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A clock that many hold; `None` knows nothing.
pub(super) type Shared = Option<Arc<Clock>>;

/// Adds to a clock what another one knows. Clocks are shared as long as nobody learns anything new.
pub(super) fn join(into: &mut Shared, other: &Shared) {
    let Some(new) = other else { return };
    let Some(old) = into else {
        *into = Some(Arc::clone(new));
        return;
    };
    if Arc::ptr_eq(old, new) || old.covers(new) {
        return;
    }
    *into = Some(if new.covers(old) { Arc::clone(new) } else { Arc::new(old.joined(new)) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_gives_back_what_it_was_made_of() {
        let stamp = Stamp::new(u32::MAX, Stamp::BLOCKS - 1, 31, 30);
        assert_eq!((stamp.tick(), stamp.serial(), stamp.warp(), stamp.lane()), (u32::MAX, Stamp::BLOCKS - 1, 31, 30));
        assert_eq!(stamp.of_lane(3).lane(), 3);
        assert_eq!(stamp.at_tick(7).tick(), 7);
        assert_eq!(stamp.at_tick(7).thread(), stamp.thread());
    }

    #[test]
    fn a_clock_knows_blocks_warps_and_lanes() {
        let mut clock = Clock::default();
        clock.raise(Who::block(7), 3);
        clock.raise(Who::warp(7, 2), 5);
        clock.raise(Who::lane(7, 2, 9), 8);
        clock.raise(Who::lane(7, 2, 9), 6);
        assert_eq!(clock.known(7, 0, 0), 3);
        assert_eq!(clock.known(7, 2, 0), 5);
        assert_eq!(clock.known(7, 2, 9), 8);
        assert_eq!(clock.known(6, 2, 9), 0);
        assert_eq!(clock.known(8, 2, 9), 0);
    }

    #[test]
    fn joining_keeps_the_later_of_both_and_shares_what_covers() {
        let make = |entries: &[(Who, u32)]| {
            let mut clock = Clock::default();
            entries.iter().for_each(|&(who, tick)| clock.raise(who, tick));
            Some(Arc::new(clock))
        };
        let small = make(&[(Who::block(1), 4)]);
        let large = make(&[(Who::block(1), 4), (Who::block(3), 9)]);
        let other = make(&[(Who::block(1), 6), (Who::block(2), 1)]);
        let mut into = small.clone();
        join(&mut into, &large);
        assert!(Arc::ptr_eq(into.as_ref().unwrap(), large.as_ref().unwrap()));
        join(&mut into, &other);
        let known: Vec<u32> = (0..4).map(|serial| into.as_ref().unwrap().known(serial, 0, 0)).collect();
        assert_eq!(known, [0, 6, 1, 9]);
        join(&mut into, &None);
        let before = into.clone();
        join(&mut into, &small);
        assert_eq!(into, before);
    }
}
