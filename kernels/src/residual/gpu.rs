//! The residual sum by the kernels of `cu/residual.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::Shape;
use crate::KernelError;
use crate::launch::{RESIDUAL, RowLaunch};

pub(super) fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    branch: View<'_, T>,
    bias: Option<View<'_, T>>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, channels } = shape;
    if rows == 0 || channels == 0 {
        return Ok(());
    }
    let aligned = [x, branch, out.as_view()].iter().chain(&bias).all(|view| view.is_aligned(16));
    let launch = RowLaunch::new::<T>("residual forward", [rows, channels], 0, aligned)?;
    let args = [
        x.try_into()?,
        branch.try_into()?,
        bias.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        out.try_into()?,
        (rows as u32).into(),
        (channels as u32).into(),
        u32::from(launch.packed).into(),
    ];
    RESIDUAL.launch::<T>(stream, "residual_forward_", launch.extent, &args)
}
