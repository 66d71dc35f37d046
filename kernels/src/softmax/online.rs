//! The normaliser of a row in one pass: its largest element and the sum of exponentials below it.

use warpweft_device::Float;

use crate::elementary::exp;
use crate::reduce;

/// Elements taken at once: they stay in the first cache between finding their maximum and summing.
const BLOCK: usize = 2048;

/// Independent partial maxima, so that comparisons overlap.
const LANES: usize = 32;

/// `sum over the row of e^(scale x) = sum * e^max`.
#[derive(Clone, Copy)]
pub(crate) struct Normaliser {
    /// The largest of the scaled elements; -inf for an empty row and one of -inf only. A NaN is passed over.
    pub(crate) max: f32,
    /// At least 1, but 0 where `max` is -inf, and NaN where the row holds a NaN or +inf.
    pub(crate) sum: f64,
}

impl Normaliser {
    /// Reads the row once.
    #[inline(always)]
    pub(crate) fn of<T: Float>(row: &[T], scale: f32) -> Self {
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f64);
        for block in row.chunks(BLOCK) {
            let largest = largest(block, scale);
            if largest > max {
                sum *= (f64::from(max) - f64::from(largest)).exp();
                max = largest;
            }
            let shift = finite_or_zero(max);
            sum += reduce::sum([block], |[x]| f64::from(exp(x * scale - shift)));
        }
        Self { max, sum }
    }

    /// The logarithm of the sum of exponentials, in f64.
    #[inline(always)]
    pub(crate) fn log_sum_exp(self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }
}

/// So that elements of -inf are 0 beside a maximum of -inf (-inf - -inf would be NaN).
#[inline(always)]
fn finite_or_zero(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

#[inline(always)]
fn largest<T: Float>(block: &[T], scale: f32) -> f32 {
    let mut partial = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (partial, x) in partial.iter_mut().zip(chunk) {
            let x = x.to_f32() * scale;
            *partial = if x > *partial { x } else { *partial };
        }
    }
    for (partial, x) in partial.iter_mut().zip(rest) {
        let x = x.to_f32() * scale;
        *partial = if x > *partial { x } else { *partial };
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let (a, b) = (partial[lane], partial[lane + width]);
            partial[lane] = if b > a { b } else { a };
        }
        width /= 2;
    }
    partial[0]
}
