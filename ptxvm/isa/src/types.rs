//! The types, state spaces, scopes and targets that PTX names.

use std::fmt;

/// A fundamental type of the PTX ISA, or one of the alternate formats that instructions name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
    E4m3x2,
    E5m2x2,
    U16x2,
    S16x2,
    /// `.b1024`, of `tensormap.replace`.
    B1024,
    /// `.texref`, `.samplerref`, `.surfref`.
    Opaque,
}

/// What arithmetic an operand of a type takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One truth value.
    Predicate,
    /// Bits without arithmetic.
    Bits,
    /// Unsigned integer.
    Unsigned,
    /// Signed integer.
    Signed,
    /// Floating point, packed or not.
    Float,
}

const NAMES: [(&str, Type); 29] = [
    ("pred", Type::Pred),
    ("b8", Type::B8),
    ("b16", Type::B16),
    ("b32", Type::B32),
    ("b64", Type::B64),
    ("b128", Type::B128),
    ("u8", Type::U8),
    ("u16", Type::U16),
    ("u32", Type::U32),
    ("u64", Type::U64),
    ("s8", Type::S8),
    ("s16", Type::S16),
    ("s32", Type::S32),
    ("s64", Type::S64),
    ("f16", Type::F16),
    ("f16x2", Type::F16x2),
    ("bf16", Type::Bf16),
    ("bf16x2", Type::Bf16x2),
    ("tf32", Type::Tf32),
    ("f32", Type::F32),
    ("f64", Type::F64),
    ("e4m3", Type::E4m3),
    ("e5m2", Type::E5m2),
    ("e4m3x2", Type::E4m3x2),
    ("e5m2x2", Type::E5m2x2),
    ("u16x2", Type::U16x2),
    ("s16x2", Type::S16x2),
    ("b1024", Type::B1024),
    ("texref", Type::Opaque),
];

impl Type {
    /// The type that a modifier spells, without its dot.
    pub fn from_name(name: &str) -> Option<Type> {
        match name {
            "samplerref" | "surfref" => Some(Type::Opaque),
            _ => NAMES.iter().find(|(known, _)| *known == name).map(|&(_, found)| found),
        }
    }

    /// As PTX spells it, without the dot.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, known)| *known == self).map_or("opaque", |&(name, _)| name)
    }

    /// Bits of a value; a predicate counts as 1.
    pub fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 | Type::E4m3 | Type::E5m2 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 16,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 | Type::Opaque => 64,
            Type::B128 => 128,
            Type::B1024 => 1024,
            _ => 32,
        }
    }

    /// Bytes of a value in memory.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Its arithmetic.
    pub fn kind(self) -> Kind {
        match self {
            Type::Pred => Kind::Predicate,
            Type::U8 | Type::U16 | Type::U32 | Type::U64 | Type::U16x2 => Kind::Unsigned,
            Type::S8 | Type::S16 | Type::S32 | Type::S64 | Type::S16x2 => Kind::Signed,
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::Tf32 | Type::F32 | Type::F64 => Kind::Float,
            Type::E4m3 | Type::E5m2 | Type::E4m3x2 | Type::E5m2x2 => Kind::Float,
            Type::B8 | Type::B16 | Type::B32 | Type::B64 | Type::B128 | Type::B1024 | Type::Opaque => Kind::Bits,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, ".{}", self.name())
    }
}

/// A state space. `Generic` is what an access without one names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    /// Parameters of the kernel.
    Param,
}

/// The threads that a synchronisation or a strong access speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    System,
}

/// A PTX ISA version, as `.version 8.7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u8, pub u8);

/// A target: the number of `sm_80`, and whether its architecture-specific (`a`) or family (`f`) forms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// 80 of `sm_80`.
    pub sm: u16,
    /// `sm_90a` has its own instructions, which no other target runs.
    pub specific: bool,
}

impl Target {
    /// Ampere: A100.
    pub const SM_80: Target = Target { sm: 80, specific: false };
    /// Ada: L40, RTX 40.
    pub const SM_89: Target = Target { sm: 89, specific: false };
    /// Hopper: H100, H200.
    pub const SM_90: Target = Target { sm: 90, specific: false };
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0, self.1)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sm_{}{}", self.sm, if self.specific { "a" } else { "" })
    }
}
