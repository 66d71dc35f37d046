//! Conversion by the kernels of `cu/cast.cu`.

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::KernelError;
use crate::launch::{CAST, Extent, fits};

const THREADS: u32 = 256;

pub(super) fn convert<A: Float, B: Float>(
    op: &'static str,
    stream: &Stream,
    from: View<'_, A>,
    to: ViewMut<'_, B>,
) -> Result<(), KernelError> {
    if from.is_empty() {
        return Ok(());
    }
    let block = THREADS as usize * 16 / size_of::<A>().max(size_of::<B>());
    let blocks = from.len().div_ceil(block);
    fits(op, "blocks of elements", blocks, i32::MAX as usize)?;
    let packed = from.is_aligned(16) && to.as_view().is_aligned(16);
    let extent = Extent { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared: 0 };
    let args = [from.try_into()?, to.try_into()?, ((from.len()) as u64).into(), u32::from(packed).into()];
    CAST.launch::<f32>(stream, &format!("cast_{}_{}", A::DTYPE, B::DTYPE), extent, &args)
}
