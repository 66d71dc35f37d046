//! An exchange whose lanes have come to it at different places of the program, with operands in different registers.

use super::step::{Now, Step};
use crate::observe::{Sync, Watcher};
use crate::program::{Action, Bank};
use crate::registers::{Base, Counts, Operands, Registers};
use crate::table::Role;

/// Copies the operands of one role between a warp's registers and a bench where slot i is operand i.
fn copy(now: Now<'_>, role: Role, warp: &mut Registers, bench: &mut Registers) {
    for (at, slot) in now.instruction.layout.iter().enumerate().filter(|(_, slot)| slot.role == role) {
        let (there, here) = (now.instruction.operands[at], at as u16);
        let (from, to, read, write) = match role {
            Role::Source => (&*warp, &mut *bench, there, here),
            Role::Destination => (&*bench, &mut *warp, here, there),
        };
        match slot.bank {
            Bank::Narrow => to.set_narrow(write, now.mask, from.narrow(read)),
            Bank::Wide => to.set_wide(write, now.mask, from.wide(read)),
            Bank::Predicate => to.set_predicate(write, now.mask, from.predicate(read)),
        }
    }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// Executes an exchange among the lanes of several fragments. They all name the same function of lanes.
    pub(super) fn exchange_apart(&mut self, parts: &[(Now<'a>, Base)]) {
        let Some(&(first, _)) = parts.first() else { return };
        let Action::Collective { run, .. } = first.instruction.action else { return };
        let mut bench = Registers::default();
        bench.enter(Base::default(), Counts { narrow: 16, wide: 16, predicates: 16 });
        let operands = Operands(std::array::from_fn(|at| at as u16));
        let mask = parts.iter().fold(0, |mask, (now, _)| mask | now.mask);
        for &(now, base) in parts {
            self.enter_base(now, base);
            if O::ACTIVE {
                self.before(now);
            }
            copy(now, Role::Source, &mut self.warp.registers, &mut bench);
        }
        run(&mut bench, &operands, mask, &self.core.context.options.settings);
        if O::ACTIVE {
            let at = self.at(Now { mask, ..first });
            self.core.observer.sync(&at, &Sync::Converge);
        }
        for &(now, base) in parts {
            self.enter_base(now, base);
            copy(now, Role::Destination, &mut self.warp.registers, &mut bench);
            if O::ACTIVE {
                self.after(now);
            }
        }
    }

    /// Turns the warp's registers to the function of an instruction.
    pub(super) fn enter_base(&mut self, now: Now<'a>, base: Base) {
        let function = &self.core.context.program.functions[now.function as usize];
        self.warp.registers.enter(base, function.registers);
    }
}
