//! Layer normalisation over the last dimension: `y = (x - mean) * rstd * w + b` with `rstd = 1 / sqrt(variance + eps)`
//! and the biased variance, row by row (Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450, 2016).
//!
//! Storage `T`, arithmetic f32 with sums along a row in f64. Deterministic, whatever the thread count. Bound by memory:
//! each call reads and writes every activation once.
//!
//! Zero variance gives `y = b` exactly (NaN where `eps` is 0 too, as 0/0). A row with a NaN or an infinity becomes NaN.

mod cpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check};

/// Rows of `channels` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows, each normalised by itself: B * T.
    pub rows: usize,
    /// Elements of a row: C. Without any, the mean is written as 0.
    pub channels: usize,
}

/// Normalises `x [rows, C]` into `y [rows, C]` with weight `w [C]` and bias `b [C]`, and saves each row's `mean` and
/// `rstd [rows]` for the backward calls.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; `eps` negative or not finite.
#[expect(clippy::too_many_arguments, reason = "the op's tensors, each with a role of its own")]
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    eps: f32,
    x: View<'_, T>,
    w: View<'_, T>,
    b: View<'_, T>,
    y: ViewMut<'_, T>,
    mean: ViewMut<'_, f32>,
    rstd: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "layernorm forward";
    let Shape { rows, channels } = shape;
    check::epsilon(OP, eps)?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let w = check::view(stream, OP, "w", w, &[channels])?;
    let b = check::view(stream, OP, "b", b, &[channels])?;
    let y = check::view_mut(stream, OP, "y", y, &[rows, channels])?;
    let mean = check::view_mut(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::view_mut(stream, OP, "rstd", rstd, &[rows])?;
    cpu::forward(stream.device().cpu_pool()?, shape, eps, cpu::Forward { x, w, b, y, mean, rstd });
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
    mean: View<'_, f32>,
    rstd: View<'_, f32>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "layernorm backward_input";
    let Shape { rows, channels } = shape;
    let dy = check::view(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let w = check::view(stream, OP, "w", w, &[channels])?;
    let mean = check::view(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::view(stream, OP, "rstd", rstd, &[rows])?;
    let dx = check::view_mut(stream, OP, "dx", dx, &[rows, channels])?;
    cpu::backward_input(stream.device().cpu_pool()?, shape, cpu::Saved { dy, x, mean, rstd }, w, write, dx);
    Ok(())
}

/// Adds the weight's gradient to `dw [C]` and the bias's to `db [C]`, from the output's gradient `dy [rows, C]` and
/// what `forward` took and saved. Sums run over fixed blocks of rows in f64 and are rounded once.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device.
#[expect(clippy::too_many_arguments, reason = "the op's tensors, each with a role of its own")]
pub fn backward_weight<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    x: View<'_, T>,
    mean: View<'_, f32>,
    rstd: View<'_, f32>,
    dw: ViewMut<'_, f32>,
    db: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "layernorm backward_weight";
    let Shape { rows, channels } = shape;
    let dy = check::view(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let mean = check::view(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::view(stream, OP, "rstd", rstd, &[rows])?;
    let dw = check::view_mut(stream, OP, "dw", dw, &[channels])?;
    let db = check::view_mut(stream, OP, "db", db, &[channels])?;
    cpu::backward_weight(stream.device().cpu_pool()?, shape, cpu::Saved { dy, x, mean, rstd }, dw, db);
    Ok(())
}
