//! `cvt` between floats, and between floats and integers.
//!
//! A destination register wider than the type is lowering's business: lane functions write the type's own width.

use half::{bf16, f16};

use super::flagged::flagged;
use super::{Form, lanes};
use crate::lanes::each;
use crate::numerics::flags::{AWAY, FTZ, ROUNDING, SAT, SATFINITE};
use crate::numerics::format::{self, E4m3, E5m2, Tf32};
use crate::numerics::integer::{self, double_of_single, integral, integral_f32, single_of_double, to_integer, to_odd};
use crate::numerics::single;
use crate::numerics::sixteen::{self, Sixteen};

/// An f16 or bf16 as f64, which holds it; its NaN is the widened NaN of f32.
#[inline(always)]
fn wide<T: Sixteen>(a: T) -> f64 {
    double_of_single(short(a))
}

/// An f16 or bf16 as f32.
#[inline(always)]
fn short<T: Sixteen>(a: T) -> f32 {
    format::to_f32::<T>(a.bits().into())
}

/// Clamps an f64 as `.sat` says.
#[inline(always)]
fn saturated<const M: u32>(a: f64) -> f64 {
    if M & SAT == 0 {
        return a;
    }
    if a > 0.0 { a.min(1.0) } else { 0.0 }
}

/// An f32 rounded to f16 or bf16.
#[inline(always)]
fn shorten<T: Sixteen, const M: u32>(a: f32) -> T {
    let a = single::source::<M>(a);
    let a = if M & SAT != 0 { single::finish::<SAT>(a) } else { a };
    T::of(format::from_f32::<T, M>(a) as u16)
}

/// Two f32 packed: the first is the high half.
#[inline(always)]
fn packed<T: Sixteen, const M: u32>(a: f32, b: f32) -> [u16; 2] {
    [shorten::<T, M>(b).bits(), shorten::<T, M>(a).bits()]
}

/// An f32 rounded to the high 19 bits of its register.
#[inline(always)]
fn tf32<const M: u32>(a: f32) -> u32 {
    if a.is_nan() { single::NAN.to_bits() } else { format::from_f32::<Tf32, M>(a) << 13 }
}

/// Two values of a packed 8-bit format as f16: exact.
#[inline(always)]
fn unpacked<T: format::Format, const M: u32>(a: u16) -> [u16; 2] {
    [a & 0xff, a >> 8].map(|code| format::from_f32::<f16, M>(format::to_f32::<T>(code.into())) as u16)
}

/// From a float type to each integer type, of which the result is clamped to the range with or without `.sat`.
macro_rules! to_integers {
    ($out:ident, $float:literal $ty:ident, $mods:literal, $set:tt, $double:literal, $since:tt, |$a:ident, $m:ident| $value:expr;
        $($integer:literal $into:ident)*) => { $(
        $out.push(to_integers!(@ $float $ty, $mods, $set, $double, $since, |$a, $m| $value, $integer $into));
    )* };
    (@ $float:literal $ty:ident, $mods:literal, $set:tt, $double:literal, ($major:literal, $minor:literal, $sm:literal),
        |$a:ident, $m:ident| $value:expr, $integer:literal $into:ident) => {
        lanes(
            concat!("cvt(.rni|.rzi|.rmi|.rpi)", $mods, ".", $integer, ".", $float),
            concat!("d:", $integer, " a:", $float),
            |m| flagged!(m, $m in $set but SAT, each!(|$a: $ty| to_integer::<$into, $m, $double>($value))),
        )
        .since($major, $minor, $sm)
    };
}

/// From integer types to a float type; `$same` are the flags that make no difference.
macro_rules! from_integers {
    ($out:ident, $float:literal, $mods:literal, $set:tt but $same:expr, $since:tt, |$a:ident: $from:ident, $m:ident| $value:expr;
        $($integer:literal $ty:ident)*) => { $({
        type $from = $ty;
        $out.push(from_integers!(@ $float, $mods, $set but $same, $since, |$a: $from, $m| $value, $integer));
    })* };
    (@ $float:literal, $mods:literal, $set:tt but $same:expr, ($major:literal, $minor:literal, $sm:literal),
        |$a:ident: $from:ident, $m:ident| $value:expr, $integer:literal) => {
        lanes(
            concat!("cvt(.rn|.rz|.rm|.rp)", $mods, ".", $float, ".", $integer),
            concat!("d:", $float, " a:", $integer),
            |m| flagged!(m, $m in $set but $same, each!(|$a: $from| $value)),
        )
        .since($major, $minor, $sm)
    };
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    integers(out);
    widening(out);
    narrowing(out);
    integral_values(out);
    bf16_of_sm_90(out);
    packed_pairs(out);
    eight_bits(out);
}

fn integers(out: &mut Vec<Form>) {
    to_integers!(out, "f32" f32, "{.ftz}{.sat}", [0 1 2 3 8 9 10 11], false, (1, 0, 10),
        |a, M| single::source::<M>(a).into(); "u8" u8 "s8" i8 "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);
    to_integers!(out, "f64" f64, "{.sat}", [0 1 2 3], true, (1, 0, 13),
        |a, M| a; "u8" u8 "s8" i8 "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);
    to_integers!(out, "f16" f16, "{.sat}", [0 1 2 3], false, (4, 2, 53),
        |a, M| wide(a); "u8" u8 "s8" i8 "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);
    to_integers!(out, "bf16" bf16, "", [0 1 2 3], false, (7, 8, 90),
        |a, M| wide(a); "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);

    // Where the float holds every integer of the type, nothing is rounded; no result is subnormal.
    from_integers!(out, "f32", "{.ftz}{.sat}", [0 16] but ROUNDING | FTZ, (1, 0, 10),
        |a: From, M| single::finish::<M>(a.into()); "u8" u8 "s8" i8 "u16" u16 "s16" i16);
    from_integers!(out, "f32", "{.ftz}{.sat}", [0 1 2 3 16 17 18 19] but FTZ, (1, 0, 10),
        |a: From, M| single::finish::<M>(integer::to_f32::<From, M>(a)); "u32" u32 "s32" i32 "u64" u64 "s64" i64);
    from_integers!(out, "f64", "{.sat}", [0 16] but ROUNDING, (1, 0, 13),
        |a: From, M| saturated::<M>(a.into()); "u8" u8 "s8" i8 "u16" u16 "s16" i16 "u32" u32 "s32" i32);
    from_integers!(out, "f64", "{.sat}", [0 1 2 3 16 17 18 19] but 0, (1, 0, 13),
        |a: From, M| saturated::<M>(integer::to_f64::<From, M>(a)); "u64" u64 "s64" i64);
    from_integers!(out, "f16", "{.sat}", [0 16] but ROUNDING, (4, 2, 53),
        |a: From, M| sixteen::finish::<f16, M>(a.into()); "u8" u8 "s8" i8);
    from_integers!(out, "f16", "{.sat}", [0 1 2 3 16 17 18 19] but 0, (4, 2, 53),
        |a: From, M| sixteen::finish::<f16, M>(to_odd(a));
        "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);
    from_integers!(out, "bf16", "", [0 1 2 3] but 0, (7, 8, 90), |a: From, M| sixteen::finish::<bf16, M>(to_odd(a));
        "u16" u16 "s16" i16 "u32" u32 "s32" i32 "u64" u64 "s64" i64);
}

/// To a wider type: exact.
fn widening(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "cvt{.ftz}{.sat}.f32.f16",
            "d:f32 a:f16",
            |m| flagged!(m, M of ftz sat, each!(|a: f16| single::finish::<M>(short(a)))),
        )
        .since(4, 2, 53),
        lanes("cvt{.sat}.f64.f16", "d:f64 a:f16", |m| flagged!(m, M of sat, each!(|a: f16| saturated::<M>(wide(a)))))
            .since(4, 2, 53),
        lanes(
            "cvt{.ftz}{.sat}.f64.f32",
            "d:f64 a:f32",
            |m| flagged!(m, M of ftz sat, each!(|a: f32| saturated::<M>(double_of_single(single::source::<M>(a))))),
        )
        .since(1, 0, 13),
        lanes("cvt{.rn|.rz|.rm|.rp}.f32.bf16", "d:f32 a:bf16", |_| each!(|a: bf16| short(a))).since(7, 1, 80),
        lanes("cvt{.rn|.rz|.rm|.rp}.ftz.f32.bf16", "d:f32 a:bf16", |_| each!(|a: bf16| single::flush(short(a))))
            .since(7, 8, 90),
        lanes("cvt{.rn|.rz|.rm|.rp}.f64.bf16", "d:f64 a:bf16", |_| each!(|a: bf16| wide(a))).since(7, 8, 90),
    ]);
}

/// To a narrower type: rounded once.
fn narrowing(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "cvt(.rn|.rz|.rm|.rp){.ftz}{.sat}.f32.f64",
            "d:f32 a:f64",
            |m| flagged!(m, M of rounding ftz sat, each!(|a: f64| single::finish::<M>(single_of_double::<M>(a)))),
        )
        .since(1, 0, 13),
        lanes(
            "cvt(.rn|.rz|.rm|.rp){.sat}.f16.f64",
            "d:f16 a:f64",
            |m| flagged!(m, M of rounding sat, each!(|a: f64| sixteen::finish::<f16, M>(a))),
        )
        .since(4, 2, 53),
        lanes(
            "cvt(.rn|.rz|.rm|.rp){.ftz}{.sat}.f16.f32",
            "d:f16 a:f32",
            |m| flagged!(m, M of rounding ftz sat, each!(|a: f32| shorten::<f16, M>(a))),
        )
        .since(4, 2, 53),
        lanes(
            "cvt(.rn|.rz).relu.f16.f32",
            "d:f16 a:f32",
            |m| flagged!(m, M in [32 33], each!(|a: f32| shorten::<f16, M>(a))),
        )
        .since(7, 0, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.satfinite.f16.f32",
            "d:f16 a:f32",
            |m| flagged!(m, M in [64 65 96 97], each!(|a: f32| shorten::<f16, M>(a))),
        )
        .since(8, 1, 80),
        lanes(
            "cvt(.rn|.rz|.rm|.rp){.ftz}.bf16.f32",
            "d:bf16 a:f32",
            |m| flagged!(m, M of rounding ftz, each!(|a: f32| shorten::<bf16, M>(a))),
        )
        .since(7, 0, 80),
        lanes(
            "cvt(.rn|.rz).relu.bf16.f32",
            "d:bf16 a:f32",
            |m| flagged!(m, M in [32 33], each!(|a: f32| shorten::<bf16, M>(a))),
        )
        .since(7, 0, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.satfinite.bf16.f32",
            "d:bf16 a:f32",
            |m| flagged!(m, M in [64 65 96 97], each!(|a: f32| shorten::<bf16, M>(a))),
        )
        .since(8, 1, 80),
        lanes("cvt.rna.tf32.f32", "d:tf32 a:f32", |_| each!(|a: f32| tf32::<AWAY>(a))).since(7, 0, 80),
        lanes("cvt.rna.satfinite.tf32.f32", "d:tf32 a:f32", |_| each!(|a: f32| tf32::<{ AWAY | SATFINITE }>(a)))
            .since(8, 1, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.tf32.f32",
            "d:tf32 a:f32",
            |m| flagged!(m, M in [0 1 32 33], each!(|a: f32| tf32::<M>(a))),
        )
        .since(7, 8, 90),
    ]);
}

/// To the same type: as it is, clamped, or rounded to an integral value.
fn integral_values(out: &mut Vec<Form>) {
    out.extend([
        lanes("cvt.f32.f32", "d:f32 a:f32", |_| each!(|a: u32| a)),
        lanes("cvt.ftz.f32.f32", "d:f32 a:f32", |_| each!(|a: f32| single::flush(a))),
        lanes(
            "cvt{.ftz}.sat.f32.f32",
            "d:f32 a:f32",
            |m| flagged!(m, M in [16 24], each!(|a: f32| single::finish::<M>(a))),
        ),
        lanes("cvt(.rni|.rzi|.rmi|.rpi){.ftz}{.sat}.f32.f32", "d:f32 a:f32", |m| {
            flagged!(m, M of rounding ftz sat, each!(|a: f32| {
                single::finish::<M>(integral_f32::<M>(single::source::<M>(a)))
            }))
        }),
        lanes("cvt{.sat}.f64.f64", "d:f64 a:f64", |m| flagged!(m, M of sat, each!(|a: f64| saturated::<M>(a))))
            .since(1, 0, 13),
        lanes(
            "cvt(.rni|.rzi|.rmi|.rpi){.sat}.f64.f64",
            "d:f64 a:f64",
            |m| flagged!(m, M of rounding sat, each!(|a: f64| saturated::<M>(integral::<M>(a)))),
        )
        .since(1, 0, 13),
        lanes("cvt.f16.f16", "d:f16 a:f16", |_| each!(|a: u16| a)).since(4, 2, 53),
        lanes("cvt.sat.f16.f16", "d:f16 a:f16", |_| each!(|a: f16| sixteen::finish::<f16, SAT>(wide(a))))
            .since(4, 2, 53),
        lanes(
            "cvt(.rni|.rzi|.rmi|.rpi){.sat}.f16.f16",
            "d:f16 a:f16",
            |m| flagged!(m, M of rounding sat, each!(|a: f16| sixteen::finish::<f16, M>(integral::<M>(wide(a))))),
        )
        .since(4, 2, 53),
    ]);
}

fn bf16_of_sm_90(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "cvt{.rn|.rz|.rm|.rp}.f16.bf16",
            "d:f16 a:bf16",
            |m| flagged!(m, M of rounding, each!(|a: bf16| shorten::<f16, M>(short(a)))),
        )
        .since(7, 8, 90),
        lanes(
            "cvt{.rn|.rz|.rm|.rp}.bf16.f16",
            "d:bf16 a:f16",
            |m| flagged!(m, M of rounding, each!(|a: f16| shorten::<bf16, M>(short(a)))),
        )
        .since(7, 8, 90),
        lanes(
            "cvt(.rn|.rz|.rm|.rp).bf16.f64",
            "d:bf16 a:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64| sixteen::finish::<bf16, M>(a))),
        )
        .since(7, 8, 90),
        lanes("cvt.bf16.bf16", "d:bf16 a:bf16", |_| each!(|a: u16| a)).since(7, 8, 90),
        lanes(
            "cvt(.rni|.rzi|.rmi|.rpi).bf16.bf16",
            "d:bf16 a:bf16",
            |m| flagged!(m, M of rounding, each!(|a: bf16| sixteen::finish::<bf16, M>(integral::<M>(wide(a))))),
        )
        .since(7, 8, 90),
    ]);
}

fn packed_pairs(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "cvt(.rn|.rz){.relu}.f16x2.f32",
            "d:f16x2 a:f32 b:f32",
            |m| flagged!(m, M in [0 1 32 33], each!(|a: f32, b: f32| packed::<f16, M>(a, b))),
        )
        .since(7, 0, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.satfinite.f16x2.f32",
            "d:f16x2 a:f32 b:f32",
            |m| flagged!(m, M in [64 65 96 97], each!(|a: f32, b: f32| packed::<f16, M>(a, b))),
        )
        .since(8, 1, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.bf16x2.f32",
            "d:bf16x2 a:f32 b:f32",
            |m| flagged!(m, M in [0 1 32 33], each!(|a: f32, b: f32| packed::<bf16, M>(a, b))),
        )
        .since(7, 0, 80),
        lanes(
            "cvt(.rn|.rz){.relu}.satfinite.bf16x2.f32",
            "d:bf16x2 a:f32 b:f32",
            |m| flagged!(m, M in [64 65 96 97], each!(|a: f32, b: f32| packed::<bf16, M>(a, b))),
        )
        .since(8, 1, 80),
    ]);
}

/// The rows of a packed 8-bit format.
macro_rules! eight {
    ($out:ident, $name:literal, $format:ident) => {
        $out.extend([
            lanes(concat!("cvt.rn.satfinite{.relu}.", $name, ".f32"), "d:b16 a:f32 b:f32", |m| {
                flagged!(m, M in [64 96], each!(|a: f32, b: f32| {
                    (format::from_f32::<$format, M>(a) << 8 | format::from_f32::<$format, M>(b)) as u16
                }))
            })
            .since(8, 1, 89),
            lanes(concat!("cvt.rn.satfinite{.relu}.", $name, ".f16x2"), "d:b16 a:f16x2", |m| {
                flagged!(m, M in [64 96], each!(|a: [u16; 2]| {
                    let [low, high] = a.map(|half| format::from_f32::<$format, M>(short(f16::from_bits(half))));
                    (high << 8 | low) as u16
                }))
            })
            .since(8, 1, 89),
            lanes(concat!("cvt.rn{.relu}.f16x2.", $name), "d:f16x2 a:b16", |m| {
                flagged!(m, M in [0 32], each!(|a: u16| unpacked::<$format, M>(a)))
            })
            .since(8, 1, 89),
        ]);
    };
}

fn eight_bits(out: &mut Vec<Form>) {
    eight!(out, "e4m3x2", E4m3);
    eight!(out, "e5m2x2", E5m2);
}
