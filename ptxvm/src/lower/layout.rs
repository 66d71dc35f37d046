//! Where things lie: parameters, initialised bytes, and the static shared memory of each kernel.

use std::collections::HashMap;

use super::errors::{Errors, Wrong};
use super::module::Module;
use super::names::{Symbol, variable_bytes};
use crate::program::Param;
use crate::text::tree::{self, Initializer, Variable};
use crate::types::{Kind, Type};

/// Rounds up to a multiple of a power of two.
pub(super) fn round_up(value: u32, align: u32) -> u32 {
    value.saturating_add(align - 1) & !(align - 1)
}

/// The alignment of a variable; 1 where the text's is none.
pub(super) fn alignment(variable: &Variable, errors: &mut Errors<'_>) -> u32 {
    let natural = variable.ty.bytes().max(1) * variable.vector.max(1).next_power_of_two();
    match variable.align {
        Some(align) if !align.is_power_of_two() => {
            errors.push(variable.name.span.start, Wrong::Alignment(align));
            1
        }
        Some(align) => align.max(variable.ty.bytes()),
        None => natural,
    }
}

/// Bytes of a parameter.
pub(super) fn param_bytes(param: &tree::Param) -> u32 {
    let bytes = param.dims.iter().fold(u64::from(param.ty.bytes()), |bytes, dim| bytes.saturating_mul(*dim));
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Lays parameters out one after the other; the bytes of all.
pub(super) fn params(tree: &[tree::Param], errors: &mut Errors<'_>) -> (Vec<Param>, u32) {
    let mut end = 0;
    let mut list = Vec::with_capacity(tree.len());
    for param in tree {
        let align = param.align.unwrap_or(1).max(param.ty.bytes().max(1));
        let align = if align.is_power_of_two() {
            align
        } else {
            errors.push(param.name.span.start, Wrong::Alignment(align));
            1
        };
        let (offset, bytes) = (round_up(end, align), param_bytes(param));
        end = offset.saturating_add(bytes);
        list.push(Param { name: param.name.text.clone(), ty: param.ty, bytes, offset, align, pointer: param.pointer });
    }
    (list, end)
}

/// The first bytes of a variable, and the places that hold addresses.
pub(super) fn initialise(
    module: &Module<'_>,
    variable: &Variable,
    errors: &mut Errors<'_>,
) -> (Vec<u8>, Vec<(u64, u32, i64)>) {
    let width = variable.ty.bytes() as usize;
    let room = variable_bytes(variable).unwrap_or(0) / u64::from(variable.ty.bytes().max(1));
    let (name, at) = (&variable.name.text, variable.name.span.start);
    let mut bytes = Vec::with_capacity(variable.init.len() * width);
    let mut addresses = Vec::new();
    if variable.init.len() as u64 > room {
        errors.push(at, Wrong::TooManyInitializers { name: name.clone(), found: variable.init.len(), room });
    }
    for (index, element) in variable.init.iter().enumerate() {
        match element {
            Initializer::Integer(value) if variable.ty.kind() != Kind::Float && width <= 16 => {
                bytes.extend_from_slice(&value.to_le_bytes()[..width]);
            }
            Initializer::Float(bits) if floats(variable.ty) => {
                bytes.extend_from_slice(&float_bytes(variable.ty, f64::from_bits(*bits))[..width]);
            }
            Initializer::Integer(_) | Initializer::Float(_) => {
                let found = "a number of another kind than its type";
                errors.push(at, Wrong::Initializer { name: name.clone(), found });
                break;
            }
            Initializer::Address { name: symbol, addend, .. } => {
                let place = (bytes.len() as u64, width as u32);
                match declared(module, symbol) {
                    Some(Symbol::Variable(index, _)) if place.1 == 8 => addresses.push((place.0, index, *addend)),
                    Some(_) => {
                        let found = "an address that is none of a global or const variable, or has not 64 bits";
                        errors.push(symbol.span.start, Wrong::Initializer { name: name.clone(), found });
                    }
                    None => errors.push(symbol.span.start, Wrong::UnknownName(symbol.text.clone())),
                }
                bytes.resize(bytes.len() + width, 0);
            }
            Initializer::AddressByte { name: symbol, addend, shift, .. } => {
                // Bytes of one address come in order; the first of eight stands for all.
                let whole =
                    (0..8).all(|byte| same_address(variable.init.get(index + byte), symbol, *addend, byte as u32));
                match declared(module, symbol) {
                    Some(Symbol::Variable(index, _)) if *shift == 0 && whole => {
                        addresses.push((bytes.len() as u64, index, *addend));
                    }
                    Some(Symbol::Variable(..)) if *shift != 0 => {}
                    Some(_) => {
                        let found = "a part of an address: all eight bytes of a variable's must follow each other";
                        errors.push(symbol.span.start, Wrong::Initializer { name: name.clone(), found });
                    }
                    None => errors.push(symbol.span.start, Wrong::UnknownName(symbol.text.clone())),
                }
                bytes.resize(bytes.len() + width, 0);
            }
        }
    }
    (bytes, addresses)
}

fn same_address(element: Option<&Initializer>, symbol: &tree::Name, at: i64, byte: u32) -> bool {
    matches!(element, Some(Initializer::AddressByte { name, addend, shift, .. })
        if name.text == symbol.text && *addend == at && (*shift == byte || *shift == 8 * byte))
}

/// What a name in an initialiser stands for: only what is declared before it counts.
fn declared(module: &Module<'_>, symbol: &tree::Name) -> Option<Symbol> {
    let &(found, first) = module.symbols.get(symbol.text.as_str())?;
    (first < symbol.span.start).then_some(found)
}

/// Whether a type takes a floating-point number as its first value.
fn floats(ty: Type) -> bool {
    matches!(ty, Type::F32 | Type::F64 | Type::B32 | Type::B64)
}

/// A number as a type holds it in memory.
fn float_bytes(ty: Type, value: f64) -> [u8; 8] {
    let bits = match ty {
        Type::F32 | Type::B32 => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    };
    bits.to_le_bytes()
}

/// Where shared variables lie, and how much each function needs.
#[derive(Default)]
pub(super) struct SharedLayout {
    /// By the place of the declaration: the offset of a static variable, none for a dynamic one.
    offsets: HashMap<u32, Option<u32>>,
    /// Of each function with all it calls: static bytes, and where dynamic memory begins.
    bytes: Vec<(u32, u32)>,
}

impl SharedLayout {
    /// The offset of the variable declared at a place, as a function sees it.
    pub(super) fn offset(&self, declared: u32, function: u32) -> Option<u32> {
        let dynamic = self.bytes.get(function as usize)?.1;
        self.offsets.get(&declared).map(|offset| offset.unwrap_or(dynamic))
    }

    /// Static bytes that a function needs with all it calls, and where dynamic memory begins.
    pub(super) fn of(&self, function: u32) -> (u32, u32) {
        self.bytes.get(function as usize).copied().unwrap_or_default()
    }
}

/// Collects who uses which shared variable.
#[derive(Default)]
pub(super) struct SharedBuilder<'t> {
    variables: Vec<Shared<'t>>,
    by_place: HashMap<u32, usize>,
    functions: Vec<User>,
}

struct Shared<'t> {
    variable: &'t Variable,
    align: u32,
    offset: Option<u32>,
}

#[derive(Default)]
struct User {
    uses: Vec<usize>,
    calls: Vec<u32>,
}

impl<'t> SharedBuilder<'t> {
    /// Makes room for a function.
    pub(super) fn function(&mut self, index: u32, _entry: bool) {
        let count = self.functions.len().max(index as usize + 1);
        self.functions.resize_with(count, User::default);
    }

    pub(super) fn module_variable(&mut self, variable: &'t Variable) {
        self.by_place.insert(variable.name.span.start, self.variables.len());
        let natural = variable.ty.bytes().max(1) * variable.vector.max(1).next_power_of_two();
        let align = variable.align.unwrap_or(natural).max(1).next_power_of_two();
        self.variables.push(Shared { variable, align, offset: None });
    }

    pub(super) fn function_variable(&mut self, function: u32, variable: &'t Variable) {
        self.module_variable(variable);
        self.uses(function, variable.name.span.start);
    }

    pub(super) fn uses(&mut self, function: u32, declared: u32) {
        let Some(&variable) = self.by_place.get(&declared) else { return };
        let user = &mut self.functions[function as usize];
        if !user.uses.contains(&variable) {
            user.uses.push(variable);
        }
    }

    pub(super) fn calls(&mut self, caller: u32, callee: u32) {
        self.function(callee, false);
        let user = &mut self.functions[caller as usize];
        if !user.calls.contains(&callee) {
            user.calls.push(callee);
        }
    }

    /// Lays the variables out. One that two kernels reach has one offset in both (the code of a device function is
    /// one), and two that no kernel reaches together may overlap.
    pub(super) fn finish(mut self) -> SharedLayout {
        let reached: Vec<Vec<usize>> = (0..self.functions.len()).map(|root| self.reach(root)).collect();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.variables.len()];
        for (root, functions) in reached.iter().enumerate() {
            for &variable in functions.iter().flat_map(|&function| &self.functions[function].uses) {
                if users[variable].last() != Some(&root) {
                    users[variable].push(root);
                }
            }
        }
        let mut ends = vec![0u32; self.functions.len()];
        let mut aligns = vec![1u32; self.functions.len()];
        for (shared, users) in self.variables.iter_mut().zip(&users) {
            users.iter().for_each(|&root| aligns[root] = aligns[root].max(shared.align));
            if shared.dynamic() {
                continue;
            }
            // Above all that lies in any kernel which reaches it.
            let start = users.iter().map(|&root| ends[root]).max().unwrap_or(0);
            let offset = round_up(start, shared.align);
            shared.offset = Some(offset);
            let end = offset.saturating_add(shared.bytes());
            users.iter().for_each(|&root| ends[root] = end);
        }
        let dynamic = self.dynamic_starts(&reached, &ends, &aligns);
        let place = |shared: &Shared<'_>| (shared.variable.name.span.start, shared.offset);
        SharedLayout {
            offsets: self.variables.iter().map(place).collect(),
            bytes: ends.into_iter().zip(dynamic).collect(),
        }
    }

    /// Where dynamic memory begins in each function: alike in all kernels that reach a function which names it.
    fn dynamic_starts(&self, reached: &[Vec<usize>], ends: &[u32], aligns: &[u32]) -> Vec<u32> {
        let mut starts: Vec<u32> = ends.iter().zip(aligns).map(|(end, align)| round_up(*end, *align)).collect();
        let names = |function: &User| function.uses.iter().any(|&variable| self.variables[variable].dynamic());
        let naming: Vec<usize> = (0..self.functions.len()).filter(|&at| names(&self.functions[at])).collect();
        let groups: Vec<Vec<usize>> = naming
            .iter()
            .map(|function| (0..reached.len()).filter(|&root| reached[root].contains(function)).collect())
            .collect();
        let mut changed = true;
        while changed {
            changed = false;
            for group in &groups {
                let start = group.iter().map(|&root| starts[root]).max().unwrap_or(0);
                for &root in group {
                    changed |= starts[root] != start;
                    starts[root] = start;
                }
            }
        }
        starts
    }

    /// The functions that a function reaches, itself first.
    fn reach(&self, root: usize) -> Vec<usize> {
        let mut seen = vec![false; self.functions.len()];
        let mut list = vec![root];
        seen[root] = true;
        let mut next = 0;
        while let Some(&function) = list.get(next) {
            next += 1;
            for &callee in &self.functions[function].calls {
                if !std::mem::replace(&mut seen[callee as usize], true) {
                    list.push(callee as usize);
                }
            }
        }
        list
    }
}

impl Shared<'_> {
    /// `extern .shared x[]`: its size is the launch's.
    fn dynamic(&self) -> bool {
        self.variable.linkage == tree::Linkage::Extern
    }

    fn bytes(&self) -> u32 {
        u32::try_from(variable_bytes(self.variable).unwrap_or(u64::MAX)).unwrap_or(u32::MAX)
    }
}
