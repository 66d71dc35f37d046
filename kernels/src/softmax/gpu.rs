//! Softmax by the kernels of `cu/softmax.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{MaskShape, Options, Shape};
use crate::launch::{RowLaunch, SOFTMAX};
use crate::{KernelError, Write};

pub(super) fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    mask: Option<(MaskShape, View<'_, u8>)>,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, columns } = shape;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    // Beside 16 bytes of x the mask has one for each element.
    let mask_aligned = mask.is_none_or(|(_, hidden)| hidden.is_aligned(16 / size_of::<T>()));
    let aligned = x.is_aligned(16) && y.as_view().is_aligned(16) && mask_aligned;
    let staged = size_of::<T>() + usize::from(mask.is_some());
    let launch = RowLaunch::staging::<T>("softmax forward", [rows, columns], staged, aligned)?;
    let (shape, hidden) = match mask {
        Some((shape, hidden)) => (shape, hidden.try_into()?),
        None => (MaskShape { heads: 1, queries: 1 }, Arg::pointer(0)),
    };
    let args = [
        x.try_into()?,
        hidden,
        y.try_into()?,
        (rows as u32).into(),
        (columns as u32).into(),
        queries(options).into(),
        // Divisors of the rows.
        ((shape.heads * shape.queries) as u32).into(),
        (shape.queries as u32).into(),
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
