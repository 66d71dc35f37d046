//! Runs the function of a table row alone, without parser, lowering and executor.

use warpweft_ptxvm::numerics::Settings;
use warpweft_ptxvm::registers::{Base, Counts, LANES, Operands, Registers};
use warpweft_ptxvm::table::{Build, TABLE};
use warpweft_ptxvm::types::Type;

use crate::case::{Case, Kind, Operand};

/// What the form gives for the case's sources; none where the row is no function of registers.
pub(crate) fn results(case: &Case) -> Option<Vec<Vec<u64>>> {
    let mut words = case.form.split('.');
    let name = words.next()?;
    let (form, mods) = TABLE.find(name, &words.collect::<Vec<_>>())?;
    let Build::Lanes(choose) = form.build else { return None };
    let run = choose(&mods);
    let mut registers = Registers::default();
    registers.enter(Base::default(), Counts { narrow: 16, wide: 16, predicates: 16 });
    let mut slots = Operands::default();
    (0..16).for_each(|at| slots.0[at as usize] = at);
    let mut all = Vec::new();
    // An immediate is the same in all lanes.
    let immediate = case.operands.iter().any(|operand| operand.kind == Kind::Immediate);
    for sources in case.sources.chunks(if immediate { 1 } else { LANES }) {
        fill(&mut registers, &case.operands, sources);
        run(&mut registers, &slots, u32::MAX, &Settings::default());
        all.extend((0..sources.len()).map(|lane| taken(&registers, &case.operands, lane)));
    }
    Some(all)
}

/// Puts the sources of each lane in the registers whose numbers are the operands' places.
fn fill(registers: &mut Registers, operands: &[Operand], sources: &[Vec<u64>]) {
    for (lane, values) in sources.iter().enumerate() {
        let mut values = values.iter();
        for (slot, operand) in (0u16..).zip(operands) {
            if !matches!(operand.kind, Kind::Source | Kind::CarryIn | Kind::Immediate) {
                continue;
            }
            let value = *values.next().expect("a value for each source");
            match operand.ty.bits() {
                1 => registers.set_predicate(slot, 1 << lane, (value as u32) << lane),
                64 => registers.wide_mut(slot)[lane] = value,
                _ => registers.narrow_mut(slot)[lane] = value as u32,
            }
        }
    }
}

/// The destinations of a lane.
fn taken(registers: &Registers, operands: &[Operand], lane: usize) -> Vec<u64> {
    let written = |operand: &Operand| matches!(operand.kind, Kind::Destination | Kind::Pair | Kind::CarryOut);
    let read = |(slot, operand): (u16, &Operand)| match operand.ty.bits() {
        1 => u64::from(registers.predicate(slot) >> lane & 1),
        64 => registers.wide(slot)[lane],
        // Lowering extends a result to the register that holds it.
        8 if operand.ty == Type::S8 => u64::from(registers.narrow(slot)[lane] as u8 as i8 as u32),
        _ => u64::from(registers.narrow(slot)[lane]),
    };
    (0u16..).zip(operands).filter(|(_, operand)| written(operand)).map(read).collect()
}
