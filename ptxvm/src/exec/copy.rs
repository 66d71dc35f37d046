//! `cp.async`: copies from global to shared memory that land later.
//!
//! Each lane has its own groups. A copy lands when it is issued ([`Asynchrony::Eager`]), when something waits for it
//! ([`Asynchrony::Latest`]), or by chance in between ([`Asynchrony::Random`]). What it copies is read when it lands; by
//! chance also when it is issued. Nothing but a wait makes it land for certain; copies that nobody waits for land when
//! the warp ends.

use std::collections::VecDeque;

use super::Asynchrony;
use super::access::{Told, cells};
use super::address::Target;
use super::step::{Now, Step, Stepped, Turn};
use super::warp::Fragment;
use super::words::{Cells, Words};
use crate::memory::Page;
use crate::observe::{AccessKind, Sync, Watcher};
use crate::program::{Action, Order};
use crate::registers::LANES;
use crate::types::Space;

/// The most bytes that a lane copies.
const MOST: usize = 16;

/// One instruction's copies, of the lanes for which it has not landed.
#[derive(Clone)]
struct Copy {
    /// Number in the block.
    ticket: u64,
    /// Where it was issued.
    place: (u32, u32),
    mask: u32,
    bytes: u8,
    /// Bytes that come from the source; the rest is zero.
    source: [u8; LANES],
    from: [u64; LANES],
    to: [u32; LANES],
    /// The source, where it was read when the copy was issued.
    data: Option<Box<[[u8; MOST]; LANES]>>,
}

/// Copies that lanes have committed together.
struct Group {
    mask: u32,
    copies: Vec<Copy>,
}

/// The copies of a warp that have not landed.
#[derive(Default)]
pub(super) struct Copies {
    /// Not committed.
    open: Vec<Copy>,
    /// Oldest first. A group that has landed stays while an older one has not: `wait_group` counts it.
    groups: VecDeque<Group>,
}

impl Copies {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.groups.clear();
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.groups.is_empty()
    }

    /// Takes out of `copies` what concerns the lanes of `mask`.
    fn take(copies: &mut Vec<Copy>, mask: u32) -> Vec<Copy> {
        if copies.iter().all(|copy| copy.mask & !mask == 0) {
            return std::mem::take(copies);
        }
        let part = |copy: &Copy| Copy { mask: copy.mask & mask, ..copy.clone() };
        let taken = copies.iter().map(part).filter(|copy| copy.mask != 0).collect();
        copies.iter_mut().for_each(|copy| copy.mask &= !mask);
        copies.retain(|copy| copy.mask != 0);
        taken
    }

    fn commit(&mut self, mask: u32) {
        let copies = Copies::take(&mut self.open, mask);
        self.groups.push_back(Group { mask, copies });
        self.drop_landed();
    }

    /// Groups that have landed and have none before them that has not.
    fn drop_landed(&mut self) {
        while self.groups.front().is_some_and(|group| group.copies.is_empty()) {
            self.groups.pop_front();
        }
    }

    /// Takes out what must land before the lanes of `mask` have at most `pending` groups that have not.
    fn due(&mut self, mask: u32, pending: u32) -> Vec<Copy> {
        let mut newer = [0; LANES];
        let mut due = Vec::new();
        for group in self.groups.iter_mut().rev() {
            let mut lanes = 0;
            for lane in super::lanes(group.mask & mask) {
                lanes |= u32::from(newer[lane] >= pending) << lane;
                newer[lane] += 1;
            }
            let mut taken = Copies::take(&mut group.copies, lanes);
            taken.append(&mut due);
            due = taken;
        }
        self.drop_landed();
        due
    }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// `cp.async`.
    pub(super) fn copy_async(&mut self, f: &Fragment, now: Now<'a>) -> Stepped<Turn> {
        let Action::CopyAsync { to, from, bytes, source_bytes, ignore_source } = &now.instruction.action else {
            return Ok(Turn::Next);
        };
        let size = u32::from(*bytes).clamp(1, MOST as u32);
        let mut source = [size as u8; LANES];
        if let Some(slot) = source_bytes {
            let asked = self.warp.registers.narrow(*slot);
            source = asked.map(|asked| asked.min(size) as u8);
        }
        if let Some(slot) = ignore_source {
            let ignored = self.warp.registers.predicate(*slot);
            super::lanes(ignored).for_each(|lane| source[lane] = 0);
        }
        let read = super::lanes(now.mask).filter(|&lane| source[lane] > 0).fold(0, |mask, lane| mask | 1 << lane);
        let from = self.target(f, from);
        let mut to = self.target(f, to);
        if to.space == Space::Generic {
            to.space = Space::Shared;
            to.addresses = to.addresses.map(|address| address.wrapping_sub(crate::memory::SHARED_WINDOW));
        }
        let (offsets, _) = self.in_window(now, &to, now.mask, (size, true), self.block.shared_bytes)?;
        if read != 0 && self.core.cache.span(self.core.context, &from.addresses, read, size, false).is_none() {
            self.check_each(now, &from, read, (size, false))?;
        }
        if O::ACTIVE {
            let told = |kind| Told { kind, bytes: size, order: Order::Weak, values: None };
            if read != 0 {
                self.tell(now, &from, read, told(AccessKind::AsyncRead));
            }
            self.tell(now, &to, now.mask, told(AccessKind::AsyncIssue));
        }
        let ticket = self.block.copies;
        self.block.copies += 1;
        let place = (now.function, now.pc);
        let (mask, bytes, from) = (now.mask, size as u8, from.addresses);
        let mut copy = Copy { ticket, place, mask, bytes, source, from, to: offsets, data: None };
        match self.core.context.options.asynchrony {
            Asynchrony::Eager => self.land(&copy)?,
            Asynchrony::Latest => self.warp.copies.open.push(copy),
            Asynchrony::Random => {
                if self.core.random.below(2) == 0 {
                    copy.data = Some(self.read_source(&copy)?);
                }
                self.warp.copies.open.push(copy);
            }
        }
        Ok(Turn::Next)
    }

    /// `cp.async.commit_group`.
    pub(super) fn commit_group(&mut self, now: Now<'a>) -> Turn {
        self.warp.copies.commit(now.mask);
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &Sync::CommitGroup);
        }
        Turn::Next
    }

    /// `cp.async.wait_group`, `cp.async.wait_all`.
    pub(super) fn wait_group(&mut self, now: Now<'a>, pending: Option<u32>) -> Stepped<Turn> {
        let mut due = self.warp.copies.due(now.mask, pending.unwrap_or(0));
        if pending.is_none() {
            due.append(&mut Copies::take(&mut self.warp.copies.open, now.mask));
        }
        for copy in due {
            self.land(&copy)?;
        }
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &Sync::WaitGroup(pending));
        }
        Ok(Turn::Next)
    }

    /// Lets some of the warp's copies land, by chance.
    pub(super) fn land_by_chance(&mut self) -> Stepped<()> {
        if self.core.context.options.asynchrony != Asynchrony::Random || self.warp.copies.is_empty() {
            return Ok(());
        }
        let mut copies = std::mem::take(&mut self.warp.copies);
        let groups = copies.groups.iter_mut().map(|group| &mut group.copies);
        for part in groups.chain([&mut copies.open]) {
            let mut at = 0;
            while at < part.len() {
                if self.core.random.below(4) == 0 {
                    let copy = part.remove(at);
                    self.land(&copy)?;
                } else {
                    at += 1;
                }
            }
        }
        copies.drop_landed();
        self.warp.copies = copies;
        Ok(())
    }

    /// The warp ends: whatever has not landed does.
    pub(super) fn land_rest(&mut self) -> Stepped<()> {
        let Copies { open, groups } = std::mem::take(&mut self.warp.copies);
        for copy in groups.into_iter().flat_map(|group| group.copies).chain(open) {
            self.land(&copy)?;
        }
        Ok(())
    }

    /// The place where a copy was issued.
    fn issued(&self, copy: &Copy) -> Now<'a> {
        let (function, pc) = copy.place;
        let instruction = &self.core.context.program.functions[function as usize].code[pc as usize];
        Now { instruction, function, pc, mask: copy.mask }
    }

    /// Writes a copy to shared memory.
    fn land(&mut self, copy: &Copy) -> Stepped<()> {
        let now = self.issued(copy);
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &Sync::CopyLands { ticket: copy.ticket });
            let to = Target { space: Space::Shared, addresses: copy.to.map(u64::from) };
            let (kind, bytes) = (AccessKind::AsyncWrite, u32::from(copy.bytes));
            self.tell(now, &to, copy.mask, Told { kind, bytes, order: Order::Weak, values: None });
        }
        let whole = copy.source.iter().all(|&source| source == copy.bytes) && copy.bytes >= 4;
        if copy.data.is_none() && whole {
            let (context, bytes) = (self.core.context, u32::from(copy.bytes));
            if let Some(span) = self.core.cache.span(context, &copy.from, copy.mask, bytes, false)
                && let Ok(page) = self.core.cache.page(&span, false)
            {
                let (words, shared) = (page.words(), Cells(cells(&mut self.block.shared)));
                for lane in super::lanes(copy.mask) {
                    for word in 0..bytes / 4 {
                        let value = &words[(span.offsets[lane] / 4 + word) as usize];
                        shared.store(lane, copy.to[lane] / 4 + word, value.load(std::sync::atomic::Ordering::Relaxed));
                    }
                }
                return Ok(());
            }
        }
        let read;
        let data = match &copy.data {
            Some(data) => data,
            None => {
                read = self.read_source(copy)?;
                &read
            }
        };
        for lane in super::lanes(copy.mask) {
            for (word, bytes) in data[lane][..usize::from(copy.bytes)].chunks_exact(4).enumerate() {
                let value = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                self.block.shared[copy.to[lane] as usize / 4 + word] = value;
            }
        }
        Ok(())
    }

    /// The bytes that a copy brings.
    fn read_source(&mut self, copy: &Copy) -> Stepped<Box<[[u8; MOST]; LANES]>> {
        let context = self.core.context;
        let mut data = Box::new([[0; MOST]; LANES]);
        for lane in super::lanes(copy.mask) {
            let source = usize::from(copy.source[lane]);
            if source == 0 {
                continue;
            }
            match self.core.cache.one(context, copy.from[lane], source as u32, false) {
                Ok((allocation, offset)) => allocation.load(offset, &mut data[lane][..source]),
                Err(_) => {
                    // It was there when the copy was issued.
                    let target = Target { space: Space::Global, addresses: copy.from };
                    self.check_each(self.issued(copy), &target, 1 << lane, (u32::from(copy.bytes), false))?;
                }
            }
        }
        Ok(data)
    }
}

const _: () = assert!(Page::BYTES >= MOST as u64);
