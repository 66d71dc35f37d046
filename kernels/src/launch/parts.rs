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

/// Partial sums of `gradients` values of each column, and how they are added up.
pub(crate) struct Partials<'a> {
    /// Of the kernel that adds them up.
    pub(crate) add: Extent,
    pub(crate) parts: u32,
    memory: Workspace<'a>,
}

impl<'a> Partials<'a> {
    /// For so many parts, `columns` not being 0.
    ///
    /// # Errors
    /// More columns than a grid has; no memory for the partial sums.
    pub(crate) fn new(
        op: &'static str,
        stream: &'a Stream,
        parts: usize,
        columns: usize,
        gradients: u32,
    ) -> Result<Self, KernelError> {
        fits(op, "columns", columns, MOST_TILES * LANES as usize)?;
        let tiles = columns.div_ceil(LANES as usize) as u32;
        Ok(Self {
            add: Extent { grid: [tiles, gradients, 1], block: [LANES, WARPS, 1], shared: 0 },
            parts: parts as u32,
            memory: stream.workspace(parts * gradients as usize * columns * size_of::<f32>())?,
        })
    }

    /// The partial sums.
    pub(crate) fn argument(&self) -> Result<Arg, KernelError> {
        Ok(self.memory.as_view().try_into()?)
    }
}

/// How the sums of `gradients` values of each column are spread over blocks.
pub(crate) struct PartsLaunch<'a> {
    /// Of the kernel that makes partial sums.
    pub(crate) extent: Extent,
    /// Whether 16 bytes are moved at a time.
    pub(crate) packed: bool,
    /// What it makes.
    pub(crate) partials: Partials<'a>,
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
        let parts = rows.div_ceil(PART);
        let partials = Partials::new(op, stream, parts, columns, gradients)?;
        let packed = aligned && (columns * size_of::<T>()).is_multiple_of(16);
        let run = if packed { 16 / size_of::<T>() } else { 1 };
        let tiles = columns.div_ceil(LANES as usize * run) as u32;
        let extent = Extent { grid: [parts as u32, tiles, 1], block: [LANES, WARPS, 1], shared: 0 };
        Ok(Self { extent, packed, partials })
    }
}
