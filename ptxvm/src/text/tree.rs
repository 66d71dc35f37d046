//! The syntax tree: what the text says, before any type is checked. Every node knows its span.

use crate::types::{Space, Target, Type, Version};

/// Bytes of the text: first, and one past the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// A name with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The text.
    pub text: String,
    /// Where.
    pub span: Span,
}

/// A module.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Module {
    pub version: Version,
    pub target: Target,
    pub address_bits: u32,
    /// `.file` lines: number and name.
    pub files: Vec<(u32, String)>,
    pub variables: Vec<Variable>,
    pub functions: Vec<Function>,
    pub aliases: Vec<Alias>,
}

/// `.alias name, of;`: a second name of a function.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Alias {
    pub name: Name,
    pub of: Name,
}

/// How a symbol is seen outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Linkage {
    None,
    Extern,
    Visible,
    Weak,
    Common,
}

/// A variable in a state space, at module scope or in a function.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Variable {
    pub linkage: Linkage,
    pub space: Space,
    pub align: Option<u32>,
    /// `.v2`, `.v4`: 1 otherwise.
    pub vector: u32,
    pub ty: Type,
    pub name: Name,
    /// `[4][8]` is 4 and 8; `[]` is one 0; a scalar is empty.
    pub dims: Vec<u64>,
    pub init: Vec<Initializer>,
}

/// One element of an initialiser, row-major, nested braces flattened and padded with zeros.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Initializer {
    Integer(i128),
    /// Bits of a double; `0f` immediates are widened exactly.
    Float(u64),
    /// `sym`, `generic(sym)`, `sym+4`.
    Address {
        name: Name,
        generic: bool,
        addend: i64,
    },
    /// `mask(sym)`-style bytes of an address: 0xFF(sym), with the shift of the byte.
    AddressByte {
        name: Name,
        generic: bool,
        addend: i64,
        shift: u32,
    },
}

/// A parameter of a function or kernel.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Param {
    /// `.reg` parameters of device functions: else `.param`.
    pub register: bool,
    pub align: Option<u32>,
    pub ty: Type,
    /// `.ptr` with its space and alignment.
    pub pointer: Option<(Space, u32)>,
    pub name: Name,
    pub dims: Vec<u64>,
}

/// A kernel or device function.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Function {
    pub linkage: Linkage,
    pub entry: bool,
    pub returns: Vec<Param>,
    pub name: Name,
    pub params: Vec<Param>,
    pub noreturn: bool,
    pub required_block: Option<[u32; 3]>,
    pub max_block: Option<[u32; 3]>,
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// `None` is a declaration.
    pub body: Option<Vec<Statement>>,
}

/// A statement of a body.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Statement {
    /// `{ ... }`: a scope of its own for registers, variables and labels.
    Scope(Vec<Statement>),
    Label(Name),
    /// `.reg .b32 %r<12>;` is a name with a count; `.reg .pred p, q;` are names without.
    Registers {
        ty: Type,
        vector: u32,
        names: Vec<(Name, Option<u32>)>,
    },
    Variable(Variable),
    Instruction(Instruction),
    Loc(Loc),
    /// `.branchtargets`: label and the list.
    BranchTargets(Name, Vec<Name>),
    /// `.callprototype`, `.calltargets`: kept by name.
    CallPrototype(Name),
}

/// `.loc file line column`, with the inlined-at place where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Loc {
    pub file: u32,
    pub line: u32,
    pub column: u32,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// `@p`, `@!p`: the register, and whether it is negated.
    pub guard: Option<(Name, bool)>,
    /// `add`.
    pub name: Name,
    /// Modifiers without dots: `rn`, `f32`, `L2::128B`.
    pub modifiers: Vec<Name>,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// The whole, guard and semicolon included.
    pub span: Span,
}

/// An operand.
#[derive(Clone, Debug)]
pub struct Operand {
    /// What it is.
    pub kind: OperandKind,
    /// Where.
    pub span: Span,
}

/// What an operand is.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum OperandKind {
    /// A register, variable, label or function: `%r1`, `%tid.x`, `smem`.
    Name(String),
    /// `sym+4`, also with a negative offset.
    Offset(String, i64),
    /// `_`.
    Sink,
    Integer(i128),
    /// `0f3F800000`.
    Single(u32),
    /// `0d3FF0000000000000`, and decimal literals such as `1.5`.
    Double(u64),
    /// `!p`.
    Not(String),
    /// `-%r1` is no PTX; `d|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base+offset]`; `base` is `None` for an absolute address.
    Address {
        base: Option<Name>,
        offset: i64,
    },
    /// `[tensorMap, {x, y}]` and other brackets with several parts.
    Addresses(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}
