//! Where the NaNs that registers and memory hold were made.

use std::collections::HashMap;

use crate::observe::check::Site;
use crate::program::{Bank, Function};
use crate::registers::{Base, Counts, LANES};
use crate::types::Type;

/// The making of a NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// The instruction that made it.
    pub(super) site: Site,
    pub(super) block: [u32; 3],
    pub(super) warp: u32,
    /// Lanes in which it did, so far.
    pub(super) lanes: u32,
    /// The format that it was made in.
    pub(super) ty: Type,
}

/// Number of a making.
pub(super) type Id = u32;

/// All makings: one for each instruction of each warp.
#[derive(Debug, Default)]
pub(super) struct Makings {
    all: Vec<Made>,
    known: HashMap<(Site, [u32; 3], u32), Id>,
}

impl Makings {
    pub(super) fn note(&mut self, made: Made) -> Id {
        let id = *self.known.entry((made.site, made.block, made.warp)).or_insert(self.all.len() as Id);
        match self.all.get_mut(id as usize) {
            Some(known) => known.lanes |= made.lanes,
            None => self.all.push(made),
        }
        id
    }

    pub(super) fn get(&self, id: Id) -> Option<&Made> {
        self.all.get(id as usize)
    }
}

/// The making of the NaN in each lane; only lanes of a register's mask count.
pub(super) type Ids = [Id; LANES];

/// The registers of a warp: in which lanes they hold a NaN of known making, or a predicate that hangs on one.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    masks: [Vec<u32>; 3],
    ids: HashMap<(u8, u32), Box<Ids>>,
    base: [u32; 3],
}

impl Tracks {
    #[inline(always)]
    pub(super) fn turn(&mut self, base: Base) {
        self.base = [base.narrow, base.wide, base.predicates];
    }

    /// A function begins for the lanes of `mask`.
    pub(super) fn enter(&mut self, base: Base, callee: &Function, mask: u32) {
        self.turn(base);
        let Counts { narrow, wide, predicates } = callee.registers;
        for ((masks, base), count) in self.masks.iter_mut().zip(self.base).zip([narrow, wide, predicates]) {
            let (start, end) = (base as usize, base as usize + usize::from(count));
            if masks.len() < end {
                masks.resize(end, 0);
            }
            masks[start..end].iter_mut().for_each(|tracked| *tracked &= !mask);
        }
    }

    fn index(&self, bank: Bank, slot: u16) -> usize {
        self.base[bank as usize] as usize + usize::from(slot)
    }

    /// Lanes in which the register holds a tracked NaN.
    #[inline(always)]
    pub(super) fn mask(&self, bank: Bank, slot: u16) -> u32 {
        self.masks[bank as usize].get(self.index(bank, slot)).copied().unwrap_or(0)
    }

    /// The register was written in the lanes of `mask`, with no tracked NaN.
    #[inline(always)]
    pub(super) fn clear(&mut self, bank: Bank, slot: u16, mask: u32) {
        let index = self.index(bank, slot);
        if let Some(tracked) = self.masks[bank as usize].get_mut(index) {
            *tracked &= !mask;
        }
    }

    /// The makings of a register's NaNs, in the lanes of its mask.
    pub(super) fn ids(&self, bank: Bank, slot: u16) -> Ids {
        let key = (bank as u8, self.index(bank, slot) as u32);
        self.ids.get(&key).map_or([0; LANES], |ids| **ids)
    }

    /// The register now holds these NaNs in the lanes of `mask`.
    pub(super) fn set(&mut self, bank: Bank, slot: u16, mask: u32, ids: &Ids) {
        let index = self.index(bank, slot);
        let Some(tracked) = self.masks[bank as usize].get_mut(index) else { return };
        *tracked |= mask;
        let kept = self.ids.entry((bank as u8, index as u32)).or_insert_with(|| Box::new([0; LANES]));
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 == 1) {
            kept[lane] = ids[lane];
        }
    }
}

/// Bytes that one entry of [`Stored`] stands for: the smallest float has two.
const GRAIN: u64 = 2;

/// NaNs that lie in shared or local memory.
#[derive(Debug, Default)]
pub(super) struct Stored {
    ids: HashMap<(u8, u64), Id>,
}

impl Stored {
    /// Whether there is nothing to look for.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Writes `bytes` bytes of lane `lane`'s memory (always lane 0 where it is shared).
    pub(super) fn write(&mut self, lane: u8, address: u64, bytes: u32, id: Option<Id>) {
        for grain in address / GRAIN..(address + u64::from(bytes)).div_ceil(GRAIN) {
            match id {
                Some(id) => self.ids.insert((lane, grain), id),
                None => self.ids.remove(&(lane, grain)),
            };
        }
    }

    /// The making of a NaN among those bytes.
    pub(super) fn read(&self, lane: u8, address: u64, bytes: u32) -> Option<Id> {
        let mut grains = address / GRAIN..(address + u64::from(bytes)).div_ceil(GRAIN);
        grains.find_map(|grain| self.ids.get(&(lane, grain)).copied())
    }
}
