//! f32 arithmetic with one rounding: `add`, `sub`, `mul`, `fma`, `mad`, `div`, `rcp`, `sqrt`.

use super::flagged::flagged;
use super::{Form, Mods, lanes};
use crate::lanes::each;
use crate::numerics::single;
use crate::program::LaneFn;

/// `fma`, of which `mad` is another name.
fn fused(m: &Mods) -> LaneFn {
    flagged!(m, M of rounding ftz sat, each!(|a: f32, b: f32, c: f32| single::fma::<M>(a, b, c)))
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    out.extend([
        lanes(
            "add{.rn|.rz|.rm|.rp}{.ftz}{.sat}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of rounding ftz sat, each!(|a: f32, b: f32| single::add::<M>(a, b))),
        ),
        lanes(
            "sub{.rn|.rz|.rm|.rp}{.ftz}{.sat}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of rounding ftz sat, each!(|a: f32, b: f32| single::sub::<M>(a, b))),
        ),
        lanes(
            "mul{.rn|.rz|.rm|.rp}{.ftz}{.sat}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of rounding ftz sat, each!(|a: f32, b: f32| single::mul::<M>(a, b))),
        ),
        lanes("fma(.rn|.rz|.rm|.rp){.ftz}{.sat}.f32", "d:f32 a:f32 b:f32 c:f32", fused).since(2, 0, 20),
        lanes("mad(.rn|.rz|.rm|.rp){.ftz}{.sat}.f32", "d:f32 a:f32 b:f32 c:f32", fused).since(2, 0, 20),
        lanes(
            "div(.rn|.rz|.rm|.rp){.ftz}.f32",
            "d:f32 a:f32 b:f32",
            |m| flagged!(m, M of rounding ftz, each!(|a: f32, b: f32| single::div::<M>(a, b))),
        )
        .since(1, 4, 20),
        lanes(
            "rcp(.rn|.rz|.rm|.rp){.ftz}.f32",
            "d:f32 a:f32",
            |m| flagged!(m, M of rounding ftz, each!(|a: f32| single::div::<M>(1.0, a))),
        )
        .since(2, 0, 20),
        lanes(
            "sqrt(.rn|.rz|.rm|.rp){.ftz}.f32",
            "d:f32 a:f32",
            |m| flagged!(m, M of rounding ftz, each!(|a: f32| single::sqrt::<M>(a))),
        )
        .since(2, 0, 20),
    ]);
}
