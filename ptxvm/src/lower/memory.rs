//! Loads, stores, atomics and copies: where they go, and how strong they are.

use super::body::Body;
use super::build::{Guard, loose};
use super::errors::Wrong;
use super::names::Symbol;
use super::operands::Gathered;
use super::spelling::Decoded;
use crate::program::{Access, Action, Address, AddressBase, Atomic, AtomicOp, Bank, OperandSlot, Order};
use crate::table::{Mods, Role};
use crate::text::tree::{Instruction, Operand, OperandKind};
use crate::types::{Kind, Scope, Space, Type};

/// The state space that modifiers name.
pub(super) fn space(mods: &Mods) -> Space {
    let named = |words: &[&str]| words.iter().any(|word| mods.has(word));
    match () {
        () if named(&["global"]) => Space::Global,
        () if named(&["shared", "shared::cta", "shared::cluster"]) => Space::Shared,
        () if named(&["local"]) => Space::Local,
        () if named(&["const"]) => Space::Const,
        () if named(&["param", "param::entry", "param::func"]) => Space::Param,
        () => Space::Generic,
    }
}

fn space_name(space: Space) -> &'static str {
    match space {
        Space::Generic => "generic",
        Space::Global => "global",
        Space::Shared => "shared",
        Space::Local => "local",
        Space::Const => "const",
        Space::Param => "param",
    }
}

fn scope(mods: &Mods) -> Option<Scope> {
    [("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::System)]
        .into_iter()
        .find_map(|(word, scope)| mods.has(word).then_some(scope))
}

impl<'t> Body<'_, 't> {
    /// The address that an operand in brackets names.
    pub(super) fn address(&mut self, operand: &'t Operand, space: Space, decoded: &Decoded) -> Option<Address> {
        let OperandKind::Address { base, offset } = &operand.kind else {
            let (name, spelling) = ("a".to_owned(), decoded.spelling.clone());
            let (found, expected) = ("something else", "an address in brackets");
            self.errors.push(operand.span.start, Wrong::WrongOperand { operand: name, spelling, found, expected });
            return None;
        };
        let Some(name) = base else {
            if space != Space::Local {
                let wrong = Wrong::Unsupported("an address without a base: only local memory has those");
                self.errors.push(operand.span.start, wrong);
                return None;
            }
            return Some(Address { base: AddressBase::Absolute, offset: *offset, space });
        };
        if let Some((ty, slot)) = self.register(&name.text) {
            // Only the windows of a block and a thread are small enough for 32 bits.
            let far = matches!(space, Space::Generic | Space::Global);
            let base = match (ty.bits(), ty.kind()) {
                (64, Kind::Bits | Kind::Unsigned | Kind::Signed) => AddressBase::Wide(slot),
                (32, Kind::Bits | Kind::Unsigned | Kind::Signed) if !far => AddressBase::Narrow(slot),
                _ => {
                    let expected = if far { "64" } else { "32 or 64" };
                    let wrong = Wrong::AddressWidth { name: name.text.clone(), found: ty, expected };
                    self.errors.push(name.span.start, wrong);
                    return None;
                }
            };
            return Some(Address { base, offset: *offset, space });
        }
        let Some(symbol) = self.symbol(&name.text) else { return self.unknown(&name.text, operand) };
        let Some((lies, found)) = symbol.space() else {
            let (is, used) = ("a function, label or texture", "an address of memory");
            self.errors.push(name.span.start, Wrong::WrongKind { name: name.text.clone(), is, used });
            return None;
        };
        let generic = space == Space::Generic && !matches!(lies, Space::Const | Space::Param);
        if !generic && space != lies {
            let (spelling, expected) = (decoded.spelling.clone(), space_name(space));
            let wrong = Wrong::WrongSpace { name: name.text.clone(), found, spelling, expected };
            self.errors.push(name.span.start, wrong);
            return None;
        }
        let (base, start) = match symbol {
            Symbol::Variable(index, _) => (AddressBase::Variable(index), 0),
            Symbol::Shared(start) => (AddressBase::Absolute, start),
            Symbol::Frame(start, _) => (AddressBase::Frame, start),
            Symbol::KernelParam(start) => (AddressBase::KernelParam, start),
            Symbol::FunctionParam(start) => (AddressBase::FunctionParam, start),
            Symbol::Function(_) | Symbol::Opaque => return None,
        };
        Some(Address { base, offset: offset.wrapping_add(i64::from(start)), space: lies })
    }

    fn first_address(&mut self, decoded: &Decoded, gathered: &Gathered<'t>) -> Option<Address> {
        let operand = *gathered.addresses.first()?;
        self.address(operand, space(&decoded.mods), decoded)
    }

    /// `ld`.
    pub(super) fn load(&mut self, decoded: &Decoded, gathered: &mut Gathered<'t>, guard: Guard) -> Option<Access> {
        let order = self.order(decoded)?;
        let address = self.first_address(decoded, gathered)?;
        let ty = *decoded.mods.types.first()?;
        let bits = self.same_width(ty, gathered, guard)?;
        let (count, non_coherent) = (decoded.vector, decoded.mods.has("nc") || decoded.form.name == "ldu");
        Some(Access { address, ty, count, order, non_coherent, wide: bits > 32, register_bits: bits })
    }

    /// The width of a load's registers. Where they differ, a load writes the widest, and the others are cut from it.
    fn same_width(&mut self, ty: Type, gathered: &mut Gathered<'t>, _guard: Guard) -> Option<u8> {
        let destination = |slot: &OperandSlot| slot.role == Role::Destination;
        let widths =
            || gathered.slots.iter().filter(|(_, slot)| destination(slot)).map(|(_, slot)| slot.register.bits());
        let (least, most) = (widths().min()?, widths().max()?);
        let harmless = ty.kind() != Kind::Signed && (most <= 32 || least > 32);
        if least != most && !harmless {
            self.errors.push(self.site.span.0, Wrong::Unsupported("the registers of a vector load need one width"));
            return None;
        }
        Some(most as u8)
    }

    /// `st`.
    pub(super) fn store(&mut self, decoded: &Decoded, gathered: &mut Gathered<'t>, guard: Guard) -> Option<Access> {
        let order = self.order(decoded)?;
        let address = self.first_address(decoded, gathered)?;
        if matches!(address.base, AddressBase::KernelParam | AddressBase::FunctionParam) {
            self.errors.push(self.site.span.0, Wrong::Unsupported("a function's parameters are read-only"));
            return None;
        }
        let ty = *decoded.mods.types.first()?;
        let count = decoded.vector;
        // Registers of both banks: the wide ones are cut first.
        let data = usize::from(count).min(gathered.slots.len());
        let wide = gathered.slots[..data].iter().filter(|(_, slot)| slot.bank == Bank::Wide).count();
        if wide != 0 && wide != data {
            for (slot, shape) in gathered.slots[..data].iter_mut().filter(|(_, slot)| slot.bank == Bank::Wide) {
                let low = self.pool.fresh(Bank::Narrow);
                self.insert("cvt.u32.u64", &[(low, Type::U32), (*slot, Type::U64)], guard)?;
                (*slot, shape.bank, shape.register) = (low, Bank::Narrow, ty);
            }
        }
        let wide = wide == data && data > 0;
        let register_bits = gathered.slots[..data].iter().map(|(_, slot)| slot.register.bits()).max().unwrap_or(32);
        let register_bits = register_bits as u8;
        Some(Access { address, ty, count, order, non_coherent: false, wide, register_bits })
    }

    /// How strong a load or store is, and whether its modifiers go together.
    fn order(&mut self, decoded: &Decoded) -> Option<Order> {
        let mods = &decoded.mods;
        if let Some(wrong) = conflicts(decoded) {
            self.errors.push(self.site.span.0, wrong);
            return None;
        }
        Some(match scope(mods) {
            _ if mods.has("volatile") => Order::Volatile,
            _ if mods.has("mmio") => Order::Relaxed(Scope::System),
            Some(scope) if mods.has("acquire") => Order::Acquire(scope),
            Some(scope) if mods.has("release") => Order::Release(scope),
            Some(scope) if mods.has("relaxed") => Order::Relaxed(scope),
            _ => Order::Weak,
        })
    }

    /// `atom` and `red`.
    pub(super) fn atomic(&mut self, decoded: &Decoded, gathered: &Gathered<'t>, returns: bool) -> Option<Atomic> {
        let address = self.first_address(decoded, gathered)?;
        let mods = &decoded.mods;
        let scope = scope(mods).unwrap_or(Scope::Gpu);
        let order = match () {
            () if mods.has("acq_rel") => Order::AcquireRelease(scope),
            () if mods.has("acquire") => Order::Acquire(scope),
            () if mods.has("release") => Order::Release(scope),
            () => Order::Relaxed(scope),
        };
        let ops = [
            ("add", AtomicOp::Add),
            ("inc", AtomicOp::Inc),
            ("dec", AtomicOp::Dec),
            ("min", AtomicOp::Min),
            ("max", AtomicOp::Max),
            ("and", AtomicOp::And),
            ("or", AtomicOp::Or),
            ("xor", AtomicOp::Xor),
            ("exch", AtomicOp::Exchange),
            ("cas", AtomicOp::CompareAndSwap),
        ];
        let op = ops.into_iter().find(|(word, _)| mods.has(word))?.1;
        Some(Atomic { address, op, ty: *mods.types.first()?, order, returns })
    }

    /// `ldmatrix`.
    pub(super) fn load_matrix(&mut self, decoded: &Decoded, gathered: &Gathered<'t>) -> Option<Action> {
        let address = self.first_address(decoded, gathered)?;
        let count = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|(word, _)| decoded.mods.has(word))?.1;
        Some(Action::LoadMatrix { address, count, transposed: decoded.mods.has("trans") })
    }

    /// `cp.async`: `[dst], [src], bytes{, source bytes | ignore predicate}{, policy}`.
    pub(super) fn copy_async(
        &mut self,
        decoded: &Decoded,
        instruction: &'t Instruction,
        gathered: &mut Gathered<'t>,
        guard: Guard,
    ) -> Option<Action> {
        let to = self.address(gathered.addresses.first()?, Space::Shared, decoded)?;
        let from = self.address(gathered.addresses.get(1)?, Space::Global, decoded)?;
        let place = loose(decoded, 2, guard)?;
        let rest = instruction.operands.get(2..).unwrap_or_default();
        let hinted = decoded.mods.has("L2::cache_hint");
        let most = 2 + usize::from(hinted);
        if rest.is_empty() || rest.len() > most || (hinted && rest.len() < 2) {
            let (spelling, found) = (decoded.spelling.clone(), instruction.operands.len());
            let expected = if hinted { "4 or 5" } else { "3 or 4" }.to_owned();
            self.errors.push(instruction.span.start, Wrong::OperandCount { spelling, expected, found });
            return None;
        }
        let bytes = match rest[0].kind {
            OperandKind::Integer(16) => 16,
            OperandKind::Integer(value @ (4 | 8)) if decoded.mods.has("ca") => value as u8,
            _ if decoded.mods.has("cg") => return self.wrong(&rest[0], place, "16"),
            _ => return self.wrong(&rest[0], place, "4, 8 or 16"),
        };
        let extra = &rest[1..rest.len() - usize::from(hinted)];
        // What is read here comes after the slots that the form names.
        std::mem::swap(&mut self.gathered, gathered);
        let (mut source_bytes, mut ignore_source) = (None, None);
        let mut fine = true;
        if let Some(operand) = extra.first() {
            let predicate = match &operand.kind {
                OperandKind::Name(name) => self.register(name).is_some_and(|(ty, _)| ty == Type::Pred),
                OperandKind::Not(_) => true,
                _ => false,
            };
            if matches!(operand.kind, OperandKind::Integer(value) if !(0..=i128::from(bytes)).contains(&value)) {
                fine = self.wrong(operand, place, "at most the bytes that are copied").unwrap_or(false);
            }
            let ty = if predicate { Type::Pred } else { Type::U32 };
            fine &= self.value(operand, ty, place).is_some();
            let slot = self.gathered.slots.last().map(|(slot, _)| *slot);
            if predicate { ignore_source = slot } else { source_bytes = slot }
        }
        if hinted {
            fine &= self.value(&rest[rest.len() - 1], Type::B64, place).is_some();
        }
        std::mem::swap(&mut self.gathered, gathered);
        fine.then_some(Action::CopyAsync { to, from, bytes, source_bytes, ignore_source })
    }
}

/// Modifiers of a load or store that do not go together, as the compiler sees it.
fn conflicts(decoded: &Decoded) -> Option<Wrong> {
    let mods = &decoded.mods;
    let first = |words: &[&'static str]| words.iter().copied().find(|word| mods.has(word));
    let conflict = |first: &str, second: &str| {
        let (first, second) = (first.to_owned(), second.to_owned());
        Some(Wrong::Conflict { first, second, spelling: decoded.spelling.clone() })
    };
    let missing = |missing| Some(Wrong::Missing { spelling: decoded.spelling.clone(), missing });
    let strong = first(&["relaxed", "acquire", "release"]);
    let scope = first(&["cta", "cluster", "gpu", "sys"]);
    let cache = first(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
    let hint = mods.words().iter().copied().find(|word| word.starts_with("L1::"));
    let fetched = first(&["L2::64B", "L2::128B", "L2::256B"]);
    let outside = match space(mods) {
        Space::Local => Some("local"),
        Space::Const => Some("const"),
        Space::Param => Some("param"),
        _ => None,
    };
    let global = matches!(space(mods), Space::Global | Space::Generic);
    match (strong, scope) {
        (Some(_), None) => return missing("a scope: `.cta`, `.gpu` or `.sys`"),
        (None, Some(_)) => return missing("an order before its scope: `.relaxed`, `.acquire` or `.release`"),
        _ => {}
    }
    let strong = strong.or(first(&["volatile"]));
    if let (Some(strong), Some(second)) = (strong, cache.or(outside)) {
        return conflict(strong, second);
    }
    if let (Some(hint), Some(cache)) = (hint, cache) {
        return conflict(hint, cache);
    }
    if let (Some(hint), false) = (hint.or(fetched), global) {
        return conflict(hint, outside.unwrap_or("shared"));
    }
    if mods.has("nc") && space(mods) != Space::Global {
        return missing("`.global` beside `.nc`");
    }
    let evicted = first(&["L2::evict_first", "L2::evict_last", "L2::evict_normal"]);
    if evicted.is_some() && !wide_vector(decoded) {
        return missing("`.v8.b32` or `.v4.b64` beside an `.L2::evict` hint");
    }
    None
}

/// An access of 256 bits.
pub(super) fn wide_vector(decoded: &Decoded) -> bool {
    let bits = decoded.mods.types.first().map_or(0, |ty| ty.bits());
    u32::from(decoded.vector) * bits == 256
}
