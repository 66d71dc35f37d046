//! exp, the logistic function and erf in f32, written so that a loop over them vectorises: no branch, no table, no call.
//!
//! The coefficients are minimax fits (Remez exchange on the stated interval and error measure) rounded to f32. Stated
//! errors are the largest found over every f32 of the interval; the tests below hold them.

/// Polynomial by Horner's rule with fused multiply-adds; coefficients from the highest power down.
#[inline(always)]
fn horner<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, *coefficient);
    }
    sum
}

/// `value` limited to `low..=high`; NaN stays NaN.
#[inline(always)]
pub(crate) fn clamp(value: f32, low: f32, high: f32) -> f32 {
    let value = if value < low { low } else { value };
    if value > high { high } else { value }
}

/// e^x, within 1 unit in the last place where the result is a normal number, gradual below; 0 at -inf, inf from
/// 88.73 on, NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r); 2^n is multiplied in two halves, so that results below
/// the normal range and just below overflow come out right.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding this constant leaves round(x / ln 2) in the low bits of the sum.
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has so few bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const Q: [f32; 5] = [0.001_381_483_2, 0.008_368_71, 0.041_668_38, 0.166_665_21, 0.499_999_94];
    let x = clamp(x, -104.0, 89.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let power = horner(r, Q).mul_add(r * r, r) + 1.0;
    let n = shifted.to_bits() as i32 - SHIFT.to_bits() as i32;
    let half = n >> 1;
    power * exp2_integer(half) * exp2_integer(n - half)
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn exp2_integer(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e^-x), the logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function, within 2 units in the last place; 1 with x's sign from 4.05 on, NaN for NaN.
///
/// Below 0.95: x + x p(x^2), p fitted to erf(x)/x - 1. Above: 1 - e^-(t + t q(t)), q fitted to -ln(erfc(t))/t - 1.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    const BOUNDARY: f32 = 0.95;
    const LARGEST: f32 = 4.05;
    const P: [f32; 6] = [-5.862_082e-4, 0.004_967_507, -0.026_748_864, 0.112_813_205, -0.376_124_47, 0.128_379_14];
    const Q: [f32; 7] =
        [1.233_915_7e-5, -3.339_574_3e-4, 0.003_688_097_2, -0.023_859_25, 0.106_350_54, 0.635_082_07, 0.128_665_69];
    let small = horner(x * x, P).mul_add(x, x);
    let t = clamp(x.abs(), 0.0, LARGEST);
    let large = (1.0 - exp(-horner(t, Q).mul_add(t, t))).copysign(x);
    if x.abs() > BOUNDARY { large } else { small }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of the exact value's f32.
    fn ulps(got: f32, exact: f64) -> f64 {
        let exponent = (exact.abs() as f32).max(f32::MIN_POSITIVE).to_bits() >> 23;
        let ulp = 2f64.powi(exponent as i32 - 127 - 23);
        (f64::from(got) - exact).abs() / ulp
    }

    /// Every 101st bit pattern between two positive numbers, with both signs.
    fn patterns(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (low.to_bits()..=high.to_bits()).step_by(101).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    /// erf by the series erf(x) = 2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (1 3 5 ... (2n+1)), all terms of one sign.
    fn erf_exact(x: f64) -> f64 {
        crate::matmul::reference::erf(x)
    }

    #[test]
    fn exp_is_within_its_stated_error() {
        let mut worst = 0.0f64;
        for x in patterns(1e-8, 87.3) {
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
        assert!(worst <= 1.0, "{worst}");
    }

    #[test]
    fn exp_below_the_normal_range_is_gradual_and_at_the_ends_exact() {
        for step in 0..1700 {
            let x = -87.0 - step as f32 * 0.01;
            assert!(ulps(exp(x), f64::from(x).exp()) <= 1.5, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_within_its_stated_error() {
        let mut worst = 0.0f64;
        for x in patterns(1e-6, 6.0) {
            worst = worst.max(ulps(erf(x), erf_exact(f64::from(x))));
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(erf(f32::INFINITY), 1.0);
        assert_eq!(erf(f32::NEG_INFINITY), -1.0);
        assert!(erf(f32::NAN).is_nan());
    }
}
