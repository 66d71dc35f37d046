//! f16 and bf16 arithmetic, single and packed: `add`, `sub`, `mul`, `fma`.

use half::{bf16, f16};

use super::flagged::flagged;
use super::{Build, Form, lanes, row};
use crate::lanes::each;
use crate::numerics::sixteen::{self, both2, both3};

const OOB: Build = Build::Refused(".oob is a form of sm_90, which this device does not run");

/// `add`, `sub` or `mul` of one operation.
macro_rules! two_sources {
    ($out:ident, $name:literal, $operation:ident) => {
        $out.extend([
            lanes(concat!($name, "{.rn}{.ftz}{.sat}.f16"), "d:f16 a:f16 b:f16", |m| {
                flagged!(m, M of ftz sat, each!(|a: f16, b: f16| sixteen::$operation::<f16, M>(a, b)))
            })
            .since(4, 2, 53),
            lanes(concat!($name, "{.rn}{.ftz}{.sat}.f16x2"), "d:f16x2 a:f16x2 b:f16x2", |m| {
                flagged!(m, M of ftz sat, each!(|a: [u16; 2], b: [u16; 2]| both2(a, b, sixteen::$operation::<f16, M>)))
            })
            .since(4, 2, 53),
            lanes(concat!($name, "{.rn}.bf16"), "d:bf16 a:bf16 b:bf16", |_| {
                each!(|a: bf16, b: bf16| sixteen::$operation::<bf16, 0>(a, b))
            })
            .since(7, 8, 90),
            lanes(concat!($name, "{.rn}.bf16x2"), "d:bf16x2 a:bf16x2 b:bf16x2", |_| {
                each!(|a: [u16; 2], b: [u16; 2]| both2(a, b, sixteen::$operation::<bf16, 0>))
            })
            .since(7, 8, 90),
        ]);
    };
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    two_sources!(out, "add", add);
    two_sources!(out, "sub", sub);
    two_sources!(out, "mul", mul);
    out.extend([
        lanes("fma.rn{.ftz}{.sat}.f16", "d:f16 a:f16 b:f16 c:f16", |m| {
            flagged!(m, M of ftz sat, each!(|a: f16, b: f16, c: f16| sixteen::fma::<f16, M>(a, b, c)))
        })
        .since(4, 2, 53),
        lanes("fma.rn{.ftz}{.sat}.f16x2", "d:f16x2 a:f16x2 b:f16x2 c:f16x2", |m| {
            flagged!(m, M of ftz sat, each!(|a: [u16; 2], b: [u16; 2], c: [u16; 2]| both3(a, b, c, sixteen::fma::<f16, M>)))
        })
        .since(4, 2, 53),
        lanes("fma.rn{.ftz}.relu.f16", "d:f16 a:f16 b:f16 c:f16", |m| {
            flagged!(m, M of ftz relu, each!(|a: f16, b: f16, c: f16| sixteen::fma::<f16, M>(a, b, c)))
        })
        .since(7, 0, 80),
        lanes("fma.rn{.ftz}.relu.f16x2", "d:f16x2 a:f16x2 b:f16x2 c:f16x2", |m| {
            flagged!(m, M of ftz relu, each!(|a: [u16; 2], b: [u16; 2], c: [u16; 2]| both3(a, b, c, sixteen::fma::<f16, M>)))
        })
        .since(7, 0, 80),
        // The ISA has `.rn` alone; ptxas takes the other roundings too.
        lanes("fma(.rn|.rz|.rm|.rp){.relu}.bf16", "d:bf16 a:bf16 b:bf16 c:bf16", |m| {
            flagged!(m, M of rounding relu, each!(|a: bf16, b: bf16, c: bf16| sixteen::fma::<bf16, M>(a, b, c)))
        })
        .since(7, 0, 80),
        lanes("fma(.rn|.rz|.rm|.rp){.relu}.bf16x2", "d:bf16x2 a:bf16x2 b:bf16x2 c:bf16x2", |m| {
            flagged!(m, M of rounding relu,
                each!(|a: [u16; 2], b: [u16; 2], c: [u16; 2]| both3(a, b, c, sixteen::fma::<bf16, M>)))
        })
        .since(7, 0, 80),
        row("fma.rn.oob{.relu}.f16", "d:f16 a:f16 b:f16 c:f16", OOB).since(8, 1, 90),
        row("fma.rn.oob{.relu}.f16x2", "d:f16x2 a:f16x2 b:f16x2 c:f16x2", OOB).since(8, 1, 90),
        row("fma.rn.oob{.relu}.bf16", "d:bf16 a:bf16 b:bf16 c:bf16", OOB).since(8, 1, 90),
        row("fma.rn.oob{.relu}.bf16x2", "d:bf16x2 a:bf16x2 b:bf16x2 c:bf16x2", OOB).since(8, 1, 90),
    ]);
}
