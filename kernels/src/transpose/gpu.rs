//! The transpose by the kernels of `cu/transpose.cu`.

use warpweft_device::{Float, Stream, View, ViewMut};

use super::Shape;
use crate::KernelError;
use crate::launch::{Extent, TRANSPOSE, fits};

/// Threads of a block.
const THREADS: u32 = 256;
/// How many squares of what 16 bytes hold, on a side, a block turns in registers: along rows and along columns.
const SQUARES: [usize; 2] = [32, 8];
/// Bytes that a request to memory moves whole.
const SECTOR: usize = 32;
/// The side of a tile in shared memory where a matrix is larger both ways.
const SIDE: usize = 64;

/// The rows and columns of a tile in shared memory: all of a side that is short, and of the other side as much as fits.
fn staged([rows, columns]: [usize; 2]) -> [usize; 2] {
    // A multiple of a sector whatever the type.
    let beside = |short: usize| SIDE * SIDE / short / SECTOR * SECTOR;
    match (rows <= SIDE, columns <= SIDE) {
        (true, _) => [rows, columns.min(beside(rows))],
        (false, true) => [rows.min(beside(columns)), columns],
        (false, false) => [SIDE, SIDE],
    }
}

pub(super) fn transpose<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { batch, rows, columns } = shape;
    let (name, n) = if size_of::<T>() == 2 { ("transpose_16", 8) } else { ("transpose_32", 4) };
    fits(op, "rows", rows, i32::MAX as usize)?;
    fits(op, "columns", columns, i32::MAX as usize)?;
    let sectors = [rows, columns].iter().all(|side| (side * size_of::<T>()).is_multiple_of(SECTOR));
    let packed = sectors && x.is_aligned(16) && y.as_view().is_aligned(16);
    let [high, wide] = if packed { SQUARES.map(|squares| squares * n) } else { staged([rows, columns]) };
    let blocks = (columns.div_ceil(wide) * rows.div_ceil(high)).saturating_mul(batch);
    fits(op, "tiles", blocks, i32::MAX as usize)?;
    // As in `slot_of` of the kernel.
    let slots = high * (wide + wide / n) + high / n * (n / 2);
    let shared = if packed { 0 } else { (slots * size_of::<u32>()) as u32 };
    let extent = Extent { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared };
    let sizes = [rows, columns, usize::from(packed), high, wide].map(|size| (size as u32).into());
    let args = [x.try_into()?, y.try_into()?].into_iter().chain(sizes).collect::<Vec<_>>();
    TRANSPOSE.launch::<T>(stream, name, extent, &args)
}
