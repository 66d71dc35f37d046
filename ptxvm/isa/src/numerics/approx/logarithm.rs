//! `lg2`.

use super::Function;
use super::adversary::Reach;
use super::exponential::polynomial;

/// The logarithm with base two.
pub struct Lg2;

/// `2 / ((2n + 1) ln 2)`: the series of the inverse hyperbolic tangent, for |s| <= 0.172 to 2^-60.
const SERIES: [f64; 11] = [
    2.8853900817779268,
    0.9617966939259756,
    0.5770780163555853,
    0.4121985831111324,
    0.3205988979753252,
    0.2623081892525388,
    0.22195308321368667,
    0.19235933878519512,
    0.16972882833987804,
    0.15186263588304877,
    0.1373995277037108,
];

/// The bits of the square root of a half: the least mantissa.
const LEAST: u64 = 0x3fe6_a09e_667f_3bcd;

impl Function for Lg2 {
    const ID: u64 = 3;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        // x = m * 2^e with m from the root of a half to the root of two, so that e is 0 around 1.
        let field = x.to_bits().wrapping_add(1023 << 52).wrapping_sub(LEAST) >> 52;
        let mantissa = f64::from_bits(x.to_bits().wrapping_sub(field.wrapping_sub(1023) << 52));
        // The field as a number: it is the low bits of 2^52 + field.
        let exponent = f64::from_bits(0x4330_0000_0000_0000 | field) - (4503599627370496.0 + 1023.0);
        // Both sums are exact, for an f32 has 24 bits.
        let s = (mantissa - 1.0) / (mantissa + 1.0);
        let logarithm = exponent + s * polynomial(s * s, &SERIES);
        let logarithm = if x == f64::INFINITY { x } else { logarithm };
        let logarithm = if x == 0.0 { f64::NEG_INFINITY } else { logarithm };
        if x >= 0.0 { logarithm } else { f64::NAN }
    }

    fn reach(x: f64, _value: f64) -> Reach {
        const BOUND: f64 = 1.0 / 4194304.0;
        if x > 0.5 && x < 2.0 { Reach::Absolute(BOUND) } else { Reach::Relative(BOUND) }
    }
}
