//! The end of a residual branch whose product was summed over ranks: `out = x + branch + bias`.
//!
//! Storage `T`; the sum is taken in f32, x + bias first, and rounded once. (A product that one rank has whole adds both in
//! its own epilogue.) The gradients are dout for x and the branch, and its sum over the rows for the bias.
//!
//! With dropout `out = x + kept (branch + bias) / (1 - p)`, where `kept` is 0 or 1 for each element: the sum in the
//! parentheses in f32, then one fused multiplication and addition, rounded once. What is dropped is not read into a sum.
//! The gradients are dout for x, [`backward_dropout`]'s for the branch, and that one's sum over the rows for the bias
//! ([`matmul::backward_bias`](crate::matmul::backward_bias)).

mod cpu;
mod dropout;
mod gpu;
pub mod reference;

pub use dropout::{Dropout, backward_dropout, forward_dropout};

use warpweft_device::{CpuPool, Float, Stream, View, ViewMut};

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
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let branch = check::region(stream, OP, "branch", branch, &[rows, channels])?;
    let bias = bias.map(|bias| check::region(stream, OP, "bias", bias, &[channels])).transpose()?;
    let out = check::region_mut(stream, OP, "out", out, &[rows, channels])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let bias = bias.map(View::host).transpose()?;
            cpu::forward(pool, shape, x.host()?, branch.host()?, bias, out.host()?);
        }
        Err(_) => gpu::forward(stream, shape, x, branch, bias, out)?,
    }
    Ok(())
}

/// x + branch, for norms that take the sum on the way.
pub(crate) fn add<T: Float>(pool: &CpuPool, [rows, channels]: [usize; 2], x: &[T], branch: &[T], sum: &mut [T]) {
    cpu::forward(pool, Shape { rows, channels }, x, branch, None, sum);
}
