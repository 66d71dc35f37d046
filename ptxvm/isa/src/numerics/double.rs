//! f64 arithmetic: round to nearest is the processor's own, the other roundings are computed with integers.
//!
//! Payloads of NaN are kept, as the ISA says: the first source that is NaN, quieted. An invalid operation makes
//! [`INVALID`].

use super::flags::{DOWN, NEAREST, ROUNDING, rounds_away, stays_finite};

/// The NaN of an invalid operation (infinity minus infinity, zero times infinity, a root of a negative number).
pub const INVALID: f64 = f64::from_bits(0xfff8_0000_0000_0000);

const QUIET: u64 = 1 << 51;
const HIDDEN: u64 = 1 << 52;

/// A finite number, `significand * 2^exponent`; the last bit also says that something smaller was cut off.
#[derive(Clone, Copy)]
struct Exact {
    negative: bool,
    exponent: i32,
    significand: u128,
}

/// Whether it is a NaN, by the bits, for the reason that [`single::is_nan`](super::single::is_nan) gives.
#[inline(always)]
pub fn is_nan(x: f64) -> bool {
    x.to_bits() & (u64::MAX >> 1) > f64::INFINITY.to_bits()
}

/// A quiet NaN of the same sign and payload.
#[inline(always)]
pub fn quiet(x: f64) -> f64 {
    f64::from_bits(x.to_bits() | QUIET)
}

/// The NaN among the sources, or of the operation.
#[inline(always)]
fn not_a_number(sources: &[f64]) -> f64 {
    let found = sources.iter().rev().fold(INVALID, |chosen, &x| if is_nan(x) { x } else { chosen });
    quiet(found)
}

/// A result of the processor: NaN as this device makes it.
#[inline(always)]
fn native(result: f64, sources: &[f64]) -> f64 {
    if is_nan(result) { not_a_number(sources) } else { result }
}

impl Exact {
    /// Of a finite number.
    fn of(x: f64) -> Exact {
        let bits = x.to_bits();
        let (field, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & (HIDDEN - 1));
        let significand = if field == 0 { fraction } else { fraction | HIDDEN };
        Exact { negative: x.is_sign_negative(), exponent: field.max(1) - 1075, significand: significand.into() }
    }

    fn times(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent,
            significand: self.significand * other.significand,
        }
    }

    /// The same value with its first bit at place 126.
    fn normal(self) -> Exact {
        let shift = self.significand.leading_zeros() as i32 - 1;
        Exact { exponent: self.exponent - shift, significand: self.significand << shift, ..self }
    }

    /// The sum of two numbers that are not zero. Bits are cut off only where the exponents differ so much that at most one
    /// leading bit cancels: far below the last place.
    fn plus(self, other: Exact) -> Exact {
        let (mut large, mut small) = (self.normal(), other.normal());
        if (large.exponent, large.significand) < (small.exponent, small.significand) {
            std::mem::swap(&mut large, &mut small);
        }
        let distance = (large.exponent - small.exponent).min(127) as u32;
        let aligned = small.significand >> distance;
        let cut = u128::from(aligned << distance != small.significand);
        let (sum, difference) = (large.significand + (aligned | cut), large.significand - (aligned | cut));
        Exact { significand: if large.negative == small.negative { sum } else { difference }, ..large }
    }

    /// Rounds a number that is not zero.
    fn round<const M: u32>(self) -> f64 {
        let length = 128 - self.significand.leading_zeros() as i32;
        // The exponent of the last place: 53 bits are kept, fewer below the least normal number.
        let last = (self.exponent + length - 53).max(-1074);
        let shift = last - self.exponent;
        // The rest counts quarters of a unit in the last place; any number of bits below the half is a quarter.
        let (kept, rest) = match shift {
            ..=0 => (self.significand << -shift, 0),
            1..=127 => {
                let half = (self.significand >> (shift - 1)) as u64 & 1;
                let below = self.significand & ((1 << (shift - 1)) - 1) != 0;
                (self.significand >> shift, half << 1 | u64::from(below))
            }
            _ => (0, 1),
        };
        let away = rounds_away::<M>(self.negative, kept & 1 == 1, rest, 2);
        let kept = kept as u64 + u64::from(away);
        // A kept hidden bit adds one to the exponent's field.
        let bits = (((last + 1074) as u64) << 52) + kept;
        let bits = match bits >= f64::INFINITY.to_bits() {
            true if stays_finite::<M>(self.negative) => f64::MAX.to_bits(),
            true => f64::INFINITY.to_bits(),
            false => bits,
        };
        f64::from_bits(bits | u64::from(self.negative) << 63)
    }
}

/// The zero of an exact sum that is zero: `a` and `b` are its terms.
fn zero_sum<const M: u32>(a_negative: bool, b_negative: bool) -> f64 {
    let negative = if M & ROUNDING == DOWN { a_negative || b_negative } else { a_negative && b_negative };
    if negative { -0.0 } else { 0.0 }
}

/// `a + b`.
#[inline(always)]
pub fn add<const M: u32>(a: f64, b: f64) -> f64 {
    if M & ROUNDING == NEAREST { native(a + b, &[a, b]) } else { directed_fma::<M>(a, 1.0, b) }
}

/// `a - b`.
#[inline(always)]
pub fn sub<const M: u32>(a: f64, b: f64) -> f64 {
    // A NaN keeps its sign: it is no number to negate.
    add::<M>(a, if is_nan(b) { b } else { -b })
}

/// `a * b`.
#[inline(always)]
pub fn mul<const M: u32>(a: f64, b: f64) -> f64 {
    if M & ROUNDING == NEAREST { native(a * b, &[a, b]) } else { directed_mul::<M>(a, b) }
}

fn directed_mul<const M: u32>(a: f64, b: f64) -> f64 {
    let product = a * b;
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return native(product, &[a, b]);
    }
    Exact::of(a).times(Exact::of(b)).round::<M>()
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma<const M: u32>(a: f64, b: f64, c: f64) -> f64 {
    if M & ROUNDING == NEAREST { native(a.mul_add(b, c), &[a, b, c]) } else { directed_fma::<M>(a, b, c) }
}

fn directed_fma<const M: u32>(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        // Infinities and NaN do not round; a finite product counts as finite though it overflows.
        let product = if a.is_finite() && b.is_finite() { 0.0 } else { product };
        return native(product + c, &[a, b, c]);
    }
    if a == 0.0 || b == 0.0 {
        return if c == 0.0 { zero_sum::<M>(product.is_sign_negative(), c.is_sign_negative()) } else { c };
    }
    let product = Exact::of(a).times(Exact::of(b));
    if c == 0.0 {
        return product.round::<M>();
    }
    let sum = product.plus(Exact::of(c));
    if sum.significand == 0 { zero_sum::<M>(product.negative, c < 0.0) } else { sum.round::<M>() }
}

/// `a / b`.
#[inline(always)]
pub fn div<const M: u32>(a: f64, b: f64) -> f64 {
    if M & ROUNDING == NEAREST { native(a / b, &[a, b]) } else { directed_div::<M>(a, b) }
}

fn directed_div<const M: u32>(a: f64, b: f64) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return native(a / b, &[a, b]);
    }
    let (a, b) = (Exact::of(a).normal(), Exact::of(b));
    // 127 bits by at most 53: a quotient of 74 bits or more.
    let (quotient, rest) = (a.significand / b.significand, a.significand % b.significand);
    let exact = Exact {
        negative: a.negative != b.negative,
        exponent: a.exponent - b.exponent,
        significand: quotient | u128::from(rest != 0),
    };
    exact.round::<M>()
}

/// The square root.
#[inline(always)]
pub fn sqrt<const M: u32>(a: f64) -> f64 {
    if M & ROUNDING == NEAREST { native(a.sqrt(), &[a]) } else { directed_sqrt::<M>(a) }
}

fn directed_sqrt<const M: u32>(a: f64) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return native(a.sqrt(), &[a]);
    }
    let a = Exact::of(a).normal();
    let even =
        if a.exponent % 2 == 0 { a } else { Exact { significand: a.significand >> 1, exponent: a.exponent + 1, ..a } };
    let root = even.significand.isqrt();
    // One more bit says whether the root is exact.
    let exact = root * root == even.significand;
    Exact { negative: false, exponent: even.exponent / 2 - 1, significand: root << 1 | u128::from(!exact) }.round::<M>()
}
