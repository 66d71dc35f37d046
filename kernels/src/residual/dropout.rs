//! The end of a residual branch with dropout.

use warpweft_device::{Float, Stream, View, ViewMut};

use super::{Shape, cpu, gpu};
use crate::philox::Philox4x32;
use crate::{KernelError, check};

/// Dropout of a tensor, as a pure function of its numbers: under the key `seed` and the stream `sequence`, element i has
/// the 16-bit number i of Philox 4x32-10, the lower half of a word first, and is dropped where that is below 65536 times the
/// probability. The mask is the same on every device, however the tensor is split, and in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability, from 0 to 1; it counts rounded to a multiple of 2^-16. At 1 nothing is kept, and no factor applies.
    pub probability: f32,
    /// The seed.
    pub seed: u64,
    /// Which numbers of the seed: those of a layer in a step, say.
    pub sequence: u64,
    /// The number that the first element here has in the whole tensor. On a GPU multiples of 8 are faster.
    pub first: u64,
}

impl Dropout {
    /// Numbers below this one are dropped.
    pub(super) fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 65536.0).round() as u32
    }

    /// The factor of what is kept; 0 where nothing is.
    pub(super) fn factor(&self) -> f64 {
        let kept = 65536 - self.threshold();
        if kept == 0 { 0.0 } else { 65536.0 / f64::from(kept) }
    }

    pub(super) fn generator(&self) -> Philox4x32 {
        Philox4x32::new(self.seed, self.sequence)
    }

    /// Whether the element `index` of this part is kept.
    pub(super) fn keeps(&self, index: u64) -> bool {
        let element = self.first.wrapping_add(index);
        let word = self.generator().block(element / 8)[(element % 8 / 2) as usize];
        (word >> (16 * (element % 2)) & 0xffff) >= self.threshold()
    }

    fn check(&self, op: &'static str) -> Result<(), KernelError> {
        if (0.0..=1.0).contains(&self.probability) {
            return Ok(());
        }
        let allowed = "a probability, from 0 to 1".to_owned();
        Err(KernelError::Number { op, argument: "dropout", given: f64::from(self.probability), allowed })
    }
}

/// Writes `out`; x, branch and out are `[rows, channels]`, bias `[channels]`.
///
/// # Errors
/// A probability that is none; an argument whose length is not its shape's, or of another device. Nothing is written then.
pub fn forward_dropout<T: Float>(
    stream: &Stream,
    shape: Shape,
    dropout: Dropout,
    x: View<'_, T>,
    branch: View<'_, T>,
    bias: Option<View<'_, T>>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "residual forward_dropout";
    let Shape { rows, channels } = shape;
    dropout.check(OP)?;
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let branch = check::region(stream, OP, "branch", branch, &[rows, channels])?;
    let bias = bias.map(|bias| check::region(stream, OP, "bias", bias, &[channels])).transpose()?;
    let out = check::region_mut(stream, OP, "out", out, &[rows, channels])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let bias = bias.map(View::host).transpose()?;
            cpu::forward_dropout(pool, shape, dropout, x.host()?, branch.host()?, bias, out.host()?);
        }
        Err(_) => gpu::forward_dropout(stream, shape, dropout, x, branch, bias, out)?,
    }
    Ok(())
}

/// Writes `dbranch`, the gradient of the branch, from `dout`; both are `[rows, channels]`.
///
/// # Errors
/// As [`forward_dropout`].
pub fn backward_dropout<T: Float>(
    stream: &Stream,
    shape: Shape,
    dropout: Dropout,
    dout: View<'_, T>,
    dbranch: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "residual backward_dropout";
    let Shape { rows, channels } = shape;
    dropout.check(OP)?;
    let dout = check::region(stream, OP, "dout", dout, &[rows, channels])?;
    let dbranch = check::region_mut(stream, OP, "dbranch", dbranch, &[rows, channels])?;
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::backward_dropout(pool, shape, dropout, dout.host()?, dbranch.host()?),
        Err(_) => gpu::backward_dropout(stream, shape, dropout, dout, dbranch)?,
    }
    Ok(())
}
