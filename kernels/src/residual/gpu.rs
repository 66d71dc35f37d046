//! The residual sum by the kernels of `cu/residual.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{Dropout, Shape, Terms};
use crate::KernelError;
use crate::launch::{RESIDUAL, RowLaunch};

/// Elements that the random numbers of one block are for.
const OF_A_BLOCK: usize = 8;

/// How rows are spread over blocks, and a kernel's arguments behind the arrays: dropout's, and sizes.
fn launch_of<T: Float>(
    op: &'static str,
    shape: Shape,
    dropout: Option<Dropout>,
    mut aligned: bool,
) -> Result<(RowLaunch, Vec<Arg>), KernelError> {
    let Shape { rows, channels } = shape;
    let mut args = Vec::new();
    if let Some(dropout) = dropout {
        // Neighbours that one access moves then lie in one block of random numbers.
        aligned &= channels.is_multiple_of(OF_A_BLOCK) && dropout.first.is_multiple_of(OF_A_BLOCK as u64);
        args.extend([dropout.seed, dropout.sequence, dropout.first].map(Arg::from));
        args.extend([dropout.threshold().into(), (dropout.factor() as f32).into()]);
    }
    let launch = RowLaunch::new::<T>(op, [rows, channels], 0, aligned)?;
    args.extend([rows as u32, channels as u32, u32::from(launch.packed)].map(Arg::from));
    Ok((launch, args))
}

pub(super) fn sum<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    dropout: Option<Dropout>,
    Terms { x, branch, bias }: Terms<'_, T>,
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if out.is_empty() {
        return Ok(());
    }
    let aligned = [x, branch, out.as_view()].iter().chain(&bias).all(|view| view.is_aligned(16));
    let (launch, others) = launch_of::<T>(op, shape, dropout, aligned)?;
    let bias = bias.map_or(Ok(Arg::pointer(0)), Arg::try_from)?;
    let args = [&[x.try_into()?, branch.try_into()?, bias, out.try_into()?], &others[..]].concat();
    let kernel = if dropout.is_some() { "residual_dropout_" } else { "residual_forward_" };
    RESIDUAL.launch::<T>(stream, kernel, launch.extent, &args)
}

pub(super) fn backward_dropout<T: Float>(
    op: &'static str,
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
    let (launch, others) = launch_of::<T>(op, shape, Some(dropout), aligned)?;
    let args = [&[dout.try_into()?, dbranch.try_into()?], &others[..]].concat();
    RESIDUAL.launch::<T>(stream, "residual_dropout_backward_", launch.extent, &args)
}
