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

pub use dropout::Dropout;

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

/// What the sum reads.
struct Terms<'a, T> {
    x: View<'a, T>,
    branch: View<'a, T>,
    bias: Option<View<'a, T>>,
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
    sum("residual forward", stream, shape, None, Terms { x, branch, bias }, out)
}

/// Writes `out` with dropout of branch + bias.
///
/// # Errors
/// As [`forward`]; a probability that is none.
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
    dropout.check(OP)?;
    sum(OP, stream, shape, Some(dropout), Terms { x, branch, bias }, out)
}

fn sum<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    dropout: Option<Dropout>,
    Terms { x, branch, bias }: Terms<'_, T>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, channels } = shape;
    let x = check::region(stream, op, "x", x, &[rows, channels])?;
    let branch = check::region(stream, op, "branch", branch, &[rows, channels])?;
    let bias = bias.map(|bias| check::region(stream, op, "bias", bias, &[channels])).transpose()?;
    let out = check::region_mut(stream, op, "out", out, &[rows, channels])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        return gpu::sum(op, stream, shape, dropout, Terms { x, branch, bias }, out);
    };
    let (x, branch, bias, out) = (x.host()?, branch.host()?, bias.map(View::host).transpose()?, out.host()?);
    match dropout {
        Some(dropout) => cpu::forward_dropout(pool, shape, dropout, x, branch, bias, out),
        None => cpu::forward(pool, shape, x, branch, bias, out),
    }
    Ok(())
}

/// Writes `dbranch`, the gradient of a branch with dropout, from `dout`; both are `[rows, channels]`.
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
        Err(_) => gpu::backward_dropout(OP, stream, shape, dropout, dout, dbranch)?,
    }
    Ok(())
}

/// x + branch, for norms that take the sum on the way.
pub(crate) fn add<T: Float>(pool: &CpuPool, [rows, channels]: [usize; 2], x: &[T], branch: &[T], sum: &mut [T]) {
    cpu::forward(pool, Shape { rows, channels }, x, branch, None, sum);
}
