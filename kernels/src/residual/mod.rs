//! The end of a residual branch whose product was summed over ranks: `out = x + branch + bias`.
//!
//! Storage `T`; the sum is taken in f32, x + bias first, and rounded once. (A product that one rank has whole adds both in
//! its own epilogue.) The gradients are dout for x and the branch, and its sum over the rows for the bias.

mod cpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Sizes: x, branch and out are `[rows, channels]`, bias `[channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub channels: usize,
}

/// Writes `out`.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device. Nothing is written then.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    branch: View<'_, T>,
    bias: Option<View<'_, T>>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "residual forward";
    let Shape { rows, channels } = shape;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let branch = check::view(stream, OP, "branch", branch, &[rows, channels])?;
    let bias = bias.map(|bias| check::view(stream, OP, "bias", bias, &[channels])).transpose()?;
    let out = check::view_mut(stream, OP, "out", out, &[rows, channels])?;
    cpu::forward(stream.device().cpu_pool()?, shape, x, branch, bias, out);
    Ok(())
}
