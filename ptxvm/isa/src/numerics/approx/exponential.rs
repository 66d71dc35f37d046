//! `ex2` and `tanh`.

use super::adversary::Reach;
use super::{Function, ROUNDER, mended};

/// The exponential with base two.
pub struct Ex2;

/// The hyperbolic tangent.
pub struct Tanh;

/// `ln(2)^n / n!`: 2^r for |r| <= 1/2 to 2^-57.
const POWERS: [f64; 14] = [
    1.0,
    std::f64::consts::LN_2,
    0.24022650695910072,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
    1.5252733804059841e-05,
    1.321548679014431e-06,
    1.01780860092397e-07,
    7.054911620801123e-09,
    4.4455382718708116e-10,
    2.5678435993488206e-11,
    1.3691488853904128e-12,
];

/// `1 / n!` from n = 2: `(e^r - 1 - r) / r^2` for |r| <= ln(2)/2 to 2^-57.
const FACTORIALS: [f64; 12] = [
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
    1.0 / 40320.0,
    1.0 / 362880.0,
    1.0 / 3628800.0,
    1.0 / 39916800.0,
    1.0 / 479001600.0,
    1.0 / 6227020800.0,
];

/// 2.9695758e-3 and -2.9743774e-2.
const HARD: [(u32, u32); 2] = [(0x3b42_9d37, 0x3f80_4385), (0xbcf3_a937, 0x3f7a_c6b1)];

/// A polynomial, lowest coefficient first.
#[inline(always)]
pub(super) fn polynomial<const N: usize>(x: f64, coefficients: &[f64; N]) -> f64 {
    let mut sum = coefficients[N - 1];
    for at in (0..N - 1).rev() {
        sum = sum * x + coefficients[at];
    }
    sum
}

/// The integer next to `x`, and two to its power; |x| < 1022.
#[inline(always)]
fn whole_power(x: f64) -> (f64, f64) {
    let shifted = x + ROUNDER;
    let power = (shifted.to_bits() << 52).wrapping_add(1023 << 52);
    (shifted - ROUNDER, f64::from_bits(power))
}

impl Function for Ex2 {
    const ID: u64 = 1;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        // Far beyond what any of the formats can hold; NaN stays.
        let x = x.clamp(-1000.0, 1000.0);
        let (whole, power) = whole_power(x);
        polynomial(x - whole, &POWERS) * power
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        mended(x, Self::value(x.into()) as f32, HARD)
    }

    fn reach(_x: f64, _value: f64) -> Reach {
        Reach::Ulp(2.0)
    }

    fn short_reach(half: bool) -> Reach {
        // 2^-9.9 and 2^-7.
        Reach::Relative(if half { 0.001046653772 } else { 0.0078125 })
    }
}

impl Function for Tanh {
    const ID: u64 = 2;
    const LARGEST: f64 = 1.0;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        // (e^2x - 1) / (e^2x + 1), and e^2x - 1 without cancellation. From 20 on it is 1 to f64; NaN stays.
        let magnitude = x.abs();
        let twice = 2.0 * if magnitude > 20.0 { 20.0 } else { magnitude };
        let (whole, power) = whole_power(twice * std::f64::consts::LOG2_E);
        // ln(2) in two parts: whole * the first is exact.
        let rest = (twice - whole * 0.6931471805592082) - whole * 7.371002565167799e-13;
        let less_one = rest + rest * rest * polynomial(rest, &FACTORIALS);
        let grown = power * less_one + (power - 1.0);
        (grown / (grown + 2.0)).copysign(x)
    }

    fn reach(_x: f64, _value: f64) -> Reach {
        // 2^-11.
        Reach::Relative(0.00048828125)
    }

    fn short_reach(half: bool) -> Reach {
        // 2^-10.987 and 2^-8.
        Reach::Absolute(if half { 0.000492700993 } else { 0.00390625 })
    }
}
