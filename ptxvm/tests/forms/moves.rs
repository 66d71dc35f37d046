//! `mov`, scalars and vectors, and `cvt` between integers.

use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, operation};
use crate::integer::{ends, number, saturated, wrapped};

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for t in ["pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"] {
        all.push(operation(&format!("mov.{t}"), &format!("d:{t} a:{t}"), |x| vec![x[0]]).case());
    }
    vectors(&mut all);
    conversions(&mut all);
    packs(&mut all);
    all
}

/// Vectors packed into a scalar and unpacked from it: the first element is the lowest.
fn vectors(all: &mut Vec<Case>) {
    for (t, element, count) in [("b32", "b16", 2), ("b64", "b16", 4), ("b64", "b32", 2)] {
        let bits = if element == "b16" { 16 } else { 32 };
        let pack = move |x: &[u64]| vec![(0..count).map(|at| x[at] << (bits * at)).sum()];
        let case = operation(&format!("mov.{t}"), &format!("d:{t} a:{element}*{count}"), pack).case();
        all.push(case.named(&format!("pack{count}")));
        let unpack = move |x: &[u64]| (0..count).map(|at| x[0] >> (bits * at) & ((1 << bits) - 1)).collect();
        let case = operation(&format!("mov.{t}"), &format!("d:{element}*{count} a:{t}"), unpack).case();
        all.push(case.named(&format!("unpack{count}")));
    }
}

const INTEGERS: [Type; 8] = [Type::U8, Type::U16, Type::U32, Type::U64, Type::S8, Type::S16, Type::S32, Type::S64];

/// What a register wider than the type holds: 8-bit results stand in 32-bit registers, extended by their sign.
fn extended(ty: Type, bits: u64) -> u64 {
    if ty.bits() == 8 { wrapped(Type::B32, number(ty, bits)) } else { bits }
}

fn conversions(all: &mut Vec<Case>) {
    for to in INTEGERS {
        for from in INTEGERS {
            let (d, a) = (to.name(), from.name());
            let operands = format!("d:{d} a:{a}");
            let cut = move |x: &[u64]| vec![extended(to, wrapped(to, number(from, x[0])))];
            all.push(operation(&format!("cvt.{d}.{a}"), &operands, cut).case());
            let holds = |value: i128| (ends(to).0..=ends(to).1).contains(&value);
            // The ISA allows `.sat` only where the destination's values do not include all of the source's.
            if !(holds(ends(from).0) && holds(ends(from).1)) {
                let nearest = move |x: &[u64]| vec![extended(to, saturated(to, number(from, x[0])))];
                all.push(operation(&format!("cvt.sat.{d}.{a}"), &operands, nearest).case());
            }
        }
    }
}

fn packs(all: &mut Vec<Case>) {
    for ty in [Type::U16, Type::S16, Type::U8, Type::S8] {
        let (t, size) = (ty.name(), ty.bits());
        let pair = move |x: &[u64]| {
            let [a, b] = [0, 1].map(|at| saturated(ty, number(Type::S32, x[at])));
            a << size | b
        };
        debug_assert!(matches!(ty.kind(), Kind::Unsigned | Kind::Signed));
        if size == 16 {
            let form = format!("cvt.pack.sat.{t}.s32");
            all.push(operation(&form, "d:u32 a:s32 b:s32", move |x| vec![pair(x)]).case());
        } else {
            let form = format!("cvt.pack.sat.{t}.s32.b32");
            let with_rest = move |x: &[u64]| vec![pair(x) | x[2] << 16 & 0xffff_0000];
            all.push(operation(&form, "d:u32 a:s32 b:s32 c:b32", with_rest).case());
        }
    }
}
