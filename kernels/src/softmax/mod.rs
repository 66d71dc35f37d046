//! Softmax over the last dimension: `y = e^(scale x - max) / sum of e^(scale x - max)`, row by row, of any length.
//!
//! The largest element and the sum are found in one pass over the row (M. Milakov, N. Gimelshein, "Online normalizer
//! calculation for softmax", arXiv 1805.02867, 2018), block by block, so that a row longer than the cache is read twice
//! in all. Storage `T`, exponentials f32 (1 unit in the last place), sums f64 on the CPU and f32 on a GPU. Deterministic,
//! whatever the thread count.
//!
//! Masked elements are not read (they may hold NaN), and 0 is written there. A row of -inf only, or one with nothing
//! unmasked, is all 0. A row with a NaN or +inf in it becomes NaN where it is not masked.

mod cpu;
mod gpu;
pub(crate) mod online;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check};

/// Rows of `columns` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows, each normalised by itself.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}

/// How the elements enter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The factor on the elements before the exponential: 1 unless set.
    pub scale: f32,
    /// With `Some(queries)` the mask is causal: the rows are the queries of one sequence after another, `queries` each,
    /// and row i of a sequence sees column j where `j <= i + columns - queries` (aligned at the bottom right).
    pub causal: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self { scale: 1.0, causal: None }
    }
}

impl Options {
    /// How many columns a row sees, from the first.
    #[inline(always)]
    pub(crate) fn visible(&self, row: usize, columns: usize) -> usize {
        match self.causal {
            Some(queries) => (row % queries + 1 + columns).saturating_sub(queries).min(columns),
            None => columns,
        }
    }

    fn check(&self, op: &'static str, shape: Shape) -> Result<(), KernelError> {
        check::finite(op, "scale", self.scale)?;
        match self.causal {
            Some(queries) if queries == 0 || !shape.rows.is_multiple_of(queries) => {
                let allowed = format!("at least 1 and a divisor of the {} rows", shape.rows);
                Err(KernelError::Size { op, argument: "causal", given: queries, allowed })
            }
            _ => Ok(()),
        }
    }
}

/// The softmax of `x [rows, columns]` into `y [rows, columns]`.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; a scale that is not finite; rows that are no
/// multiple of the queries of a causal mask.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "softmax forward";
    let Shape { rows, columns } = shape;
    options.check(OP, shape)?;
    let x = check::region(stream, OP, "x", x, &[rows, columns])?;
    let y = check::region_mut(stream, OP, "y", y, &[rows, columns])?;
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::forward(pool, shape, options, x.host()?, y.host()?),
        Err(_) => gpu::forward(stream, shape, options, x, y)?,
    }
    Ok(())
}

/// The input's gradient `dx = scale * y * (dy - sum of y dy)` [rows, columns], set or added to, from the output's
/// gradient `dy` and the output `y [rows, columns]`. Masked elements of `dy` are not read; their `dx` is 0.
///
/// # Errors
/// As for [`forward`].
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    dy: View<'_, T>,
    y: View<'_, T>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "softmax backward";
    let Shape { rows, columns } = shape;
    options.check(OP, shape)?;
    let dy = check::region(stream, OP, "dy", dy, &[rows, columns])?;
    let y = check::region(stream, OP, "y", y, &[rows, columns])?;
    let dx = check::region_mut(stream, OP, "dx", dx, &[rows, columns])?;
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::backward(pool, shape, options, dy.host()?, y.host()?, write, dx.host()?),
        Err(_) => gpu::backward(stream, shape, options, [dy, y], write, dx)?,
    }
    Ok(())
}
