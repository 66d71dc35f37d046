//! Launches of sums over rows: partial sums of parts of the rows, and a second kernel that adds those up.

use warpweft_device::{Arg, Float, Stream, Workspace};

use super::{Extent, fits};
use crate::KernelError;

/// Rows of a part, warps that share them and threads of a warp, as in `cu/include/partials.cuh`.
const PART: usize = 128;
const WARPS: u32 = 8;
const LANES: u32 = 32;
/// Blocks along the second dimension of a grid.
const MOST_TILES: usize = 65_535;

/// How the sums of `gradients` values of each column are spread over blocks.
pub(crate) struct PartsLaunch<'a> {
    /// Of the kernel that makes partial sums.
    pub(crate) extent: Extent,
    /// Of the kernel that adds them up.
    pub(crate) add: Extent,
    /// Whether 16 bytes are moved at a time.
    pub(crate) packed: bool,
    pub(crate) parts: u32,
    partials: Workspace<'a>,
}

impl<'a> PartsLaunch<'a> {
    /// For `rows` of `columns` elements, neither being 0; `aligned` says that all arguments begin at multiples of 16 bytes.
    ///
    /// # Errors
    /// More rows or columns than a grid or a 32-bit number has; no memory for the partial sums.
    pub(crate) fn new<T: Float>(
        op: &'static str,
        stream: &'a Stream,
        [rows, columns]: [usize; 2],
        gradients: u32,
        aligned: bool,
    ) -> Result<Self, KernelError> {
        fits(op, "rows", rows, i32::MAX as usize)?;
        fits(op, "columns", columns, MOST_TILES * LANES as usize)?;
        let packed = aligned && (columns * size_of::<T>()).is_multiple_of(16);
        let run = if packed { 16 / size_of::<T>() } else { 1 };
        let parts = rows.div_ceil(PART);
        let tiles = |run: usize| columns.div_ceil(LANES as usize * run) as u32;
        let block = [LANES, WARPS, 1];
        Ok(Self {
            extent: Extent { grid: [parts as u32, tiles(run), 1], block, shared: 0 },
            add: Extent { grid: [tiles(1), gradients, 1], block, shared: 0 },
            packed,
            parts: parts as u32,
            partials: stream.workspace(parts * gradients as usize * columns * size_of::<f32>())?,
        })
    }

    /// The partial sums.
    pub(crate) fn partials(&self) -> Result<Arg, KernelError> {
        Ok(self.partials.as_view().try_into()?)
    }
}
