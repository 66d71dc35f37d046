//! `mov`: between registers, from constants, special registers and symbols, and between a vector and a whole.

use std::rc::Rc;

use super::body::Body;
use super::build::{Guard, loose};
use super::errors::Wrong;
use super::names::{Symbol, clustered, constant, special};
use super::operands::Place;
use super::spelling::Decoded;
use crate::program::{Action, Bank};
use crate::table::moves::{copy, pack, unpack};
use crate::text::tree::{Instruction, Operand, OperandKind};
use crate::types::{Kind, Space, Target, Type};

impl<'t> Body<'_, 't> {
    /// `mov`, and `cvta` of a symbol.
    pub(super) fn mov(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, guard: Guard) {
        self.gathered.slots.clear();
        let [d, a] = instruction.operands.as_slice() else {
            let (spelling, found) = (decoded.spelling.clone(), instruction.operands.len());
            let wrong = Wrong::OperandCount { spelling, expected: "2".to_owned(), found };
            return self.errors.push(instruction.span.start, wrong);
        };
        if let Some(action) = self.move_action(decoded, d, a, guard) {
            let slots = std::mem::take(&mut self.gathered.slots);
            self.push(decoded, action, &slots, guard);
        }
    }

    fn move_action(&mut self, decoded: &Decoded, d: &'t Operand, a: &'t Operand, guard: Guard) -> Option<Action> {
        let ty = *decoded.mods.types.first()?;
        let (to, from) = (loose(decoded, 0, guard)?, loose(decoded, 1, guard)?);
        match (&d.kind, &a.kind) {
            (OperandKind::Vector(parts), _) => {
                let part = self.part(ty, parts, d, to)?;
                self.elements(d, parts, part, to)?;
                self.value(a, ty, from)?;
                unpack(ty, parts.len()).map(Action::Lanes)
            }
            (_, OperandKind::Vector(parts)) => {
                self.value(d, ty, to)?;
                let part = self.part(ty, parts, a, from)?;
                self.elements(a, parts, part, from)?;
                pack(ty, parts.len()).map(Action::Lanes)
            }
            (_, OperandKind::Name(name)) => {
                if self.register(name).is_some() {
                    return self.copied(d, a, ty, (to, from));
                }
                if let Some((register, found)) = special(name) {
                    self.special_since(register, a)?;
                    self.value(d, ty, to)?;
                    if !constant(register) && found == ty {
                        return Some(Action::Special(register));
                    }
                    return self.special_copy(a, (register, found), ty, from, guard);
                }
                match self.symbol(name) {
                    Some(symbol) => self.symbol_copy(d, a, (symbol, 0), ty, (to, from), guard),
                    None => self.copied(d, a, ty, (to, from)),
                }
            }
            (_, OperandKind::Offset(name, addend)) => match self.symbol(name) {
                Some(symbol) => self.symbol_copy(d, a, (symbol, *addend), ty, (to, from), guard),
                None => self.unknown(name, a),
            },
            _ => self.copied(d, a, ty, (to, from)),
        }
    }

    fn copied(
        &mut self,
        d: &'t Operand,
        a: &'t Operand,
        ty: Type,
        (to, from): (Place<'_>, Place<'_>),
    ) -> Option<Action> {
        self.value(d, ty, to)?;
        self.value(a, ty, from)?;
        Some(Action::Lanes(copy(ty)))
    }

    /// `cvta` of a symbol: its address, converted.
    pub(super) fn convert_symbol(
        &mut self,
        decoded: &Rc<Decoded>,
        instruction: &'t Instruction,
        symbol: Symbol,
        guard: Guard,
    ) {
        let [d, a] = instruction.operands.as_slice() else { return };
        let (Some(to), Some(from)) = (loose(decoded, 0, guard), loose(decoded, 1, guard)) else { return };
        let space = super::memory::space(&decoded.mods);
        if symbol.space().is_none_or(|(lies, _)| lies != space) || decoded.mods.has("to") {
            self.wrong::<()>(a, from, "a register, or a symbol of the space that is named");
            return;
        }
        self.gathered.slots.clear();
        let addend = if let OperandKind::Offset(_, addend) = a.kind { addend } else { 0 };
        if self.value(d, Type::B64, to).is_none() {
            return;
        }
        let Some(slot) = self.address_value(symbol, addend, Type::U64, guard) else { return };
        self.slot(slot, Type::B64, Type::B64, from);
        let slots = std::mem::take(&mut self.gathered.slots);
        self.push(decoded, Action::ConvertAddress { space, to_generic: true, wide: true }, &slots, guard);
    }

    /// The type of the parts of a vector that makes up a whole.
    fn part(&mut self, ty: Type, parts: &[Operand], operand: &Operand, place: Place<'_>) -> Option<Type> {
        let bits = ty.bits().checked_div(parts.len() as u32).filter(|bits| bits * parts.len() as u32 == ty.bits());
        let part = match bits {
            Some(8) => Type::B8,
            Some(16) => Type::B16,
            Some(32) => Type::B32,
            _ => return self.wrong(operand, place, "a vector of 2 or 4 parts that fill the whole"),
        };
        if ty.kind() != Kind::Bits || !matches!(parts.len(), 2 | 4) {
            return self.wrong(operand, place, "a register: only `.b16`, `.b32` and `.b64` take vectors");
        }
        Some(part)
    }

    /// A special register's value, cut where the move is narrower (as old programs read `%tid.x` in 16 bits).
    fn special_copy(
        &mut self,
        a: &'t Operand,
        (register, found): (crate::program::Special, Type),
        ty: Type,
        from: Place<'_>,
        guard: Guard,
    ) -> Option<Action> {
        use crate::program::Special;
        let integer = matches!(ty.kind(), Kind::Bits | Kind::Unsigned | Kind::Signed) || ty == found;
        let once_shorter = match register {
            Special::Tid(_) | Special::Ntid(_) | Special::CtaId(_) | Special::NctaId(_) => ty.bits() == 16,
            Special::GridId => ty.bits() == 32,
            _ => false,
        };
        if !integer || !(ty.bits() == found.bits() || once_shorter) {
            return self.wrong(a, from, "a register or constant of its type");
        }
        let whole = if constant(register) {
            self.pool.special(Bank::of(found), register)
        } else {
            let whole = self.pool.fresh(Bank::of(found));
            self.read_special(whole, found, register, guard)?;
            whole
        };
        let slot = match (found.bits(), ty.bits()) {
            (wide, narrow) if wide == narrow => whole,
            (64, _) => {
                let low = self.pool.fresh(Bank::Narrow);
                self.insert("cvt.u32.u64", &[(low, Type::U32), (whole, Type::U64)], guard)?;
                low
            }
            _ => {
                let low = self.pool.fresh(Bank::Narrow);
                self.insert("cvt.u16.u32", &[(low, Type::U16), (whole, Type::U32)], guard)?;
                low
            }
        };
        self.slot(slot, ty, ty, from);
        Some(Action::Lanes(copy(ty)))
    }

    /// The registers of clusters are younger than the others.
    fn special_since(&mut self, register: crate::program::Special, a: &Operand) -> Option<()> {
        let (needed, has) = (Target::SM_90, self.module.tree.target);
        if !clustered(register) || has.sm >= needed.sm {
            return Some(());
        }
        let what = "a cluster's special register".to_owned();
        self.errors.push(a.span.start, Wrong::NeedsTarget { what, needed, has });
        None
    }

    /// The address of a symbol.
    fn symbol_copy(
        &mut self,
        d: &'t Operand,
        a: &'t Operand,
        (symbol, addend): (Symbol, i64),
        ty: Type,
        (to, from): (Place<'_>, Place<'_>),
        guard: Guard,
    ) -> Option<Action> {
        self.value(d, ty, to)?;
        if !matches!(ty.kind(), Kind::Bits | Kind::Unsigned | Kind::Signed) || ty.bits() < 32 {
            return self.wrong(a, from, "a register or constant: an address has 32 or 64 bits");
        }
        if ty.bits() == 32 && matches!(symbol, Symbol::Variable(..) | Symbol::Function(_)) {
            return self.wrong(a, from, "an address of 32 bits, which only shared, local and param memory has");
        }
        let slot = self.address_value(symbol, addend, ty, guard)?;
        self.slot(slot, ty, ty, from);
        Some(Action::Lanes(copy(ty)))
    }

    /// A register that holds the address of a symbol in its space.
    pub(super) fn address_value(&mut self, symbol: Symbol, addend: i64, ty: Type, guard: Guard) -> Option<u16> {
        let bank = Bank::of(ty);
        let fixed = |start: u32| i64::from(start).wrapping_add(addend) as u64;
        let wide = match symbol {
            Symbol::Shared(start) | Symbol::KernelParam(start) => {
                let bits = if bank == Bank::Narrow { fixed(start) & 0xffff_ffff } else { fixed(start) };
                return Some(self.pool.constant(bank, bits));
            }
            Symbol::Variable(index, _) => self.pool.variable(index, addend),
            Symbol::Frame(start, Space::Local | Space::Param) => match u32::try_from(fixed(start)) {
                Ok(offset) => self.pool.local(offset),
                Err(_) => {
                    self.errors.push(self.site.span.0, Wrong::Unsupported("an address below the frame"));
                    return None;
                }
            },
            Symbol::Function(_) => {
                self.refuse("mov", "the address of a function is taken: indirect calls do not run");
                return Some(self.pool.constant(bank, 0));
            }
            Symbol::FunctionParam(start) => {
                let shadow = self.shadows.iter().find(|(of, _)| *of == start)?.1;
                self.pool.local(u32::try_from(fixed(shadow)).ok()?)
            }
            Symbol::Opaque | Symbol::Frame(..) => {
                self.refuse("mov", "textures and surfaces do not run on this device");
                return Some(self.pool.constant(bank, 0));
            }
        };
        if bank == Bank::Wide {
            return Some(wide);
        }
        let low = self.pool.fresh(Bank::Narrow);
        self.insert("cvt.u32.u64", &[(low, Type::U32), (wide, Type::U64)], guard)?;
        Some(low)
    }
}
