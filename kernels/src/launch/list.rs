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
const ENTRY: usize = size_of::<[u64; TOGETHER + 3]>();

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
    /// Adds tensors of `len` elements that go together; `aligned` says that all of them begin at multiples of 16 bytes.
    pub(crate) fn push(
        &mut self,
        tensors: [Option<Arg>; TOGETHER],
        len: usize,
        aligned: bool,
        flags: u64,
    ) -> Result<(), DeviceError> {
        if len == 0 {
            return Ok(());
        }
        for tensor in tensors {
            self.words.push(tensor.as_ref().map_or(0, Arg::address));
            self.arguments.extend(tensor);
        }
        self.words.extend([len as u64, self.chunks, flags | if aligned { PACKED } else { 0 }]);
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

    /// The table on the device with `more` bytes behind it: the memory, the kernels' first two arguments (the table and
    /// how many tensors it has), and a third that is the memory behind it.
    pub(crate) fn upload<'s>(self, stream: &'s Stream, more: usize) -> Result<(Workspace<'s>, [Arg; 3]), DeviceError> {
        let (bytes, tensors) = (self.words.len() * size_of::<u64>(), self.len());
        let workspace = stream.workspace(bytes + more)?;
        workspace.write(stream, bytemuck::cast_slice(&self.words))?;
        let table = Arg::try_from(workspace.as_view())?.keeping(self.arguments);
        let behind = Arg::try_from(workspace.as_view().slice(bytes..)?)?;
        Ok((workspace, [table, tensors.into(), behind]))
    }
}
