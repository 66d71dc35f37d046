//! What the bits of a float say, the same for every width: classes, order, signs, minimum and maximum, comparison.

use half::{bf16, f16};

use super::{double, format, single};

/// A float as its bits.
pub trait Bits: Copy {
    /// Whether it is NaN.
    fn not_a_number(self) -> bool;
    /// Whether it is an infinity.
    fn infinite(self) -> bool;
    /// Whether it is a subnormal number (zero is not).
    fn subnormal(self) -> bool;
    /// A subnormal becomes a zero of its sign.
    fn flushed(self) -> Self;
    /// Without its sign.
    fn magnitude(self) -> Self;
    /// With the other sign.
    fn negated(self) -> Self;
    /// With the sign of `other`.
    fn signed_as(self, other: Self) -> Self;
    /// Whether its sign is negative.
    fn negative(self) -> bool;
    /// Whether it comes before `other` where -0 comes before +0; neither is NaN.
    fn before(self, other: Self) -> bool;
    /// Less, as numbers; false with NaN.
    fn less(self, other: Self) -> bool;
    /// Equal, as numbers; false with NaN.
    fn equal(self, other: Self) -> bool;
    /// The NaN that results are where a source is this NaN: f64 keeps its payload.
    fn resulting_nan(self) -> Self;
    /// One.
    fn one() -> Self;
}

macro_rules! bits {
    ($($float:ty, $bits:ty, $fraction:literal, $one:literal, $number:expr, $nan:expr;)*) => { $(
        impl Bits for $float {
            #[inline(always)]
            fn not_a_number(self) -> bool {
                self.magnitude().to_bits() > <$float>::INFINITY.to_bits()
            }
            #[inline(always)]
            fn infinite(self) -> bool {
                self.magnitude().to_bits() == <$float>::INFINITY.to_bits()
            }
            #[inline(always)]
            fn subnormal(self) -> bool {
                let magnitude = self.magnitude().to_bits();
                magnitude != 0 && magnitude < 1 << $fraction
            }
            #[inline(always)]
            fn flushed(self) -> Self {
                let (bits, magnitude) = (self.to_bits(), self.magnitude().to_bits());
                Self::from_bits(if magnitude < 1 << $fraction { bits ^ magnitude } else { bits })
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                Self::from_bits(self.to_bits() & (<$bits>::MAX >> 1))
            }
            #[inline(always)]
            fn negated(self) -> Self {
                Self::from_bits(self.to_bits() ^ !(<$bits>::MAX >> 1))
            }
            #[inline(always)]
            fn signed_as(self, other: Self) -> Self {
                let magnitude = <$bits>::MAX >> 1;
                Self::from_bits(self.to_bits() & magnitude | other.to_bits() & !magnitude)
            }
            #[inline(always)]
            fn negative(self) -> bool {
                self.to_bits() > <$bits>::MAX >> 1
            }
            #[inline(always)]
            fn before(self, other: Self) -> bool {
                // Negative numbers order backwards.
                let key = |x: Self| {
                    let bits = x.to_bits();
                    if x.negative() { !bits } else { bits ^ !(<$bits>::MAX >> 1) }
                };
                key(self) < key(other)
            }
            #[inline(always)]
            fn less(self, other: Self) -> bool {
                $number(self) < $number(other)
            }
            #[inline(always)]
            fn equal(self, other: Self) -> bool {
                $number(self) == $number(other)
            }
            #[inline(always)]
            fn resulting_nan(self) -> Self {
                $nan(self)
            }
            #[inline(always)]
            fn one() -> Self {
                Self::from_bits($one)
            }
        }
    )* };
}

bits! {
    f16, u16, 10, 0x3c00, |x: f16| format::to_f32::<f16>(x.to_bits().into()), |_| f16::from_bits(0x7fff);
    bf16, u16, 7, 0x3f80, |x: bf16| format::to_f32::<bf16>(x.to_bits().into()), |_| bf16::from_bits(0x7fff);
    f32, u32, 23, 0x3f80_0000, |x: f32| x, |_| single::NAN;
    f64, u64, 52, 0x3ff0_0000_0000_0000, |x: f64| x, double::quiet;
}

/// `.ftz`, as [`flags`](super::flags) has it.
pub use super::flags::FTZ;
/// `.NaN`: a NaN source makes the result NaN.
pub const PROPAGATE: u32 = 1 << 8;
/// `.xorsign.abs`: of the magnitudes, with the product's sign.
pub const XORSIGN: u32 = 1 << 9;
/// The maximum instead of the minimum.
pub const MAXIMUM: u32 = 1 << 10;

/// `min` and `max` as the flags say.
#[inline(always)]
pub fn extreme<T: Bits, const M: u32>(a: T, b: T) -> T {
    let (a, b) = if M & FTZ != 0 { (a.flushed(), b.flushed()) } else { (a, b) };
    let negative = a.negative() != b.negative();
    let (a, b) = if M & XORSIGN != 0 { (a.magnitude(), b.magnitude()) } else { (a, b) };
    let first = if M & MAXIMUM != 0 { b.before(a) } else { a.before(b) };
    let chosen = if b.not_a_number() || (first && !a.not_a_number()) { a } else { b };
    let nan = match M & PROPAGATE {
        0 => a.not_a_number() && b.not_a_number(),
        _ => a.not_a_number() || b.not_a_number(),
    };
    let signed = if M & XORSIGN != 0 && negative { chosen.negated() } else { chosen };
    if nan { a.resulting_nan() } else { signed }
}

/// A comparison is a set of the four ways in which two numbers can stand: less, equal, greater, unordered.
pub mod comparison {
    #![allow(missing_docs)]
    pub const LESS: u32 = 1;
    pub const EQUAL: u32 = 2;
    pub const GREATER: u32 = 4;
    pub const UNORDERED: u32 = 8;
}

/// Whether `a` and `b` stand in one of the ways of the set `WAYS`.
#[inline(always)]
pub fn compare<T: Bits, const WAYS: u32>(a: T, b: T) -> bool {
    use comparison::{EQUAL, GREATER, LESS, UNORDERED};
    let unordered = a.not_a_number() || b.not_a_number();
    (WAYS & LESS != 0 && a.less(b))
        | (WAYS & EQUAL != 0 && a.equal(b))
        | (WAYS & GREATER != 0 && b.less(a))
        | (WAYS & UNORDERED != 0 && unordered)
}
