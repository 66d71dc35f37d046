//! `mov`: PTX ISA 9.7.9.3 and 9.7.9.4. Lowering decides by the operands what a `mov` is; between registers, and to and
//! from vectors of them, it is one of the functions here.

use super::{Build, Flow, Form, row};
use crate::lanes::each;
use crate::program::LaneFn;
use crate::types::Type;

pub(super) fn rows(out: &mut Vec<Form>) {
    let scalars = [
        ("mov.pred", "d:pred a:pred"),
        ("mov.b16", "d:b16 a:b16"),
        ("mov.b32", "d:b32 a:b32"),
        ("mov.b64", "d:b64 a:b64"),
        ("mov.u16", "d:u16 a:u16"),
        ("mov.u32", "d:u32 a:u32"),
        ("mov.u64", "d:u64 a:u64"),
        ("mov.s16", "d:s16 a:s16"),
        ("mov.s32", "d:s32 a:s32"),
        ("mov.s64", "d:s64 a:s64"),
        ("mov.f32", "d:f32 a:f32"),
        ("mov.f64", "d:f64 a:f64"),
    ];
    out.extend(scalars.map(|(text, operands)| row(text, operands, Build::Move).flow(Flow::Bytes)));
}

/// `mov` between registers of a type: operands d, a.
pub fn copy(ty: Type) -> LaneFn {
    match ty.bits() {
        1 => each!(|a: bool| a),
        64 => each!(|a: u64| a),
        _ => each!(|a: u32| a),
    }
}

/// `mov` of a vector into a scalar of a type, the first element lowest: operands d and the `parts` elements. None where
/// the ISA has no such vector.
pub fn pack(whole: Type, parts: usize) -> Option<LaneFn> {
    Some(match (whole.bits(), parts) {
        (16, 2) => each!(|a: u8, b: u8| u16::from_le_bytes([a, b])),
        (32, 2) => each!(|a: u16, b: u16| u32::from(a) | u32::from(b) << 16),
        (32, 4) => each!(|a: u8, b: u8, c: u8, e: u8| u32::from_le_bytes([a, b, c, e])),
        (64, 2) => each!(|a: u32, b: u32| u64::from(a) | u64::from(b) << 32),
        (64, 4) => each!(|a: u16, b: u16, c: u16, e: u16| {
            u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(e) << 48
        }),
        _ => return None,
    })
}

/// `mov` of a scalar of a type into a vector: operands are the `parts` elements, lowest first, and a. None where the ISA
/// has no such vector.
pub fn unpack(whole: Type, parts: usize) -> Option<LaneFn> {
    Some(match (whole.bits(), parts) {
        (16, 2) => each!(|a: u16| (a as u8, (a >> 8) as u8)),
        (32, 2) => each!(|a: u32| (a as u16, (a >> 16) as u16)),
        (32, 4) => each!(|a: u32| a.to_le_bytes()),
        (64, 2) => each!(|a: u64| (a as u32, (a >> 32) as u32)),
        (64, 4) => each!(|a: u64| [a as u16, (a >> 16) as u16, (a >> 32) as u16, (a >> 48) as u16]),
        _ => return None,
    })
}
