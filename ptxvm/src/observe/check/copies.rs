//! asynccheck: what `cp.async` has been told to copy, until the wait that covers it.
//!
//! It works from the moment of issue, not from when the bytes happen to land: a missing wait is found under every
//! completion mode. Racecheck learns from here when a copy is waited for: only then its writes are ordered before
//! anything.

use std::collections::VecDeque;

use super::{Finding, Findings, Site};
use crate::observe::{AccessKind, At, MemoryAccess};
use crate::registers::LANES;
use crate::report::{Check, Severity};
use crate::types::Space;

/// A copy of one lane that has been issued and not waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// Where in shared memory it writes.
    pub(super) offset: u64,
    /// So many bytes.
    pub(super) bytes: u32,
    /// What it reads; nothing where its source is ignored.
    source: Option<u64>,
    /// Groups that its lane had committed before: it belongs to the next.
    group: u32,
    site: Site,
}

/// The copy that a word of shared memory belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owner {
    /// Thread of the block plus one; 0 is nobody.
    thread: u32,
    group: u32,
    site: u32,
}

#[derive(Debug, Default)]
struct Lane {
    committed: u32,
    queue: VecDeque<Copy>,
}

#[derive(Debug, Default)]
struct Block {
    lanes: Vec<Lane>,
    words: Vec<Owner>,
    /// Copies in all queues.
    pending: usize,
    index: u64,
}

/// The copies of a launch.
#[derive(Debug)]
pub(super) struct Copies {
    /// Asynccheck is on. Racecheck alone wants the bookkeeping without the reports.
    reports: bool,
    blocks: Vec<Block>,
    pending: usize,
    /// How many pending copies read each 256 bytes of global memory, by a hash of the address.
    sources: Vec<u32>,
    /// Addresses that the lanes of the copy being issued read, and those lanes.
    reading: ([u64; LANES], u32),
}

/// Slots of [`Copies::sources`].
const SOURCES: usize = 4096;

fn source_slot(address: u64) -> usize {
    (address >> 8) as usize % SOURCES
}

/// Words of an access to shared memory.
fn words(offset: u64, bytes: u32) -> std::ops::Range<usize> {
    (offset / 4) as usize..((offset + u64::from(bytes)).div_ceil(4)) as usize
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

impl Copies {
    pub(super) fn new(reports: bool) -> Copies {
        Copies { reports, blocks: Vec::new(), pending: 0, sources: vec![0; SOURCES], reading: ([0; LANES], 0) }
    }

    /// A block begins in a free slot.
    pub(super) fn begin(&mut self, slot: usize, index: u64, threads: u32, shared_bytes: u32) {
        if self.blocks.len() <= slot {
            self.blocks.resize_with(slot + 1, Block::default);
        }
        let block = &mut self.blocks[slot];
        block.index = index;
        block.lanes.clear();
        block.lanes.resize_with(threads.div_ceil(32) as usize * 32, Lane::default);
        block.words.clear();
        block.words.resize(shared_bytes.div_ceil(4) as usize, Owner::default());
    }

    /// The block of a slot has ended.
    pub(super) fn end(&mut self, slot: usize) {
        let Some(block) = self.blocks.get_mut(slot) else { return };
        for copy in block.lanes.iter_mut().flat_map(|lane| lane.queue.drain(..)) {
            forget_source(&mut self.sources, copy);
            self.pending -= 1;
        }
        block.pending = 0;
    }

    /// `cp.async.commit_group`.
    pub(super) fn commit(&mut self, slot: usize, at: &At<'_>) {
        let Some(block) = self.blocks.get_mut(slot) else { return };
        for lane in lanes(at.mask) {
            if let Some(lane) = block.lanes.get_mut(at.warp as usize * 32 + lane) {
                lane.committed += 1;
            }
        }
    }

    /// A wait is over: `done` is told of every lane's copies that it covers.
    pub(super) fn wait(&mut self, slot: usize, at: &At<'_>, left: Option<u32>, mut done: impl FnMut(u32, Copy)) {
        let Some(block) = self.blocks.get_mut(slot) else { return };
        for number in lanes(at.mask) {
            let thread = at.warp as usize * 32 + number;
            let Some(lane) = block.lanes.get_mut(thread) else { continue };
            // `wait_all` is a commit and a wait for every group.
            lane.committed += u32::from(left.is_none());
            let covered = lane.committed.saturating_sub(left.unwrap_or(0));
            while let Some(copy) = lane.queue.pop_front_if(|copy| copy.group < covered) {
                let owner = Owner { thread: thread as u32 + 1, group: copy.group, site: copy.site.0 };
                for word in block.words.get_mut(words(copy.offset, copy.bytes)).unwrap_or_default() {
                    if *word == owner {
                        *word = Owner::default();
                    }
                }
                forget_source(&mut self.sources, copy);
                block.pending -= 1;
                self.pending -= 1;
                done(number as u32, copy);
            }
        }
    }

    /// An access: a copy's is noted, any other must not touch what a copy is under way to.
    pub(super) fn access(&mut self, slot: usize, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        match access.kind {
            AccessKind::AsyncRead => {
                for lane in lanes(access.mask) {
                    self.reading.0[lane] = access.addresses[lane];
                }
                self.reading.1 |= access.mask;
            }
            AccessKind::AsyncIssue => self.issue(slot, at, access, to),
            AccessKind::AsyncWrite => {}
            AccessKind::Read if access.space == Space::Global => {}
            _ => self.touch(slot, at, access, to),
        }
    }

    fn issue(&mut self, slot: usize, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        self.touch(slot, at, access, to);
        let site = to.site(at);
        let reading = std::mem::take(&mut self.reading.1);
        let Some(block) = self.blocks.get_mut(slot) else { return };
        for number in lanes(access.mask) {
            let thread = at.warp as usize * 32 + number;
            let Some(lane) = block.lanes.get_mut(thread) else { continue };
            let source = (reading >> number & 1 == 1).then(|| self.reading.0[number]);
            let (offset, bytes) = (access.addresses[number], access.bytes);
            lane.queue.push_back(Copy { offset, bytes, source, group: lane.committed, site });
            let owner = Owner { thread: thread as u32 + 1, group: lane.committed, site: site.0 };
            block.words.get_mut(words(offset, bytes)).unwrap_or_default().fill(owner);
            if let Some(source) = source {
                self.sources[source_slot(source)] += 1;
            }
            block.pending += 1;
            self.pending += 1;
        }
    }

    /// Looks for copies under way at the places of an access.
    fn touch(&self, slot: usize, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        match access.space {
            _ if self.pending == 0 || !self.reports => {}
            Space::Shared => self.touch_destination(slot, at, access, to),
            Space::Global => self.touch_source(at, access, to),
            _ => {}
        }
    }

    fn touch_destination(&self, slot: usize, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        let Some(block) = self.blocks.get(slot).filter(|block| block.pending > 0) else { return };
        let mut met = Vec::new();
        for lane in lanes(access.mask) {
            let offset = access.addresses[lane];
            let touched = block.words.get(words(offset, access.bytes)).unwrap_or_default();
            if let Some(owner) = touched.iter().find(|owner| owner.thread != 0) {
                let issuer = owner.thread - 1;
                let committed = block.lanes.get(issuer as usize).map_or(0, |lane| lane.committed);
                let under_way = UnderWay { issuer, block: at.block, committed: owner.group < committed };
                meet(&mut met, lane, offset, Site(owner.site), under_way);
            }
        }
        met.iter().for_each(|met| met.tell(at, access, to));
    }

    fn touch_source(&self, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        let mut met = Vec::new();
        for lane in lanes(access.mask) {
            let from = access.addresses[lane];
            let end = from + u64::from(access.bytes);
            if self.sources[source_slot(from)] == 0 {
                continue;
            }
            for block in self.blocks.iter().filter(|block| block.pending > 0) {
                for (thread, owner) in block.lanes.iter().enumerate() {
                    let reads = |copy: &&Copy| {
                        copy.source.is_some_and(|source| source < end && from < source + u64::from(copy.bytes))
                    };
                    if let Some(copy) = owner.queue.iter().find(reads) {
                        let (block, committed) = (to.coordinates(block.index), copy.group < owner.committed);
                        let under_way = UnderWay { issuer: thread as u32, block, committed };
                        meet(&mut met, lane, from, copy.site, under_way);
                    }
                }
            }
        }
        met.iter().for_each(|met| met.tell(at, access, to));
    }

    /// Lanes leave the kernel: what they have issued and not waited for nobody can use.
    pub(super) fn exit(&mut self, slot: usize, at: &At<'_>, to: &mut Findings) {
        let Some(block) = self.blocks.get(slot).filter(|block| block.pending > 0 && self.reports) else { return };
        let left = |lane: usize| block.lanes.get(at.warp as usize * 32 + lane).and_then(|lane| lane.queue.front());
        let pending = lanes(at.mask).filter(|&lane| left(lane).is_some()).fold(0, |mask, lane| mask | 1 << lane);
        let Some(copy) = lanes(pending).find_map(left) else { return };
        let issued = to.place_of(copy.site, at.block, at.warp, pending);
        let place = to.place(at, pending);
        to.add(Check::Asynccheck, "pending-at-exit", (to.site(at), copy.site), || Finding {
            severity: Severity::Note,
            message: format!("{} lanes leave with copies that they never waited for", pending.count_ones()),
            place,
            related: vec![("the copy".to_owned(), issued)],
            ..Finding::default()
        });
    }
}

fn forget_source(sources: &mut [u32], copy: Copy) {
    if let Some(source) = copy.source {
        sources[source_slot(source)] -= 1;
    }
}

/// Whose a copy is, and how far.
#[derive(Clone, Copy)]
struct UnderWay {
    /// Thread of the block.
    issuer: u32,
    block: [u32; 3],
    committed: bool,
}

/// Lanes of one access that meet copies of one instruction.
struct Met {
    lanes: u32,
    /// Where the first of them does.
    address: u64,
    site: Site,
    copy: UnderWay,
    /// Lanes of the issuing warp.
    issuers: u32,
}

/// Adds a lane to those that have met copies of this instruction and warp.
fn meet(met: &mut Vec<Met>, lane: usize, address: u64, site: Site, copy: UnderWay) {
    let issuer = 1 << (copy.issuer % 32);
    let same =
        |one: &&mut Met| one.site == site && (one.copy.block, one.copy.issuer / 32) == (copy.block, copy.issuer / 32);
    match met.iter_mut().find(same) {
        Some(one) => (one.lanes, one.issuers) = (one.lanes | 1 << lane, one.issuers | issuer),
        None => met.push(Met { lanes: 1 << lane, address, site, copy, issuers: issuer }),
    }
}

impl Met {
    fn tell(&self, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        let shared = access.space == Space::Shared;
        let (kind, does) = match access.kind {
            _ if !shared => ("source-overwritten", "writes"),
            AccessKind::Read => ("read-before-wait", "reads"),
            AccessKind::AsyncIssue => ("copy-over-copy", "issues a copy to"),
            _ => ("write-before-wait", "writes"),
        };
        let sites = (to.site(at), self.site);
        if to.again(Check::Asynccheck, kind, sites) {
            return;
        }
        let (warp, issuer) = (self.copy.issuer / 32, self.copy.issuer % 32);
        let own = shared && warp == at.warp && issuer == self.lanes.trailing_zeros();
        let whose = if own { "this lane".to_owned() } else { format!("lane {issuer} of warp {warp}") };
        let state = if self.copy.committed { "has not waited for" } else { "has neither committed nor waited for" };
        let (address, place) = (self.address, to.place(at, self.lanes));
        let issued = to.place_of(self.site, self.copy.block, warp, self.issuers);
        let (space, role) = if shared { ("shared", "destination") } else { ("global", "source") };
        to.add(Check::Asynccheck, kind, sites, || Finding {
            message: format!("{does} {space} {address:#x}, the {role} of a cp.async that {whose} {state}"),
            place,
            related: vec![("the copy".to_owned(), issued)],
            address: Some(address),
            allocation: shared.then(|| "shared memory of the block".to_owned()),
            ..Finding::default()
        });
    }
}
