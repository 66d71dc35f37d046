//! Transposes matrices, one or many of one shape: y[b, c, r] = x[b, r, c]. Bits are copied, whatever they mean. Bound by
//! memory; on a GPU 16 bytes at a time where rows and columns are multiples of what 16 bytes hold (8 of bf16 and f16, 4 of
//! f32) and both arrays begin at multiples of 16 bytes.

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Sizes: x is `[batch, rows, columns]`, y `[batch, columns, rows]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Matrices.
    pub batch: usize,
    /// Rows of x.
    pub rows: usize,
    /// Columns of x.
    pub columns: usize,
}

/// Writes the transpose of every matrix of `x` to `y`.
///
/// # Errors
/// A length that is not the shape's; an argument of another device; on a GPU f64, and more rows or columns than 2^31 - 1.
/// Nothing is written then.
pub fn transpose<T: Float>(
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "transpose";
    let Shape { batch, rows, columns } = shape;
    let x = check::region(stream, OP, "x", x, &[batch, rows, columns])?;
    let y = check::region_mut(stream, OP, "y", y, &[batch, columns, rows])?;
    if x.is_empty() {
        return Ok(());
    }
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::transpose(pool, shape, x.host()?, y.host()?),
        Err(_) => gpu::transpose(OP, stream, shape, x, y)?,
    }
    Ok(())
}
