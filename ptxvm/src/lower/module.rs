//! The symbols of a module: variables, functions, and the shared memory of each kernel.

use std::collections::HashMap;

use super::errors::{Errors, Wrong};
use super::layout;
use super::names::{Symbol, variable_bytes};
use crate::program::{Extern, Variable};
use crate::text::tree::{self, Function, Linkage, Name, Operand, OperandKind, Statement};
use crate::types::{Space, Type};

/// The most bytes that a module variable may have.
const MOST_VARIABLE_BYTES: u64 = 1 << 40;

/// What a function of the tree becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// Index in `Program::functions`.
    Function(u32),
    /// Index in `Program::externs`.
    Extern(u32),
}

/// The module's names, and what each stands for.
pub(super) struct Module<'t> {
    pub(super) tree: &'t tree::Module,
    /// What each name stands for, and where the text declares it first: it is unknown before.
    pub(super) symbols: HashMap<&'t str, (Symbol, u32)>,
    pub(super) variables: Vec<Variable>,
    pub(super) externs: Vec<Extern>,
    /// For each function of the tree, what it becomes.
    pub(super) code: Vec<Code>,
    /// Shared variables by the place of their declaration: their offset, or for dynamic ones the kernel's.
    pub(super) shared: layout::SharedLayout,
    /// Function-scope `.global` and `.const` variables by the place of their declaration.
    pub(super) promoted: HashMap<u32, u32>,
}

impl<'t> Module<'t> {
    pub(super) fn new(tree: &'t tree::Module, errors: &mut Errors<'_>) -> Module<'t> {
        let mut module = Module {
            tree,
            symbols: HashMap::new(),
            variables: Vec::new(),
            externs: Vec::new(),
            code: Vec::new(),
            shared: layout::SharedLayout::default(),
            promoted: HashMap::new(),
        };
        module.functions(errors);
        let mut builder = layout::SharedBuilder::default();
        let mut declared: Vec<(&'t tree::Variable, u32)> = Vec::new();
        for variable in &tree.variables {
            module.variable(variable, &mut builder, &mut declared, errors);
        }
        for (at, function) in tree.functions.iter().enumerate() {
            if let (Some(body), Code::Function(index)) = (&function.body, module.code[at]) {
                builder.function(index, function.entry);
                module.scan(index, body, &mut builder, &mut declared, errors);
            }
        }
        for (variable, index) in declared {
            let (init, addresses) = layout::initialise(&module, variable, errors);
            let place = &mut module.variables[index as usize];
            (place.init, place.addresses) = (init, addresses);
        }
        module.shared = builder.finish();
        module
    }

    /// Gives every function its index. A declaration stands for the definition of its name, wherever that is.
    fn functions(&mut self, errors: &mut Errors<'_>) {
        let mut defined: HashMap<&str, u32> = HashMap::new();
        for function in self.tree.functions.iter().filter(|function| function.body.is_some()) {
            let index = defined.len() as u32;
            if defined.insert(&function.name.text, index).is_some() {
                errors.push(function.name.span.start, Wrong::Duplicate(function.name.text.clone()));
            }
        }
        let mut externs: HashMap<&str, u32> = HashMap::new();
        for (at, function) in self.tree.functions.iter().enumerate() {
            let name = function.name.text.as_str();
            let code = match defined.get(name) {
                Some(&index) => Code::Function(index),
                None => Code::Extern(*externs.entry(name).or_insert_with(|| {
                    self.externs.push(external(function));
                    self.externs.len() as u32 - 1
                })),
            };
            self.code.push(code);
            // The definition's parameters count, not a declaration's.
            let first = self.symbols.get(name).map_or(function.name.span.start, |(_, first)| *first);
            if function.body.is_some() || !self.symbols.contains_key(name) {
                self.symbols.insert(name, (Symbol::Function(at as u32), first));
            }
        }
        for alias in &self.tree.aliases {
            match self.symbols.get(alias.of.text.as_str()) {
                Some(&(symbol @ Symbol::Function(_), _)) => {
                    self.symbols.insert(&alias.name.text, (symbol, alias.name.span.start));
                }
                _ => errors.push(alias.of.span.start, Wrong::UnknownName(alias.of.text.clone())),
            }
        }
    }

    fn variable(
        &mut self,
        variable: &'t tree::Variable,
        shared: &mut layout::SharedBuilder<'t>,
        declared: &mut Vec<(&'t tree::Variable, u32)>,
        errors: &mut Errors<'_>,
    ) {
        let name = variable.name.text.as_str();
        let at = variable.name.span.start;
        declarable(variable, errors);
        let symbol = match variable.space {
            _ if variable.ty == Type::Opaque => Symbol::Opaque,
            Space::Shared => {
                shared.module_variable(variable);
                // Its offset is looked up by the place of the declaration.
                Symbol::Shared(at)
            }
            Space::Global | Space::Const => {
                let Some(index) = self.place(variable, declared, errors) else { return };
                Symbol::Variable(index, variable.space)
            }
            Space::Local | Space::Param | Space::Generic => {
                return errors.push(at, Wrong::Unsupported("variables of a module are global, const or shared"));
            }
        };
        let first = self.symbols.get(name).map_or(at, |(_, first)| *first);
        if let Some((before, _)) = self.symbols.insert(name, (symbol, first)) {
            // An `.extern` declaration before the definition is no second one, but a static one is another's.
            let known = match (before, symbol) {
                (Symbol::Variable(old, _), Symbol::Variable(..)) => {
                    let both = variable.linkage == Linkage::Extern || self.variables[old as usize].external;
                    both && variable.linkage != Linkage::None
                }
                _ => false,
            };
            if !known {
                errors.push(at, Wrong::Duplicate(name.to_owned()));
            }
        }
    }

    /// Adds a variable to those that the device must hold.
    fn place(
        &mut self,
        variable: &'t tree::Variable,
        declared: &mut Vec<(&'t tree::Variable, u32)>,
        errors: &mut Errors<'_>,
    ) -> Option<u32> {
        let at = variable.name.span.start;
        let value = variable_bytes(variable).unwrap_or(u64::MAX);
        if value > MOST_VARIABLE_BYTES {
            errors.push(at, Wrong::TooMuch { what: "the size of a variable", value, most: MOST_VARIABLE_BYTES });
            return None;
        }
        self.variables.push(Variable {
            name: variable.name.text.clone(),
            space: variable.space,
            bytes: value,
            align: u64::from(layout::alignment(variable, errors)),
            init: Vec::new(),
            addresses: Vec::new(),
            external: variable.linkage == Linkage::Extern,
        });
        let index = self.variables.len() as u32 - 1;
        declared.push((variable, index));
        Some(index)
    }

    /// Finds what a body declares for the whole kernel, what shared memory it names and whom it calls.
    fn scan(
        &mut self,
        function: u32,
        body: &'t [Statement],
        shared: &mut layout::SharedBuilder<'t>,
        declared: &mut Vec<(&'t tree::Variable, u32)>,
        errors: &mut Errors<'_>,
    ) {
        for statement in body {
            match statement {
                Statement::Scope(inner) => self.scan(function, inner, shared, declared, errors),
                Statement::Variable(variable) => match variable.space {
                    Space::Shared => shared.function_variable(function, variable),
                    Space::Global | Space::Const if variable.ty != Type::Opaque => {
                        if let Some(index) = self.place(variable, declared, errors) {
                            self.promoted.insert(variable.name.span.start, index);
                        }
                    }
                    _ => {}
                },
                Statement::Instruction(instruction) => {
                    for operand in &instruction.operands {
                        self.names_in(operand, &mut |name| match self.symbols.get(name) {
                            Some((Symbol::Shared(at), _)) => shared.uses(function, *at),
                            Some((Symbol::Function(tree), _)) => {
                                if let Code::Function(callee) = self.code[*tree as usize] {
                                    shared.calls(function, callee);
                                }
                            }
                            _ => {}
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// Every name in an operand that may be a symbol.
    fn names_in(&self, operand: &'t Operand, visit: &mut dyn FnMut(&'t str)) {
        match &operand.kind {
            // Registers begin with `%` by custom; a look-up less for each of them.
            OperandKind::Name(name) | OperandKind::Offset(name, _) if !name.starts_with('%') => visit(name),
            OperandKind::Address { base: Some(Name { text, .. }), .. } if !text.starts_with('%') => visit(text),
            OperandKind::Pair(first, second) => {
                self.names_in(first, visit);
                self.names_in(second, visit);
            }
            OperandKind::Vector(parts) | OperandKind::Addresses(parts) | OperandKind::List(parts) => {
                parts.iter().for_each(|part| self.names_in(part, visit));
            }
            _ => {}
        }
    }
}

/// Notes what no variable may be: a predicate, or initialised where memory has no first value.
pub(super) fn declarable(variable: &tree::Variable, errors: &mut Errors<'_>) {
    let (name, at) = (variable.name.text.clone(), variable.name.span.start);
    if variable.ty == Type::Pred {
        errors.push(at, Wrong::Unsupported("a predicate is a register: it has no place in memory"));
    }
    if !variable.init.is_empty() && !matches!(variable.space, Space::Global | Space::Const) {
        errors.push(at, Wrong::Initializer { name, found: "a value: only global and const memory has first values" });
    }
}

/// A function that the host provides.
fn external(function: &Function) -> Extern {
    let bytes = |params: &[tree::Param]| params.iter().map(layout::param_bytes).collect::<Vec<u32>>();
    Extern {
        name: function.name.text.clone(),
        params: bytes(&function.params),
        returns: bytes(&function.returns).iter().sum(),
    }
}
