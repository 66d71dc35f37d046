//! The transpose by the kernels of `cu/transpose.cu`.

use warpweft_device::{Float, Stream, View, ViewMut};

use super::Shape;
use crate::KernelError;
use crate::launch::{Extent, TRANSPOSE, fits};

/// Threads of a block, and how many of their squares lie along the columns and along the rows of a tile.
const THREADS: u32 = 256;
const SQUARES: [usize; 2] = [8, 32];

pub(super) fn transpose<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { batch, rows, columns } = shape;
    let (name, n) = match size_of::<T>() {
        2 => ("transpose_16", 8),
        4 => ("transpose_32", 4),
        _ => return Err(KernelError::Combination { op, argument: "x", rule: "is f32, bf16 or f16 on a GPU" }),
    };
    fits(op, "rows", rows, i32::MAX as usize)?;
    fits(op, "columns", columns, i32::MAX as usize)?;
    let blocks = (columns.div_ceil(SQUARES[0] * n) * rows.div_ceil(SQUARES[1] * n)).saturating_mul(batch);
    fits(op, "tiles", blocks, i32::MAX as usize)?;
    let aligned = x.is_aligned(16) && y.as_view().is_aligned(16);
    let packed = aligned && rows.is_multiple_of(n) && columns.is_multiple_of(n);
    let extent = Extent { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared: 0 };
    let args = [x.try_into()?, y.try_into()?, (rows as u32).into(), (columns as u32).into(), u32::from(packed).into()];
    TRANSPOSE.launch::<T>(stream, name, extent, &args)
}
