//! How far attention's results may be from those of the formula: derived bounds, and a multiple of what rounding to storage alone
//! does.

use warpweft_device::Float;

use super::attention::{Case, largest};
use super::{U, assert_within, rounding};

/// Bounds of absolute errors, from the largest inputs.
pub(crate) struct Bounds {
    pub(crate) out: f64,
    pub(crate) lse: f64,
    pub(crate) dq: f64,
    pub(crate) dk: f64,
    pub(crate) dv: f64,
}

impl Bounds {
    /// A score is a sum of D exact products, truncated: (D + 2) 2U of the sum of their magnitudes; the factor, the exponent's
    /// argument and the largest score round three times more. Softcap adds 2^-21 of the cap, ALiBi three roundings of its
    /// term.
    pub(crate) fn of<T: Float>(case: &Case<T>) -> Self {
        let (d, keys) = (case.shape.head_size as f64, case.shape.keys as f64);
        let scale = case.options.scale.map_or(1.0 / d.sqrt(), |scale| f64::from(scale).abs());
        let magnitude = scale * d * largest(&case.q) * largest(&case.k);
        let far = keys.max(case.shape.queries as f64) + keys;
        let alibi =
            case.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes.iter().copied().fold(0.0, f32::max)) * far);
        let cap = case.options.softcap.map_or(0.0, f64::from);
        let score = (2.0 * d + 10.0) * U * magnitude + 8.0 * U * (alibi + (keys + 1.0).ln()) + cap * 8.0 * U;
        // A weight: its score's error and the largest one's, 2 units of the power, rescaling once a tile.
        let weight = 2.0 * score + (8.0 + 4.0 * keys / 16.0) * U;
        let kept = case.options.dropout.map_or(1.0, |dropout| 1.0 / (1.0 - f64::from(dropout.probability)));
        // Weights are rounded before they meet v; the sum of keys is truncated.
        let out = kept * largest(&case.v) * (2.0 * weight + rounding::<T>(1.0) + (2.0 * keys + 4.0) * U);
        let (rows, dout) = ((case.shape.queries * case.shape.heads / case.shape.kv_heads) as f64, largest(&case.dout));
        // |dP| and |delta| are at most D |dout| |v|; dS = P (dP - delta) is rounded, and so are weights and out.
        let dp = kept * d * dout * largest(&case.v);
        let capped = if cap > 0.0 { 2.0 * score / cap } else { 0.0 };
        let difference = (4.0 * d + 4.0) * U * dp + d * dout * (out + rounding::<T>(kept * largest(&case.v)));
        let ds = 2.0 * dp * (weight + capped + 4.0 * U + rounding::<T>(1.0)) + difference;
        Self {
            out,
            lse: score + weight + keys * U,
            dq: scale * largest(&case.k) * (ds + 2.0 * dp * (2.0 * keys + 4.0) * U),
            dk: scale * largest(&case.q) * rows * (ds + 2.0 * dp * (2.0 * rows + 4.0) * U),
            dv: kept * rows * dout * (weight + rounding::<T>(1.0) + (2.0 * rows + 4.0) * U),
        }
    }
}

/// A value as it is stored.
pub(crate) fn round<T: Float>(value: f64) -> f64 {
    T::from_f64(value).to_f64()
}

/// Within `times` the largest error that the roundings alone make, plus that of one more rounding.
pub(crate) fn assert_like<T: Float>(what: &str, given: &[T], exact: &[f64], lowp: &[f64], times: f64) {
    let most = exact.iter().zip(lowp).map(|(exact, lowp)| (exact - lowp).abs()).fold(0.0, f64::max);
    // Where roundings to storage make no error at all (a query that sees one key), what is left is that of the f32 sums, which the
    // derived bound holds.
    if most > 0.0 {
        assert_within(what, given, exact, |_| times * most + 2f64.powi(-20));
    }
}
