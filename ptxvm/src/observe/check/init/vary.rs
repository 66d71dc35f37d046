//! Which bits of a result hang on undefined bytes: found by trying.
//!
//! Operations that move, choose and mask bits (`mov`, `shl`, `prmt`, `and`, `selp`, `shfl`, integer `cvt`...) are run again
//! with the undefined bytes of each source all zeros and all ones. A bit of the result that comes out differently is
//! undefined, and no other. So each operation is its own rule: the 0 of an `and` defines the result, `xor r, r, r` is
//! defined, a shift moves the undefined bytes with it.

use super::registers::{Planes, Registers as Shadow, width};
use crate::numerics::Settings;
use crate::observe::At;
use crate::program::{Bank, LaneFn};
use crate::registers::{Base, Counts, LANES, Operands, Registers};
use crate::table::Role;

/// More sources than this with undefined bytes are not tried: 2^n runs.
const MOST: usize = 4;

/// Registers of its own to run operations in.
#[derive(Debug)]
pub(super) struct Trial {
    registers: Registers,
}

/// A source with undefined bytes, and the register that stands for it.
struct Unknown {
    bank: Bank,
    slot: u16,
    planes: Planes,
}

impl Trial {
    pub(super) fn new() -> Trial {
        let mut registers = Registers::default();
        registers.enter(Base::default(), Counts { narrow: 16, wide: 16, predicates: 16 });
        Trial { registers }
    }

    /// The undefined bytes of each destination, in the order of the operands; `None` where there is too much to try.
    pub(super) fn run(
        &mut self,
        run: LaneFn,
        at: &At<'_>,
        registers: &Registers,
        shadow: &Shadow,
    ) -> Option<Vec<Planes>> {
        let instruction = at.instruction;
        let layout = &instruction.layout;
        let mut operands = Operands::default();
        let mut unknown: Vec<Unknown> = Vec::new();
        for (at, shape) in layout.iter().enumerate() {
            let slot = instruction.operands[at];
            // The same register twice stays the same register: its bytes are the same both times.
            let twin = |&other: &usize| layout[other].bank == shape.bank && instruction.operands[other] == slot;
            let stand_in = (0..at).find(twin).unwrap_or(at) as u16;
            operands.0[at] = stand_in;
            match shape.bank {
                Bank::Narrow => *self.registers.narrow_mut(stand_in) = *registers.narrow(slot),
                Bank::Wide => *self.registers.wide_mut(stand_in) = *registers.wide(slot),
                Bank::Predicate => self.registers.set_predicate(stand_in, u32::MAX, registers.predicate(slot)),
            }
            let seen = unknown.iter().any(|known| known.bank == shape.bank && known.slot == stand_in);
            if shape.role == Role::Source && !seen && shadow.undefined(shape.bank, slot) != 0 {
                unknown.push(Unknown { bank: shape.bank, slot: stand_in, planes: shadow.planes(shape.bank, slot) });
            }
        }
        if unknown.len() > MOST {
            return None;
        }
        let start = self.registers.clone();
        let written = || (0..layout.len()).filter(|&at| layout[at].role == Role::Destination);
        let mut first: Vec<[u64; LANES]> = Vec::new();
        let mut differ: Vec<Planes> = written().map(|_| [0; 8]).collect();
        for choice in 0..1u32 << unknown.len() {
            self.registers.clone_from(&start);
            for (at, unknown) in unknown.iter().enumerate() {
                self.choose(unknown, choice >> at & 1 == 1);
            }
            run(&mut self.registers, &operands, at.mask, &Settings::default());
            let results = written().map(|at| self.value(layout[at].bank, operands[at]));
            if choice == 0 {
                first = results.collect();
                continue;
            }
            for ((result, first), differ) in results.zip(&first).zip(&mut differ) {
                for lane in 0..LANES {
                    let bits = result[lane] ^ first[lane];
                    for (byte, plane) in differ.iter_mut().enumerate() {
                        *plane |= u32::from(bits >> (8 * byte) & 0xff != 0) << lane;
                    }
                }
            }
        }
        Some(differ)
    }

    /// Gives the undefined bytes of a source all ones or all zeros.
    fn choose(&mut self, unknown: &Unknown, ones: bool) {
        let bits = |lane: usize| {
            let byte = |byte: usize| if unknown.planes[byte] >> lane & 1 == 1 { 0xff << (8 * byte) } else { 0 };
            (0..width(unknown.bank)).fold(0u64, |mask, at| mask | byte(at))
        };
        match unknown.bank {
            Bank::Narrow => {
                for (lane, value) in self.registers.narrow_mut(unknown.slot).iter_mut().enumerate() {
                    let bits = bits(lane) as u32;
                    *value = if ones { *value | bits } else { *value & !bits };
                }
            }
            Bank::Wide => {
                for (lane, value) in self.registers.wide_mut(unknown.slot).iter_mut().enumerate() {
                    *value = if ones { *value | bits(lane) } else { *value & !bits(lane) };
                }
            }
            Bank::Predicate => {
                let value = if ones { u32::MAX } else { 0 };
                self.registers.set_predicate(unknown.slot, unknown.planes[0], value);
            }
        }
    }

    fn value(&self, bank: Bank, slot: u16) -> [u64; LANES] {
        match bank {
            Bank::Narrow => self.registers.narrow(slot).map(u64::from),
            Bank::Wide => *self.registers.wide(slot),
            Bank::Predicate => {
                let value = self.registers.predicate(slot);
                std::array::from_fn(|lane| u64::from(value >> lane & 1))
            }
        }
    }
}
