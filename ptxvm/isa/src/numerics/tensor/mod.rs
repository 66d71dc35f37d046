//! Tensor cores: `D = A B + C` on a tile, in the model that [`Settings`](super::Settings) names.
//!
//! What silicon does is not documented by its maker; the models are those measured by Xie et al. (MMA-Sim,
//! arXiv 2511.10909) and by Khattak and Mikaitis (Accurate Models of NVIDIA Tensor Cores, arXiv 2512.07004).

mod exact;
mod fragment;
mod integer;
mod native;

pub use fragment::{Fragment, Matrix};
pub use integer::multiply as multiply_integers;

use super::TensorModel;
use crate::lanes::vectorised;

/// The format of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Input {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
}

/// The format of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Sum {
    F32,
    F16,
}

/// The operands of `m16n8kK`, each value widened to f32, which is exact for every input format. B lies as K rows of 8.
#[derive(Clone, Debug)]
pub struct Tile<const K: usize> {
    /// A, 16 rows of K values.
    pub a: [[f32; K]; 16],
    /// B, K rows of 8 values.
    pub b: [[f32; 8]; K],
    /// C, and D afterwards.
    pub c: [[f32; 8]; 16],
}

impl<const K: usize> Tile<K> {
    /// A tile of zeros.
    #[inline(always)]
    pub fn zeros() -> Self {
        Tile { a: [[0.0; K]; 16], b: [[0.0; 8]; K], c: [[0.0; 8]; 16] }
    }

    /// Replaces C by `A B + C`.
    pub fn multiply(&mut self, input: Input, sum: Sum, model: TensorModel) {
        match exact::Rule::of(K, input, sum, model) {
            Some(rule) => exact::multiply(self, &rule),
            None => vectorised(
                #[inline(always)]
                || native::multiply(self, sum),
            ),
        }
    }
}

/// A value of f16 nearest to `value`, ties to even, rounded once.
#[inline(always)]
pub(crate) fn round_to_f16(value: f64) -> f32 {
    // The quantum of f16 at this magnitude: 2^-24 among subnormals, else 2^(exponent - 10).
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i64 - 1023).max(-14);
    // Adding and taking away 1.5 * 2^52 quanta rounds to whole quanta, ties to even.
    let magic = f64::from_bits(((1023 + 52 + exponent - 10) as u64) << 52) * 1.5;
    let rounded = (value + magic) - magic;
    if rounded.abs() >= 65536.0 { f32::INFINITY.copysign(value as f32) } else { rounded as f32 }
}
