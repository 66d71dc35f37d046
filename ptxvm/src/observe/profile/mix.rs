//! The class of an instruction, and the arithmetic it does.

use serde::Serialize;

use crate::table::Form;
use crate::types::{Kind, Type};

/// What an instruction is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Class {
    Tensor,
    F64,
    F32,
    Half,
    /// `ex2`, `rcp`, `sin` and the like.
    Special,
    Integer,
    Convert,
    /// `mov`, `selp`, `prmt`, comparisons, predicates.
    Move,
    Exchange,
    Memory,
    Copy,
    Control,
    Synchronise,
}

impl Class {
    /// The class of a form.
    pub fn of(form: &Form) -> Class {
        let types = form.pattern.types();
        match form.name {
            "mma" => Class::Tensor,
            "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt" => Class::Special,
            "rcp" | "sqrt" | "div" if form.text.contains("approx") => Class::Special,
            "cvt" | "cvta" => Class::Convert,
            "mov" | "selp" | "slct" | "prmt" | "setp" | "set" | "testp" | "isspacep" | "activemask" => Class::Move,
            "shfl" | "vote" | "match" | "redux" | "elect" => Class::Exchange,
            "ld" | "ldu" | "st" | "atom" | "red" | "ldmatrix" | "prefetch" | "prefetchu" => Class::Memory,
            "cp" => Class::Copy,
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" => Class::Control,
            "bar" | "barrier" | "membar" | "fence" => Class::Synchronise,
            _ if types.contains(&Type::F64) => Class::F64,
            _ if types.contains(&Type::F32) => Class::F32,
            _ if types.iter().any(|ty| ty.kind() == Kind::Float) => Class::Half,
            _ => Class::Integer,
        }
    }

    /// As the table prints it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Tensor => "tensor",
            Class::F64 => "f64",
            Class::F32 => "f32",
            Class::Half => "16-bit float",
            Class::Special => "special function",
            Class::Integer => "integer and logic",
            Class::Convert => "conversion",
            Class::Move => "move, select, compare",
            Class::Exchange => "warp exchange",
            Class::Memory => "load, store, atomic",
            Class::Copy => "asynchronous copy",
            Class::Control => "control flow",
            Class::Synchronise => "barrier, fence",
        }
    }
}

/// Arithmetic operations of an instruction: of the whole warp for tensor cores, of a lane otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operations {
    pub(super) tensor: u64,
    pub(super) f32: u64,
    pub(super) f64: u64,
}

/// The operations of a form; a fused multiply-add is two.
pub(super) fn operations(form: &Form) -> Operations {
    let mut work = Operations::default();
    if form.name == "mma" {
        work.tensor = shape(form.text).map_or(0, |[m, n, k]| 2 * m * n * k);
        return work;
    }
    let count = match form.name {
        "fma" | "mad" => 2,
        "add" | "sub" | "mul" | "div" | "rcp" | "sqrt" | "rsqrt" | "min" | "max" | "ex2" | "lg2" | "sin" | "cos"
        | "tanh" => 1,
        _ => return work,
    };
    match form.pattern.types().first() {
        Some(Type::F64) => work.f64 = count,
        Some(Type::F32 | Type::F16 | Type::Bf16) => work.f32 = count,
        Some(Type::F16x2 | Type::Bf16x2) => work.f32 = 2 * count,
        _ => {}
    }
    work
}

/// m, n and k of a spelled shape, `m16n8k16`.
fn shape(text: &str) -> Option<[u64; 3]> {
    let word = text.split('.').find(|word| word.starts_with('m') && word.contains('k') && word.contains('n'))?;
    let (m, rest) = word[1..].split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TABLE;

    #[test]
    fn every_mma_that_runs_has_its_operations() {
        for form in TABLE.named("mma").filter(|form| !matches!(form.build, crate::table::Build::Refused(_))) {
            assert!(operations(form).tensor > 0, "{}", form.text);
        }
        let (form, _) =
            TABLE.find("mma", &["sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"]).unwrap();
        assert_eq!(operations(form).tensor, 4096);
        assert_eq!(Class::of(form), Class::Tensor);
    }
}
