//! `div.approx` and `div.full`: the correctly rounded quotient, or one moved by at most 2 ulp.

use super::adversary::{self, Reach};
use crate::numerics::{Settings, single};

const FULL: u64 = 9;
const APPROX: u64 = 10;

/// 2^126.
const LARGE: f32 = 8.507059e37;

/// `div.full`.
#[inline(always)]
pub fn full<const M: u32>(a: f32, b: f32) -> f32 {
    single::finish::<M>(single::source::<M>(a) / single::source::<M>(b))
}

/// `div.full`, moved by the adversary.
pub fn full_moved<const M: u32>(a: f32, b: f32, settings: &Settings) -> f32 {
    moved::<M>(full::<M>(a, b), a, b, settings, FULL)
}

/// `div.approx`: a product with the reciprocal, which is zero for a divisor above 2^126.
#[inline(always)]
pub fn approx<const M: u32>(a: f32, b: f32) -> f32 {
    let (a, b) = (single::source::<M>(a), single::source::<M>(b));
    let reciprocal_is_zero = b.abs() > LARGE && b.is_finite();
    let divisor = if reciprocal_is_zero { f32::INFINITY.copysign(b) } else { b };
    single::finish::<M>(a / divisor)
}

/// `div.approx`, moved by the adversary; below 2^-126 the ISA gives no bound, and nothing is moved.
pub fn approx_moved<const M: u32>(a: f32, b: f32, settings: &Settings) -> f32 {
    let near = approx::<M>(a, b);
    let bounded = b.abs() >= f32::MIN_POSITIVE && b.abs() <= LARGE;
    if bounded { moved::<M>(near, a, b, settings, APPROX) } else { near }
}

fn moved<const M: u32>(near: f32, a: f32, b: f32, settings: &Settings, operation: u64) -> f32 {
    let (a, b) = (single::source::<M>(a), single::source::<M>(b));
    let exact = f64::from(a) / f64::from(b);
    let allowed = Reach::Ulp(2.0).absolute(exact, 23, -126);
    let draw = adversary::draw(settings.seed, operation, u64::from(a.to_bits()) << 32 | u64::from(b.to_bits()));
    let round = |wanted: f64| single::finish::<M>(wanted as f32);
    adversary::choose(exact, allowed, draw, round, f64::from, [near, near.next_down(), near.next_up()])
}
