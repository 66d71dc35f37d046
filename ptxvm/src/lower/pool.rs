//! The registers of a function while it is lowered: numbers, and values known on entry.

use std::collections::HashMap;

use crate::program::{Bank, Preset, Special};

/// Registers as they are met, each with a number of its own in its bank.
#[derive(Default)]
pub(super) struct Pool {
    counts: [u32; 3],
    constants: HashMap<(Bank, u64), u16>,
    specials: HashMap<(Bank, Special), u16>,
    addresses: HashMap<(u32, i64), u16>,
    locals: HashMap<u32, u16>,
    sinks: [Option<u16>; 3],
    carry: Option<u16>,
    presets: Vec<Preset>,
}

impl Pool {
    /// A new register.
    pub(super) fn fresh(&mut self, bank: Bank) -> u16 {
        let count = &mut self.counts[bank as usize];
        *count += 1;
        // Beyond the last number the function is refused (`overflow`), so the number given does not matter.
        u16::try_from(*count - 1).unwrap_or(u16::MAX)
    }

    /// How many registers of a bank there are where that is more than can be numbered.
    pub(super) fn overflow(&self) -> Option<u32> {
        self.counts.iter().copied().max().filter(|most| *most > u32::from(u16::MAX))
    }

    /// A register that holds a constant.
    pub(super) fn constant(&mut self, bank: Bank, bits: u64) -> u16 {
        if let Some(&slot) = self.constants.get(&(bank, bits)) {
            return slot;
        }
        let slot = self.fresh(bank);
        self.constants.insert((bank, bits), slot);
        self.presets.push(match bank {
            Bank::Narrow => Preset::Narrow(slot, bits as u32),
            Bank::Wide => Preset::Wide(slot, bits),
            Bank::Predicate => Preset::Predicate(slot, bits & 1 == 1),
        });
        slot
    }

    /// A register that holds a special one that does not change.
    pub(super) fn special(&mut self, bank: Bank, special: Special) -> u16 {
        if let Some(&slot) = self.specials.get(&(bank, special)) {
            return slot;
        }
        let slot = self.fresh(bank);
        self.specials.insert((bank, special), slot);
        self.presets.push(Preset::Special(slot, special));
        slot
    }

    /// A wide register with the address of a module variable.
    pub(super) fn variable(&mut self, variable: u32, addend: i64) -> u16 {
        if let Some(&slot) = self.addresses.get(&(variable, addend)) {
            return slot;
        }
        let slot = self.fresh(Bank::Wide);
        self.addresses.insert((variable, addend), slot);
        self.presets.push(Preset::Variable(slot, variable, addend));
        slot
    }

    /// A wide register with the local address of a place in the frame.
    pub(super) fn local(&mut self, offset: u32) -> u16 {
        if let Some(&slot) = self.locals.get(&offset) {
            return slot;
        }
        let slot = self.fresh(Bank::Wide);
        self.locals.insert(offset, slot);
        self.presets.push(Preset::Local(slot, offset));
        slot
    }

    /// A register that nobody reads.
    pub(super) fn sink(&mut self, bank: Bank) -> u16 {
        match self.sinks[bank as usize] {
            Some(slot) => slot,
            None => {
                let slot = self.fresh(bank);
                self.sinks[bank as usize] = Some(slot);
                slot
            }
        }
    }

    /// The carry flag.
    pub(super) fn carry(&mut self) -> u16 {
        match self.carry {
            Some(slot) => slot,
            None => {
                let slot = self.fresh(Bank::Predicate);
                self.carry = Some(slot);
                slot
            }
        }
    }

    /// What is filled on entry.
    pub(super) fn presets(&self) -> &[Preset] {
        &self.presets
    }

    /// The sinks: bank and number.
    pub(super) fn sinks(&self) -> impl Iterator<Item = (Bank, u16)> {
        [Bank::Narrow, Bank::Wide, Bank::Predicate]
            .into_iter()
            .zip(self.sinks)
            .filter_map(|(bank, slot)| slot.map(|slot| (bank, slot)))
    }

    /// How many numbers of each bank are given.
    pub(super) fn counts(&self) -> [u32; 3] {
        self.counts
    }
}

/// The bank and number of the register that a preset fills.
pub(super) fn preset_register(preset: &mut Preset) -> (Bank, &mut u16) {
    match preset {
        Preset::Narrow(slot, _) => (Bank::Narrow, slot),
        Preset::Wide(slot, _) | Preset::Variable(slot, ..) | Preset::Local(slot, _) => (Bank::Wide, slot),
        Preset::Predicate(slot, _) => (Bank::Predicate, slot),
        Preset::Special(slot, Special::GridId) => (Bank::Wide, slot),
        Preset::Special(slot, Special::IsExplicitCluster) => (Bank::Predicate, slot),
        Preset::Special(slot, _) => (Bank::Narrow, slot),
    }
}
