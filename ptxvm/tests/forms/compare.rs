//! Comparisons of integers, and selection.

use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, operation};
use crate::integer::number;

/// A comparison of two numbers.
type Comparison = (&'static str, fn(i128, i128) -> bool);

const COMPARISONS: [Comparison; 6] = [
    ("eq", |a, b| a == b),
    ("ne", |a, b| a != b),
    ("lt", |a, b| a < b),
    ("le", |a, b| a <= b),
    ("gt", |a, b| a > b),
    ("ge", |a, b| a >= b),
];

/// What unsigned comparisons are called too.
const UNSIGNED: [Comparison; 4] =
    [("lo", |a, b| a < b), ("ls", |a, b| a <= b), ("hi", |a, b| a > b), ("hs", |a, b| a >= b)];

/// What a comparison's result is combined with.
type Combination = (&'static str, fn(bool, bool) -> bool);

const COMBINATIONS: [Combination; 3] = [("and", |t, c| t && c), ("or", |t, c| t || c), ("xor", |t, c| t != c)];

const TYPES: [Type; 9] =
    [Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];

/// The comparisons that a type has.
fn comparisons(ty: Type) -> Vec<Comparison> {
    match ty.kind() {
        Kind::Bits => COMPARISONS[..2].to_vec(),
        Kind::Unsigned => COMPARISONS.into_iter().chain(UNSIGNED).collect(),
        _ => COMPARISONS.to_vec(),
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in TYPES {
        for (word, compare) in comparisons(ty) {
            let test = move |x: &[u64]| compare(number(ty, x[0]), number(ty, x[1]));
            predicates(&mut all, word, ty, test);
            registers(&mut all, word, ty, test);
        }
    }
    selections(&mut all);
    all
}

fn predicates(all: &mut Vec<Case>, word: &str, ty: Type, test: impl Fn(&[u64]) -> bool + Copy + 'static) {
    let t = ty.name();
    let both = move |x: &[u64]| vec![u64::from(test(x)), u64::from(!test(x))];
    all.push(operation(&format!("setp.{word}.{t}"), &format!("d:pred |q:pred a:{t} b:{t}"), both).case());
    for (name, combine) in COMBINATIONS {
        let both = move |x: &[u64]| {
            let c = x[2] != 0;
            vec![u64::from(combine(test(x), c)), u64::from(combine(!test(x), c))]
        };
        let operands = format!("d:pred |q:pred a:{t} b:{t} c:pred");
        all.push(operation(&format!("setp.{word}.{name}.{t}"), &operands, both).case());
    }
}

fn registers(all: &mut Vec<Case>, word: &str, ty: Type, test: impl Fn(&[u64]) -> bool + Copy + 'static) {
    let t = ty.name();
    let results = [("u32", 0xffff_ffff), ("s32", 0xffff_ffff), ("f32", 0x3f80_0000), ("f16", 0x3c00), ("bf16", 0x3f80)];
    for (d, truth) in results {
        let value = move |x: &[u64]| vec![if test(x) { truth } else { 0 }];
        all.push(operation(&format!("set.{word}.{d}.{t}"), &format!("d:{d} a:{t} b:{t}"), value).case());
        for (name, combine) in COMBINATIONS {
            let value = move |x: &[u64]| vec![if combine(test(x), x[2] != 0) { truth } else { 0 }];
            let operands = format!("d:{d} a:{t} b:{t} c:pred");
            all.push(operation(&format!("set.{word}.{name}.{d}.{t}"), &operands, value).case());
        }
    }
}

fn selections(all: &mut Vec<Case>) {
    for ty in TYPES.into_iter().chain([Type::F32, Type::F64]) {
        let t = ty.name();
        let by_predicate = |x: &[u64]| vec![if x[2] != 0 { x[0] } else { x[1] }];
        all.push(operation(&format!("selp.{t}"), &format!("d:{t} a:{t} b:{t} c:pred"), by_predicate).case());
        let by_sign = |x: &[u64]| vec![if number(Type::S32, x[2]) >= 0 { x[0] } else { x[1] }];
        all.push(operation(&format!("slct.{t}.s32"), &format!("d:{t} a:{t} b:{t} c:s32"), by_sign).case());
        // -0 is 0; a NaN is not at least 0, nor is a negative subnormal, unless it is flushed.
        let least_normal = f64::from(f32::MIN_POSITIVE);
        let by_float = move |x: &[u64], flushed: bool| {
            let c = f64::from(f32::from_bits(x[2] as u32));
            let c = if flushed && c.abs() < least_normal { 0.0 } else { c };
            vec![if c >= 0.0 { x[0] } else { x[1] }]
        };
        let operands = format!("d:{t} a:{t} b:{t} c:f32");
        all.push(operation(&format!("slct.{t}.f32"), &operands, move |x| by_float(x, false)).case());
        all.push(operation(&format!("slct.ftz.{t}.f32"), &operands, move |x| by_float(x, true)).case());
    }
}
