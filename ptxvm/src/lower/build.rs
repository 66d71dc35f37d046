//! From a form and its operands to what the executor does.

use std::rc::Rc;

use super::body::Body;
use super::errors::Wrong;
use super::names::{Entity, Found, Symbol, special};
use super::operands::{Gathered, Place};
use super::spelling::Decoded;
use crate::program::{Action, Bank, Barrier, BarrierKind, Branch, Members, OperandSlot, Special};
use crate::table::{Build, Role};
use crate::text::tree::{Instruction, Operand, OperandKind};
use crate::types::{Kind, Scope, Type};

/// A guard: the predicate's number, and whether it is negated.
pub(super) type Guard = Option<(u16, bool)>;

impl<'t> Body<'_, 't> {
    /// Lowers an instruction of a known form.
    pub(super) fn build(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, guard: Guard) {
        match decoded.form.build {
            Build::ConvertAddress => match instruction.operands.get(1).and_then(|operand| self.symbol_of(operand)) {
                Some(symbol) => self.convert_symbol(decoded, instruction, symbol, guard),
                None => self.gathered(decoded, instruction, guard),
            },
            Build::IsSpace => self.is_space(decoded, instruction, guard),
            Build::Refused(reason) => self.refused(decoded, instruction, reason, guard),
            Build::Call => self.call(decoded, instruction, guard),
            Build::Move => self.mov(decoded, instruction, guard),
            _ => self.gathered(decoded, instruction, guard),
        }
    }

    /// The ordinary way: read the operands, choose the action, add both.
    fn gathered(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, guard: Guard) {
        if self.gather(decoded, instruction, guard).is_none() {
            return;
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        let errors = self.errors.count();
        let action = self.action(decoded, instruction, &mut gathered, guard);
        if action.is_none() && self.errors.count() == errors {
            self.errors.push(instruction.span.start, Wrong::Unsupported("these operands cannot be lowered"));
        }
        if let Some(action) = action {
            if matches!(action, Action::Return) {
                self.store_returned_guarded(guard);
            }
            self.push(decoded, action, &gathered.slots, guard);
            for &(narrow, ty, slot, register) in &gathered.extensions {
                self.extend(narrow, ty, slot, register, guard);
            }
        }
        self.gathered = gathered;
    }

    fn action(
        &mut self,
        decoded: &Rc<Decoded>,
        instruction: &'t Instruction,
        gathered: &mut Gathered<'t>,
        guard: Guard,
    ) -> Option<Action> {
        let mods = &decoded.mods;
        let immediate = |gathered: &Gathered<'_>| gathered.immediates.first().map(|value| *value as u32);
        Some(match decoded.form.build {
            Build::Lanes(choose) => Action::Lanes(choose(mods)),
            Build::Collective(choose) => {
                let members = gathered.named(decoded, "membermask").map_or(Members::Warp, Members::Mask);
                Action::Collective { run: choose(mods), members }
            }
            Build::Load => Action::Load(self.load(decoded, gathered, guard)?),
            Build::Store => Action::Store(self.store(decoded, gathered, guard)?),
            Build::Atomic => Action::Atomic(self.atomic(decoded, gathered, true)?),
            Build::Reduce => Action::Atomic(self.atomic(decoded, gathered, false)?),
            Build::LoadMatrix => self.load_matrix(decoded, gathered)?,
            Build::CopyAsync => self.copy_async(decoded, instruction, gathered, guard)?,
            Build::CommitGroup => Action::CommitGroup,
            Build::WaitGroup => Action::WaitGroup(immediate(gathered)),
            Build::WaitAll => Action::WaitGroup(None),
            Build::Branch => {
                let target = self.label(instruction.operands.first()?)?;
                Action::Branch(Branch { target, reconverge: 0, uniform: mods.has("uni") })
            }
            Build::BranchIndexed => {
                let targets = self.targets(instruction.operands.last()?)?;
                let index = gathered.slots.first()?.0;
                Action::BranchIndexed { index, targets, reconverge: 0 }
            }
            Build::Return => Action::Return,
            Build::Exit => Action::Exit,
            Build::Trap => Action::Trap,
            Build::Breakpoint => Action::Breakpoint,
            Build::Barrier => Action::Barrier(self.barrier(decoded, instruction, gathered)?),
            Build::WarpBarrier => Action::WarpBarrier { mask: gathered.slots.first()?.0 },
            Build::Fence => Action::Fence { scope: scope(decoded)?, sequential: sequential(decoded) },
            Build::Sleep => Action::Sleep,
            Build::ActiveMask => Action::ActiveMask,
            Build::IsSpace => Action::IsSpace(super::memory::space(mods)),
            Build::ConvertAddress => Action::ConvertAddress {
                space: super::memory::space(mods),
                to_generic: !mods.has("to"),
                wide: mods.types.first() == Some(&Type::U64),
            },
            Build::Nothing => Action::Nothing,
            Build::Move | Build::Call | Build::Refused(_) => return None,
        })
    }

    fn symbol_of(&self, operand: &Operand) -> Option<Symbol> {
        match &operand.kind {
            OperandKind::Name(name) | OperandKind::Offset(name, _) => self.symbol(name),
            _ => None,
        }
    }

    /// `isspacep`, whose address may have 32 bits.
    fn is_space(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, guard: Guard) {
        let narrow = instruction.operands.get(1).and_then(|operand| match &operand.kind {
            OperandKind::Name(name) => self.register(name),
            _ => None,
        });
        let (Some((ty, slot)), Some(d)) = (narrow.filter(|(ty, _)| ty.bits() == 32), instruction.operands.first())
        else {
            return self.gathered(decoded, instruction, guard);
        };
        self.gathered.slots.clear();
        let (Some(to), Some(from)) = (loose(decoded, 0, guard), loose(decoded, 1, guard)) else { return };
        let wide = self.pool.fresh(Bank::Wide);
        if ty.kind() == Kind::Float
            || self.value(d, Type::Pred, to).is_none()
            || self.insert("cvt.u64.u32", &[(wide, Type::U64), (slot, Type::U32)], guard).is_none()
        {
            return;
        }
        self.slot(wide, Type::B64, Type::B64, from);
        let slots = std::mem::take(&mut self.gathered.slots);
        self.push(decoded, Action::IsSpace(super::memory::space(&decoded.mods)), &slots, guard);
    }

    fn barrier(&mut self, decoded: &Decoded, instruction: &Instruction, gathered: &Gathered<'_>) -> Option<Barrier> {
        let mods = &decoded.mods;
        let numbers = instruction.operands.iter().skip(usize::from(mods.has("red")));
        for (operand, threads) in numbers.zip([false, true]) {
            let OperandKind::Integer(value) = operand.kind else { continue };
            let fine = if threads { value % 32 == 0 && value >= 0 } else { (0..16).contains(&value) };
            if !fine {
                let (name, spelling) = (if threads { "b" } else { "a" }.to_owned(), decoded.spelling.clone());
                let found = "this constant";
                let expected = if threads { "a multiple of 32" } else { "a barrier's number, 0 to 15" };
                let wrong = Wrong::WrongOperand { operand: name, spelling, found, expected };
                self.errors.push(operand.span.start, wrong);
                return None;
            }
        }
        let source = gathered.named(decoded, "c").unwrap_or_default();
        let kind = match () {
            () if mods.has("popc") => BarrierKind::Popc { source, negated: false },
            () if mods.has("and") => BarrierKind::And { source, negated: false },
            () if mods.has("or") => BarrierKind::Or { source, negated: false },
            () if mods.has("arrive") => BarrierKind::Arrive,
            () => BarrierKind::Sync,
        };
        let aligned = decoded.form.name == "bar" || mods.has("aligned");
        Some(Barrier { kind, id: gathered.named(decoded, "a")?, threads: gathered.named(decoded, "b"), aligned })
    }

    /// A form that does not run: its names must still be declared.
    fn refused(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, reason: &str, guard: Guard) {
        for operand in &instruction.operands {
            self.declared(operand);
        }
        self.refuse(&decoded.spelling, reason);
        self.push(decoded, Action::Refused, &[], guard);
    }

    fn declared(&mut self, operand: &'t Operand) {
        match &operand.kind {
            OperandKind::Name(name) | OperandKind::Offset(name, _) | OperandKind::Not(name) => {
                self.declared_name(name, operand);
            }
            OperandKind::Address { base: Some(name), .. } => self.declared_name(&name.text, operand),
            OperandKind::Pair(first, second) => {
                self.declared(first);
                self.declared(second);
            }
            OperandKind::Vector(parts) | OperandKind::Addresses(parts) | OperandKind::List(parts) => {
                parts.iter().for_each(|part| self.declared(part));
            }
            _ => {}
        }
    }

    fn declared_name(&mut self, name: &str, operand: &Operand) {
        let known = self.scopes.find(name).is_some()
            || self.module.symbols.contains_key(name)
            || special(name).is_some()
            || name == "WARP_SZ";
        if !known {
            self.unknown::<()>(name, operand);
        }
    }

    /// The number of a label.
    pub(super) fn label(&mut self, operand: &Operand) -> Option<u32> {
        let OperandKind::Name(name) = &operand.kind else {
            let wrong = Wrong::WrongKind { name: "an operand".to_owned(), is: "no name", used: "a branch target" };
            self.errors.push(operand.span.start, wrong);
            return None;
        };
        match self.scopes.find(name) {
            Some(Found::Entity(Entity::Label(label))) => Some(label),
            Some(_) => {
                let wrong = Wrong::WrongKind { name: name.clone(), is: "no label", used: "a branch target" };
                self.errors.push(operand.span.start, wrong);
                None
            }
            None => self.unknown(name, operand),
        }
    }

    /// The labels of a `.branchtargets` list.
    fn targets(&mut self, operand: &Operand) -> Option<Box<[u32]>> {
        let OperandKind::Name(name) = &operand.kind else {
            self.errors.push(operand.span.start, Wrong::Unsupported("`brx.idx` takes the name of a list of targets"));
            return None;
        };
        match self.scopes.find(name) {
            Some(Found::Entity(Entity::Targets(names))) => names
                .iter()
                .map(|target| match self.scopes.find(&target.text) {
                    Some(Found::Entity(Entity::Label(label))) => Some(label),
                    _ => {
                        self.errors.push(target.span.start, Wrong::UnknownName(target.text.clone()));
                        None
                    }
                })
                .collect(),
            Some(_) => {
                let (is, used) = ("no list of `.branchtargets`", "the targets of `brx.idx`");
                self.errors.push(operand.span.start, Wrong::WrongKind { name: name.clone(), is, used });
                None
            }
            None => self.unknown(name, operand),
        }
    }

    /// An instruction that the text does not have: the first slot is written, the others are read.
    pub(super) fn insert(&mut self, text: &'static str, slots: &[(u16, Type)], guard: Guard) -> Option<()> {
        let Some(decoded) = self.spellings.inserted(text) else {
            self.errors.push(self.site.span.0, Wrong::Inserted(text));
            return None;
        };
        let Build::Lanes(choose) = decoded.form.build else { return None };
        let slots: Vec<(u16, OperandSlot)> = slots
            .iter()
            .enumerate()
            .map(|(at, &(slot, ty))| {
                let role = if at == 0 { Role::Destination } else { Role::Source };
                (slot, OperandSlot { ty, register: ty, role, bank: Bank::of(ty), operand: at as u8 })
            })
            .collect();
        self.push(&decoded, Action::Lanes(choose(&decoded.mods)), &slots, guard);
        Some(())
    }

    /// A register that holds the opposite of a predicate.
    pub(super) fn negate(&mut self, slot: u16, guard: Guard) -> u16 {
        let opposite = self.pool.fresh(Bank::Predicate);
        self.insert("not.pred", &[(opposite, Type::Pred), (slot, Type::Pred)], guard);
        opposite
    }

    /// Reads a special register that changes.
    pub(super) fn read_special(&mut self, slot: u16, ty: Type, register: Special, guard: Guard) -> Option<()> {
        let text = if Bank::of(ty) == Bank::Wide { "mov.u64" } else { "mov.u32" };
        let decoded = self.spellings.inserted(text)?;
        let shape = OperandSlot { ty, register: ty, role: Role::Destination, bank: Bank::of(ty), operand: 0 };
        self.push(&decoded, Action::Special(register), &[(slot, shape)], guard);
        Some(())
    }

    /// Fills a register from a narrower value, by its sign or by zeros.
    fn extend(&mut self, narrow: u16, ty: Type, slot: u16, register: Type, guard: Guard) {
        let text = match (ty.kind() == Kind::Signed, ty.bits(), register.bits()) {
            (true, 8, 16) => "cvt.s16.s8",
            (true, 8, 32) => "cvt.s32.s8",
            (true, 16, 32) => "cvt.s32.s16",
            (true, 8, _) => "cvt.s64.s8",
            (true, 16, _) => "cvt.s64.s16",
            (true, ..) => "cvt.s64.s32",
            (false, ..) => "cvt.u64.u32",
        };
        self.insert(text, &[(slot, register), (narrow, ty)], guard);
    }
}

/// The scope of a fence.
fn scope(decoded: &Decoded) -> Option<Scope> {
    let mods = &decoded.mods;
    Some(match () {
        () if mods.has("cta") => Scope::Cta,
        () if mods.has("cluster") => Scope::Cluster,
        () if mods.has("sys") => Scope::System,
        () => Scope::Gpu,
    })
}

/// `fence.sc` and `membar`.
fn sequential(decoded: &Decoded) -> bool {
    decoded.form.name == "membar" || decoded.mods.has("sc")
}

/// The place of an operand that lowering reads by itself.
pub(super) fn loose<'a>(decoded: &'a Decoded, at: usize, guard: Guard) -> Option<Place<'a>> {
    let at = at.min(decoded.form.operands.len().checked_sub(1)?);
    Some(Place { decoded, shape: &decoded.form.operands[at], at: at as u8, guard })
}
