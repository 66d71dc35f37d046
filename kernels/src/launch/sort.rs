//! Launches of the stable sort of (key, row) pairs, `cu/include/sort.cuh`.

use warpweft_device::{Arg, Stream, View, Workspace};

use super::{Extent, Program, fits};
use crate::KernelError;

/// Items of a block, and threads of one: a thread for each value of a digit of 8 bits.
const TILE: usize = 2048;
const THREADS: u32 = 256;
const DIGIT: u32 = 8;

/// Keys of rows 0, 1, 2 and so on, to be sorted.
pub(crate) struct Sort<'a> {
    program: &'static Program,
    stream: &'a Stream,
    len: usize,
    memory: Workspace<'a>,
}

/// What comes out: the keys in their order, and which row each is of.
pub(crate) struct Sorted<'a> {
    pub(crate) keys: View<'a, u8>,
    pub(crate) rows: View<'a, u8>,
}

impl<'a> Sort<'a> {
    /// Memory to sort `len` keys, which is above 0.
    ///
    /// # Errors
    /// More keys than a grid has; no memory.
    pub(crate) fn new(
        program: &'static Program,
        op: &'static str,
        stream: &'a Stream,
        len: usize,
    ) -> Result<Self, KernelError> {
        // The counts are numbered in 32 bits.
        fits(op, "rows", len, (i32::MAX as usize / THREADS as usize) * TILE / 2)?;
        let bytes = 4 * Self::array(len) + Self::counts(len) * size_of::<u32>();
        Ok(Self { program, stream, len, memory: stream.workspace(bytes)? })
    }

    /// Bytes of an array of `len` numbers, so that the next one lies at a multiple of 256.
    fn array(len: usize) -> usize {
        (len * size_of::<u32>()).next_multiple_of(256)
    }

    fn counts(len: usize) -> usize {
        len.div_ceil(TILE) * THREADS as usize
    }

    /// Array `index` of the workspace: keys and rows, twice, and the counts.
    fn part(&self, index: usize) -> Result<View<'_, u8>, KernelError> {
        let bytes = if index < 4 { self.len } else { Self::counts(self.len) } * size_of::<u32>();
        let begin = index * Self::array(self.len);
        Ok(self.memory.as_view().slice(begin..begin + bytes)?)
    }

    /// Where the keys are to be written.
    pub(crate) fn keys(&self) -> Result<View<'_, u8>, KernelError> {
        self.part(0)
    }

    /// Launches the kernels, named `prefix` and then `sort_count` and so on, for keys up to `most`.
    pub(crate) fn launch(&self, prefix: &str, most: u32) -> Result<Sorted<'_>, KernelError> {
        let blocks = self.len.div_ceil(TILE) as u32;
        let extent = Extent { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        let one = Extent { grid: [1, 1, 1], block: [1024, 1, 1], shared: 0 };
        let (len, counts) = (Arg::from(self.len as u32), Arg::try_from(self.part(4)?)?);
        let run = |kernel: &str, extent, args: &[Arg]| {
            self.program.launch::<f32>(self.stream, &format!("{prefix}{kernel}"), extent, args)
        };
        let passes = (u32::BITS - most.leading_zeros()).div_ceil(DIGIT).max(1);
        let mut from = 0;
        for pass in 0..passes {
            let to = 2 - from;
            let (keys, shift) = (Arg::try_from(self.part(from)?)?, Arg::from(pass * DIGIT));
            let rows = if pass == 0 { Arg::pointer(0) } else { self.part(from + 1)?.try_into()? };
            run("sort_count", extent, &[keys.clone(), len.clone(), shift.clone(), counts.clone()])?;
            run("sort_scan", one, &[counts.clone(), (Self::counts(self.len) as u32).into()])?;
            let [keys_to, rows_to] = [Arg::try_from(self.part(to)?)?, self.part(to + 1)?.try_into()?];
            run("sort_scatter", extent, &[keys, rows, len.clone(), shift, counts.clone(), keys_to, rows_to])?;
            from = to;
        }
        Ok(Sorted { keys: self.part(from)?, rows: self.part(from + 1)? })
    }
}
