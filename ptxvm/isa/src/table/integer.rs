//! Integer arithmetic: PTX ISA 9.7.1.
//!
//! Where the ISA leaves a result open, the row gives what ptxas's code for sm_80 gives: division by zero yields all
//! ones, and the least integer divided by -1 is itself.

use super::typed::typed;
use super::{Form, lanes};
use crate::lanes::each;

pub(super) fn rows(out: &mut Vec<Form>) {
    sums(out);
    products(out);
    products_of_24_bits(out);
    quotients(out);
    signs(out);
    extremes(out);
    dot_products(out);
}

fn sums(out: &mut Vec<Form>) {
    out.extend(typed!("add", "d:T a:T b:T", [u16 u32 u64 s16 s64], |a: T, b: T| a.wrapping_add(b)));
    out.extend(typed!("add{.sat}", "d:T a:T b:T", [s32], m => match m.has("sat") {
        true => each!(|a: T, b: T| a.saturating_add(b)),
        false => each!(|a: T, b: T| a.wrapping_add(b)),
    }));
    out.extend(
        typed!("add", "d:T a:T b:T", [u16x2 s16x2], |a: T, b: T| [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])])
            .map(|row| row.since(8, 0, 90)),
    );
    out.extend(typed!("sub", "d:T a:T b:T", [u16 u32 u64 s16 s64], |a: T, b: T| a.wrapping_sub(b)));
    out.extend(typed!("sub{.sat}", "d:T a:T b:T", [s32], m => match m.has("sat") {
        true => each!(|a: T, b: T| a.saturating_sub(b)),
        false => each!(|a: T, b: T| a.wrapping_sub(b)),
    }));
    out.extend(typed!("sad", "d:T a:T b:T c:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T, c: T| {
        c.wrapping_add(a.abs_diff(b) as T)
    }));
}

fn products(out: &mut Vec<Form>) {
    out.extend(typed!("mul.lo", "d:T a:T b:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T| a.wrapping_mul(b)));
    out.extend(typed!("mul.hi", "d:T a:T b:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T| high(a.widening(b))));
    out.extend(typed!("mad.lo", "d:T a:T b:T c:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T, c: T| {
        a.wrapping_mul(b).wrapping_add(c)
    }));
    out.extend(typed!("mad.hi", "d:T a:T b:T c:T", [u16 u32 u64 s16 s64], |a: T, b: T, c: T| {
        high(a.widening(b)).wrapping_add(c)
    }));
    out.extend(typed!("mad.hi{.sat}", "d:T a:T b:T c:T", [s32], m => match m.has("sat") {
        true => each!(|a: T, b: T, c: T| high(a.widening(b)).saturating_add(c)),
        false => each!(|a: T, b: T, c: T| high(a.widening(b)).wrapping_add(c)),
    }));
    out.extend([
        lanes("mul.wide.u16", "d:u32 a:u16 b:u16", |_| each!(|a: u16, b: u16| a.widening(b))),
        lanes("mul.wide.s16", "d:s32 a:s16 b:s16", |_| each!(|a: i16, b: i16| a.widening(b))),
        lanes("mul.wide.u32", "d:u64 a:u32 b:u32", |_| each!(|a: u32, b: u32| a.widening(b))),
        lanes("mul.wide.s32", "d:s64 a:s32 b:s32", |_| each!(|a: i32, b: i32| a.widening(b))),
        lanes("mad.wide.u16", "d:u32 a:u16 b:u16 c:u32", |_| {
            each!(|a: u16, b: u16, c: u32| a.widening(b).wrapping_add(c))
        }),
        lanes("mad.wide.s16", "d:s32 a:s16 b:s16 c:s32", |_| {
            each!(|a: i16, b: i16, c: i32| a.widening(b).wrapping_add(c))
        }),
        lanes("mad.wide.u32", "d:u64 a:u32 b:u32 c:u64", |_| {
            each!(|a: u32, b: u32, c: u64| a.widening(b).wrapping_add(c))
        }),
        lanes("mad.wide.s32", "d:s64 a:s32 b:s32 c:s64", |_| {
            each!(|a: i32, b: i32, c: i64| a.widening(b).wrapping_add(c))
        }),
    ]);
}

/// Products of twice the width.
pub(super) trait Widening: Copy {
    /// The type of twice the width.
    type Wide;
    /// The whole product.
    fn widening(self, other: Self) -> Self::Wide;
}

/// The upper half of a value.
pub(super) trait Halves {
    /// The type of half the width.
    type Half;
    /// The upper half.
    fn high(self) -> Self::Half;
}

#[inline(always)]
pub(super) fn high<W: Halves>(wide: W) -> W::Half {
    wide.high()
}

macro_rules! widening {
    ($($ty:ty => $wide:ty),*) => { $(
        impl Widening for $ty {
            type Wide = $wide;
            #[inline(always)]
            fn widening(self, other: $ty) -> $wide {
                <$wide>::from(self).wrapping_mul(<$wide>::from(other))
            }
        }
        impl Halves for $wide {
            type Half = $ty;
            #[inline(always)]
            fn high(self) -> $ty {
                (self >> <$ty>::BITS) as $ty
            }
        }
    )* };
}
widening!(u16 => u32, i16 => i32, u32 => u64, i32 => i64, u64 => u128, i64 => i128);

/// The product of the low 24 bits of each.
#[inline(always)]
fn product(a: u32, b: u32) -> u64 {
    u64::from(a & 0x00ff_ffff) * u64::from(b & 0x00ff_ffff)
}

/// The product of the low 24 bits of each, as signed numbers.
#[inline(always)]
fn product_signed(a: i32, b: i32) -> i64 {
    i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)
}

fn products_of_24_bits(out: &mut Vec<Form>) {
    out.extend([
        lanes("mul24.lo.u32", "d:u32 a:u32 b:u32", |_| each!(|a: u32, b: u32| product(a, b) as u32)),
        lanes("mul24.hi.u32", "d:u32 a:u32 b:u32", |_| each!(|a: u32, b: u32| (product(a, b) >> 16) as u32)),
        lanes("mul24.lo.s32", "d:s32 a:s32 b:s32", |_| each!(|a: i32, b: i32| product_signed(a, b) as i32)),
        lanes("mul24.hi.s32", "d:s32 a:s32 b:s32", |_| each!(|a: i32, b: i32| (product_signed(a, b) >> 16) as i32)),
        lanes("mad24.lo.u32", "d:u32 a:u32 b:u32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| (product(a, b) as u32).wrapping_add(c))
        }),
        lanes("mad24.hi.u32", "d:u32 a:u32 b:u32 c:u32", |_| {
            each!(|a: u32, b: u32, c: u32| ((product(a, b) >> 16) as u32).wrapping_add(c))
        }),
        lanes("mad24.lo.s32", "d:s32 a:s32 b:s32 c:s32", |_| {
            each!(|a: i32, b: i32, c: i32| (product_signed(a, b) as i32).wrapping_add(c))
        }),
        lanes("mad24.hi{.sat}.s32", "d:s32 a:s32 b:s32 c:s32", |m| match m.has("sat") {
            true => {
                each!(|a: i32, b: i32, c: i32| { ((product_signed(a, b) >> 16) as i32).saturating_add(c) })
            }
            false => {
                each!(|a: i32, b: i32, c: i32| { ((product_signed(a, b) >> 16) as i32).wrapping_add(c) })
            }
        }),
    ]);
}

fn quotients(out: &mut Vec<Form>) {
    out.extend(typed!("div", "d:T a:T b:T", [u16 u32 u64], |a: T, b: T| a.checked_div(b).unwrap_or(T::MAX)));
    out.extend(typed!("div", "d:T a:T b:T", [s16 s32 s64], |a: T, b: T| if b == 0 { -1 } else { a.wrapping_div(b) }));
    out.extend(typed!("rem", "d:T a:T b:T", [u16 u32 u64], |a: T, b: T| a.checked_rem(b).unwrap_or(T::MAX)));
    out.extend(typed!("rem", "d:T a:T b:T", [s16 s32 s64], |a: T, b: T| if b == 0 { -1 } else { a.wrapping_rem(b) }));
}

fn signs(out: &mut Vec<Form>) {
    out.extend(typed!("abs", "d:T a:T", [s16 s32 s64], |a: T| a.wrapping_abs()));
    out.extend(typed!("neg", "d:T a:T", [s16 s32 s64], |a: T| a.wrapping_neg()));
}

fn extremes(out: &mut Vec<Form>) {
    out.extend(typed!("min", "d:T a:T b:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T| a.min(b)));
    out.extend(typed!("max", "d:T a:T b:T", [u16 u32 u64 s16 s32 s64], |a: T, b: T| a.max(b)));
    let hopper = [
        lanes("min.relu.s32", "d:s32 a:s32 b:s32", |_| each!(|a: i32, b: i32| a.min(b).max(0))),
        lanes("max.relu.s32", "d:s32 a:s32 b:s32", |_| each!(|a: i32, b: i32| a.max(b).max(0))),
        lanes("min.u16x2", "d:u16x2 a:u16x2 b:u16x2", |_| {
            each!(|a: [u16; 2], b: [u16; 2]| [a[0].min(b[0]), a[1].min(b[1])])
        }),
        lanes("max.u16x2", "d:u16x2 a:u16x2 b:u16x2", |_| {
            each!(|a: [u16; 2], b: [u16; 2]| [a[0].max(b[0]), a[1].max(b[1])])
        }),
        lanes("min{.relu}.s16x2", "d:s16x2 a:s16x2 b:s16x2", |m| match m.has("relu") {
            true => each!(|a: [i16; 2], b: [i16; 2]| [a[0].min(b[0]).max(0), a[1].min(b[1]).max(0)]),
            false => each!(|a: [i16; 2], b: [i16; 2]| [a[0].min(b[0]), a[1].min(b[1])]),
        }),
        lanes("max{.relu}.s16x2", "d:s16x2 a:s16x2 b:s16x2", |m| match m.has("relu") {
            true => each!(|a: [i16; 2], b: [i16; 2]| [a[0].max(b[0]).max(0), a[1].max(b[1]).max(0)]),
            false => each!(|a: [i16; 2], b: [i16; 2]| [a[0].max(b[0]), a[1].max(b[1])]),
        }),
    ];
    out.extend(hopper.map(|row| row.since(8, 0, 90)));
}

/// Byte `at` of `a`, zero-extended.
#[inline(always)]
fn unsigned_byte(a: u32, at: u32) -> u32 {
    a >> (8 * at) & 0xff
}

/// Byte `at` of `a`, sign-extended.
#[inline(always)]
fn signed_byte(a: u32, at: u32) -> u32 {
    ((a << (24 - 8 * at)) as i32 >> 24) as u32
}

/// Half-word `at` of `a`, zero-extended.
#[inline(always)]
fn unsigned_half(a: u32, at: u32) -> u32 {
    a >> (16 * at) & 0xffff
}

/// Half-word `at` of `a`, sign-extended.
#[inline(always)]
fn signed_half(a: u32, at: u32) -> u32 {
    ((a << (16 - 16 * at)) as i32 >> 16) as u32
}

/// `c` plus the products of the parts that `of_a` takes of `a` with those that `of_b` takes of `b` from `first` on.
#[inline(always)]
fn dot<const PARTS: u32>(
    a: u32,
    b: u32,
    c: u32,
    first: u32,
    of_a: impl Fn(u32, u32) -> u32,
    of_b: impl Fn(u32, u32) -> u32,
) -> u32 {
    let mut sum = c;
    for part in 0..PARTS {
        sum = sum.wrapping_add(of_a(a, part).wrapping_mul(of_b(b, first + part)));
    }
    sum
}

/// `dp4a` and `dp2a` for one pair of types.
macro_rules! dot_rows {
    ($a:literal $b:literal $c:literal, $byte_a:ident $half_a:ident $byte_b:ident) => {
        [
            lanes(concat!("dp4a.", $a, ".", $b), concat!("d:", $c, " a:b32 b:b32 c:", $c), |_| {
                each!(|a: u32, b: u32, c: u32| dot::<4>(a, b, c, 0, $byte_a, $byte_b))
            }),
            lanes(concat!("dp2a.lo.", $a, ".", $b), concat!("d:", $c, " a:b32 b:b32 c:", $c), |_| {
                each!(|a: u32, b: u32, c: u32| dot::<2>(a, b, c, 0, $half_a, $byte_b))
            }),
            lanes(concat!("dp2a.hi.", $a, ".", $b), concat!("d:", $c, " a:b32 b:b32 c:", $c), |_| {
                each!(|a: u32, b: u32, c: u32| dot::<2>(a, b, c, 2, $half_a, $byte_b))
            }),
        ]
        .map(|row| row.since(5, 0, 61))
    };
}

fn dot_products(out: &mut Vec<Form>) {
    out.extend(dot_rows!("u32" "u32" "u32", unsigned_byte unsigned_half unsigned_byte));
    out.extend(dot_rows!("u32" "s32" "s32", unsigned_byte unsigned_half signed_byte));
    out.extend(dot_rows!("s32" "u32" "s32", signed_byte signed_half unsigned_byte));
    out.extend(dot_rows!("s32" "s32" "s32", signed_byte signed_half signed_byte));
}
