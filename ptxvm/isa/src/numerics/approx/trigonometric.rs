//! `sin` and `cos`.

use super::adversary::Reach;
use super::exponential::polynomial;
use super::{Function, ROUNDER, mended};

/// The sine.
pub struct Sin;

/// The cosine.
pub struct Cos;

/// The largest magnitude that [`near_sin`] and [`near_cos`] take.
pub const NEAR: f32 = 33554432.0;

/// A half of pi in three parts: a count of quarter turns up to 2^25 times either of the first two is exact.
const QUARTER: [f64; 3] = [
    f64::from_bits(0x3ff9_21fb_5400_0000),
    f64::from_bits(0x3e11_0b46_1000_0000),
    f64::from_bits(0x3c5a_6263_3145_c06e),
];

/// The first 256 bits of 2/pi after the point.
const TURNS: [u64; 4] = [0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];

/// Of the sine 9830.398, of the cosine 1.1004678e19 and 1.7269983e20, with both signs.
const HARD_SINES: [(u32, u32); 2] = [(0x4619_9998, 0xbeb1_fa5d), (0xc619_9998, 0x3eb1_fa5d)];
const HARD_COSINES: [(u32, u32); 4] =
    [(0x5f18_b878, 0x3f7f_14bb), (0xdf18_b878, 0x3f7f_14bb), (0x6115_cb11, 0x3f78_142f), (0xe115_cb11, 0x3f78_142f)];

/// Coefficients of the sine from x^3 and of the cosine from x^4, in powers of x^2; to 2^-58 for |x| <= pi/4.
const SINE: [f64; 8] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5040.0,
    1.0 / 362880.0,
    -1.0 / 39916800.0,
    1.0 / 6227020800.0,
    -1.0 / 1307674368000.0,
    1.0 / 355687428096000.0,
];
const COSINE: [f64; 7] = [
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40320.0,
    -1.0 / 3628800.0,
    1.0 / 479001600.0,
    -1.0 / 87178291200.0,
    1.0 / 20922789888000.0,
];

/// The quarter turns nearest to an angle, in the low bits, and the angle that is left.
#[inline(always)]
fn reduce(x: f64) -> (u64, f64) {
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let turns = shifted - ROUNDER;
    let rest = ((x - turns * QUARTER[0]) - turns * QUARTER[1]) - turns * QUARTER[2];
    (shifted.to_bits(), rest)
}

/// As [`reduce`] for an f32 above [`NEAR`]: multiplies by 2/pi with 128 bits, the whole turns cut off (Payne and Hanek).
fn reduce_far(x: f64) -> (u64, f64) {
    let bits = x.to_bits();
    // x = mantissa * 2^exponent, of 24 bits. The bit of 2/pi at place i after the point (from 1) counts 2^(exponent - i)
    // quarter turns with each unit of the mantissa: those of 4 and more are left out by beginning at place exponent - 1.
    let mantissa = u128::from((bits & ((1 << 52) - 1) | 1 << 52) >> 29);
    let exponent = ((bits >> 52) as usize & 0x7ff) - 1046;
    let (at, shift) = ((exponent - 2) / 64, (exponent - 2) % 64);
    let [first, second, third] = [TURNS[at], TURNS[at + 1], TURNS[at + 2]].map(u128::from);
    let window = (first << 64 | second) << shift | third << shift >> 64;
    // The product modulo four quarter turns, with 126 places after the point.
    let product = mantissa.wrapping_mul(window);
    let turns = ((product >> 125) + 1) >> 1;
    let rest = product.wrapping_sub(turns << 126) as i128;
    let angle = rest as f64 * 2f64.powi(-126) * std::f64::consts::FRAC_PI_2;
    if x < 0.0 { ((turns as u64).wrapping_neg(), -angle) } else { (turns as u64, angle) }
}

/// The sine of an angle of up to an eighth of a turn, and the quarter turns before it.
#[inline(always)]
fn turned(quarters: u64, x: f64) -> f64 {
    let z = x * x;
    let sine = x + x * z * polynomial(z, &SINE);
    let half = 0.5 * z;
    let cut = 1.0 - half;
    let cosine = cut + (((1.0 - cut) - half) + z * z * polynomial(z, &COSINE));
    let value = if quarters & 1 == 0 { sine } else { cosine };
    f64::from_bits(value.to_bits() ^ (quarters & 2) << 62)
}

/// The sine of an f32 of magnitude up to [`NEAR`].
#[inline(always)]
pub fn near_sin(x: f64) -> f64 {
    let (quarters, rest) = reduce(x);
    // -0 + anything loses its sign in the reduction.
    if x == 0.0 { x } else { turned(quarters, rest) }
}

/// The cosine of an f32 of magnitude up to [`NEAR`].
#[inline(always)]
pub fn near_cos(x: f64) -> f64 {
    let (quarters, rest) = reduce(x);
    turned(quarters.wrapping_add(1), rest)
}

/// [`near_sin`], correctly rounded.
#[inline(always)]
pub fn near_sin_rounded(x: f32) -> f32 {
    mended(x, near_sin(x.into()) as f32, HARD_SINES)
}

/// [`near_cos`], correctly rounded: its hard cases are all far.
#[inline(always)]
pub fn near_cos_rounded(x: f32) -> f32 {
    near_cos(x.into()) as f32
}

/// 2^-20.5 up to two pi, 2^-14.7 up to a hundred pi; beyond the ISA promises nothing, and the adversary does not move.
fn reach(x: f64) -> Reach {
    Reach::Absolute(match x.abs() {
        small if small <= std::f64::consts::TAU => 6.7434957617e-7,
        middle if middle <= 100.0 * std::f64::consts::PI => 3.75715458e-5,
        _ => 0.0,
    })
}

impl Function for Sin {
    const ID: u64 = 11;
    const LARGEST: f64 = 1.0;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        match x.abs() {
            near if near <= NEAR.into() => near_sin(x),
            far if far.is_finite() => {
                let (quarters, rest) = reduce_far(x);
                turned(quarters, rest)
            }
            _ => f64::NAN,
        }
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        mended(x, Self::value(x.into()) as f32, HARD_SINES)
    }

    fn reach(x: f64, _value: f64) -> Reach {
        reach(x)
    }
}

impl Function for Cos {
    const ID: u64 = 12;
    const LARGEST: f64 = 1.0;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        match x.abs() {
            near if near <= NEAR.into() => near_cos(x),
            far if far.is_finite() => {
                let (quarters, rest) = reduce_far(x);
                turned(quarters.wrapping_add(1), rest)
            }
            _ => f64::NAN,
        }
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        mended(x, Self::value(x.into()) as f32, HARD_COSINES)
    }

    fn reach(x: f64, _value: f64) -> Reach {
        reach(x)
    }
}
