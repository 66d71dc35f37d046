//! Which bytes of a warp's registers have a value.
//!
//! Of each register one word says in which lanes any byte is undefined. While it is zero nothing else is looked at, so
//! a kernel that reads only what was written pays one load for each source.

use crate::observe::check::Site;
use crate::program::{Bank, Function, Preset, Special};
use crate::registers::{Base, Counts};

/// Of a register, for each of its bytes: the lanes in which it is undefined.
pub(super) type Planes = [u32; 8];

/// Where a register's undefined bytes came from, and which they are.
#[derive(Clone, Copy, Debug)]
struct Detail {
    planes: Planes,
    origin: Site,
}

/// A register that never had a value.
const NEVER: Detail = Detail { planes: [u32::MAX; 8], origin: Site::NONE };

/// The registers of one bank.
#[derive(Debug, Default)]
struct Shadows {
    /// Lanes with an undefined byte.
    any: Vec<u32>,
    details: Vec<Detail>,
}

/// The registers of a warp, seen through the window of the function that runs.
#[derive(Debug, Default)]
pub(super) struct Registers {
    banks: [Shadows; 3],
    base: [u32; 3],
}

/// Bytes of a bank's registers; a predicate is one.
pub(super) fn width(bank: Bank) -> usize {
    match bank {
        Bank::Narrow => 4,
        Bank::Wide => 8,
        Bank::Predicate => 1,
    }
}

impl Registers {
    /// Turns to a window.
    #[inline(always)]
    pub(super) fn turn(&mut self, base: Base) {
        self.base = [base.narrow, base.wide, base.predicates];
    }

    /// A function begins for the lanes of `mask`: its registers are undefined but for its presets.
    pub(super) fn enter(&mut self, base: Base, callee: &Function, mask: u32) {
        self.turn(base);
        let Counts { narrow, wide, predicates } = callee.registers;
        for ((shadows, base), count) in self.banks.iter_mut().zip(self.base).zip([narrow, wide, predicates]) {
            let (start, end) = (base as usize, base as usize + usize::from(count));
            if shadows.any.len() < end {
                shadows.any.resize(end, 0);
                shadows.details.resize(end, NEVER);
            }
            shadows.any[start..end].iter_mut().for_each(|any| *any |= mask);
            shadows.details[start..end].fill(NEVER);
        }
        for preset in &callee.preset {
            let (bank, slot) = preset_register(*preset);
            self.define(bank, slot, mask);
        }
    }

    #[inline(always)]
    fn index(&self, bank: Bank, slot: u16) -> usize {
        self.base[bank as usize] as usize + usize::from(slot)
    }

    /// Lanes in which the register has an undefined byte.
    #[inline(always)]
    pub(super) fn undefined(&self, bank: Bank, slot: u16) -> u32 {
        self.banks[bank as usize].any.get(self.index(bank, slot)).copied().unwrap_or(0)
    }

    /// The register now has a value in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn define(&mut self, bank: Bank, slot: u16, mask: u32) {
        let index = self.index(bank, slot);
        if let Some(any) = self.banks[bank as usize].any.get_mut(index) {
            *any &= !mask;
        }
    }

    /// Lanes in which each byte is undefined.
    pub(super) fn planes(&self, bank: Bank, slot: u16) -> Planes {
        let any = self.undefined(bank, slot);
        match self.banks[bank as usize].details.get(self.index(bank, slot)) {
            Some(detail) if any != 0 => detail.planes.map(|plane| plane & any),
            _ => [0; 8],
        }
    }

    /// Where its undefined bytes came from.
    pub(super) fn origin(&self, bank: Bank, slot: u16) -> Site {
        self.banks[bank as usize].details.get(self.index(bank, slot)).map_or(Site::NONE, |detail| detail.origin)
    }

    /// The register was written in the lanes of `mask`; its undefined bytes there are `planes`.
    pub(super) fn set(&mut self, bank: Bank, slot: u16, mask: u32, planes: &Planes, origin: Site) {
        let before = self.planes(bank, slot);
        let index = self.index(bank, slot);
        let shadows = &mut self.banks[bank as usize];
        let (Some(any), Some(detail)) = (shadows.any.get_mut(index), shadows.details.get_mut(index)) else { return };
        *any = 0;
        let bytes = width(bank);
        for byte in 0..bytes {
            detail.planes[byte] = (before[byte] & !mask) | (planes[byte] & mask);
            *any |= detail.planes[byte];
        }
        detail.origin = origin;
    }
}

/// The register that a preset fills.
fn preset_register(preset: Preset) -> (Bank, u16) {
    match preset {
        Preset::Narrow(slot, _) => (Bank::Narrow, slot),
        Preset::Wide(slot, _) | Preset::Variable(slot, ..) | Preset::Local(slot, _) => (Bank::Wide, slot),
        Preset::Predicate(slot, _) => (Bank::Predicate, slot),
        Preset::Special(slot, Special::GridId) => (Bank::Wide, slot),
        Preset::Special(slot, Special::IsExplicitCluster) => (Bank::Predicate, slot),
        Preset::Special(slot, _) => (Bank::Narrow, slot),
    }
}
