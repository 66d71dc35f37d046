//! Launches over a list of tensors: a table of them on the device, and a block for each chunk of each (`cu/include/list.cuh`).

use warpweft_device::{Arg, DeviceError, Stream, Workspace};

use super::{Extent, fits};
use crate::KernelError;

/// Elements of a chunk.
pub(crate) const CHUNK: usize = 16_384;
/// Tensors that may go together.
const TOGETHER: usize = 5;
/// Threads of a block.
const THREADS: u32 = 256;
/// Bytes of an entry of the table.
const ENTRY: usize = size_of::<[u64; TOGETHER + 4]>();

/// What a table begins at a multiple of.
const ALIGNMENT: usize = 64;

/// All of an entry's tensors begin at multiples of 16 bytes.
const PACKED: u64 = 1;

/// The table under construction.
#[derive(Default)]
pub(crate) struct List {
    words: Vec<u64>,
    /// Keep what the table points to.
    arguments: Vec<Arg>,
    chunks: u64,
}

impl List {
    /// Adds tensors of `len` elements that go together; `aligned` says that all of them begin at multiples of 16 bytes. The
    /// op's kernels know what its flags and the number behind them are.
    pub(crate) fn push(
        &mut self,
        tensors: [Option<Arg>; TOGETHER],
        len: usize,
        aligned: bool,
        [flags, number]: [u64; 2],
    ) -> Result<(), DeviceError> {
        if len == 0 {
            return Ok(());
        }
        for tensor in tensors {
            self.words.push(tensor.as_ref().map_or(0, Arg::address));
            self.arguments.extend(tensor);
        }
        self.words.extend([len as u64, self.chunks, flags | if aligned { PACKED } else { 0 }, number]);
        self.chunks += len.div_ceil(CHUNK) as u64;
        Ok(())
    }

    /// Blocks of a launch.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks as usize
    }

    /// Tensors.
    fn len(&self) -> u32 {
        (self.words.len() * size_of::<u64>() / ENTRY) as u32
    }

    /// The grid.
    ///
    /// # Errors
    /// More chunks than a grid has blocks.
    pub(crate) fn extent(&self, op: &'static str) -> Result<Extent, KernelError> {
        fits(op, "chunks of 16,384 elements", self.chunks(), i32::MAX as usize)?;
        Ok(Extent { grid: [self.chunks as u32, 1, 1], block: [THREADS, 1, 1], shared: 0 })
    }

    /// `front`, the table and `more` bytes on the device: the memory, and the kernels' arguments, which are the place of
    /// `front`, the table, how many tensors it has, and what lies behind it.
    pub(crate) fn upload<'s>(
        self,
        stream: &'s Stream,
        front: &[u8],
        more: usize,
    ) -> Result<(Workspace<'s>, [Arg; 4]), DeviceError> {
        let (begin, tensors) = (front.len().next_multiple_of(ALIGNMENT), self.len());
        let mut bytes = vec![0; begin];
        bytes[..front.len()].copy_from_slice(front);
        bytes.extend_from_slice(bytemuck::cast_slice(&self.words));
        let workspace = stream.workspace(bytes.len() + more)?;
        workspace.write(stream, &bytes)?;
        let at = |begin: usize| Arg::try_from(workspace.as_view().slice(begin..)?);
        let (table, behind) = (at(begin)?.keeping(self.arguments), at(bytes.len())?);
        let front = at(0)?;
        Ok((workspace, [front, table, tensors.into(), behind]))
    }
}
