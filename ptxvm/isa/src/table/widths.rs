//! `cvt` between integers of every width, and `cvt.pack`: PTX ISA 9.7.9.21 and 9.7.9.22.
//!
//! A source is read as its type says and the result is of the destination's type; where the registers are wider,
//! lowering truncates and extends.

use super::typed::value;
use super::{Flow, Form, lanes};
use crate::lanes::each;

/// The nearest value of the destination's type.
macro_rules! saturated {
    ($a:ident, $to:ty) => {
        i128::from($a).clamp(i128::from(<$to>::MIN), i128::from(<$to>::MAX)) as $to
    };
}

/// `cvt` from each type of a list to one type. `.sat` is there where the destination cannot hold every source value.
macro_rules! rows_to {
    ($out:ident, $to:ident, saturating [$($narrowed:ident)*], holding [$($held:ident)*]) => {
        $( $out.push(
            lanes(
                concat!("cvt{.sat}.", stringify!($to), ".", stringify!($narrowed)),
                concat!("d:", stringify!($to), " a:", stringify!($narrowed)),
                |m| match m.has("sat") {
                    true => each!(|a: value!($narrowed)| saturated!(a, value!($to))),
                    false => each!(|a: value!($narrowed)| a as value!($to)),
                },
            )
            .flow(Flow::Shift),
        ); )*
        $( $out.push(
            lanes(
                concat!("cvt.", stringify!($to), ".", stringify!($held)),
                concat!("d:", stringify!($to), " a:", stringify!($held)),
                |_| each!(|a: value!($held)| a as value!($to)),
            )
            .flow(Flow::Shift),
        ); )*
    };
}

pub(super) fn rows(out: &mut Vec<Form>) {
    rows_to!(out, u8, saturating [u16 u32 u64 s8 s16 s32 s64], holding [u8]);
    rows_to!(out, u16, saturating [u32 u64 s8 s16 s32 s64], holding [u8 u16]);
    rows_to!(out, u32, saturating [u64 s8 s16 s32 s64], holding [u8 u16 u32]);
    rows_to!(out, u64, saturating [s8 s16 s32 s64], holding [u8 u16 u32 u64]);
    rows_to!(out, s8, saturating [u8 u16 u32 u64 s16 s32 s64], holding [s8]);
    rows_to!(out, s16, saturating [u16 u32 u64 s32 s64], holding [u8 s8 s16]);
    rows_to!(out, s32, saturating [u32 u64 s64], holding [u8 u16 s8 s16 s32]);
    rows_to!(out, s64, saturating [u64], holding [u8 u16 u32 s8 s16 s32 s64]);
    let packs = [
        lanes("cvt.pack.sat.u16.s32", "d:u32 a:s32 b:s32", |_| {
            each!(|a: i32, b: i32| (saturated!(a, u16) as u32) << 16 | saturated!(b, u16) as u32)
        }),
        lanes("cvt.pack.sat.s16.s32", "d:u32 a:s32 b:s32", |_| {
            each!(|a: i32, b: i32| (saturated!(a, i16) as u32) << 16 | saturated!(b, i16) as u16 as u32)
        }),
        lanes("cvt.pack.sat.u8.s32.b32", "d:u32 a:s32 b:s32 c:b32", |_| {
            each!(|a: i32, b: i32, c: u32| c << 16 | (saturated!(a, u8) as u32) << 8 | saturated!(b, u8) as u32)
        }),
        lanes("cvt.pack.sat.s8.s32.b32", "d:u32 a:s32 b:s32 c:b32", |_| {
            each!(|a: i32, b: i32, c: u32| {
                c << 16 | (saturated!(a, i8) as u8 as u32) << 8 | saturated!(b, i8) as u8 as u32
            })
        }),
    ];
    out.extend(packs.map(|row| row.since(6, 5, 72)));
}
