//! One function: its statements in order, each instruction checked and lowered.

use std::rc::Rc;

use super::errors::{Errors, Wrong};
use super::layout;
use super::module::Module;
use super::names::{Entity, Found, Scopes, Symbol, variable_bytes};
use super::operands::Gathered;
use super::pool::Pool;
use super::spelling::{Decoded, Spellings};
use crate::program::{Action, Bank, Instruction, Param, Refusal, Site};
use crate::registers::Operands;
use crate::text::tree::{self, Name, Statement};
use crate::types::{Kind, Space, Type, Version};

/// The most bytes of local memory that a frame may have.
const MOST_LOCAL_BYTES: u32 = 512 << 10;

/// The most bytes of static shared memory that a kernel may have.
const MOST_STATIC_SHARED: u64 = 48 << 10;

/// A function while it is lowered. Branch targets are numbers of labels until [`super::finish`] knows the places.
pub(super) struct Body<'m, 't> {
    pub(super) module: &'m Module<'t>,
    pub(super) errors: &'m mut Errors<'t>,
    pub(super) spellings: &'m mut Spellings<'t>,
    pub(super) scopes: Scopes<'t>,
    pub(super) pool: Pool,
    pub(super) code: Vec<Instruction>,
    /// Where each label stands; none before it is met.
    pub(super) labels: Vec<Option<u32>>,
    pub(super) refused: Vec<Refusal>,
    pub(super) tree: &'t tree::Function,
    /// Index in the program.
    pub(super) index: u32,
    pub(super) params: Vec<Param>,
    pub(super) returns: Option<(u32, u32)>,
    /// `.reg` values that it returns: register, type, offset in the frame.
    pub(super) returned: Vec<(u16, Type, u32)>,
    /// Copies in the frame of parameters whose address is taken: offset of the parameter, offset in the frame.
    pub(super) shadows: Vec<(u32, u32)>,
    /// The frame's next free byte, and its most.
    frame: u32,
    pub(super) frame_bytes: u32,
    /// `.loc` in force.
    loc: (u32, u32),
    pub(super) site: Site,
    pub(super) gathered: Gathered<'t>,
}

impl<'m, 't> Body<'m, 't> {
    pub(super) fn new(
        module: &'m Module<'t>,
        tree: &'t tree::Function,
        index: u32,
        errors: &'m mut Errors<'t>,
        spellings: &'m mut Spellings<'t>,
    ) -> Body<'m, 't> {
        Body {
            module,
            errors,
            spellings,
            scopes: Scopes::default(),
            pool: Pool::default(),
            code: Vec::new(),
            labels: Vec::new(),
            refused: Vec::new(),
            tree,
            index,
            params: Vec::new(),
            returns: None,
            returned: Vec::new(),
            shadows: Vec::new(),
            frame: 0,
            frame_bytes: 0,
            loc: (0, 0),
            site: Site::default(),
            gathered: Gathered::default(),
        }
    }

    /// Lowers everything.
    pub(super) fn run(&mut self, statements: &'t [Statement]) {
        self.scopes.enter();
        self.signature(statements);
        self.block(statements);
        // A body may end without `ret`: its last threads then end.
        if self.falls_off() || self.labels.contains(&Some(self.code.len() as u32)) {
            self.site = Site { span: (self.tree.name.span.start, self.tree.name.span.end), ..self.site };
            self.end_of_function();
        }
        self.scopes.leave();
        if self.frame_bytes > MOST_LOCAL_BYTES {
            let (value, most) = (u64::from(self.frame_bytes), u64::from(MOST_LOCAL_BYTES));
            let what = "the local memory of a function in bytes";
            self.errors.push(self.tree.name.span.start, Wrong::TooMuch { what, value, most });
        }
    }

    fn falls_off(&self) -> bool {
        let ends = |instruction: &Instruction| {
            instruction.guard.is_none()
                && matches!(
                    instruction.action,
                    Action::Return | Action::Exit | Action::Trap | Action::Branch(_) | Action::BranchIndexed { .. }
                )
        };
        !self.code.last().is_some_and(ends)
    }

    fn end_of_function(&mut self) {
        self.store_returned();
        if let Some(decoded) = self.spellings.inserted("ret") {
            self.push(&decoded, Action::Return, &[], None);
        }
    }

    /// Parameters and returned values become names; `.reg` ones are read from the call's arguments.
    fn signature(&mut self, statements: &[Statement]) {
        let (params, bytes) = layout::params(&self.tree.params, self.errors);
        self.check_signature(bytes);
        self.site.line = self.errors.line(self.tree.name.span.start);
        self.site.span = (self.tree.name.span.start, self.tree.name.span.end);
        let tree = self.tree;
        for (param, place) in tree.params.iter().zip(&params) {
            if param.register {
                let register = self.pool.fresh(Bank::of(param.ty));
                self.declare(&param.name, Entity::Register(param.ty, register));
                self.load_argument(register, param.ty, place.offset);
                continue;
            }
            let symbol = match tree.entry {
                true => Symbol::KernelParam(place.offset),
                false => Symbol::FunctionParam(place.offset),
            };
            self.declare(&param.name, Entity::Memory(symbol, place.bytes));
            if !tree.entry && super::calls::address_taken(statements, &param.name.text) {
                self.shadow(place);
            }
        }
        self.params = params;
        let (returns, bytes) = layout::params(&tree.returns, self.errors);
        if bytes > 0 {
            let base = self.reserve(bytes, 16);
            self.returns = Some((base, bytes));
            for (param, place) in tree.returns.iter().zip(&returns) {
                if param.register {
                    let register = self.pool.fresh(Bank::of(param.ty));
                    self.declare(&param.name, Entity::Register(param.ty, register));
                    self.returned.push((register, param.ty, base + place.offset));
                } else {
                    let symbol = Symbol::Frame(base + place.offset, Space::Param);
                    self.declare(&param.name, Entity::Memory(symbol, place.bytes));
                }
            }
        }
    }

    /// What parameters may be, by kind and size.
    fn check_signature(&mut self, bytes: u32) {
        let tree = self.tree;
        let at = tree.name.span.start;
        for param in tree.params.iter().chain(&tree.returns) {
            let wrong = match (param.register, param.ty) {
                (true, _) if tree.entry => "a kernel's parameters are `.param`",
                (_, Type::Pred) => "a predicate is no parameter",
                (true, ty) if ty.bits() < 32 => "a `.reg` parameter has 32 or 64 bits",
                _ => continue,
            };
            self.errors.push(param.name.span.start, Wrong::Unsupported(wrong));
        }
        if tree.returns.len() > 1 && tree.returns.iter().any(|param| !param.register) {
            self.errors.push(at, Wrong::Unsupported("several returned values must be `.reg`"));
        }
        let most = if self.module.tree.version < Version(8, 1) { 4352 } else { 32764 };
        if u64::from(bytes) > most {
            let (what, value) = ("the parameter space of a function in bytes", u64::from(bytes));
            self.errors.push(at, Wrong::TooMuch { what, value, most });
        }
        let shared = u64::from(self.module.shared.of(self.index).0);
        if tree.entry && shared > MOST_STATIC_SHARED {
            let (what, value) = ("the static shared memory of a kernel in bytes", shared);
            self.errors.push(at, Wrong::TooMuch { what, value, most: MOST_STATIC_SHARED });
        }
    }

    /// Room in the frame.
    pub(super) fn reserve(&mut self, bytes: u32, align: u32) -> u32 {
        let offset = layout::round_up(self.frame, align);
        self.frame = offset.saturating_add(bytes);
        self.frame_bytes = self.frame_bytes.max(self.frame);
        offset
    }

    fn block(&mut self, statements: &'t [Statement]) {
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    let label = Entity::Label(self.labels.len() as u32);
                    self.labels.push(None);
                    self.declare(name, label);
                }
                Statement::BranchTargets(name, targets) => self.declare(name, Entity::Targets(targets)),
                Statement::CallPrototype(name) => self.declare(name, Entity::Prototype),
                _ => {}
            }
        }
        let frame = self.frame;
        for statement in statements {
            if self.errors.full() {
                return;
            }
            self.statement(statement);
        }
        self.frame = frame;
    }

    fn statement(&mut self, statement: &'t Statement) {
        match statement {
            Statement::Scope(inner) => {
                self.scopes.enter();
                self.block(inner);
                self.scopes.leave();
            }
            Statement::Label(name) => {
                if let Some(Found::Entity(Entity::Label(label))) = self.scopes.find(&name.text) {
                    self.labels[label as usize] = Some(self.code.len() as u32);
                }
            }
            Statement::Registers { ty, vector, names } => self.registers(*ty, *vector, names),
            Statement::Variable(variable) => self.variable(variable),
            Statement::Instruction(instruction) => self.instruction(instruction),
            Statement::Loc(loc) => self.loc = (loc.file, loc.line),
            Statement::BranchTargets(..) | Statement::CallPrototype(_) => {}
        }
    }

    fn declare(&mut self, name: &'t Name, entity: Entity<'t>) {
        if !self.scopes.declare(&name.text, entity) {
            self.errors.push(name.span.start, Wrong::Duplicate(name.text.clone()));
        }
    }

    fn registers(&mut self, ty: Type, vector: u32, names: &'t [(Name, Option<u32>)]) {
        for (name, count) in names {
            if ty.kind() == Kind::Float && !matches!(ty, Type::F16 | Type::F16x2 | Type::F32 | Type::F64) {
                let wrong = Wrong::Unsupported("registers of this format are declared `.b16` or `.b32`");
                self.errors.push(name.span.start, wrong);
            }
            let entity = match count {
                None if vector > 1 => {
                    let first = self.pool.fresh(Bank::of(ty));
                    for _ in 1..vector {
                        self.pool.fresh(Bank::of(ty));
                    }
                    Entity::Vector(ty, first, vector as u8)
                }
                Some(_) if vector > 1 => {
                    let wrong = Wrong::Unsupported("a numbered range of vector registers: declare them one by one");
                    self.errors.push(name.span.start, wrong);
                    continue;
                }
                None => Entity::Fresh(ty),
                Some(count) => Entity::Range(ty, *count),
            };
            self.declare(name, entity);
        }
    }

    fn variable(&mut self, variable: &'t tree::Variable) {
        let declared = variable.name.span.start;
        super::module::declarable(variable, self.errors);
        let bytes = u32::try_from(variable_bytes(variable).unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        let symbol = match variable.space {
            _ if variable.ty == Type::Opaque => Symbol::Opaque,
            Space::Shared => Symbol::Shared(declared),
            Space::Global | Space::Const => match self.module.promoted.get(&declared) {
                Some(&index) => Symbol::Variable(index, variable.space),
                None => return,
            },
            Space::Local | Space::Param => {
                let align = layout::alignment(variable, self.errors);
                Symbol::Frame(self.reserve(bytes, align), variable.space)
            }
            Space::Generic => {
                return self.errors.push(declared, Wrong::Unsupported("a variable needs a state space"));
            }
        };
        self.declare(&variable.name, Entity::Memory(symbol, bytes));
    }

    fn instruction(&mut self, instruction: &'t tree::Instruction) {
        let span = instruction.span;
        let line = self.errors.line(instruction.name.span.start);
        self.site = Site { span: (span.start, span.end), line, file: self.loc.0, source_line: self.loc.1 };
        let guard = match &instruction.guard {
            None => None,
            Some((name, negated)) => match self.predicate(name) {
                Some(slot) => Some((slot, *negated)),
                None => return,
            },
        };
        if let Some(decoded) = self.spellings.decode(instruction, self.errors) {
            self.build(&decoded, instruction, guard);
        }
    }

    /// The predicate register of a guard.
    fn predicate(&mut self, name: &'t Name) -> Option<u16> {
        match self.register(&name.text) {
            Some((Type::Pred, slot)) => Some(slot),
            Some((found, _)) => {
                let (name, at) = (name.text.clone(), name.span.start);
                let (operand, spelling) = ("guard".to_owned(), "@".to_owned());
                let wrong = Wrong::TypeMismatch { name, found, operand, spelling, expected: Type::Pred };
                self.errors.push(at, wrong);
                None
            }
            None => {
                self.errors.push(name.span.start, Wrong::UnknownName(name.text.clone()));
                None
            }
        }
    }

    /// The type and number of a register, where the name is one.
    pub(super) fn register(&mut self, name: &'t str) -> Option<(Type, u16)> {
        match self.scopes.find(name) {
            Some(Found::Entity(Entity::Register(ty, slot))) => Some((ty, slot)),
            Some(Found::New(depth, ty)) => {
                let slot = self.pool.fresh(Bank::of(ty));
                self.scopes.number(depth, name, ty, slot);
                Some((ty, slot))
            }
            Some(Found::Entity(_)) => None,
            None => self.element(name),
        }
    }

    /// An element of a vector register: `%v.x`.
    fn element(&self, name: &str) -> Option<(Type, u16)> {
        let (vector, component) = name.rsplit_once('.')?;
        let component = ["x", "y", "z", "w"].iter().position(|known| *known == component)?;
        match self.scopes.find(vector)? {
            Found::Entity(Entity::Vector(ty, first, count)) if component < usize::from(count) => {
                Some((ty, first.saturating_add(component as u16)))
            }
            _ => None,
        }
    }

    /// The symbol of a name, with shared variables resolved to their offset.
    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        let symbol = match self.scopes.find(name) {
            Some(Found::Entity(Entity::Memory(symbol, _))) => symbol,
            Some(_) => return None,
            None => {
                let &(symbol, first) = self.module.symbols.get(name)?;
                if first > self.site.span.0 {
                    return None;
                }
                symbol
            }
        };
        match symbol {
            Symbol::Shared(declared) => self.module.shared.offset(declared, self.index).map(Symbol::Shared),
            other => Some(other),
        }
    }

    /// Adds an instruction.
    pub(super) fn push(
        &mut self,
        decoded: &Rc<Decoded>,
        action: Action,
        slots: &[(u16, crate::program::OperandSlot)],
        guard: Option<(u16, bool)>,
    ) {
        let mut operands = Operands::default();
        for (place, (slot, _)) in operands.0.iter_mut().zip(slots) {
            *place = *slot;
        }
        let shapes: Vec<_> = slots.iter().map(|(_, shape)| *shape).collect();
        let layout = self.spellings.layout(&shapes);
        let form = decoded.form;
        self.code.push(Instruction { action, operands, guard, layout, form, site: self.site });
    }

    /// Notes that the function holds an instruction which does not run.
    pub(super) fn refuse(&mut self, instruction: &str, reason: &str) {
        let line = self.site.line;
        self.refused.push(Refusal { instruction: instruction.to_owned(), reason: reason.to_owned(), line });
    }
}
