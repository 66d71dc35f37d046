//! f16 and bf16 arithmetic. Everything is computed in f64 and rounded once:
//!
//! - sums and products of f16, products of bf16 are exact in f64;
//! - a sum of bf16 of very different size is not, nor is the sum of a fused multiply-add: those are rounded to odd, so that
//!   the one rounding that follows is right.

use half::{bf16, f16};

use super::flags::{FTZ, SAT};
use super::format::{self, Format};
use super::single::{sum_to_odd, zero_sum};

/// f16 or bf16.
pub trait Sixteen: Format {
    /// Of its bits.
    fn of(bits: u16) -> Self;
    /// Its bits.
    fn bits(self) -> u16;
}

impl Sixteen for f16 {
    #[inline(always)]
    fn of(bits: u16) -> f16 {
        f16::from_bits(bits)
    }
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Sixteen for bf16 {
    #[inline(always)]
    fn of(bits: u16) -> bf16 {
        bf16::from_bits(bits)
    }
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// A subnormal becomes a zero of its sign.
#[inline(always)]
pub fn flush<F: Sixteen>(x: F) -> F {
    let bits = x.bits();
    let sign = F::SIGN as u16;
    F::of(if bits & (sign - 1) < 1 << F::FRACTION { bits & sign } else { bits })
}

/// A source as the flags say, exactly.
#[inline(always)]
pub fn source<F: Sixteen, const M: u32>(x: F) -> f64 {
    let x = if M & FTZ != 0 { flush(x) } else { x };
    f64::from(format::to_f32::<F>(x.bits().into()))
}

/// Rounds a result and finishes it as the flags say.
#[inline(always)]
pub fn finish<F: Sixteen, const M: u32>(x: f64) -> F {
    // NaN fails the comparison, and so does -0: both become +0.
    let x = if M & SAT != 0 { if x > 0.0 { x.min(1.0) } else { 0.0 } } else { x };
    let rounded = F::of(format::from_f64::<F, M>(x) as u16);
    if M & FTZ != 0 { flush(rounded) } else { rounded }
}

/// The exact sum of two values, or the sum rounded to odd.
#[inline(always)]
fn sum<const M: u32>(a: f64, b: f64) -> f64 {
    zero_sum::<M>(sum_to_odd(a, b), a, b)
}

/// `a + b`.
#[inline(always)]
pub fn add<F: Sixteen, const M: u32>(a: F, b: F) -> F {
    finish::<F, M>(sum::<M>(source::<F, M>(a), source::<F, M>(b)))
}

/// `a - b`.
#[inline(always)]
pub fn sub<F: Sixteen, const M: u32>(a: F, b: F) -> F {
    finish::<F, M>(sum::<M>(source::<F, M>(a), -source::<F, M>(b)))
}

/// `a * b`.
#[inline(always)]
pub fn mul<F: Sixteen, const M: u32>(a: F, b: F) -> F {
    finish::<F, M>(source::<F, M>(a) * source::<F, M>(b))
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma<F: Sixteen, const M: u32>(a: F, b: F, c: F) -> F {
    finish::<F, M>(sum::<M>(source::<F, M>(a) * source::<F, M>(b), source::<F, M>(c)))
}

/// An operation on both halves of packed values.
#[inline(always)]
pub fn both<F: Sixteen>(a: [u16; 2], f: impl Fn(F) -> F) -> [u16; 2] {
    [f(F::of(a[0])).bits(), f(F::of(a[1])).bits()]
}

/// An operation on both halves of two packed values.
#[inline(always)]
pub fn both2<F: Sixteen>(a: [u16; 2], b: [u16; 2], f: impl Fn(F, F) -> F) -> [u16; 2] {
    [f(F::of(a[0]), F::of(b[0])).bits(), f(F::of(a[1]), F::of(b[1])).bits()]
}

/// An operation on both halves of three packed values.
#[inline(always)]
pub fn both3<F: Sixteen>(a: [u16; 2], b: [u16; 2], c: [u16; 2], f: impl Fn(F, F, F) -> F) -> [u16; 2] {
    [f(F::of(a[0]), F::of(b[0]), F::of(c[0])).bits(), f(F::of(a[1]), F::of(b[1]), F::of(c[1])).bits()]
}
