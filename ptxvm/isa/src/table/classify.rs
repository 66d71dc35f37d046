//! What looks at a float's bits: `abs`, `neg`, `copysign`, `testp`, `min`, `max`.
//!
//! The ISA leaves open which NaN `abs` and `neg` of f32 and shorter types make of one; here it is the NaN of arithmetic.
//! f64 keeps the payload.

use half::{bf16, f16};

use super::flagged::flagged;
use super::{Form, Mods, lanes};
use crate::lanes::each;
use crate::numerics::bits::{Bits, MAXIMUM, extreme};
use crate::numerics::double;
use crate::numerics::flags::FTZ;
use crate::numerics::sixteen::{both, both2};
use crate::program::LaneFn;

/// A source as `.ftz` says.
#[inline(always)]
fn source<T: Bits, const M: u32>(a: T) -> T {
    if M & FTZ != 0 { a.flushed() } else { a }
}

#[inline(always)]
fn absolute<T: Bits, const M: u32>(a: T) -> T {
    if a.not_a_number() { a.resulting_nan() } else { source::<T, M>(a).magnitude() }
}

#[inline(always)]
fn negation<T: Bits, const M: u32>(a: T) -> T {
    let negated = source::<T, M>(a).negated();
    if a.not_a_number() { negated.resulting_nan() } else { negated }
}

/// `abs` or `neg` of one operation.
macro_rules! one_source {
    ($out:ident, $name:literal, $operation:ident, $f16_since:literal) => {
        $out.extend([
            lanes(concat!($name, "{.ftz}.f32"), "d:f32 a:f32", |m| {
                flagged!(m, M of ftz, each!(|a: f32| $operation::<f32, M>(a)))
            }),
            lanes(concat!($name, "{.ftz}.f16"), "d:f16 a:f16", |m| {
                flagged!(m, M of ftz, each!(|a: f16| $operation::<f16, M>(a)))
            })
            .since(6, $f16_since, 53),
            lanes(concat!($name, "{.ftz}.f16x2"), "d:f16x2 a:f16x2", |m| {
                flagged!(m, M of ftz, each!(|a: [u16; 2]| both(a, $operation::<f16, M>)))
            })
            .since(6, $f16_since, 53),
            lanes(concat!($name, ".bf16"), "d:bf16 a:bf16", |_| each!(|a: bf16| $operation::<bf16, 0>(a))).since(7, 0, 80),
            lanes(concat!($name, ".bf16x2"), "d:bf16x2 a:bf16x2", |_| {
                each!(|a: [u16; 2]| both(a, $operation::<bf16, 0>))
            })
            .since(7, 0, 80),
        ]);
    };
}

/// `min` or `max`: `$max` is 0 or [`MAXIMUM`]. Rows with `.xorsign.abs` are of `sm_86`.
macro_rules! extremes {
    ($out:ident, $name:literal, $max:expr) => {
        $out.push(lanes(concat!($name, ".f64"), "d:f64 a:f64 b:f64", |_| {
            each!(|a: f64, b: f64| extreme::<f64, { $max }>(a, b))
        }).since(1, 0, 13));
        extremes!(@ $out, $name, $max, "", 0, 80, [256 264], [0 8 256 264], [0 256]);
        extremes!(@ $out, $name, $max, ".xorsign.abs", 2, 86, [768 776], [512 520 768 776], [512 768]);
    };
    (@ $out:ident, $name:literal, $max:expr, $sign:literal, $minor:literal, $sm:literal,
        $single:tt, $half:tt, $brain:tt) => {
        $out.extend([
            lanes(concat!($name, "{.ftz}.NaN", $sign, ".f32"), "d:f32 a:f32 b:f32", |m| {
                flagged!(m, M in $single, each!(|a: f32, b: f32| extreme::<f32, { M | $max }>(a, b)))
            })
            .since(7, $minor, $sm),
            lanes(concat!($name, "{.ftz}{.NaN}", $sign, ".f16"), "d:f16 a:f16 b:f16", |m| {
                flagged!(m, M in $half, each!(|a: f16, b: f16| extreme::<f16, { M | $max }>(a, b)))
            })
            .since(7, $minor, $sm),
            lanes(concat!($name, "{.ftz}{.NaN}", $sign, ".f16x2"), "d:f16x2 a:f16x2 b:f16x2", |m| {
                flagged!(m, M in $half,
                    each!(|a: [u16; 2], b: [u16; 2]| both2(a, b, extreme::<f16, { M | $max }>)))
            })
            .since(7, $minor, $sm),
            lanes(concat!($name, "{.NaN}", $sign, ".bf16"), "d:bf16 a:bf16 b:bf16", |m| {
                flagged!(m, M in $brain, each!(|a: bf16, b: bf16| extreme::<bf16, { M | $max }>(a, b)))
            })
            .since(7, $minor, $sm),
            lanes(concat!($name, "{.NaN}", $sign, ".bf16x2"), "d:bf16x2 a:bf16x2 b:bf16x2", |m| {
                flagged!(m, M in $brain,
                    each!(|a: [u16; 2], b: [u16; 2]| both2(a, b, extreme::<bf16, { M | $max }>)))
            })
            .since(7, $minor, $sm),
        ]);
    };
}

/// Whether `a` has the property that a `testp` names.
fn testp<T: Bits + crate::lanes::Value>(m: &Mods) -> LaneFn {
    if m.has("finite") {
        each!(|a: T| !a.infinite() && !a.not_a_number())
    } else if m.has("infinite") {
        each!(|a: T| a.infinite())
    } else if m.has("number") {
        each!(|a: T| !a.not_a_number())
    } else if m.has("notanumber") {
        each!(|a: T| a.not_a_number())
    } else if m.has("normal") {
        // Zeros count as normal.
        each!(|a: T| !a.infinite() && !a.not_a_number() && !a.subnormal())
    } else {
        each!(|a: T| a.subnormal())
    }
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    one_source!(out, "abs", absolute, 5);
    one_source!(out, "neg", negation, 0);
    out.extend([
        // NaN passes unchanged.
        lanes("abs.f64", "d:f64 a:f64", |_| each!(|a: f64| if double::is_nan(a) { a } else { a.abs() }))
            .since(1, 0, 13),
        lanes("neg.f64", "d:f64 a:f64", |_| each!(|a: f64| negation::<f64, 0>(a))).since(1, 0, 13),
        lanes("copysign.f32", "d:f32 a:f32 b:f32", |_| each!(|a: f32, b: f32| b.signed_as(a))).since(2, 0, 20),
        lanes("copysign.f64", "d:f64 a:f64 b:f64", |_| each!(|a: f64, b: f64| b.signed_as(a))).since(2, 0, 20),
        lanes("testp(.finite|.infinite|.number|.notanumber|.normal|.subnormal).f32", "d:pred a:f32", testp::<f32>)
            .since(2, 0, 20),
        lanes("testp(.finite|.infinite|.number|.notanumber|.normal|.subnormal).f64", "d:pred a:f64", testp::<f64>)
            .since(2, 0, 20),
        lanes(
            "min{.ftz}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of ftz, each!(|a: f32, b: f32| extreme::<f32, M>(a, b))),
        ),
        lanes(
            "max{.ftz}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of ftz, each!(|a: f32, b: f32| extreme::<f32, { M | MAXIMUM }>(a, b))),
        ),
        lanes(
            "min{.ftz}.xorsign.abs.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M in [512 520], each!(|a: f32, b: f32| extreme::<f32, M>(a, b))),
        )
        .since(7, 2, 86),
        lanes(
            "max{.ftz}.xorsign.abs.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M in [512 520], each!(|a: f32, b: f32| extreme::<f32, { M | MAXIMUM }>(a, b))),
        )
        .since(7, 2, 86),
    ]);
    extremes!(out, "min", 0);
    extremes!(out, "max", MAXIMUM);
}
