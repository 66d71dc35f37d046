//! Filling with random numbers by the kernels of `cu/philox.cu`.

use warpweft_device::{Arg, Float, Stream, ViewMut};

use super::Philox4x32;
use crate::KernelError;
use crate::launch::{Extent, PHILOX, fits};

const THREADS: usize = 256;

/// Fills `out` by `kernel`, with the two numbers of its distribution.
pub(super) fn fill<T: Float>(
    (op, kernel): (&'static str, &str),
    stream: &Stream,
    generator: Philox4x32,
    first: u64,
    [a, b]: [Arg; 2],
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if out.is_empty() {
        return Ok(());
    }
    let (len, run) = (out.len(), 16 / size_of::<T>());
    let blocks = len.div_ceil(THREADS * run);
    fits(op, "blocks of elements", blocks, i32::MAX as usize)?;
    let packed = out.as_view().is_aligned(16) && first.is_multiple_of(run as u64);
    let extent = Extent { grid: [blocks as u32, 1, 1], block: [THREADS as u32, 1, 1], shared: 0 };
    let [seed, sequence] = generator.numbers();
    let out = out.try_into()?;
    let args = [seed.into(), sequence.into(), first.into(), a, b, out, (len as u64).into(), u32::from(packed).into()];
    PHILOX.launch::<T>(stream, kernel, extent, &args)
}
