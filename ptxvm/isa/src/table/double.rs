//! f64 arithmetic: `add`, `sub`, `mul`, `fma`, `mad`, `div`, `rcp`, `sqrt`, and the approximate forms of f64.

use super::flagged::flagged;
use super::{Form, Mods, lanes};
use crate::lanes::{each, map1};
use crate::numerics::approx::gross;
use crate::numerics::double;
use crate::program::LaneFn;

/// `fma`, of which `mad` is another name.
fn fused(m: &Mods) -> LaneFn {
    flagged!(m, M of rounding, each!(|a: f64, b: f64, c: f64| double::fma::<M>(a, b, c)))
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "add{.rn|.rz|.rm|.rp}.f64",
            "d:f64 a:f64 b:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64, b: f64| double::add::<M>(a, b))),
        )
        .since(1, 0, 13),
        lanes(
            "sub{.rn|.rz|.rm|.rp}.f64",
            "d:f64 a:f64 b:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64, b: f64| double::sub::<M>(a, b))),
        )
        .since(1, 0, 13),
        lanes(
            "mul{.rn|.rz|.rm|.rp}.f64",
            "d:f64 a:f64 b:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64, b: f64| double::mul::<M>(a, b))),
        )
        .since(1, 0, 13),
        lanes("fma(.rn|.rz|.rm|.rp).f64", "d:f64 a:f64 b:f64 c:f64", fused).since(1, 4, 13),
        lanes("mad(.rn|.rz|.rm|.rp).f64", "d:f64 a:f64 b:f64 c:f64", fused).since(1, 4, 13),
        lanes(
            "div(.rn|.rz|.rm|.rp).f64",
            "d:f64 a:f64 b:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64, b: f64| double::div::<M>(a, b))),
        )
        .since(1, 4, 20),
        lanes(
            "rcp(.rn|.rz|.rm|.rp).f64",
            "d:f64 a:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64| double::div::<M>(1.0, a))),
        )
        .since(1, 4, 20),
        lanes(
            "sqrt(.rn|.rz|.rm|.rp).f64",
            "d:f64 a:f64",
            |m| flagged!(m, M of rounding, each!(|a: f64| double::sqrt::<M>(a))),
        )
        .since(1, 4, 20),
        lanes("rcp.approx.ftz.f64", "d:f64 a:f64", |_| |r, o, mask, s| map1(r, o, mask, |a: f64| gross::rcp(a, s)))
            .since(2, 1, 20),
        lanes("rsqrt.approx.ftz.f64", "d:f64 a:f64", |_| |r, o, mask, s| map1(r, o, mask, |a: f64| gross::rsqrt(a, s)))
            .since(4, 0, 20),
        lanes("rsqrt.approx.f64", "d:f64 a:f64", |_| each!(|a: f64| gross::rsqrt_double(a))).since(1, 4, 13),
    ]);
}
