//! Launches of ops that go through rows one by one: a warp a row, or a block.

use warpweft_device::Float;

use super::Extent;
use crate::KernelError;

/// Dynamic shared memory that every card has for a block that asks for it (99 KiB), less what kernels have besides.
const STAGING: usize = 96 << 10;
/// Rows of a block where a warp has one.
const ROWS: u32 = 4;

/// How rows of one length are spread over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLaunch {
    pub(crate) extent: Extent,
    /// Whether every row begins at a multiple of 16 bytes, so that 16 bytes are moved at a time.
    pub(crate) packed: bool,
    /// Whether a row's inputs stay in shared memory between reading and use.
    pub(crate) staged: bool,
}

impl RowLaunch {
    /// For `rows` of `columns` elements, with `inputs` staged where they fit; `aligned` says that all arguments begin at
    /// multiples of 16 bytes.
    ///
    /// # Errors
    /// As [`staging`](Self::staging).
    pub(crate) fn new<T: Float>(
        op: &'static str,
        dims: [usize; 2],
        inputs: usize,
        aligned: bool,
    ) -> Result<Self, KernelError> {
        Self::staging::<T>(op, dims, inputs * size_of::<T>(), aligned)
    }

    /// The same where other types are staged too: `staged` bytes beside each element.
    ///
    /// # Errors
    /// More rows or columns than a grid or a 32-bit number has.
    pub(crate) fn staging<T: Float>(
        op: &'static str,
        [rows, columns]: [usize; 2],
        staged: usize,
        aligned: bool,
    ) -> Result<Self, KernelError> {
        let size = size_of::<T>();
        fits(op, "rows", rows, i32::MAX as usize)?;
        fits(op, "columns", columns, i32::MAX as usize)?;
        // Four accesses of 16 bytes a thread, as far as the row goes.
        let threads = (columns * size).div_ceil(64).next_power_of_two().clamp(32, 1024) as u32;
        let rows_in_block = if threads == 32 { ROWS } else { 1 };
        let bytes = columns.saturating_mul(staged * rows_in_block as usize);
        let staged = bytes <= STAGING;
        let extent = Extent {
            grid: [(rows as u32).div_ceil(rows_in_block), 1, 1],
            block: [threads, rows_in_block, 1],
            shared: if staged { bytes as u32 } else { 0 },
        };
        Ok(Self { extent, packed: aligned && (columns * size).is_multiple_of(16), staged })
    }
}

/// Checks a size against what a grid or a number of a kernel has.
pub(crate) fn fits(op: &'static str, argument: &'static str, given: usize, most: usize) -> Result<(), KernelError> {
    if given <= most {
        return Ok(());
    }
    let allowed = format!("at most {most} on a GPU");
    Err(KernelError::Size { op, argument, given, allowed })
}
