//! `selp` and `slct`: PTX ISA 9.7.6.3 and 9.7.6.4.

use super::typed::typed;
use super::{Flow, Form, Mods};
use crate::lanes::each;

pub(super) fn rows(out: &mut Vec<Form>) {
    let select = |row: Form| row.flow(Flow::Select);
    out.extend(
        typed!("selp", "d:T a:T b:T c:pred", [b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64], |a: T, b: T, c: bool| {
            if c { a } else { b }
        })
        .map(select),
    );
    slct(out, select);
}

/// `slct` for one type of its values, by an integer and by a float; a NaN selects b, and so does a negative number that
/// `.ftz` does not flush to -0.
macro_rules! slct {
    ($out:ident, $each_row:expr, [$($ty:ident)*]) => { $(
        $out.push($each_row(super::lanes(
            concat!("slct.", stringify!($ty), ".s32"),
            concat!("d:", stringify!($ty), " a:", stringify!($ty), " b:", stringify!($ty), " c:s32"),
            |_| {
                type T = super::typed::value!($ty);
                each!(|a: T, b: T, c: i32| if c >= 0 { a } else { b })
            },
        )));
        $out.push($each_row(super::lanes(
            concat!("slct{.ftz}.", stringify!($ty), ".f32"),
            concat!("d:", stringify!($ty), " a:", stringify!($ty), " b:", stringify!($ty), " c:f32"),
            |m: &Mods| {
                type T = super::typed::value!($ty);
                match m.has("ftz") {
                    true => each!(|a: T, b: T, c: f32| if c >= 0.0 || c.is_subnormal() { a } else { b }),
                    false => each!(|a: T, b: T, c: f32| if c >= 0.0 { a } else { b }),
                }
            },
        )));
    )* };
}

fn slct(out: &mut Vec<Form>, select: fn(Form) -> Form) {
    slct!(out, select, [b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64]);
}
