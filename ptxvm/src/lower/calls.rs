//! Calls: arguments and results go through the frame's local memory.

use std::rc::Rc;

use super::body::Body;
use super::build::{Guard, loose};
use super::errors::Wrong;
use super::layout;
use super::module::Code;
use super::names::{Entity, Found, Symbol};
use super::spelling::Decoded;
use crate::program::{Access, Action, Address, AddressBase, Bank, Call, Callee, OperandSlot, Order, Param};
use crate::table::Role;
use crate::text::tree::{self, Instruction, Operand, OperandKind, Statement};
use crate::types::{Space, Type};

impl<'t> Body<'_, 't> {
    /// `call (result), function, (arguments);`
    pub(super) fn call(&mut self, decoded: &Rc<Decoded>, instruction: &'t Instruction, guard: Guard) {
        let (results, rest) = match instruction.operands.as_slice() {
            [Operand { kind: OperandKind::List(results), .. }, rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let Some((target, rest)) = rest.split_first() else {
            let (spelling, expected) = (decoded.spelling.clone(), "1 to 4".to_owned());
            let found = instruction.operands.len();
            return self.errors.push(instruction.span.start, Wrong::OperandCount { spelling, expected, found });
        };
        let arguments = match rest.first().map(|operand| &operand.kind) {
            Some(OperandKind::List(arguments)) => arguments.as_slice(),
            _ => &[],
        };
        let OperandKind::Name(name) = &target.kind else {
            let (is, used) = ("no function", "called");
            let wrong = Wrong::WrongKind { name: "the operand".to_owned(), is, used };
            return self.errors.push(target.span.start, wrong);
        };
        if self.register(name).is_some() {
            if rest.len() < 2 && !matches!(rest, [Operand { kind: OperandKind::Name(_), .. }]) {
                let missing = "a list of targets or a prototype after its arguments";
                let spelling = decoded.spelling.clone();
                return self.errors.push(instruction.span.start, Wrong::Missing { spelling, missing });
            }
            self.refuse(&decoded.spelling, "indirect calls do not run on this device");
            return self.push(decoded, Action::Refused, &[], guard);
        }
        let callee = match self.symbol(name) {
            Some(Symbol::Function(index)) => index,
            Some(_) => {
                let (is, used) = ("no function", "called");
                return self.errors.push(target.span.start, Wrong::WrongKind { name: name.clone(), is, used });
            }
            None => {
                self.unknown::<()>(name, target);
                return;
            }
        };
        let tree = &self.module.tree.functions[callee as usize];
        if tree.entry {
            let (is, used) = ("a kernel", "called");
            return self.errors.push(target.span.start, Wrong::WrongKind { name: name.clone(), is, used });
        }
        self.direct_call(decoded, instruction, (tree, self.module.code[callee as usize]), (results, arguments), guard);
    }

    fn direct_call(
        &mut self,
        decoded: &Rc<Decoded>,
        instruction: &'t Instruction,
        (tree, code): (&'t tree::Function, Code),
        (results, arguments): (&'t [Operand], &'t [Operand]),
        guard: Guard,
    ) {
        let (callee, at) = (tree.name.text.clone(), instruction.span.start);
        // A variadic function takes more than it declares.
        if arguments.len() != tree.params.len() {
            let (expected, found) = (tree.params.len(), arguments.len());
            return self.errors.push(at, Wrong::ArgumentCount { callee, expected, found });
        }
        if results.len() != tree.returns.len() {
            let (expected, found) = (tree.returns.len(), results.len());
            return self.errors.push(at, Wrong::ResultCount { callee, expected, found });
        }
        let mut places = Vec::with_capacity(arguments.len());
        for (argument, param) in arguments.iter().zip(&tree.params) {
            let Some(place) = self.argument(decoded, argument, param, &callee, guard) else { return };
            places.push(place);
        }
        let (returned, bytes) = layout::params(&tree.returns, self.errors);
        let mut result = None;
        let mut loads = Vec::new();
        for (operand, (param, place)) in results.iter().zip(tree.returns.iter().zip(&returned)) {
            match self.frame_place(operand) {
                Some((offset, _)) => result = Some(offset),
                None => {
                    let base = *result.get_or_insert_with(|| self.reserve(bytes, 16));
                    loads.push((operand, param.ty, base + place.offset));
                }
            }
        }
        let callee = match code {
            Code::Function(index) => Callee::Function(index),
            Code::Extern(index) => Callee::Extern(index),
        };
        self.push(decoded, Action::Call(Box::new(Call { callee, arguments: places, result })), &[], guard);
        for (operand, ty, offset) in loads {
            self.load_result(decoded, operand, ty, offset, guard);
        }
    }

    /// The place in the frame of a `.param` variable.
    fn frame_place(&self, operand: &Operand) -> Option<(u32, u32)> {
        let OperandKind::Name(name) = &operand.kind else { return None };
        match self.scopes.find(name) {
            Some(Found::Entity(Entity::Memory(Symbol::Frame(offset, Space::Param), bytes))) => Some((offset, bytes)),
            _ => None,
        }
    }

    /// Where an argument lies: a `.param` variable's place, or one that a value is stored to.
    fn argument(
        &mut self,
        decoded: &Rc<Decoded>,
        operand: &'t Operand,
        param: &tree::Param,
        callee: &str,
        guard: Guard,
    ) -> Option<u32> {
        let expected = layout::param_bytes(param);
        if let Some((offset, found)) = self.frame_place(operand) {
            if found != expected && !param.dims.contains(&0) {
                let (callee, argument) = (callee.to_owned(), param.name.text.clone());
                self.errors.push(operand.span.start, Wrong::ArgumentSize { callee, argument, expected, found });
                return None;
            }
            return Some(offset);
        }
        let place = loose(decoded, 0, guard)?;
        self.gathered.slots.clear();
        self.value(operand, param.ty, place)?;
        let (slot, _) = self.gathered.slots.pop()?;
        let offset = self.reserve(expected, expected.clamp(1, 16).next_power_of_two());
        self.frame_access(slot, param.ty, frame(offset), Role::Source, guard)?;
        Some(offset)
    }

    fn load_result(&mut self, decoded: &Rc<Decoded>, operand: &'t Operand, ty: Type, offset: u32, guard: Guard) {
        let OperandKind::Name(name) = &operand.kind else {
            if !matches!(operand.kind, OperandKind::Sink) {
                let wrong = Wrong::WrongKind { name: "the result".to_owned(), is: "no register", used: "written" };
                self.errors.push(operand.span.start, wrong);
            }
            return;
        };
        match self.register(name) {
            Some((found, slot)) if super::operands::fits(ty, found, false) => {
                self.frame_access(slot, ty, frame(offset), Role::Destination, guard);
            }
            Some((found, _)) => {
                let (name, operand_name, spelling) = (name.clone(), "result".to_owned(), decoded.spelling.clone());
                let wrong = Wrong::TypeMismatch { name, found, operand: operand_name, spelling, expected: ty };
                self.errors.push(operand.span.start, wrong);
            }
            None => {
                self.unknown::<()>(name, operand);
            }
        }
    }

    /// Copies a parameter whose address is taken to the frame: the address is a local one, as the ISA has it.
    pub(super) fn shadow(&mut self, param: &Param) {
        let base = self.reserve(param.bytes, param.align);
        self.shadows.push((param.offset, base));
        let mut at = 0;
        while at < param.bytes {
            let ty = match (param.bytes - at, param.align) {
                (8.., 8..) => Type::B64,
                (4.., 4..) => Type::B32,
                (2.., 2..) => Type::B16,
                _ => Type::B8,
            };
            let register = self.pool.fresh(Bank::of(ty));
            self.load_argument(register, ty, param.offset + at);
            self.frame_access(register, ty, frame(base + at), Role::Source, None);
            at += ty.bytes();
        }
    }

    /// Reads a `.reg` parameter on entry.
    pub(super) fn load_argument(&mut self, register: u16, ty: Type, offset: u32) {
        let address = Address { base: AddressBase::FunctionParam, offset: i64::from(offset), space: Space::Param };
        self.frame_access(register, ty, address, Role::Destination, None);
    }

    /// Writes the `.reg` values that the function returns.
    pub(super) fn store_returned_guarded(&mut self, guard: Guard) {
        for (register, ty, offset) in self.returned.clone() {
            self.frame_access(register, ty, frame(offset), Role::Source, guard);
        }
    }

    /// Writes the `.reg` values that the function returns.
    pub(super) fn store_returned(&mut self) {
        self.store_returned_guarded(None);
    }

    /// A load from or a store to the frame that the text does not have.
    fn frame_access(&mut self, slot: u16, ty: Type, address: Address, role: Role, guard: Guard) -> Option<()> {
        let moved = match ty.bits() {
            8 => Type::B8,
            16 => Type::B16,
            32 => Type::B32,
            64 => Type::B64,
            _ => {
                self.errors.push(self.site.span.0, Wrong::Unsupported("predicates are no parameters"));
                return None;
            }
        };
        let store = role == Role::Source;
        let text = match (store, moved) {
            (true, Type::B8) => "st.param.b8",
            (true, Type::B16) => "st.param.b16",
            (true, Type::B32) => "st.param.b32",
            (true, _) => "st.param.b64",
            (false, Type::B8) => "ld.param.b8",
            (false, Type::B16) => "ld.param.b16",
            (false, Type::B32) => "ld.param.b32",
            (false, _) => "ld.param.b64",
        };
        let decoded = self.spellings.inserted(text)?;
        let register_bits = ty.bits() as u8;
        let access = Access {
            address,
            ty: moved,
            count: 1,
            order: Order::Weak,
            non_coherent: false,
            wide: ty.bits() > 32,
            register_bits,
        };
        let action = if store { Action::Store(access) } else { Action::Load(access) };
        let operand = u8::from(store);
        let shape = OperandSlot { ty: moved, register: ty, role, bank: Bank::of(ty), operand };
        self.push(&decoded, action, &[(slot, shape)], guard);
        Some(())
    }
}

/// Whether statements take the address of a parameter.
pub(super) fn address_taken(statements: &[Statement], param: &str) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Scope(inner) => address_taken(inner, param),
        Statement::Instruction(instruction) if matches!(instruction.name.text.as_str(), "mov" | "cvta") => {
            instruction.operands.iter().any(|operand| match &operand.kind {
                OperandKind::Name(name) | OperandKind::Offset(name, _) => name == param,
                _ => false,
            })
        }
        _ => false,
    })
}

/// A place in the frame's local memory.
fn frame(offset: u32) -> Address {
    Address { base: AddressBase::Frame, offset: i64::from(offset), space: Space::Param }
}
