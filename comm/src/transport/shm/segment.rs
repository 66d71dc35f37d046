//! The layout of the memory that the ranks of a group share: who may touch which byte.
//!
//! ```text
//! line 0            the group's token, so that a wrong file is noticed
//! line 1 + r        rank r: attached, closed, doorbell, waiting
//! two lines a pair  bytes ever written (by the sender), bytes ever read (by the receiver)
//! a ring a pair     the payload on its way
//! ```
//! A line is 128 bytes: two ranks never share one, nor its neighbour that the processor fetches along with it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

use super::mapping::Mapping;

const LINE: usize = 128;
const PAGE: usize = 4096;
const LARGEST_RING: usize = 1 << 20;
const SMALLEST_RING: usize = 4096;
/// All rings of a group together take no more than this, unless the smallest ring for every pair takes more.
const ALL_RINGS: usize = 64 << 20;

/// Names a group's segment; whoever attaches proves with it that it found the right one.
pub(in crate::transport) type Token = [u8; 16];

/// Bytes of the ring from one rank to another in a group of `world`.
pub(in crate::transport) fn ring_bytes(world: usize) -> usize {
    let pairs = (world * world.saturating_sub(1)).max(1);
    let share = (ALL_RINGS / pairs).clamp(SMALLEST_RING, LARGEST_RING);
    1 << share.ilog2()
}

/// Where everything lies in the segment of a group.
#[derive(Clone, Copy)]
struct Layout {
    world: usize,
    ring_bytes: usize,
}

impl Layout {
    fn new(world: usize) -> Self {
        Self { world, ring_bytes: ring_bytes(world) }
    }

    fn pairs(self) -> usize {
        self.world * (self.world - 1)
    }

    fn pair(self, from: usize, to: usize) -> usize {
        from * (self.world - 1) + if to < from { to } else { to - 1 }
    }

    fn rank_line(self, rank: usize) -> usize {
        (1 + rank) * LINE
    }

    fn pair_lines(self, pair: usize) -> usize {
        (1 + self.world + 2 * pair) * LINE
    }

    fn ring(self, pair: usize) -> usize {
        self.pair_lines(self.pairs()).next_multiple_of(PAGE) + pair * self.ring_bytes
    }

    fn bytes(self) -> usize {
        self.ring(self.pairs())
    }
}

/// Bytes of shared memory that a group of `world` ranks needs.
pub(in crate::transport) fn segment_bytes(world: usize) -> usize {
    Layout::new(world).bytes()
}

/// The shared memory of one group, as one process sees it.
pub(in crate::transport) struct Segment {
    mapping: Mapping,
    layout: Layout,
}

impl Segment {
    /// Memory for ranks that are threads of this process.
    pub(in crate::transport) fn in_process(world: usize) -> rustix::io::Result<Self> {
        let layout = Layout::new(world);
        Ok(Self { mapping: Mapping::private(layout.bytes())?, layout })
    }

    /// Maps a file whose pages are all allocated.
    pub(super) fn in_file(file: &File, world: usize) -> rustix::io::Result<Self> {
        let layout = Layout::new(world);
        Ok(Self { mapping: Mapping::of_file(file, layout.bytes())?, layout })
    }

    /// Writes the token that [`has_token`](Self::has_token) looks for.
    pub(super) fn set_token(&self, token: &Token) {
        for (index, four) in token.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            self.mapping.word(4 * index).store(value, Ordering::Release);
        }
    }

    /// Whether this is the segment of that token.
    pub(super) fn has_token(&self, token: &Token) -> bool {
        token.chunks_exact(4).enumerate().all(|(index, four)| {
            let value = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            self.mapping.word(4 * index).load(Ordering::Acquire) == value
        })
    }

    /// Takes the place of `rank`; `false` if somebody has taken it before. Only its holder may touch the producing side
    /// of the rings from `rank` and the consuming side of those to it.
    fn attach(&self, rank: usize) -> bool {
        self.mapping.word(self.layout.rank_line(rank)).swap(1, Ordering::AcqRel) == 0
    }

    fn closed(&self, rank: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.rank_line(rank) + 4)
    }

    fn doorbell(&self, rank: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.rank_line(rank) + 8)
    }

    fn waiting(&self, rank: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.rank_line(rank) + 12)
    }

    fn written(&self, pair: usize) -> &AtomicU64 {
        self.mapping.counter(self.layout.pair_lines(pair))
    }

    fn read(&self, pair: usize) -> &AtomicU64 {
        self.mapping.counter(self.layout.pair_lines(pair) + LINE)
    }
}

/// The place of one rank in a segment. There is at most one for each rank, so each ring has one producer and one consumer.
pub(in crate::transport) struct Place {
    segment: Arc<Segment>,
    rank: usize,
    /// For each peer, in rank order with an unused entry for this rank.
    outgoing: Vec<Cursor>,
    incoming: Vec<Cursor>,
}

/// One end of a ring: its own counter, and the last seen value of the other end's, which spares most looks at a line
/// that the other core keeps writing.
#[derive(Clone, Copy, Default)]
struct Cursor {
    own: u64,
    other: u64,
}

/// The peer's counter has a value that no correct peer writes.
#[derive(Debug)]
pub(in crate::transport) struct Impossible {
    pub(in crate::transport) written: u64,
    pub(in crate::transport) read: u64,
}

impl Place {
    /// Takes the place of `rank`, or nothing if it is taken or outside the group.
    pub(in crate::transport) fn take(segment: Arc<Segment>, rank: usize) -> Option<Self> {
        let world = segment.layout.world;
        let taken = rank < world && segment.attach(rank);
        let cursors = vec![Cursor::default(); world];
        taken.then(|| Self { segment, rank, outgoing: cursors.clone(), incoming: cursors })
    }

    pub(in crate::transport) fn world(&self) -> usize {
        self.segment.layout.world
    }

    /// Bytes of the rings from this rank to its peers; those towards it are their senders'.
    pub(in crate::transport) fn outgoing_bytes(&self) -> usize {
        (self.world() - 1) * self.segment.layout.ring_bytes
    }

    pub(in crate::transport) fn is_closed(&self, peer: usize) -> bool {
        self.segment.closed(peer).load(Ordering::Acquire) != 0
    }

    /// Bytes that the ring to `peer` has room for.
    pub(in crate::transport) fn room(&mut self, peer: usize) -> Result<usize, Impossible> {
        let capacity = self.segment.layout.ring_bytes as u64;
        let pair = self.segment.layout.pair(self.rank, peer);
        let cursor = &mut self.outgoing[peer];
        if cursor.own.wrapping_sub(cursor.other) >= capacity {
            cursor.other = self.segment.read(pair).load(Ordering::Acquire);
        }
        let used = cursor.own.wrapping_sub(cursor.other);
        if used > capacity {
            return Err(Impossible { written: cursor.own, read: cursor.other });
        }
        Ok((capacity - used) as usize)
    }

    /// Bytes that the ring from `peer` holds.
    pub(in crate::transport) fn available(&mut self, peer: usize) -> Result<usize, Impossible> {
        let capacity = self.segment.layout.ring_bytes as u64;
        let pair = self.segment.layout.pair(peer, self.rank);
        let cursor = &mut self.incoming[peer];
        if cursor.other == cursor.own {
            cursor.other = self.segment.written(pair).load(Ordering::Acquire);
        }
        let used = cursor.other.wrapping_sub(cursor.own);
        if used > capacity {
            return Err(Impossible { written: cursor.other, read: cursor.own });
        }
        Ok(used as usize)
    }

    /// Writes as much as there is room for into the ring to `peer`, rings its bell, and returns how much that was.
    pub(in crate::transport) fn push(&mut self, peer: usize, bytes: &[u8]) -> Result<usize, Impossible> {
        let count = self.room(peer)?.min(bytes.len());
        if count == 0 {
            return Ok(0);
        }
        let pair = self.segment.layout.pair(self.rank, peer);
        let (first, rest) = bytes[..count].split_at(self.until_wrap(self.outgoing[peer].own).min(count));
        let (start, offset) = (self.segment.layout.ring(pair), self.offset(self.outgoing[peer].own));
        // SAFETY: rings hold no control word; `room` says that the consumer has read these bytes and left them, and this
        // `Place` is the ring's only producer.
        unsafe { self.segment.mapping.write(start + offset, first) };
        // SAFETY: as above; the part after the wrap.
        unsafe { self.segment.mapping.write(start, rest) };
        let cursor = &mut self.outgoing[peer];
        cursor.own = cursor.own.wrapping_add(count as u64);
        self.segment.written(pair).store(cursor.own, Ordering::Release);
        self.ring_bell(peer);
        Ok(count)
    }

    /// Takes as many bytes as `into` holds and the ring from `peer` has, rings the peer's bell, and returns how many.
    pub(in crate::transport) fn pop(&mut self, peer: usize, into: &mut [u8]) -> Result<usize, Impossible> {
        let count = self.available(peer)?.min(into.len());
        if count == 0 {
            return Ok(0);
        }
        let pair = self.segment.layout.pair(peer, self.rank);
        let (first, rest) = into[..count].split_at_mut(self.until_wrap(self.incoming[peer].own).min(count));
        let (start, offset) = (self.segment.layout.ring(pair), self.offset(self.incoming[peer].own));
        // SAFETY: rings hold no control word; `available` says that the producer has written these bytes and will not
        // touch them before they are given back, and this `Place` is the ring's only consumer.
        unsafe { self.segment.mapping.read(start + offset, first) };
        // SAFETY: as above; the part after the wrap.
        unsafe { self.segment.mapping.read(start, rest) };
        let cursor = &mut self.incoming[peer];
        cursor.own = cursor.own.wrapping_add(count as u64);
        self.segment.read(pair).store(cursor.own, Ordering::Release);
        self.ring_bell(peer);
        Ok(count)
    }

    fn offset(&self, counter: u64) -> usize {
        counter as usize & (self.segment.layout.ring_bytes - 1)
    }

    fn until_wrap(&self, counter: u64) -> usize {
        self.segment.layout.ring_bytes - self.offset(counter)
    }

    /// Wakes `peer` if it sleeps. The fence pairs with the one in [`sleep_unless`](Self::sleep_unless): either the peer's
    /// flag is seen here, or the peer, looking again after setting it, sees what was published before this call.
    fn ring_bell(&self, peer: usize) {
        fence(Ordering::SeqCst);
        let waiting = self.segment.waiting(peer);
        if waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::AcqRel) != 0 {
            let bell = self.segment.doorbell(peer);
            bell.fetch_add(1, Ordering::Release);
            // The only errors of a wake are about the address, which is valid.
            let _ = futex::wake(bell, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until a peer rings or `timeout` has passed, unless `ready` after the wish to be woken has been announced.
    pub(in crate::transport) fn sleep_unless(&mut self, timeout: Duration, ready: impl FnOnce(&mut Self) -> bool) {
        let seen = self.segment.doorbell(self.rank).load(Ordering::Acquire);
        self.segment.waiting(self.rank).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready(self) {
            let bell = self.segment.doorbell(self.rank);
            let timeout = futex::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
            // Woken, timed out, interrupted, rung before: in every case the caller looks again.
            let _ = futex::wait(bell, futex::Flags::empty(), seen, Some(&timeout));
        }
        self.segment.waiting(self.rank).store(0, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.segment.closed(self.rank).store(1, Ordering::Release);
        for peer in (0..self.world()).filter(|&peer| peer != self.rank) {
            self.ring_bell(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_do_not_overlap_and_stay_bounded() {
        for world in 2..=64 {
            let layout = Layout::new(world);
            let mut seen = std::collections::HashSet::new();
            for from in 0..world {
                for to in (0..world).filter(|&to| to != from) {
                    assert!(seen.insert(layout.pair(from, to)));
                }
            }
            assert!(seen.iter().all(|&pair| pair < layout.pairs()));
            assert!(layout.rank_line(world) <= layout.pair_lines(0));
            assert!(layout.pair_lines(layout.pairs()) <= layout.ring(0));
            assert!(layout.ring_bytes.is_power_of_two());
            assert!(layout.bytes() <= ALL_RINGS + (64 * 64 * 2 + 66) * LINE, "{world}: {}", layout.bytes());
        }
    }

    #[test]
    fn a_place_is_taken_once_and_impossible_counters_are_refused() {
        let segment = Arc::new(Segment::in_process(2).expect("memory"));
        let mut place = Place::take(segment.clone(), 0).expect("free");
        assert!(Place::take(segment.clone(), 0).is_none());
        assert!(Place::take(segment.clone(), 2).is_none());
        let pair = segment.layout.pair(1, 0);
        segment.written(pair).store(segment.layout.ring_bytes as u64 + 1, Ordering::Release);
        assert!(place.pop(1, &mut [0; 8]).is_err());
        let pair = segment.layout.pair(0, 1);
        while place.push(1, &[7; 4096]).expect("room") > 0 {}
        segment.read(pair).store(u64::MAX - 5, Ordering::Release);
        let error = place.push(1, &[1]).expect_err("impossible");
        assert_eq!(error.read, u64::MAX - 5);
    }
}
