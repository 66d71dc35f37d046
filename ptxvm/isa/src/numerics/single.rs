//! f32 arithmetic: every rounding, `.ftz` and `.sat`.
//!
//! Round to nearest is the processor's own. The other roundings go through f64: an exact result, or one rounded to odd,
//! lies on the same side of every f32 as the true one, so one more rounding is the only one ([`narrow`]).

use super::flags::{DOWN, FTZ, NEAREST, ROUNDING, SAT, UP};

/// The NaN that single-precision instructions return.
pub const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// A subnormal becomes a zero of its sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// A source as the flags say.
#[inline(always)]
pub fn source<const M: u32>(x: f32) -> f32 {
    if M & FTZ != 0 { flush(x) } else { x }
}

/// Bits of infinity: magnitudes above it are NaNs.
const INFINITY: u32 = 0x7f80_0000;

/// Whether it is a NaN, by the bits: to the compiler all NaNs are one, so that it may leave the processor's own where
/// `if x.is_nan() { NAN } else { x }` asks for another.
#[inline(always)]
pub fn is_nan(x: f32) -> bool {
    x.to_bits() & 0x7fff_ffff > INFINITY
}

/// A result as the flags say.
#[inline(always)]
pub fn finish<const M: u32>(x: f32) -> f32 {
    let x = if M & FTZ != 0 { flush(x) } else { x };
    if M & SAT != 0 {
        // NaN fails the comparison, and so does -0: both become +0.
        let x = if x > 0.0 { x } else { 0.0 };
        return if x < 1.0 { x } else { 1.0 };
    }
    if is_nan(x) { NAN } else { x }
}

/// The sum of two f64, rounded to odd: exact, or the one of its two neighbours whose last bit is set. Rounding that to a
/// format of at least two bits fewer gives what rounding the exact sum would (Boldo and Melquiond, 2008).
#[inline(always)]
pub(super) fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    let bits = sum.to_bits();
    let toward = if (error > 0.0) == (sum > 0.0) { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    // A comparison with the NaN that infinities make is false.
    let inexact = error.abs() > 0.0;
    f64::from_bits(if inexact && bits & 1 == 0 { toward } else { bits })
}

/// The zero that an exact sum of `a` and `b` is, where it is one: rounding down makes it negative unless both are +0.
#[inline(always)]
pub(super) fn zero_sum<const M: u32>(sum: f64, a: f64, b: f64) -> f64 {
    if M & ROUNDING == DOWN && sum == 0.0 && (a.is_sign_negative() || b.is_sign_negative()) { -0.0 } else { sum }
}

/// Rounds an exact value, or one rounded to odd, to f32.
#[inline(always)]
pub fn narrow<const M: u32>(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let step = match M & ROUNDING {
        NEAREST => return near,
        DOWN => back > x,
        UP => back < x,
        _ => back.abs() > x.abs(),
    };
    if !step {
        return near;
    }
    match M & ROUNDING {
        DOWN => near.next_down(),
        UP => near.next_up(),
        // It is further from zero than x, so it is no zero.
        _ => f32::from_bits(near.to_bits() - 1),
    }
}

/// `a + b`.
#[inline(always)]
pub fn add<const M: u32>(a: f32, b: f32) -> f32 {
    let (a, b) = (source::<M>(a), source::<M>(b));
    if M & ROUNDING == NEAREST {
        return finish::<M>(a + b);
    }
    let (a, b) = (f64::from(a), f64::from(b));
    finish::<M>(narrow::<M>(zero_sum::<M>(sum_to_odd(a, b), a, b)))
}

/// `a - b`.
#[inline(always)]
pub fn sub<const M: u32>(a: f32, b: f32) -> f32 {
    add::<M>(a, -b)
}

/// `a * b`.
#[inline(always)]
pub fn mul<const M: u32>(a: f32, b: f32) -> f32 {
    let (a, b) = (source::<M>(a), source::<M>(b));
    if M & ROUNDING == NEAREST {
        return finish::<M>(a * b);
    }
    finish::<M>(narrow::<M>(f64::from(a) * f64::from(b)))
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma<const M: u32>(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (source::<M>(a), source::<M>(b), source::<M>(c));
    if M & ROUNDING == NEAREST {
        return finish::<M>(a.mul_add(b, c));
    }
    // The product of two 24-bit numbers is exact.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    finish::<M>(narrow::<M>(zero_sum::<M>(sum_to_odd(product, c), product, c)))
}

/// `a / b`.
#[inline(always)]
pub fn div<const M: u32>(a: f32, b: f32) -> f32 {
    let (a, b) = (source::<M>(a), source::<M>(b));
    if M & ROUNDING == NEAREST {
        return finish::<M>(a / b);
    }
    // A quotient of 24-bit numbers that is no f32 is at least 2^-48 of itself away from one, so rounding it to the 53 bits
    // of an f64 does not make it one.
    finish::<M>(narrow::<M>(f64::from(a) / f64::from(b)))
}

/// The square root.
#[inline(always)]
pub fn sqrt<const M: u32>(a: f32) -> f32 {
    let a = source::<M>(a);
    if M & ROUNDING == NEAREST {
        return finish::<M>(a.sqrt());
    }
    // As for quotients: an inexact root is further from every f32 than an f64 can hide.
    finish::<M>(narrow::<M>(f64::from(a).sqrt()))
}
