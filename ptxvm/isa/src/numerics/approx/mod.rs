//! The approximate functions (`ex2.approx` and the like).
//!
//! The ISA gives bounds, not values. Here a function is evaluated in f64, with an error of about 2^-52 of the result, and
//! rounded once: that is the correctly rounded result unless the true one is within that error of the middle of two
//! neighbours. `tests/numerics/approx.rs` looks at all inputs; the eight where it is not are listed (`mended`). The adversary moves the result by a seeded amount within
//! the ISA's bound ([`Moved`](crate::numerics::Approx::Adversary)).
//!
//! The evaluations have no branches and call nothing, so that a loop over lanes becomes vector code; nor do they use fused
//! operations, so that they give the same bits on every machine.

pub mod adversary;
pub mod exponential;
pub mod gross;
pub mod logarithm;
pub mod quotient;
pub mod root;
pub mod trigonometric;

use half::f16;

use super::flags::FTZ;
use super::format::Format;
use super::sixteen::{self, Sixteen};
use super::{Settings, single};
use adversary::Reach;

/// Adding it to a small number and taking it off again rounds to an integer, which is then in the low bits of the sum.
const ROUNDER: f64 = 6755399441055744.0;

/// A function of one number that the ISA lets be approximate.
pub trait Function {
    /// Tells its moves from another function's.
    const ID: u64;
    /// The largest magnitude of a result.
    const LARGEST: f64 = f64::INFINITY;
    /// Its value, with an error of about 2^-52 of it; special values as the ISA's table says.
    fn value(x: f64) -> f64;
    /// Its correctly rounded value as f32.
    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        Self::value(x.into()) as f32
    }
    /// How far a result in f32 may be from the value, which is `value`.
    fn reach(x: f64, value: f64) -> Reach;
    /// How far a result in f16 (or else bf16) may be.
    fn short_reach(_half: bool) -> Reach {
        Reach::Ulp(0.0)
    }
}

/// `near`, the rounded value at `x`, unless `x` is one of the hard cases: those inputs, of all, for which the true value is so
/// near to the middle of two f32 that the error in f64 decides. Each is the bits of the input and of the result.
#[inline(always)]
fn mended<const N: usize>(x: f32, near: f32, hard: [(u32, u32); N]) -> f32 {
    hard.iter().fold(near, |near, &(input, result)| if x.to_bits() == input { f32::from_bits(result) } else { near })
}

/// The function correctly rounded.
#[inline(always)]
pub fn rounded<F: Function, const M: u32>(x: f32) -> f32 {
    single::finish::<M>(F::rounded(single::source::<M>(x)))
}

/// The function moved by the adversary.
pub fn moved<F: Function, const M: u32>(x: f32, settings: &Settings) -> f32 {
    let x = single::source::<M>(x);
    let (exact, near) = (F::value(x.into()), single::finish::<M>(F::rounded(x)));
    if x == 0.0 || x.is_infinite() {
        return near;
    }
    let allowed = F::reach(x.into(), exact).absolute(exact, 23, -126);
    let draw = adversary::draw(settings.seed, F::ID, x.to_bits().into());
    let round = |wanted: f64| single::finish::<M>(wanted as f32);
    let [down, up] = [near.next_down(), near.next_up()];
    let chosen = adversary::choose(exact, allowed, draw, round, f64::from, [near, down, up]);
    if f64::from(chosen).abs() <= F::LARGEST { chosen } else { near }
}

/// The function of an f16 or bf16, correctly rounded.
#[inline(always)]
pub fn rounded_short<T: Sixteen, F: Function, const M: u32>(x: T) -> T {
    sixteen::finish::<T, M>(F::value(sixteen::source::<T, M>(x)))
}

/// The function of an f16 or bf16, moved by the adversary.
pub fn moved_short<T: Sixteen, F: Function, const M: u32>(x: T, settings: &Settings) -> T {
    let x = if M & FTZ != 0 { sixteen::flush(x) } else { x };
    let value = |x: T| sixteen::source::<T, 0>(x);
    let exact = F::value(value(x));
    let near = sixteen::finish::<T, M>(exact);
    if value(x) == 0.0 || value(x).is_infinite() || near.bits() & (T::SIGN as u16 - 1) == 0 {
        return near;
    }
    let half = T::FRACTION == f16::FRACTION;
    let allowed = F::short_reach(half).absolute(exact, T::FRACTION as i32, T::LEAST);
    let draw = adversary::draw(settings.seed, F::ID, u64::from(x.bits()) | u64::from(T::FRACTION) << 32);
    let neighbours = [near, T::of(near.bits() - 1), T::of(near.bits() + 1)];
    let chosen = adversary::choose(exact, allowed, draw, sixteen::finish::<T, M>, value, neighbours);
    if value(chosen).abs() <= F::LARGEST { chosen } else { near }
}
