//! The residual sum by the kernels of `cu/residual.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{Dropout, Shape};
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
    let bias = bias.map_or(Ok(Arg::pointer(0)), Arg::try_from)?;
    let args = [&[x.try_into()?, branch.try_into()?, bias, out.try_into()?], &sizes(shape, &launch)[..]].concat();
    RESIDUAL.launch::<T>(stream, "residual_forward_", launch.extent, &args)
}

/// Elements that the random numbers of one block are for.
const OF_A_BLOCK: usize = 8;

/// How rows are spread over blocks, and dropout's arguments.
fn dropped<T: Float>(
    op: &'static str,
    shape: Shape,
    dropout: Dropout,
    aligned: bool,
) -> Result<(RowLaunch, [Arg; 5]), KernelError> {
    let Shape { rows, channels } = shape;
    // Neighbours that one access moves then lie in one block of random numbers.
    let whole = channels.is_multiple_of(OF_A_BLOCK) && dropout.first.is_multiple_of(OF_A_BLOCK as u64);
    let launch = RowLaunch::new::<T>(op, [rows, channels], 0, aligned && whole)?;
    let (threshold, factor) = (dropout.threshold(), dropout.factor() as f32);
    Ok((launch, [dropout.seed.into(), dropout.sequence.into(), dropout.first.into(), threshold.into(), factor.into()]))
}

pub(super) fn forward_dropout<T: Float>(
    stream: &Stream,
    shape: Shape,
    dropout: Dropout,
    x: View<'_, T>,
    branch: View<'_, T>,
    bias: Option<View<'_, T>>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if out.is_empty() {
        return Ok(());
    }
    let aligned = [x, branch, out.as_view()].iter().chain(&bias).all(|view| view.is_aligned(16));
    let (launch, numbers) = dropped::<T>("residual forward_dropout", shape, dropout, aligned)?;
    let bias = bias.map_or(Ok(Arg::pointer(0)), Arg::try_from)?;
    let args =
        [&[x.try_into()?, branch.try_into()?, bias, out.try_into()?], &numbers[..], &sizes(shape, &launch)].concat();
    RESIDUAL.launch::<T>(stream, "residual_dropout_", launch.extent, &args)
}

pub(super) fn backward_dropout<T: Float>(
    stream: &Stream,
    shape: Shape,
    dropout: Dropout,
    dout: View<'_, T>,
    dbranch: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if dout.is_empty() {
        return Ok(());
    }
    let aligned = dout.is_aligned(16) && dbranch.as_view().is_aligned(16);
    let (launch, numbers) = dropped::<T>("residual backward_dropout", shape, dropout, aligned)?;
    let args = [&[dout.try_into()?, dbranch.try_into()?], &numbers[..], &sizes(shape, &launch)].concat();
    RESIDUAL.launch::<T>(stream, "residual_dropout_backward_", launch.extent, &args)
}

fn sizes(shape: Shape, launch: &RowLaunch) -> [Arg; 3] {
    [(shape.rows as u32).into(), (shape.channels as u32).into(), u32::from(launch.packed).into()]
}
