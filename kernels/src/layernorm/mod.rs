//! Layer normalisation over the last dimension: `y = (x - mean) * rstd * w + b` with `rstd = 1 / sqrt(variance + eps)`
//! and the biased variance, row by row (Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450, 2016).
//!
//! Storage `T`, arithmetic f32 with sums along a row in f64. Deterministic, whatever the thread count. Bound by memory:
//! each call reads and writes every activation once.
//!
//! On a GPU the sums along a row are f32, and so are those of 128 rows; a row longer than 96 KiB (48 KiB backward) is read
//! again for each pass. A square beyond f32 (an element of 1.8e19 off the mean) is infinite there, and `rstd` then 0.
//!
//! Zero variance gives `y = b` exactly (NaN where `eps` is 0 too, as 0/0). A row with a NaN or an infinity becomes NaN.

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check, residual};

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
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let w = check::region(stream, OP, "w", w, &[channels])?;
    let b = check::region(stream, OP, "b", b, &[channels])?;
    let y = check::region_mut(stream, OP, "y", y, &[rows, channels])?;
    let mean = check::region_mut(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::region_mut(stream, OP, "rstd", rstd, &[rows])?;
    normalise(stream, shape, eps, None, gpu::Forward { x, w, b, y, mean, rstd })
}

/// The end of a residual branch and the norm after it in one call: writes `sum = x + branch` `[rows, C]`, rounded to `T`, and
/// normalises that as [`forward`] does. The gradient of both x and the branch is what [`backward_input`] adds
/// ([`Write::Add`]) to the sum's own.
///
/// # Errors
/// As for [`forward`].
#[expect(clippy::too_many_arguments, reason = "the op's tensors, each with a role of its own")]
pub fn forward_residual<T: Float>(
    stream: &Stream,
    shape: Shape,
    eps: f32,
    x: View<'_, T>,
    branch: View<'_, T>,
    w: View<'_, T>,
    b: View<'_, T>,
    sum: ViewMut<'_, T>,
    y: ViewMut<'_, T>,
    mean: ViewMut<'_, f32>,
    rstd: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "layernorm forward_residual";
    let Shape { rows, channels } = shape;
    check::epsilon(OP, eps)?;
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let branch = check::region(stream, OP, "branch", branch, &[rows, channels])?;
    let w = check::region(stream, OP, "w", w, &[channels])?;
    let b = check::region(stream, OP, "b", b, &[channels])?;
    let sum = check::region_mut(stream, OP, "sum", sum, &[rows, channels])?;
    let y = check::region_mut(stream, OP, "y", y, &[rows, channels])?;
    let mean = check::region_mut(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::region_mut(stream, OP, "rstd", rstd, &[rows])?;
    normalise(stream, shape, eps, Some(gpu::Branch { branch, sum }), gpu::Forward { x, w, b, y, mean, rstd })
}

/// Both forward calls, their arguments checked.
fn normalise<T: Float>(
    stream: &Stream,
    shape: Shape,
    eps: f32,
    branch: Option<gpu::Branch<'_, T>>,
    all: gpu::Forward<'_, T>,
) -> Result<(), KernelError> {
    let Ok(pool) = stream.device().cpu_pool() else {
        return gpu::forward(stream, shape, eps, branch, all);
    };
    let gpu::Forward { x, w, b, y, mean, rstd } = all;
    let mut x = x.host()?;
    if let Some(gpu::Branch { branch, sum }) = branch {
        let sum = sum.host()?;
        residual::add(pool, [shape.rows, shape.channels], x, branch.host()?, sum);
        x = sum;
    }
    let (w, b, y, mean, rstd) = (w.host()?, b.host()?, y.host()?, mean.host()?, rstd.host()?);
    cpu::forward(pool, shape, eps, cpu::Forward { x, w, b, y, mean, rstd });
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
    let dy = check::region(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let w = check::region(stream, OP, "w", w, &[channels])?;
    let mean = check::region(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::region(stream, OP, "rstd", rstd, &[rows])?;
    let dx = check::region_mut(stream, OP, "dx", dx, &[rows, channels])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let saved = cpu::Saved { dy: dy.host()?, x: x.host()?, mean: mean.host()?, rstd: rstd.host()? };
            cpu::backward_input(pool, shape, saved, w.host()?, write, dx.host()?);
        }
        Err(_) => gpu::backward_input(stream, shape, gpu::Saved { dy, x, mean, rstd }, w, write, dx)?,
    }
    Ok(())
}

/// Adds the weight's gradient to `dw [C]` and the bias's to `db [C]`, from the output's gradient `dy [rows, C]` and
/// what `forward` took and saved. Sums run over fixed blocks of rows in f64 and are rounded once.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; on a GPU more than 2,097,120 columns.
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
    let dy = check::region(stream, OP, "dy", dy, &[rows, channels])?;
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let mean = check::region(stream, OP, "mean", mean, &[rows])?;
    let rstd = check::region(stream, OP, "rstd", rstd, &[rows])?;
    let dw = check::region_mut(stream, OP, "dw", dw, &[channels])?;
    let db = check::region_mut(stream, OP, "db", db, &[channels])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let saved = cpu::Saved { dy: dy.host()?, x: x.host()?, mean: mean.host()?, rstd: rstd.host()? };
            cpu::backward_weight(pool, shape, saved, dw.host()?, db.host()?);
        }
        Err(_) => gpu::backward_weight(stream, shape, gpu::Saved { dy, x, mean, rstd }, dw, db)?,
    }
    Ok(())
}
