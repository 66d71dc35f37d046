//! The operands that a form takes, written as `d:s32 a:s32 [a] b:b32*4 membermask:b32`.

use crate::types::Type;

/// One operand in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandShape {
    /// The name in the ISA's syntax: `d`, `a`, `membermask`.
    pub name: String,
    /// Written or read.
    pub role: Role,
    /// What it holds.
    pub value: ValueShape,
    /// It may be left out, from the end.
    pub optional: bool,
}

/// Whether the instruction writes an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It writes it.
    Destination,
    /// It reads it.
    Source,
}

/// What an operand holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueShape {
    /// A value of a type. `pair` allows a second predicate, `d|p`; `negatable` allows `!p`.
    Value {
        /// Its type.
        ty: Type,
        /// `d|p`: takes a slot of its own (a sink where it is left out).
        pair: bool,
    },
    /// A braced vector of so many elements.
    Vector(Type, u8),
    /// A value, or a braced vector as `.v2`, `.v4`, `.v8` says.
    PerVector(Type),
    /// A memory address in brackets.
    Address,
    /// An immediate integer.
    Immediate,
    /// A label, function or list: control flow reads it itself.
    Control,
    /// The carry flag: a predicate of its own that no operand of the text names.
    Carry,
    /// Whatever follows: lowering reads it itself, or the form does not run.
    Rest,
}

/// Reads the operands of a row. `d` and names that begin with `d:` are destinations; `name?` is optional; `[a]` is an
/// address; `#n` an immediate; `@x` a control operand; `d:s32|p` has a pair; `d:b32*4` is a vector, `d:b32*v` follows
/// `.v2`/`.v4`; `>cc` writes and `<cc` reads the carry flag; `...` is whatever follows.
pub(super) fn parse(text: &str) -> Vec<OperandShape> {
    text.split_whitespace().map(one).collect()
}

fn one(word: &str) -> OperandShape {
    let (word, optional) = word.strip_suffix('?').map_or((word, false), |word| (word, true));
    let operand = |name: &str, role, value| OperandShape { name: name.to_owned(), role, value, optional };
    match word {
        ">cc" => return operand("cc", Role::Destination, ValueShape::Carry),
        "<cc" => return operand("cc", Role::Source, ValueShape::Carry),
        "..." => return operand("...", Role::Source, ValueShape::Rest),
        _ => {}
    }
    if let Some(name) = word.strip_prefix('[') {
        return operand(name.trim_end_matches(']'), Role::Source, ValueShape::Address);
    }
    if let Some(name) = word.strip_prefix('#') {
        return operand(name, Role::Source, ValueShape::Immediate);
    }
    if let Some(name) = word.strip_prefix('@') {
        return operand(name, Role::Source, ValueShape::Control);
    }
    let (name, ty) = word.split_once(':').unwrap_or_else(|| panic!("operand {word} has no type"));
    let role = if name == "d" { Role::Destination } else { Role::Source };
    let (ty, pair) = ty.strip_suffix("|p").map_or((ty, false), |ty| (ty, true));
    let (ty, count) = ty.split_once('*').map_or((ty, None), |(ty, count)| (ty, Some(count)));
    let ty = Type::from_name(ty).unwrap_or_else(|| panic!("operand {word} has an unknown type"));
    let value = match count {
        None => ValueShape::Value { ty, pair },
        Some("v") => ValueShape::PerVector(ty),
        Some(count) => ValueShape::Vector(ty, count.parse().unwrap_or_else(|_| panic!("operand {word}: bad count"))),
    };
    operand(name, role, value)
}
