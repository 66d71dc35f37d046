//! The approximate functions: `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rcp`, `rsqrt`, `sqrt`, `div.approx` and `div.full`.
//!
//! Each lane function asks once whether the adversary is on ([`Approx`]); without it, the loop is vector code.

use half::{bf16, f16};

use super::flagged::flagged;
use super::{Form, Mods, lanes};
use crate::lanes::{map1, map2};
use crate::numerics::approx::exponential::{Ex2, Tanh};
use crate::numerics::approx::logarithm::Lg2;
use crate::numerics::approx::root::{Rcp, Rsqrt, Sqrt};
use crate::numerics::approx::trigonometric::{self, Cos, NEAR, Sin};
use crate::numerics::approx::{Function, moved, moved_short, quotient, rounded, rounded_short};
use crate::numerics::sixteen::both;
use crate::numerics::{Approx, single};
use crate::program::LaneFn;

/// A function of f32.
fn of_f32<F: Function>(m: &Mods) -> LaneFn {
    flagged!(m, M of ftz, |r, o, mask, s| match s.approx {
        Approx::Rounded => map1(r, o, mask, |a: f32| rounded::<F, M>(a)),
        Approx::Adversary => map1(r, o, mask, |a: f32| moved::<F, M>(a, s)),
    })
}

/// `sin` or `cos`: `near` is the evaluation for angles that the fast reduction takes. Where a lane has another, all take the
/// long way, which gives the same for the near ones.
macro_rules! of_angle {
    ($function:ty, $near:path) => {
        |m| {
            flagged!(m, M of ftz, |r, o, mask, s| match s.approx {
                Approx::Adversary => map1(r, o, mask, |a: f32| moved::<$function, M>(a, s)),
                Approx::Rounded if r.narrow(o[1]).iter().all(|&bits| f32::from_bits(bits).abs() <= NEAR) => {
                    map1(r, o, mask, |a: f32| single::finish::<M>($near(single::source::<M>(a))))
                }
                Approx::Rounded => map1(r, o, mask, |a: f32| rounded::<$function, M>(a)),
            })
        }
    };
}

/// A function of f16 or bf16, single and packed; `$flags` are the constant flags of the rows.
macro_rules! of_short {
    ($out:ident, $text:literal, $function:ty, $flags:literal, $float:ident, $single:literal, $packed:literal,
        ($major:literal, $minor:literal, $sm:literal)) => {
        $out.extend([
            lanes(concat!($text, ".", $single), concat!("d:", $single, " a:", $single), |_| {
                |r, o, mask, s| match s.approx {
                    Approx::Rounded => map1(r, o, mask, |a: $float| rounded_short::<$float, $function, $flags>(a)),
                    Approx::Adversary => map1(r, o, mask, |a: $float| moved_short::<$float, $function, $flags>(a, s)),
                }
            })
            .since($major, $minor, $sm),
            lanes(concat!($text, ".", $packed), concat!("d:", $packed, " a:", $packed), |_| {
                |r, o, mask, s| match s.approx {
                    Approx::Rounded => {
                        map1(r, o, mask, |a: [u16; 2]| both(a, rounded_short::<$float, $function, $flags>))
                    }
                    Approx::Adversary => {
                        map1(r, o, mask, |a: [u16; 2]| both(a, |a| moved_short::<$float, $function, $flags>(a, s)))
                    }
                }
            })
            .since($major, $minor, $sm),
        ]);
    };
}

/// The rows.
pub(super) fn rows(out: &mut Vec<Form>) {
    out.extend([
        lanes("ex2.approx{.ftz}.f32", "d:f32 a:f32", of_f32::<Ex2>).since(1, 4, 10),
        lanes("lg2.approx{.ftz}.f32", "d:f32 a:f32", of_f32::<Lg2>).since(1, 4, 10),
        lanes("tanh.approx.f32", "d:f32 a:f32", of_f32::<Tanh>).since(7, 0, 75),
        lanes("rcp.approx{.ftz}.f32", "d:f32 a:f32", of_f32::<Rcp>).since(1, 4, 10),
        lanes("rsqrt.approx{.ftz}.f32", "d:f32 a:f32", of_f32::<Rsqrt>).since(1, 4, 10),
        lanes("sqrt.approx{.ftz}.f32", "d:f32 a:f32", of_f32::<Sqrt>).since(1, 4, 10),
        lanes("sin.approx{.ftz}.f32", "d:f32 a:f32", of_angle!(Sin, trigonometric::near_sin_rounded)).since(1, 4, 10),
        lanes("cos.approx{.ftz}.f32", "d:f32 a:f32", of_angle!(Cos, trigonometric::near_cos_rounded)).since(1, 4, 10),
        lanes("div.approx{.ftz}.f32", "d:f32 a:f32 b:f32", |m| {
            flagged!(m, M of ftz, |r, o, mask, s| match s.approx {
                Approx::Rounded => map2(r, o, mask, |a: f32, b: f32| quotient::approx::<M>(a, b)),
                Approx::Adversary => map2(r, o, mask, |a: f32, b: f32| quotient::approx_moved::<M>(a, b, s)),
            })
        })
        .since(1, 4, 10),
        lanes("div.full{.ftz}.f32", "d:f32 a:f32 b:f32", |m| {
            flagged!(m, M of ftz, |r, o, mask, s| match s.approx {
                Approx::Rounded => map2(r, o, mask, |a: f32, b: f32| quotient::full::<M>(a, b)),
                Approx::Adversary => map2(r, o, mask, |a: f32, b: f32| quotient::full_moved::<M>(a, b, s)),
            })
        })
        .since(1, 4, 10),
    ]);
    of_short!(out, "ex2.approx", Ex2, 0, f16, "f16", "f16x2", (7, 0, 75));
    of_short!(out, "ex2.approx.ftz", Ex2, 8, bf16, "bf16", "bf16x2", (7, 8, 90));
    of_short!(out, "tanh.approx", Tanh, 0, f16, "f16", "f16x2", (7, 0, 75));
    of_short!(out, "tanh.approx", Tanh, 0, bf16, "bf16", "bf16x2", (7, 8, 90));
}
