//! Softmax by the kernels of `cu/softmax.cu`.

use warpweft_device::{Float, Stream, View, ViewMut};

use super::{Options, Shape};
use crate::launch::{RowLaunch, SOFTMAX};
use crate::{KernelError, Write};

pub(super) fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, columns } = shape;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let aligned = x.is_aligned(16) && y.as_view().is_aligned(16);
    let launch = RowLaunch::new::<T>("softmax forward", [rows, columns], 1, aligned)?;
    let args = [
        x.try_into()?,
        y.try_into()?,
        (rows as u32).into(),
        (columns as u32).into(),
        queries(options).into(),
        options.scale.into(),
        u32::from(launch.packed).into(),
        u32::from(launch.staged).into(),
    ];
    SOFTMAX.launch::<T>(stream, "softmax_forward_", launch.extent, &args)
}

pub(super) fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    [dy, y]: [View<'_, T>; 2],
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, columns } = shape;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let aligned = dy.is_aligned(16) && y.is_aligned(16) && dx.as_view().is_aligned(16);
    let launch = RowLaunch::new::<T>("softmax backward", [rows, columns], 2, aligned)?;
    let args = [
        dy.try_into()?,
        y.try_into()?,
        dx.try_into()?,
        (rows as u32).into(),
        (columns as u32).into(),
        queries(options).into(),
        options.scale.into(),
        u32::from(write == Write::Add).into(),
        u32::from(launch.packed).into(),
        u32::from(launch.staged).into(),
    ];
    SOFTMAX.launch::<T>(stream, "softmax_backward_", launch.extent, &args)
}

/// Rows of a sequence under a causal mask, 0 without one.
fn queries(options: Options) -> u32 {
    // A divisor of the rows, which fit.
    options.causal.map_or(0, |queries| queries as u32)
}
