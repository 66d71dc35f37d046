//! The formats narrower than f32: f16, bf16, tf32, e4m3 and e5m2. Reading one is exact; writing one rounds once.

use half::{bf16, f16};

use super::flags::{RELU, SATFINITE, rounds_away, stays_finite};
use super::single;

/// A format of 19 bits or fewer: a sign, an exponent, a fraction.
pub trait Format: Copy {
    /// Bits of the exponent.
    const EXPONENT: u32;
    /// Bits of the fraction.
    const FRACTION: u32;
    /// The code of the largest finite number.
    const MAX: u32;
    /// The code of infinity; a format without has one that is no code of a number.
    const INFINITY: u32 = Self::MAX + 1;
    /// The code of the NaN that results are.
    const NAN: u32;
    /// The sign's bit.
    const SIGN: u32 = 1 << (Self::EXPONENT + Self::FRACTION);
    /// The exponent of the least normal number.
    const LEAST: i32 = 2 - (1 << (Self::EXPONENT - 1));
}

impl Format for f16 {
    const EXPONENT: u32 = 5;
    const FRACTION: u32 = 10;
    const MAX: u32 = 0x7bff;
    const NAN: u32 = 0x7fff;
}

impl Format for bf16 {
    const EXPONENT: u32 = 8;
    const FRACTION: u32 = 7;
    const MAX: u32 = 0x7f7f;
    const NAN: u32 = 0x7fff;
}

/// The high 19 bits of an f32.
#[derive(Clone, Copy, Debug)]
pub struct Tf32;

impl Format for Tf32 {
    const EXPONENT: u32 = 8;
    const FRACTION: u32 = 10;
    const MAX: u32 = 0x3_fbff;
    const NAN: u32 = 0x3_ffff;
}

/// Eight bits without infinity: the largest code is NaN.
#[derive(Clone, Copy, Debug)]
pub struct E4m3;

impl Format for E4m3 {
    const EXPONENT: u32 = 4;
    const FRACTION: u32 = 3;
    const MAX: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

/// Eight bits, as the high half of an f16.
#[derive(Clone, Copy, Debug)]
pub struct E5m2;

impl Format for E5m2 {
    const EXPONENT: u32 = 5;
    const FRACTION: u32 = 2;
    const MAX: u32 = 0x7b;
    const NAN: u32 = 0x7f;
}

/// Writes a function that rounds a binary float of `$width` bits, `$fraction` of them fraction, to a [`Format`].
macro_rules! encoder {
    ($(#[$doc:meta])* $name:ident, $float:ty, $bits:ty, $signed:ty, $width:literal, $fraction:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<F: Format, const M: u32>(x: $float) -> u32 {
            const HIDDEN: $bits = 1 << $fraction;
            const BIAS: $signed = (1 << ($width - $fraction - 2)) - 1;
            let bits = x.to_bits();
            let negative = bits >> ($width - 1) != 0;
            let magnitude = bits & (<$bits>::MAX >> 1);
            let field = (magnitude >> $fraction) as $signed;
            let significand = if field == 0 { magnitude } else { magnitude & (HIDDEN - 1) | HIDDEN };
            let exponent = field.max(1) - BIAS;
            // Below the least normal number the last place stays where it is, and bits are cut off.
            let least = F::LEAST as $signed;
            let place = exponent.max(least);
            // Past the whole significand nothing is left but that it was not zero.
            let shift = ($fraction - F::FRACTION as $signed + (place - exponent)).min($width - 1);
            let kept = significand >> shift;
            let (rest, half) = (significand & (((1 as $bits) << shift) - 1), (1 as $bits) << (shift - 1));
            let away = rounds_away::<M>(negative, kept & 1 == 1, rest as u64, half as u64);
            // The hidden bit, where it is kept, adds one to the exponent's field; so does a carry out of the fraction.
            let code = (((place - least) as u32) << F::FRACTION) + kept as u32 + u32::from(away);
            let large = if M & SATFINITE != 0 || stays_finite::<M>(negative) { F::MAX } else { F::INFINITY };
            let code = if code > F::MAX { large } else { code };
            let infinite = <$float>::INFINITY.to_bits();
            let code = if magnitude == infinite && M & SATFINITE == 0 { F::INFINITY } else { code };
            let signed = if negative { code | F::SIGN } else { code };
            let signed = if M & RELU != 0 && negative { 0 } else { signed };
            if magnitude > infinite { F::NAN } else { signed }
        }
    };
}

encoder! {
    /// Rounds an f32 to a format; the code is in the low bits.
    from_f32, f32, u32, i32, 32, 23
}

encoder! {
    /// Rounds an f64 to a format; the code is in the low bits.
    from_f64, f64, u64, i64, 64, 52
}

/// The value of a code of a format, exactly; NaN is the NaN of f32.
#[inline(always)]
pub fn to_f32<F: Format>(code: u32) -> f32 {
    let magnitude = code & (F::SIGN - 1);
    let sign = if code & F::SIGN != 0 { 1 << 31 } else { 0 };
    // The code's fields in the places of an f32's are the value scaled by a power of two, subnormals too.
    let scale = f32::from_bits(((127 + 127 - (1 << (F::EXPONENT - 1)) + 1) as u32) << 23);
    let value = f32::from_bits(magnitude << (23 - F::FRACTION)) * scale;
    let value = if magnitude == F::INFINITY { f32::INFINITY } else { value };
    // Without infinity, the code above the largest number is NaN.
    let nan = magnitude > F::INFINITY || (F::INFINITY == F::NAN && magnitude == F::NAN);
    if nan { single::NAN } else { f32::from_bits(value.to_bits() | sign) }
}
