//! Comparisons of integers and bits: `setp` and `set` of PTX ISA 9.7.6, and what those of floating point share with them.

use super::typed::typed;
use super::{Form, Mods};
use crate::lanes::{Value, compared};
use crate::program::LaneFn;
use crate::registers::{Operands, Registers};

/// What a comparison's result is combined with: `BoolOp(t, c)` of the ISA, on a bit for each lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Combine {
    Alone,
    And,
    Or,
    Xor,
}

impl Combine {
    pub(super) fn of(m: &Mods) -> Combine {
        match (m.has("and"), m.has("or"), m.has("xor")) {
            (true, ..) => Combine::And,
            (_, true, _) => Combine::Or,
            (.., true) => Combine::Xor,
            _ => Combine::Alone,
        }
    }
}

/// `setp`: operands p, q, a, b and, where it is combined, c; `p = BoolOp(t, c)`, `q = BoolOp(!t, c)`.
#[inline(always)]
pub(super) fn setp<T: Value>(
    r: &mut Registers,
    o: &Operands,
    mask: u32,
    combine: Combine,
    compare: impl Fn(T, T) -> bool,
) {
    let t = compared(r, o[2], o[3], compare);
    let (p, q) = match combine {
        Combine::Alone => (t, !t),
        Combine::And => (t & r.predicate(o[4]), !t & r.predicate(o[4])),
        Combine::Or => (t | r.predicate(o[4]), !t | r.predicate(o[4])),
        Combine::Xor => (t ^ r.predicate(o[4]), !t ^ r.predicate(o[4])),
    };
    r.set_predicate(o[0], mask, p);
    r.set_predicate(o[1], mask, q);
}

/// `set`: operands d, a, b and, where it is combined, c; d holds `truth` where `BoolOp(t, c)`, else 0.
#[inline(always)]
pub(super) fn set<T: Value>(
    r: &mut Registers,
    o: &Operands,
    mask: u32,
    (combine, truth): (Combine, u32),
    compare: impl Fn(T, T) -> bool,
) {
    let t = compared(r, o[1], o[2], compare);
    let t = match combine {
        Combine::Alone => t,
        Combine::And => t & r.predicate(o[3]),
        Combine::Or => t | r.predicate(o[3]),
        Combine::Xor => t ^ r.predicate(o[3]),
    };
    let d = std::array::from_fn(|lane| if t >> lane & 1 == 1 { truth } else { 0 });
    r.set_narrow(o[0], mask, &d);
}

/// The function of a `setp` that compares by the closure given, combined as the modifiers say.
macro_rules! setp {
    ($m:expr, $compare:expr) => {{
        use $crate::table::compare::{Combine, setp};
        match Combine::of($m) {
            Combine::Alone => (|r, o, k, _| setp(r, o, k, Combine::Alone, $compare)) as $crate::program::LaneFn,
            Combine::And => |r, o, k, _| setp(r, o, k, Combine::And, $compare),
            Combine::Or => |r, o, k, _| setp(r, o, k, Combine::Or, $compare),
            Combine::Xor => |r, o, k, _| setp(r, o, k, Combine::Xor, $compare),
        }
    }};
}
pub(super) use setp as setp_by;

/// The function of a `set` that compares by the closure given and writes all ones (or 1.0 for `.f32`).
macro_rules! set {
    ($m:expr, $compare:expr) => {{
        use $crate::table::compare::{Combine, set};
        const ONES: u32 = u32::MAX;
        const ONE: u32 = 0x3f80_0000;
        let float = $m.types[0] == $crate::types::Type::F32;
        match (Combine::of($m), float) {
            (Combine::Alone, false) => {
                (|r, o, k, _| set(r, o, k, (Combine::Alone, ONES), $compare)) as $crate::program::LaneFn
            }
            (Combine::And, false) => |r, o, k, _| set(r, o, k, (Combine::And, ONES), $compare),
            (Combine::Or, false) => |r, o, k, _| set(r, o, k, (Combine::Or, ONES), $compare),
            (Combine::Xor, false) => |r, o, k, _| set(r, o, k, (Combine::Xor, ONES), $compare),
            (Combine::Alone, true) => |r, o, k, _| set(r, o, k, (Combine::Alone, ONE), $compare),
            (Combine::And, true) => |r, o, k, _| set(r, o, k, (Combine::And, ONE), $compare),
            (Combine::Or, true) => |r, o, k, _| set(r, o, k, (Combine::Or, ONE), $compare),
            (Combine::Xor, true) => |r, o, k, _| set(r, o, k, (Combine::Xor, ONE), $compare),
        }
    }};
}
pub(super) use set as set_by;

/// The comparison among the modifiers, wherever it stands.
pub(super) fn comparison(m: &Mods) -> &'static str {
    let combination = |word: &&&str| !matches!(**word, "and" | "or" | "xor" | "ftz");
    m.words().iter().find(combination).copied().unwrap_or("")
}

fn setp_integer<T: Value + Ord>(m: &Mods) -> LaneFn {
    match comparison(m) {
        "eq" => setp_by!(m, |a: T, b: T| a == b),
        "ne" => setp_by!(m, |a: T, b: T| a != b),
        "lt" | "lo" => setp_by!(m, |a: T, b: T| a < b),
        "le" | "ls" => setp_by!(m, |a: T, b: T| a <= b),
        "gt" | "hi" => setp_by!(m, |a: T, b: T| a > b),
        _ => setp_by!(m, |a: T, b: T| a >= b),
    }
}

fn set_integer<T: Value + Ord>(m: &Mods) -> LaneFn {
    match comparison(m) {
        "eq" => set_by!(m, |a: T, b: T| a == b),
        "ne" => set_by!(m, |a: T, b: T| a != b),
        "lt" | "lo" => set_by!(m, |a: T, b: T| a < b),
        "le" | "ls" => set_by!(m, |a: T, b: T| a <= b),
        "gt" | "hi" => set_by!(m, |a: T, b: T| a > b),
        _ => set_by!(m, |a: T, b: T| a >= b),
    }
}

/// `setp` and `set` of a list of types with the comparisons that they have, alone and combined.
macro_rules! rows_of {
    ($out:ident, $comparisons:literal, $types:tt) => {
        $out.extend(typed!(concat!("setp", $comparisons), "d:pred|p a:T b:T", $types, m => setp_integer::<T>(m)));
        $out.extend(typed!(
            concat!("setp", $comparisons, "(.and|.or|.xor)"), "d:pred|p a:T b:T c:pred", $types,
            m => setp_integer::<T>(m)
        ));
        rows_of!(@ $out, $comparisons, ".u32", "d:u32 a:T b:T", $types);
        rows_of!(@ $out, $comparisons, ".s32", "d:s32 a:T b:T", $types);
        rows_of!(@ $out, $comparisons, ".f32", "d:f32 a:T b:T", $types);
    };
    (@ $out:ident, $comparisons:literal, $result:literal, $operands:literal, $types:tt) => {
        $out.extend(typed!(concat!("set", $comparisons, $result), $operands, $types, m => set_integer::<T>(m)));
        $out.extend(typed!(
            concat!("set", $comparisons, "(.and|.or|.xor)", $result), concat!($operands, " c:pred"), $types,
            m => set_integer::<T>(m)
        ));
    };
}

pub(super) fn rows(out: &mut Vec<Form>) {
    rows_of!(out, "(.eq|.ne)", [b16 b32 b64]);
    rows_of!(out, "(.eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs)", [u16 u32 u64]);
    rows_of!(out, "(.eq|.ne|.lt|.le|.gt|.ge)", [s16 s32 s64]);
}
