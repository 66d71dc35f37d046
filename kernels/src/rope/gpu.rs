//! Rotary positions by the kernel of `cu/rope.cu`.

use std::f64::consts::PI;

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{Direction, Options, Shape, reference};
use crate::KernelError;
use crate::launch::{Extent, ROPE, fits};

/// Threads of a block, which has a row, at most.
const THREADS: usize = 128;

pub(super) fn rotate<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    options: Options,
    positions: Option<View<'_, u32>>,
    direction: Direction,
    x: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { batch, tokens, heads, head_size, row_stride } = shape;
    let rows = batch * tokens;
    if rows == 0 || heads * head_size == 0 {
        return Ok(());
    }
    fits(op, "batch * tokens", rows, i32::MAX as usize)?;
    // The table of a row's angles is head_size floats of shared memory.
    fits(op, "head_size", head_size, 8192)?;
    fits(op, "heads * head_size", heads * head_size, i32::MAX as usize)?;
    let half = head_size / 2;
    let frequencies: Vec<f64> = (0..half).map(|pair| reference::angle(head_size, options.base, 1, pair) / PI).collect();
    let workspace = stream.workspace(half * size_of::<f64>())?;
    workspace.write(stream, bytemuck::cast_slice(&frequencies))?;
    let size = size_of::<T>();
    let side = if options.interleaved { head_size } else { half };
    let packed = x.as_view().is_aligned(16) && [side, row_stride].iter().all(|len| (len * size).is_multiple_of(16));
    let runs = if packed { side * size / 16 } else { half };
    let beside = runs.min(THREADS);
    let args = [
        x.try_into()?,
        positions.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        workspace.as_view().try_into()?,
        (tokens as u32).into(),
        (heads as u32).into(),
        (half as u32).into(),
        (row_stride as u64).into(),
        (options.position as u64).into(),
        (if direction == Direction::Forward { 1.0f32 } else { -1.0 }).into(),
        u32::from(options.interleaved).into(),
        u32::from(packed).into(),
    ];
    let block = [beside as u32, (THREADS / beside) as u32, 1];
    let extent = Extent { grid: [rows as u32, 1, 1], block, shared: (head_size * size_of::<f32>()) as u32 };
    ROPE.launch::<T>(stream, "rope_rotate_", extent, &args)
}
