//! Integer arithmetic and carry chains, defined with 128-bit arithmetic.

use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, Definition, operation};

/// The integer types of arithmetic.
pub(crate) const INTEGERS: [Type; 6] = [Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];

/// The number that bits of a type are.
pub(crate) fn number(ty: Type, bits: u64) -> i128 {
    let unused = 128 - ty.bits();
    match ty.kind() {
        Kind::Signed => i128::from(bits) << unused >> unused,
        _ => ((u128::from(bits) << unused) >> unused) as i128,
    }
}

/// The lowest bits of a number, as many as the type has.
pub(crate) fn wrapped(ty: Type, number: i128) -> u64 {
    let unused = 128 - ty.bits();
    ((number as u128) << unused >> unused) as u64
}

/// The ends of a type.
pub(crate) fn ends(ty: Type) -> (i128, i128) {
    match ty.kind() {
        Kind::Signed => (-(1 << (ty.bits() - 1)), (1 << (ty.bits() - 1)) - 1),
        _ => (0, (1 << ty.bits()) - 1),
    }
}

/// The nearest value of the type.
pub(crate) fn saturated(ty: Type, number: i128) -> u64 {
    let (least, most) = ends(ty);
    wrapped(ty, number.clamp(least, most))
}

/// The type of twice the width.
fn wide(ty: Type) -> Type {
    match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        _ => Type::S64,
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for ty in INTEGERS {
        sums(&mut all, ty);
        products(&mut all, ty);
        quotients(&mut all, ty);
    }
    saturating(&mut all);
    products_of_24_bits(&mut all);
    packed(&mut all);
    dot_products(&mut all);
    for ty in [Type::U32, Type::S32, Type::U64, Type::S64] {
        carries(&mut all, ty);
    }
    all
}

/// An operation of two sources of a type.
fn binary(all: &mut Vec<Case>, name: &str, ty: Type, define: impl Fn(i128, i128) -> i128 + 'static) {
    let t = ty.name();
    let define = move |x: &[u64]| vec![wrapped(ty, define(number(ty, x[0]), number(ty, x[1])))];
    all.push(operation(&format!("{name}.{t}"), &format!("d:{t} a:{t} b:{t}"), define).case());
}

/// An operation of three sources of a type.
fn ternary(all: &mut Vec<Case>, name: &str, ty: Type, define: impl Fn(i128, i128, i128) -> i128 + 'static) {
    let t = ty.name();
    let define = move |x: &[u64]| {
        let [a, b, c] = [0, 1, 2].map(|at| number(ty, x[at]));
        vec![wrapped(ty, define(a, b, c))]
    };
    all.push(operation(&format!("{name}.{t}"), &format!("d:{t} a:{t} b:{t} c:{t}"), define).case());
}

fn sums(all: &mut Vec<Case>, ty: Type) {
    binary(all, "add", ty, |a, b| a + b);
    binary(all, "sub", ty, |a, b| a - b);
    ternary(all, "sad", ty, |a, b, c| c + if a < b { b - a } else { a - b });
    binary(all, "min", ty, |a, b| if a < b { a } else { b });
    binary(all, "max", ty, |a, b| if a > b { a } else { b });
    if ty.kind() == Kind::Signed {
        let t = ty.name();
        let operands = format!("d:{t} a:{t}");
        all.push(operation(&format!("neg.{t}"), &operands, move |x| vec![wrapped(ty, -number(ty, x[0]))]).case());
        all.push(operation(&format!("abs.{t}"), &operands, move |x| vec![wrapped(ty, number(ty, x[0]).abs())]).case());
    }
}

/// The upper half of the product of twice the width.
fn high(ty: Type, a: i128, b: i128) -> i128 {
    number(ty, wrapped(ty, (a.wrapping_mul(b) as u128 >> ty.bits()) as i128))
}

fn products(all: &mut Vec<Case>, ty: Type) {
    binary(all, "mul.lo", ty, |a, b| a.wrapping_mul(b));
    binary(all, "mul.hi", ty, move |a, b| high(ty, a, b));
    ternary(all, "mad.lo", ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    ternary(all, "mad.hi", ty, move |a, b, c| high(ty, a, b) + c);
    if ty.bits() < 64 {
        let (t, result) = (ty.name(), wide(ty));
        let w = result.name();
        let product = move |x: &[u64]| vec![wrapped(result, number(ty, x[0]) * number(ty, x[1]))];
        all.push(operation(&format!("mul.wide.{t}"), &format!("d:{w} a:{t} b:{t}"), product).case());
        let sum = move |x: &[u64]| vec![wrapped(result, number(ty, x[0]) * number(ty, x[1]) + number(result, x[2]))];
        all.push(operation(&format!("mad.wide.{t}"), &format!("d:{w} a:{t} b:{t} c:{w}"), sum).case());
    }
}

/// Division by zero is "unspecified, machine-specific" in the ISA. ptxas for sm_80 emits a selection of all ones, both for
/// quotient and remainder (LOP3 with table 0x33, "not b", under b = 0).
fn quotients(all: &mut Vec<Case>, ty: Type) {
    binary(all, "div", ty, |a, b| if b == 0 { -1 } else { a / b });
    binary(all, "rem", ty, |a, b| if b == 0 { -1 } else { a - a / b * b });
}

fn saturating(all: &mut Vec<Case>) {
    let ty = Type::S32;
    let clamped = move |value: i128| number(ty, saturated(ty, value));
    binary(all, "add.sat", ty, move |a, b| clamped(a + b));
    binary(all, "sub.sat", ty, move |a, b| clamped(a - b));
    ternary(all, "mad.hi.sat", ty, move |a, b, c| clamped(high(ty, a, b) + c));
    ternary(all, "mad24.hi.sat", ty, move |a, b, c| clamped(part_of_48(ty, a, b, 16) + c));
    binary(all, "min.relu", ty, |a, b| a.min(b).max(0));
    binary(all, "max.relu", ty, |a, b| a.max(b).max(0));
}

/// 32 bits from `first` on of the product of the low 24 bits of each.
fn part_of_48(ty: Type, a: i128, b: i128, first: u32) -> i128 {
    let low = |value: i128| if ty.kind() == Kind::Signed { value << 104 >> 104 } else { value & 0xff_ffff };
    number(ty, wrapped(ty, (low(a) * low(b)) >> first))
}

fn products_of_24_bits(all: &mut Vec<Case>) {
    for ty in [Type::U32, Type::S32] {
        binary(all, "mul24.lo", ty, move |a, b| part_of_48(ty, a, b, 0));
        binary(all, "mul24.hi", ty, move |a, b| part_of_48(ty, a, b, 16));
        ternary(all, "mad24.lo", ty, move |a, b, c| part_of_48(ty, a, b, 0) + c);
        ternary(all, "mad24.hi", ty, move |a, b, c| part_of_48(ty, a, b, 16) + c);
    }
}

/// The same operation on the two halves.
fn packed(all: &mut Vec<Case>) {
    for (t, half) in [("u16x2", Type::U16), ("s16x2", Type::S16)] {
        let mut push = |name: &str, define: fn(i128, i128) -> i128| {
            let define = move |x: &[u64]| {
                let part =
                    |shift: u32| define(number(half, x[0] >> shift & 0xffff), number(half, x[1] >> shift & 0xffff));
                vec![wrapped(half, part(0)) | wrapped(half, part(16)) << 16]
            };
            all.push(operation(&format!("{name}.{t}"), &format!("d:{t} a:{t} b:{t}"), define).case());
        };
        push("add", |a, b| a + b);
        push("min", |a, b| a.min(b));
        push("max", |a, b| a.max(b));
        if half == Type::S16 {
            push("min.relu", |a, b| a.min(b).max(0));
            push("max.relu", |a, b| a.max(b).max(0));
        }
    }
}

/// Part `at` of so many bits of a value, signed or not.
fn part(value: u64, at: usize, bits: u32, signed: bool) -> i128 {
    let part = i128::from(value >> (at as u32 * bits)) << (128 - bits);
    if signed { part >> (128 - bits) } else { (part as u128 >> (128 - bits)) as i128 }
}

fn dot_products(all: &mut Vec<Case>) {
    for (a, b) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        let (signed_a, signed_b) = (a == "s32", b == "s32");
        let c = if signed_a || signed_b { Type::S32 } else { Type::U32 };
        let operands = format!("d:{c} a:b32 b:b32 c:{c}", c = c.name());
        let mut push = |name: &str, parts: usize, bits: u32, first: usize| {
            let define = move |x: &[u64]| {
                let product = |at| part(x[0], at, bits, signed_a) * part(x[1], first + at, 8, signed_b);
                vec![wrapped(c, number(c, x[2]) + (0..parts).map(product).sum::<i128>())]
            };
            all.push(operation(&format!("{name}.{a}.{b}"), &operands, define).case());
        };
        push("dp4a", 4, 8, 0);
        push("dp2a.lo", 2, 16, 0);
        push("dp2a.hi", 2, 16, 2);
    }
}

/// Operations on the carry flag; the flag is the last source and the second result.
fn carries(all: &mut Vec<Case>, ty: Type) {
    let t = ty.name();
    let unsigned = move |bits: u64| number(ty, bits) & ends(Type::U64).1 & ((1 << ty.bits()) - 1);
    let split = move |sum: i128, keep: usize| {
        let flag = u64::from(sum < 0 || sum >> ty.bits() != 0);
        let mut results = vec![wrapped(ty, sum), flag];
        results.truncate(keep);
        results
    };
    let (two, three) = (format!("a:{t} b:{t}"), format!("a:{t} b:{t} c:{t}"));
    let mut push = |name: &str, operands: &str, define: Definition| {
        all.push(operation(&format!("{name}.{t}"), operands, define).case());
    };
    push("add.cc", &format!("d:{t} >cc {two}"), Box::new(move |x| split(unsigned(x[0]) + unsigned(x[1]), 2)));
    push("sub.cc", &format!("d:{t} >cc {two}"), Box::new(move |x| split(unsigned(x[0]) - unsigned(x[1]), 2)));
    for (suffix, flag, keep) in [("", "", 1), (".cc", ">cc ", 2)] {
        let with_flag = move |x: &[u64], sign: i128| unsigned(x[0]) + sign * (unsigned(x[1]) + i128::from(x[2]));
        let operands = format!("d:{t} {flag}{two} <cc");
        push(&format!("addc{suffix}"), &operands, Box::new(move |x| split(with_flag(x, 1), keep)));
        push(&format!("subc{suffix}"), &operands, Box::new(move |x| split(with_flag(x, -1), keep)));
    }
    for (half, upper) in [("lo", false), ("hi", true)] {
        let product = move |x: &[u64]| {
            let (a, b) = (number(ty, x[0]), number(ty, x[1]));
            let bits = if upper { wrapped(ty, high(ty, a, b)) } else { wrapped(ty, a.wrapping_mul(b)) };
            unsigned(bits) + unsigned(x[2])
        };
        push(&format!("mad.{half}.cc"), &format!("d:{t} >cc {three}"), Box::new(move |x| split(product(x), 2)));
        for (suffix, flag, keep) in [("", "", 1), (".cc", ">cc ", 2)] {
            let sum = move |x: &[u64]| split(product(x) + i128::from(x[3]), keep);
            push(&format!("madc.{half}{suffix}"), &format!("d:{t} {flag}{three} <cc"), Box::new(sum));
        }
    }
}
