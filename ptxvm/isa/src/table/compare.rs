//! Comparisons of integers and bits: `setp` and `set` of PTX ISA 9.7.6, and what those of floating point share with them.

use super::typed::typed;
use super::{Form, Mods};
use crate::lanes::Value;
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

/// Writes a `setp`: operands p, q, a, b and, where it is combined, c; `p = BoolOp(t, c)`, `q = BoolOp(!t, c)`.
#[inline(always)]
pub(super) fn setp(r: &mut Registers, o: &Operands, mask: u32, combine: Combine, t: u32) {
    let (p, q) = match combine {
        Combine::Alone => (t, !t),
        Combine::And => (t & r.predicate(o[4]), !t & r.predicate(o[4])),
        Combine::Or => (t | r.predicate(o[4]), !t | r.predicate(o[4])),
        Combine::Xor => (t ^ r.predicate(o[4]), !t ^ r.predicate(o[4])),
    };
    r.set_predicate(o[0], mask, p);
    r.set_predicate(o[1], mask, q);
}

/// Writes a `set`: operands d, a, b and, where it is combined, c; d holds `truth` where `BoolOp(t, c)`, else 0.
pub(super) fn set(r: &mut Registers, o: &Operands, mask: u32, (combine, truth): (Combine, u32), t: u32) {
    let t = match combine {
        Combine::Alone => t,
        Combine::And => t & r.predicate(o[3]),
        Combine::Or => t | r.predicate(o[3]),
        Combine::Xor => t ^ r.predicate(o[3]),
    };
    let d = std::array::from_fn(|lane| if t >> lane & 1 == 1 { truth } else { 0 });
    r.set_narrow(o[0], mask, &d);
}

/// The function of a `setp` that compares by the function given, combined as the modifiers say.
macro_rules! setp_by {
    ($m:expr, $compare:expr) => {{
        use $crate::lanes::compared;
        use $crate::table::compare::{Combine, setp};
        match Combine::of($m) {
            Combine::Alone => {
                (|r, o, k, _| setp(r, o, k, Combine::Alone, compared(r, o[2], o[3], $compare)))
                    as $crate::program::LaneFn
            }
            Combine::And => |r, o, k, _| setp(r, o, k, Combine::And, compared(r, o[2], o[3], $compare)),
            Combine::Or => |r, o, k, _| setp(r, o, k, Combine::Or, compared(r, o[2], o[3], $compare)),
            Combine::Xor => |r, o, k, _| setp(r, o, k, Combine::Xor, compared(r, o[2], o[3], $compare)),
        }
    }};
}

/// The function of a `set` that compares by the function given, combined as the modifiers say. What it writes for true
/// is all ones, and 1.0 where the first type is a floating-point one.
macro_rules! set_by {
    ($m:expr, $compare:expr) => {{
        use $crate::types::Type;
        match $m.types[0] {
            Type::F16 => set_by!(@ $m, $compare, 0x3c00),
            Type::Bf16 => set_by!(@ $m, $compare, 0x3f80),
            Type::F32 => set_by!(@ $m, $compare, 0x3f80_0000),
            _ => set_by!(@ $m, $compare, u32::MAX),
        }
    }};
    (@ $m:expr, $compare:expr, $truth:expr) => {{
        use $crate::lanes::compared;
        use $crate::table::compare::{Combine, set};
        match Combine::of($m) {
            Combine::Alone => {
                (|r, o, k, _| set(r, o, k, (Combine::Alone, $truth), compared(r, o[1], o[2], $compare)))
                    as $crate::program::LaneFn
            }
            Combine::And => |r, o, k, _| set(r, o, k, (Combine::And, $truth), compared(r, o[1], o[2], $compare)),
            Combine::Or => |r, o, k, _| set(r, o, k, (Combine::Or, $truth), compared(r, o[1], o[2], $compare)),
            Combine::Xor => |r, o, k, _| set(r, o, k, (Combine::Xor, $truth), compared(r, o[1], o[2], $compare)),
        }
    }};
}

/// The comparison among the modifiers, wherever it stands.
pub(super) fn comparison(m: &Mods) -> &'static str {
    let combination = |word: &&&str| !matches!(**word, "and" | "or" | "xor" | "ftz");
    m.words().iter().find(combination).copied().unwrap_or("")
}

#[inline(always)]
fn equal<T: Ord>(a: T, b: T) -> bool {
    a == b
}

#[inline(always)]
fn unequal<T: Ord>(a: T, b: T) -> bool {
    a != b
}

#[inline(always)]
fn less<T: Ord>(a: T, b: T) -> bool {
    a < b
}

#[inline(always)]
fn less_or_equal<T: Ord>(a: T, b: T) -> bool {
    a <= b
}

#[inline(always)]
fn greater<T: Ord>(a: T, b: T) -> bool {
    a > b
}

#[inline(always)]
fn greater_or_equal<T: Ord>(a: T, b: T) -> bool {
    a >= b
}

fn setp_integer<T: Value + Ord>(m: &Mods) -> LaneFn {
    match comparison(m) {
        "eq" => setp_by!(m, equal::<T>),
        "ne" => setp_by!(m, unequal::<T>),
        "lt" | "lo" => setp_by!(m, less::<T>),
        "le" | "ls" => setp_by!(m, less_or_equal::<T>),
        "gt" | "hi" => setp_by!(m, greater::<T>),
        _ => setp_by!(m, greater_or_equal::<T>),
    }
}

fn set_integer<T: Value + Ord>(m: &Mods) -> LaneFn {
    match comparison(m) {
        "eq" => set_by!(m, equal::<T>),
        "ne" => set_by!(m, unequal::<T>),
        "lt" | "lo" => set_by!(m, less::<T>),
        "le" | "ls" => set_by!(m, less_or_equal::<T>),
        "gt" | "hi" => set_by!(m, greater::<T>),
        _ => set_by!(m, greater_or_equal::<T>),
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
        rows_of!(@ $out, $comparisons, ".u32", "d:u32 a:T b:T", $types, (1, 0, 10));
        rows_of!(@ $out, $comparisons, ".s32", "d:s32 a:T b:T", $types, (1, 0, 10));
        rows_of!(@ $out, $comparisons, ".f32", "d:f32 a:T b:T", $types, (1, 0, 10));
        rows_of!(@ $out, $comparisons, ".f16", "d:f16 a:T b:T", $types, (4, 2, 53));
        rows_of!(@ $out, $comparisons, ".bf16", "d:bf16 a:T b:T", $types, (7, 8, 90));
    };
    (@ $out:ident, $comparisons:literal, $result:literal, $operands:literal, $types:tt, $since:expr) => {
        let since = |row: Form| row.since($since.0, $since.1, $since.2);
        let alone = typed!(concat!("set", $comparisons, $result), $operands, $types, m => set_integer::<T>(m));
        $out.extend(alone.map(since));
        let combined = typed!(
            concat!("set", $comparisons, "(.and|.or|.xor)", $result), concat!($operands, " c:pred"), $types,
            m => set_integer::<T>(m)
        );
        $out.extend(combined.map(since));
    };
}

pub(super) fn rows(out: &mut Vec<Form>) {
    rows_of!(out, "(.eq|.ne)", [b16 b32 b64]);
    rows_of!(out, "(.eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs)", [u16 u32 u64]);
    rows_of!(out, "(.eq|.ne|.lt|.le|.gt|.ge)", [s16 s32 s64]);
}
