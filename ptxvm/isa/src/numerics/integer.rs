//! Conversions between floats and integers, and rounding of floats to integral values.

use super::double;
use super::flags::{DOWN, NEAREST, ROUNDING, UP, ZERO};
use super::single::narrow;

/// An integer that conversions make and take.
pub trait Integer: Copy {
    /// Bits.
    const BITS: u32;
    /// The nearest integer of the type; NaN is 0.
    fn clamped(x: f64) -> Self;
    /// Only the highest bit is set.
    fn high_bit() -> Self;
    /// Its value.
    fn value(self) -> i128;
    /// Rounded to nearest.
    fn near(self) -> f64;
}

macro_rules! integer {
    ($($ty:ty)*) => { $(
        impl Integer for $ty {
            const BITS: u32 = <$ty>::BITS;
            #[inline(always)]
            fn clamped(x: f64) -> $ty {
                x as $ty
            }
            #[inline(always)]
            fn high_bit() -> $ty {
                (1 as $ty) << (<$ty>::BITS - 1)
            }
            #[inline(always)]
            fn value(self) -> i128 {
                self.into()
            }
            #[inline(always)]
            fn near(self) -> f64 {
                self as f64
            }
        }
    )* };
}

integer! { u8 i8 u16 i16 u32 i32 u64 i64 }

/// The integral value next to `x` in the direction of the rounding.
#[inline(always)]
pub fn integral<const M: u32>(x: f64) -> f64 {
    match M & ROUNDING {
        NEAREST => x.round_ties_even(),
        ZERO => x.trunc(),
        DOWN => x.floor(),
        _ => x.ceil(),
    }
}

/// As [`integral`], of an f32.
#[inline(always)]
pub fn integral_f32<const M: u32>(x: f32) -> f32 {
    match M & ROUNDING {
        NEAREST => x.round_ties_even(),
        ZERO => x.trunc(),
        DOWN => x.floor(),
        _ => x.ceil(),
    }
}

/// A float, as f64, to an integer. What is out of range becomes the nearest integer of the type. NaN becomes 0, but the
/// highest bit alone where the source is f64 (`DOUBLE`) or the result has 64 bits.
#[inline(always)]
pub fn to_integer<I: Integer, const M: u32, const DOUBLE: bool>(x: f64) -> I {
    let rounded = I::clamped(integral::<M>(x));
    if (DOUBLE || I::BITS == 64) && x.is_nan() { I::high_bit() } else { rounded }
}

/// An integer to f64.
#[inline(always)]
pub fn to_f64<I: Integer, const M: u32>(x: I) -> f64 {
    let near = x.near();
    if M & ROUNDING == NEAREST || I::BITS < 64 {
        return near;
    }
    // Exact: an f64 made of 64 bits is an integer of at most 65.
    let back = near as i128;
    let step = match M & ROUNDING {
        DOWN => back > x.value(),
        UP => back < x.value(),
        _ => back.abs() > x.value().abs(),
    };
    match M & ROUNDING {
        _ if !step => near,
        DOWN => near.next_down(),
        UP => near.next_up(),
        _ => f64::from_bits(near.to_bits() - 1),
    }
}

/// An integer as f64: exact, or rounded to odd, so that it may be rounded once more.
#[inline(always)]
pub fn to_odd<I: Integer>(x: I) -> f64 {
    if I::BITS < 64 {
        return x.near();
    }
    let down = to_f64::<I, ZERO>(x);
    let inexact = down as i128 != x.value();
    f64::from_bits(down.to_bits() | u64::from(inexact))
}

/// An integer to f32.
#[inline(always)]
pub fn to_f32<I: Integer, const M: u32>(x: I) -> f32 {
    narrow::<M>(to_odd(x))
}

/// An f64 to f32; NaN is the NaN of f32.
#[inline(always)]
pub fn single_of_double<const M: u32>(x: f64) -> f32 {
    let narrowed = narrow::<M>(x);
    if double::is_nan(x) { super::single::NAN } else { narrowed }
}

/// The f64 of an f32: exact. NaN keeps its sign and payload, quieted.
#[inline(always)]
pub fn double_of_single(x: f32) -> f64 {
    let bits = u64::from(x.to_bits());
    let nan =
        double::quiet(f64::from_bits((bits & 0x8000_0000) << 32 | 0x7ff0_0000_0000_0000 | (bits & 0x007f_ffff) << 29));
    if super::single::is_nan(x) { nan } else { f64::from(x) }
}
