//! The operands of an instruction: their shapes from the table, their types from the declarations.

use super::body::Body;
use super::errors::Wrong;
use super::names::{Entity, Found, constant, special};
use super::spelling::Decoded;
use crate::program::{Bank, OperandSlot, Special};
use crate::table::{OperandShape, Role, ValueShape};
use crate::text::tree::{Instruction, Operand, OperandKind};
use crate::types::{Kind, Type};

/// The most slots that an instruction has.
const MOST_SLOTS: usize = 16;

/// What the operands of an instruction came to.
#[derive(Default)]
pub(super) struct Gathered<'t> {
    /// Register slots in the order of the text.
    pub(super) slots: Vec<(u16, OperandSlot)>,
    /// Operands in brackets.
    pub(super) addresses: Vec<&'t Operand>,
    /// Immediates that the form wants as such.
    pub(super) immediates: Vec<i128>,
    /// Destinations of which the register is wider than the type: temporary, its type, register, its type.
    pub(super) extensions: Vec<(u16, Type, u16, Type)>,
}

impl Gathered<'_> {
    /// The slot of the operand that a form names so.
    pub(super) fn named(&self, decoded: &Decoded, name: &str) -> Option<u16> {
        let at = decoded.form.operands.iter().position(|shape| shape.name == name)?;
        self.slots.iter().find(|(_, slot)| usize::from(slot.operand) == at).map(|(slot, _)| *slot)
    }
}

/// An operand's place in its instruction, for messages and layouts.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) decoded: &'a Decoded,
    pub(super) shape: &'a OperandShape,
    /// Index in the form.
    pub(super) at: u8,
    pub(super) guard: Option<(u16, bool)>,
}

impl<'t> Body<'_, 't> {
    /// Reads the operands into `self.gathered`; none where an error was noted.
    pub(super) fn gather(
        &mut self,
        decoded: &Decoded,
        instruction: &'t Instruction,
        guard: Option<(u16, bool)>,
    ) -> Option<()> {
        self.gathered.slots.clear();
        self.gathered.addresses.clear();
        self.gathered.immediates.clear();
        self.gathered.extensions.clear();
        let shapes = &decoded.form.operands;
        let mut given = instruction.operands.iter();
        let mut drop = self.optional_left_out(decoded, instruction)?;
        let optional = shapes.iter().filter(|shape| shape.optional).count();
        let mut met = 0;
        let mut fine = true;
        for (at, shape) in shapes.iter().enumerate() {
            let place = Place { decoded, shape, at: at as u8, guard };
            if shape.value == ValueShape::Carry {
                let slot = self.pool.carry();
                self.slot(slot, Type::Pred, Type::Pred, place);
                continue;
            }
            if shape.optional {
                met += 1;
                // The last ones are left out.
                if drop > 0 && met > optional - drop {
                    drop -= usize::from(met == optional);
                    continue;
                }
            }
            let Some(operand) = given.next() else { break };
            fine &= self.operand(operand, place).is_some();
        }
        let policy = shapes.iter().any(|shape| shape.name == "policy") && fine;
        if policy && decoded.mods.has("L2::cache_hint") != (self.gathered.named(decoded, "policy").is_some()) {
            let missing = "both `.L2::cache_hint` and a cache policy as its last operand, or neither";
            self.errors.push(instruction.span.start, Wrong::Missing { spelling: decoded.spelling.clone(), missing });
            return None;
        }
        (fine && self.gathered.slots.len() <= MOST_SLOTS).then_some(())
    }

    /// How many optional operands the instruction leaves out.
    fn optional_left_out(&mut self, decoded: &Decoded, instruction: &Instruction) -> Option<usize> {
        let shapes = &decoded.form.operands;
        let in_text = |shape: &&OperandShape| !matches!(shape.value, ValueShape::Carry | ValueShape::Rest);
        let most = shapes.iter().filter(in_text).count();
        let least = shapes.iter().filter(in_text).filter(|shape| !shape.optional).count();
        let rest = shapes.iter().any(|shape| shape.value == ValueShape::Rest);
        let found = instruction.operands.len();
        if found < least || (found > most && !rest) {
            let expected = match least == most {
                true => most.to_string(),
                false => format!("{least} to {most}"),
            };
            let spelling = decoded.spelling.clone();
            self.errors.push(instruction.span.start, Wrong::OperandCount { spelling, expected, found });
            return None;
        }
        Some(most.saturating_sub(found))
    }

    fn operand(&mut self, operand: &'t Operand, place: Place<'_>) -> Option<()> {
        match place.shape.value {
            ValueShape::Value { ty, pair } => self.value_or_pair(operand, ty, pair, place),
            ValueShape::Vector(ty, count) => self.vector(operand, ty, usize::from(count), place),
            ValueShape::PerVector(ty) if place.decoded.vector > 1 => {
                self.vector(operand, ty, usize::from(place.decoded.vector), place)
            }
            ValueShape::PerVector(ty) => match &operand.kind {
                OperandKind::Vector(parts) if parts.len() == 1 => self.value(&parts[0], ty, place),
                _ => self.value(operand, ty, place),
            },
            ValueShape::Address => match operand.kind {
                OperandKind::Address { .. } => {
                    self.gathered.addresses.push(operand);
                    Some(())
                }
                _ => self.wrong(operand, place, "an address in brackets"),
            },
            ValueShape::Immediate => match operand.kind {
                OperandKind::Integer(value) => {
                    self.gathered.immediates.push(value);
                    let slot = self.pool.constant(Bank::Narrow, value as u32 as u64);
                    self.slot(slot, Type::B32, Type::B32, place);
                    Some(())
                }
                _ => self.wrong(operand, place, "an integer constant"),
            },
            ValueShape::Control | ValueShape::Rest | ValueShape::Carry => Some(()),
        }
    }

    fn value_or_pair(&mut self, operand: &'t Operand, ty: Type, pair: bool, place: Place<'_>) -> Option<()> {
        match &operand.kind {
            OperandKind::Pair(first, second) if pair => {
                // Only a comparison's first result may be thrown away.
                match place.decoded.form.name {
                    "setp" => self.value_or_sink(first, ty, place)?,
                    _ => self.value(first, ty, place)?,
                }
                self.value_or_sink(second, Type::Pred, place)
            }
            _ if pair => {
                self.value(operand, ty, place)?;
                let sink = self.pool.sink(Bank::Predicate);
                self.slot(sink, Type::Pred, Type::Pred, place);
                Some(())
            }
            _ => self.value(operand, ty, place),
        }
    }

    fn vector(&mut self, operand: &'t Operand, ty: Type, count: usize, place: Place<'_>) -> Option<()> {
        match &operand.kind {
            OperandKind::Vector(parts) if parts.len() == count => self.elements(operand, parts, ty, place),
            OperandKind::Name(name) if self.vector_register(name).is_some() => {
                let (found, first, elements) = self.vector_register(name)?;
                if usize::from(elements) != count {
                    return self.wrong(operand, place, "a vector of the instruction's length");
                }
                (0..u16::from(elements))
                    .try_for_each(|at| self.typed(name, operand, (found, first.saturating_add(at)), ty, place))
            }
            OperandKind::Vector(parts) => {
                let (operand_name, spelling) = (place.shape.name.clone(), place.decoded.spelling.clone());
                let (expected, found) = (count, parts.len());
                let wrong = Wrong::VectorLength { operand: operand_name, spelling, expected, found };
                self.errors.push(operand.span.start, wrong);
                None
            }
            _ => self.wrong(operand, place, "a vector in braces"),
        }
    }

    /// The elements of a vector in braces: of one width, not floating point beside integers, and not all thrown away.
    pub(super) fn elements(
        &mut self,
        operand: &Operand,
        parts: &'t [Operand],
        ty: Type,
        place: Place<'_>,
    ) -> Option<()> {
        let first = self.gathered.slots.len();
        parts.iter().try_for_each(|part| self.value_or_sink(part, ty, place))?;
        if parts.iter().all(|part| matches!(part.kind, OperandKind::Sink)) {
            return self.wrong(operand, place, "a vector with a register in it");
        }
        let registers = || {
            let pairs = parts.iter().zip(&self.gathered.slots[first..]);
            pairs.filter(|(part, _)| matches!(part.kind, OperandKind::Name(_))).map(|(_, (_, slot))| slot.register)
        };
        let alike = |a: Type, b: Type| {
            let integer = |ty: Type| matches!(ty.kind(), Kind::Unsigned | Kind::Signed);
            let apart = (a.kind() == Kind::Float && integer(b)) || (b.kind() == Kind::Float && integer(a));
            a.bits() == b.bits() && !apart
        };
        let mixed = registers().any(|a| registers().any(|b| !alike(a, b)));
        if mixed {
            return self.wrong(operand, place, "a vector of registers of one type");
        }
        Some(())
    }

    /// The type, number and length of a vector register.
    fn vector_register(&self, name: &str) -> Option<(Type, u16, u8)> {
        match self.scopes.find(name)? {
            Found::Entity(Entity::Vector(ty, first, count)) => Some((ty, first, count)),
            _ => None,
        }
    }

    /// A value, or `_` for one that is thrown away.
    pub(super) fn value_or_sink(&mut self, operand: &'t Operand, ty: Type, place: Place<'_>) -> Option<()> {
        if !matches!(operand.kind, OperandKind::Sink) || place.shape.role == Role::Source {
            return self.value(operand, ty, place);
        }
        let sink = self.pool.sink(Bank::of(ty));
        self.slot(sink, ty, ty, place);
        Some(())
    }

    /// One value: a register or a constant.
    pub(super) fn value(&mut self, operand: &'t Operand, ty: Type, place: Place<'_>) -> Option<()> {
        let source = place.shape.role == Role::Source;
        match &operand.kind {
            OperandKind::Name(name) => self.named_value(name, operand, ty, place),
            OperandKind::Not(name) if ty == Type::Pred && source => {
                let Some((Type::Pred, slot)) = self.register(name) else {
                    return self.unknown(name, operand);
                };
                let negated = self.negate(slot, place.guard);
                self.slot(negated, Type::Pred, Type::Pred, place);
                Some(())
            }
            // Only atomics may throw their one result away.
            OperandKind::Sink if place.decoded.form.name == "atom" => self.value_or_sink(operand, ty, place),
            OperandKind::Integer(_) | OperandKind::Single(_) | OperandKind::Double(_) if source => {
                let Some(bits) = constant_bits(&operand.kind, ty) else {
                    let (operand_name, spelling) = (place.shape.name.clone(), place.decoded.spelling.clone());
                    let value = self.text(operand).to_owned();
                    let wrong = Wrong::ConstantType { value, operand: operand_name, spelling, expected: ty };
                    self.errors.push(operand.span.start, wrong);
                    return None;
                };
                let slot = self.pool.constant(Bank::of(ty), bits);
                self.slot(slot, ty, ty, place);
                Some(())
            }
            _ if source => self.wrong(operand, place, "a register or a constant"),
            _ => self.wrong(operand, place, "a register"),
        }
    }

    fn named_value(&mut self, name: &'t str, operand: &'t Operand, ty: Type, place: Place<'_>) -> Option<()> {
        if let Some((found, slot)) = self.register(name) {
            return self.typed(name, operand, (found, slot), ty, place);
        }
        if place.shape.role == Role::Source {
            if let (Some((register, found)), "cvt") = (special(name), place.decoded.form.name) {
                let slot = self.special_value(register, found)?;
                return self.typed(name, operand, (found, slot), ty, place);
            }
            if name == "WARP_SZ" {
                let slot = self.pool.constant(Bank::of(ty), 32);
                self.slot(slot, ty, ty, place);
                return Some(());
            }
        }
        let known = self.scopes.find(name).is_some() || self.module.symbols.contains_key(name);
        match known || special(name).is_some() {
            true => self.wrong(operand, place, "a register"),
            false => self.unknown(name, operand),
        }
    }

    /// A register with the value of a special one: a preset where it does not change, else read just before.
    fn special_value(&mut self, register: Special, ty: Type) -> Option<u16> {
        if constant(register) {
            return Some(self.pool.special(Bank::of(ty), register));
        }
        let slot = self.pool.fresh(Bank::of(ty));
        self.read_special(slot, ty, register, None)?;
        Some(slot)
    }

    /// A register whose type must go with the instruction's.
    fn typed(
        &mut self,
        name: &str,
        operand: &Operand,
        (found, slot): (Type, u16),
        ty: Type,
        place: Place<'_>,
    ) -> Option<()> {
        if found == Type::B128 {
            self.errors.push(operand.span.start, Wrong::Unsupported("128-bit registers do not run"));
            return None;
        }
        if !fits(ty, found, place.decoded.relaxed) {
            let (operand_name, spelling) = (place.shape.name.clone(), place.decoded.spelling.clone());
            let name = name.to_owned();
            let wrong = Wrong::TypeMismatch { name, found, operand: operand_name, spelling, expected: ty };
            self.errors.push(operand.span.start, wrong);
            return None;
        }
        let converts = place.decoded.form.name == "cvt" && found.bits() > ty.bits();
        if !converts {
            self.slot(slot, ty, found, place);
        } else if place.shape.role == Role::Destination {
            self.extended(slot, ty, found, place);
        } else if Bank::of(found) == Bank::of(ty) {
            // The bits above the type's width are not read.
            self.slot(slot, ty, found, place);
        } else {
            let low = self.pool.fresh(Bank::Narrow);
            self.insert("cvt.u32.u64", &[(low, Type::U32), (slot, Type::U64)], place.guard)?;
            self.slot(low, ty, ty, place);
        }
        Some(())
    }

    /// A destination wider than the conversion's type: the result goes on to fill the whole register.
    fn extended(&mut self, slot: u16, ty: Type, found: Type, place: Place<'_>) {
        if Bank::of(found) == Bank::of(ty) && ty.kind() != Kind::Signed {
            return self.slot(slot, ty, found, place);
        }
        let narrow = self.pool.fresh(Bank::of(ty));
        self.slot(narrow, ty, ty, place);
        self.gathered.extensions.push((narrow, ty, slot, found));
    }

    /// Notes a slot.
    pub(super) fn slot(&mut self, slot: u16, ty: Type, register: Type, place: Place<'_>) {
        let shape = OperandSlot { ty, register, role: place.shape.role, bank: Bank::of(register), operand: place.at };
        self.gathered.slots.push((slot, shape));
    }

    fn text(&self, operand: &Operand) -> &'t str {
        self.errors.text().get(operand.span.start as usize..operand.span.end as usize).unwrap_or_default()
    }

    pub(super) fn unknown<T>(&mut self, name: &str, operand: &Operand) -> Option<T> {
        self.errors.push(operand.span.start, Wrong::UnknownName(name.to_owned()));
        None
    }

    pub(super) fn wrong<T>(&mut self, operand: &Operand, place: Place<'_>, expected: &'static str) -> Option<T> {
        let found = describe(&operand.kind);
        let (operand_name, spelling) = (place.shape.name.clone(), place.decoded.spelling.clone());
        let wrong = Wrong::WrongOperand { operand: operand_name, spelling, found, expected };
        self.errors.push(operand.span.start, wrong);
        None
    }
}

/// Whether a register of a type may stand where an instruction wants another, as the compiler sees it.
pub(super) fn fits(wanted: Type, register: Type, relaxed: bool) -> bool {
    if wanted == Type::Pred || register == Type::Pred {
        return wanted == register;
    }
    let same = wanted.bits() == register.bits();
    if !(same || relaxed && register.bits() > wanted.bits()) {
        return false;
    }
    // A packed register counts as bits.
    let bits = register.kind() == Kind::Bits;
    let integer = matches!(register.kind(), Kind::Unsigned | Kind::Signed);
    match wanted {
        Type::Bf16 | Type::Bf16x2 | Type::Tf32 => bits,
        Type::E4m3 | Type::E5m2 | Type::E4m3x2 | Type::E5m2x2 => bits || integer,
        _ => match wanted.kind() {
            Kind::Bits => true,
            Kind::Unsigned | Kind::Signed => bits || integer || register == Type::F16x2,
            _ => bits || register == wanted,
        },
    }
}

/// The bits of a constant as a type holds them; none where the type does not take such a constant.
pub(super) fn constant_bits(kind: &OperandKind, ty: Type) -> Option<u64> {
    let mask = if ty.bits() >= 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    match *kind {
        OperandKind::Integer(value) if ty == Type::Pred => Some(u64::from(value != 0)),
        OperandKind::Integer(value) if ty.kind() != Kind::Float => Some(value as u64 & mask),
        OperandKind::Single(bits) if ty == Type::F32 || ty == Type::B32 => Some(u64::from(bits)),
        OperandKind::Single(bits) if ty == Type::F64 => Some(f64::from(f32::from_bits(bits)).to_bits()),
        OperandKind::Double(bits) if ty == Type::F32 => Some(u64::from((f64::from_bits(bits) as f32).to_bits())),
        OperandKind::Double(bits) if ty == Type::F64 || ty == Type::B64 => Some(bits),
        _ => None,
    }
}

/// What an operand is, in words.
fn describe(kind: &OperandKind) -> &'static str {
    match kind {
        OperandKind::Name(_) => "a name",
        OperandKind::Offset(..) => "a symbol with an offset",
        OperandKind::Sink => "a sink",
        OperandKind::Integer(_) => "an integer",
        OperandKind::Single(_) | OperandKind::Double(_) => "a number",
        OperandKind::Not(_) => "a negated predicate",
        OperandKind::Pair(..) => "a pair",
        OperandKind::Vector(_) => "a vector",
        OperandKind::Address { .. } | OperandKind::Addresses(_) => "an address",
        OperandKind::List(_) => "a list",
    }
}
