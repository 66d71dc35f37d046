//! Root-mean-square normalisation over the last dimension: `y = x * rstd * w` with `rstd = 1 / sqrt(avg(x^2) + eps)`,
//! row by row (Zhang, Sennrich, "Root mean square layer normalization", arXiv 1910.07467, 2019).
//!
//! Storage `T`, arithmetic f32 with sums along a row in f64. Deterministic, whatever the thread count. Bound by memory:
//! each call reads and writes every activation once.
//!
//! A row of zeros gives zeros (NaN where `eps` is 0 too, as 0/0). A row with a NaN becomes NaN; one with an
//! infinity is NaN there and 0 elsewhere.

mod cpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check};

/// Rows of `channels` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows, each normalised by itself: B * T.
    pub rows: usize,
    /// Elements of a row: C. Without any, `rstd` is that of a row of zeros.
    pub channels: usize,
}

/// Normalises `x [rows, C]` into `y [rows, C]` with weight `w [C]`, and saves each row's `rstd [rows]` for the backward
/// calls.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; `eps` negative or not finite.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    eps: f32,
    x: View<'_, T>,
    w: View<'_, T>,
    y: ViewMut<'_, T>,
    rstd: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "rmsnorm forward";
    let Shape { rows, channels } = shape;
    check::epsilon(OP, eps)?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let w = check::view(stream, OP, "w", w, &[channels])?;
    let y = check::view_mut(stream, OP, "y", y, &[rows, channels])?;
    let rstd = check::view_mut(stream, OP, "rstd", rstd, &[rows])?;
    cpu::forward(stream.device().cpu_pool()?, shape, eps, x, w, y, rstd);
    Ok(())
}

/// The input's gradient `dx [rows, C]`, set or added to, from the output's gradient `dy [rows, C]` and what `forward`
/// took and saved.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device.
#[expect(clippy::too_many_arguments, reason = "the op's tensors, each with a role of its own")]
pub fn backward_input<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    x: View<'_, T>,
    w: View<'_, T>,
    rstd: View<'_, f32>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "rmsnorm backward_input";
    let Shape { rows, channels } = shape;
    let dy = check::view(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let w = check::view(stream, OP, "w", w, &[channels])?;
    let rstd = check::view(stream, OP, "rstd", rstd, &[rows])?;
    let dx = check::view_mut(stream, OP, "dx", dx, &[rows, channels])?;
    cpu::backward_input(stream.device().cpu_pool()?, shape, cpu::Saved { dy, x, rstd }, w, write, dx);
    Ok(())
}

/// Adds the weight's gradient to `dw [C]`, from the output's gradient `dy [rows, C]` and what `forward` took and saved.
/// Sums run over fixed blocks of rows in f64 and are rounded once.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device.
pub fn backward_weight<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    x: View<'_, T>,
    rstd: View<'_, f32>,
    dw: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "rmsnorm backward_weight";
    let Shape { rows, channels } = shape;
    let dy = check::view(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let rstd = check::view(stream, OP, "rstd", rstd, &[rows])?;
    let dw = check::view_mut(stream, OP, "dw", dw, &[channels])?;
    cpu::backward_weight(stream.device().cpu_pool()?, shape, cpu::Saved { dy, x, rstd }, dw);
    Ok(())
}
