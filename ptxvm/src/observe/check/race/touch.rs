//! One lane's access at the shadow: what it runs into, and what it leaves behind.

use super::Actor;
use super::channel::{Channel, remember};
use super::clock::Stamp;
use super::order::{View, bits};
use super::report::{Conflict, Hazard};
use super::shadow::{Cell, Mark, Shadow, Strength};
use crate::observe::MemoryAccess;
use crate::types::Space;

/// One access at the shadow.
pub(super) struct Touch<'a> {
    pub(super) view: View<'a>,
    pub(super) actor: Actor,
    pub(super) access: &'a MemoryAccess<'a>,
    pub(super) strength: Strength,
    pub(super) conflicts: &'a mut Vec<Conflict>,
    /// Lanes of a strong access for which a channel may have to hear of it.
    pub(super) told: u32,
}

impl Touch<'_> {
    fn stamp(&self, lane: u32) -> Stamp {
        Stamp::new(self.view.now, self.view.serial, self.actor.warp, lane)
    }

    /// The access of some lanes.
    #[inline(always)]
    pub(super) fn lanes(&mut self, shadow: &mut Shadow, mask: u32, writes: bool) {
        let (addresses, bytes) = (self.access.addresses, self.access.bytes);
        let mut left = mask;
        while left != 0 {
            let first = addresses[left.trailing_zeros() as usize];
            let tag = shadow.tag(first);
            let mut here = 0;
            for (lane, &address) in addresses.iter().enumerate() {
                here |= u32::from(shadow.tag(address) == tag) << lane;
            }
            here &= left;
            left &= !here;
            let (page, channels) = shadow.page(first, bytes);
            for lane in bits(here) {
                let (shift, cells) = (page.shift, page.cells(addresses[lane as usize], bytes));
                match writes {
                    true => self.write(cells, channels, shift, lane),
                    false => self.read(cells, channels, shift, lane),
                }
            }
        }
    }

    #[inline(always)]
    fn read(&mut self, cells: &mut [Cell], channels: &mut [Channel], shift: u32, lane: u32) {
        let address = self.access.addresses[lane as usize];
        let (now, mark) = (self.stamp(0), Mark::new(self.actor.site, self.strength));
        for (at, cell) in cells.iter_mut().enumerate() {
            if cell.write != Stamp::NEVER {
                self.told |= u32::from(cell.writer.strength() != Strength::Weak) << lane;
                if !self.view.ordered(lane, cell.write) {
                    self.read_unordered(cell, channels, lane, address + ((at as u64) << shift));
                }
                if self.actor.non_coherent {
                    self.conflict(Hazard::NonCoherent, lane, address, cell.write, 1 << cell.write.lane(), cell.writer);
                }
            }
            if cell.read == now && cell.reader.strength() == self.strength {
                cell.readers |= 1 << lane;
            } else {
                if cell.read != Stamp::NEVER && !self.view.all_ordered(lane, cell.read, cell.readers) {
                    self.keep_reader(cell);
                }
                (cell.read, cell.readers) = (now, 1 << lane);
            }
            cell.reader = mark;
        }
    }

    /// A read that is concurrent with the newest is remembered beside it.
    fn keep_reader(&self, cell: &mut Cell) {
        let (tick, warp) = (cell.read.tick(), cell.read.warp());
        if self.access.space == Space::Shared {
            if cell.others_tick <= self.view.floor {
                (cell.others, cell.others_tick) = (0, tick);
            }
            (cell.others, cell.others_tick) = (cell.others | 1 << warp, cell.others_tick.min(tick));
        } else {
            // A reader of another block is the harder one to be ordered after.
            let foreign = cell.others_tick != 0 && Stamp::of_thread(cell.others).serial() != self.view.serial;
            if foreign && cell.read.serial() == self.view.serial {
                return;
            }
            (cell.others, cell.others_tick) = (cell.read.of_lane(0).thread(), tick);
        }
        cell.others_mark = cell.reader;
    }

    #[cold]
    fn read_unordered(&mut self, cell: &Cell, channels: &[Channel], lane: u32, address: u64) {
        let same_block = cell.write.serial() == self.view.serial;
        if cell.writer.strength().meets(self.strength, same_block) {
            return;
        }
        let channel = &channels[cell.channel as usize];
        let by =
            |list: &[(Stamp, u32)]| list.iter().any(|&(stamp, lanes)| self.view.unordered(lane, stamp, lanes) != lanes);
        if by(channel.seen()) || cell.writer.twins() && by(&channel.twins) {
            return;
        }
        self.conflict(Hazard::ReadAfterWrite, lane, address, cell.write, 1 << cell.write.lane(), cell.writer);
    }

    #[inline(always)]
    fn write(&mut self, cells: &mut [Cell], channels: &mut Vec<Channel>, shift: u32, lane: u32) {
        let address = self.access.addresses[lane as usize];
        let now = self.stamp(lane);
        let mark = Mark::new(self.actor.site, self.strength);
        for (at, cell) in cells.iter_mut().enumerate() {
            let place = address + ((at as u64) << shift);
            let value = self.value(lane, at, shift);
            if cell.write != Stamp::NEVER && !self.view.ordered(lane, cell.write) {
                let twin = self.write_unordered(cell, channels, lane, place, value);
                if twin {
                    continue;
                }
            }
            if cell.read != Stamp::NEVER && !self.view.all_ordered(lane, cell.read, cell.readers) {
                self.write_after_read(cell, lane, place, value);
            }
            // The floor is the block's own: reads of other blocks may well be older.
            let floor = if self.access.space == Space::Shared { self.view.floor } else { 0 };
            if cell.others_tick > floor {
                self.write_after_others(cell, lane, place, value);
            }
            if cell.channel != 0 {
                self.told |= 1 << lane;
                if self.strength == Strength::Weak {
                    channels[cell.channel as usize].reset();
                }
            }
            (cell.write, cell.writer) = (now, mark);
            if self.strength == Strength::Weak {
                (cell.read, cell.readers, cell.others_tick) = (Stamp::NEVER, 0, 0);
            }
            if let Some(value) = value {
                (cell.value, cell.writer) = (value, mark.with_value());
            }
        }
    }

    /// What is written to one cell, or a digest of it; none where the executor does not tell.
    #[inline(always)]
    fn value(&self, lane: u32, at: usize, shift: u32) -> Option<u32> {
        let bytes = &self.access.values?[lane as usize];
        let size = 1 << shift;
        let from = at << shift;
        let bytes = bytes.get(from..from + size)?;
        Some(bytes.chunks(4).fold(0u32, |digest, part| {
            let word = part.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
            digest.wrapping_mul(0x9e37_79b1) ^ word
        }))
    }

    /// Two writes that nothing orders. Gives whether they wrote the same, so that the first may stand for both.
    #[cold]
    fn write_unordered(
        &mut self,
        cell: &mut Cell,
        channels: &mut Vec<Channel>,
        lane: u32,
        address: u64,
        value: Option<u32>,
    ) -> bool {
        let before = cell.write;
        if cell.writer.strength().meets(self.strength, before.serial() == self.view.serial) {
            return false;
        }
        let seen = channels[cell.channel as usize].seen();
        if seen.iter().any(|&(stamp, lanes)| self.view.unordered(lane, stamp, lanes) != lanes) {
            return false;
        }
        let same = cell.writer.valued() && value == Some(cell.value);
        let hazard = match (same, self.one_instruction(cell, lane, address)) {
            (true, _) => Hazard::SameValue,
            (false, true) => Hazard::OneInstruction,
            (false, false) => Hazard::WriteAfterWrite,
        };
        self.conflict(hazard, lane, address, before, 1 << before.lane(), cell.writer);
        if same && self.strength == Strength::Weak {
            let at = Shadow::channel(channels, cell, Channel::default());
            remember(&mut channels[at].twins, before, before.lane());
            remember(&mut channels[at].twins, self.stamp(lane), lane);
            cell.writer = cell.writer.with_twins();
        }
        same && self.strength == Strength::Weak
    }

    /// Whether the last writer is another lane of this very instruction.
    fn one_instruction(&self, cell: &Cell, lane: u32, address: u64) -> bool {
        let (before, other) = (cell.write, cell.write.lane());
        let theirs = self.access.addresses[other as usize];
        before == self.stamp(other)
            && cell.writer.site() == self.actor.site
            && other != lane
            && self.access.mask >> other & 1 == 1
            && (theirs..theirs + u64::from(self.access.bytes)).contains(&address)
    }

    #[cold]
    fn write_after_read(&mut self, cell: &Cell, lane: u32, address: u64, value: Option<u32>) {
        if cell.reader.strength().meets(self.strength, cell.read.serial() == self.view.serial) {
            return;
        }
        let lanes = self.view.unordered(lane, cell.read, cell.readers);
        self.conflict(self.over_read(cell, value), lane, address, cell.read, lanes, cell.reader);
    }

    /// Reads that are remembered without their lanes: a race where none of the warp's lanes is ordered.
    #[cold]
    fn write_after_others(&mut self, cell: &Cell, lane: u32, address: u64, value: Option<u32>) {
        let shared = self.access.space == Space::Shared;
        let readers = if shared { cell.others } else { 1 };
        for bit in bits(readers) {
            let reader = match shared {
                true => Stamp::new(cell.others_tick, self.view.serial, bit, 0),
                false => Stamp::of_thread(cell.others).at_tick(cell.others_tick),
            };
            let same_block = reader.serial() == self.view.serial;
            let own = same_block && reader.warp() == self.actor.warp;
            if own || cell.others_mark.strength().meets(self.strength, same_block) {
                continue;
            }
            if self.view.unordered(lane, reader, u32::MAX) == u32::MAX {
                self.conflict(self.over_read(cell, value), lane, address, reader, 0, cell.others_mark);
            }
        }
    }

    /// A write over what was read: harmless where it changes nothing.
    fn over_read(&self, cell: &Cell, value: Option<u32>) -> Hazard {
        let same = cell.writer.valued() && value == Some(cell.value);
        if same { Hazard::SameValue } else { Hazard::WriteAfterRead }
    }

    fn conflict(&mut self, hazard: Hazard, lane: u32, address: u64, before: Stamp, lanes: u32, mark: Mark) {
        let same = |known: &&mut Conflict| {
            let warp = known.before.of_lane(0) == before.of_lane(0);
            known.hazard == hazard && warp && known.mark.site() == mark.site()
        };
        match self.conflicts.iter_mut().find(same) {
            Some(known) => (known.lanes, known.before_lanes) = (known.lanes | 1 << lane, known.before_lanes | lanes),
            None => self.conflicts.push(Conflict {
                hazard,
                lanes: 1 << lane,
                address,
                before,
                before_lanes: lanes,
                mark,
                strength: self.strength,
            }),
        }
    }
}
