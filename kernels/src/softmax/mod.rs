//! Softmax over the last dimension: `y = e^(scale x - max) / sum of e^(scale x - max)`, row by row, of any length.
//!
//! The largest element and the sum are found in one pass over the row (M. Milakov, N. Gimelshein, "Online normalizer
//! calculation for softmax", arXiv 1805.02867, 2018), block by block, so that a row longer than the cache is read twice
//! in all. Storage `T`, exponentials f32 (1 unit in the last place), sums f64 on the CPU and f32 on a GPU. Deterministic,
//! whatever the thread count.
//!
//! A mask is causal ([`Options::causal`]), given byte by byte ([`forward_masked`]), or both. Masked elements may hold NaN,
//! for they are not used, and 0 is written there. A row of -inf only, or one with nothing unmasked, is all 0. A row with a
//! NaN or +inf in it becomes NaN where it is not masked. The backward pass takes no given mask: what is 0 in y has no part
//! in it.

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

/// How rows share those of a given mask: with x `[B, heads, queries, columns]` the mask is `[B, queries, columns]`, so that
/// all heads of a batch element have one. `heads: 1` gives each row its own; `heads: B H` shares one mask over the batch too;
/// `queries: 1` is a mask `[B, columns]`, of padding, shared by the `heads` rows of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskShape {
    /// Heads that share a mask, at least 1.
    pub heads: usize,
    /// Rows of the mask for each of them, at least 1.
    pub queries: usize,
}

impl MaskShape {
    /// The row of the mask for a row of x.
    #[inline(always)]
    fn row(self, row: usize) -> usize {
        row / (self.heads * self.queries) * self.queries + row % self.queries
    }

    fn check(self, op: &'static str, rows: usize) -> Result<(), KernelError> {
        let heads = ("mask heads", self.heads, rows);
        let queries = ("mask queries", self.queries, rows / self.heads.max(1));
        for (argument, given, of) in [heads, queries] {
            if given == 0 || !of.is_multiple_of(given) {
                let allowed = format!("at least 1 and a divisor of {of}: heads times queries divide the {rows} rows");
                return Err(KernelError::Size { op, argument, given, allowed });
            }
        }
        Ok(())
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
    forward_with(stream, shape, options, None, x, y)
}

/// [`forward`] under a given mask: bytes `[rows / mask.heads, columns]`, of which any but 0 HIDES its element, as in Megatron's
/// scaled masked softmax and PyTorch's `masked_fill` (PyTorch's scaled_dot_product_attention says it the other way round).
/// What a causal mask hides too is hidden by either.
///
/// # Errors
/// As for [`forward`], and a mask whose heads times queries do not divide the rows.
pub fn forward_masked<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    mask: MaskShape,
    hidden: View<'_, u8>,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    forward_with(stream, shape, options, Some((mask, hidden)), x, y)
}

fn forward_with<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    mask: Option<(MaskShape, View<'_, u8>)>,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "softmax forward";
    let Shape { rows, columns } = shape;
    options.check(OP, shape)?;
    if let Some((mask, hidden)) = mask {
        mask.check(OP, rows)?;
        check::region(stream, OP, "hidden", hidden, &[rows / mask.heads, columns])?;
    }
    let x = check::region(stream, OP, "x", x, &[rows, columns])?;
    let y = check::region_mut(stream, OP, "y", y, &[rows, columns])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let mask = mask.map(|(mask, hidden)| Ok::<_, KernelError>((mask, hidden.host()?))).transpose()?;
            cpu::forward(pool, shape, options, mask, x.host()?, y.host()?);
        }
        Err(_) => gpu::forward(stream, shape, options, mask, x, y)?,
    }
    Ok(())
}

/// The input's gradient `dx = scale * y * (dy - sum of y dy)` [rows, columns], set or added to, from the output's
/// gradient `dy` and the output `y [rows, columns]`. Where y is 0, as behind any mask, `dy` is not used, and `dx` is 0.
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
