//! RMSNorm by the kernels of `cu/rmsnorm.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::Shape;
use crate::launch::{PartsLaunch, RMSNORM, RowLaunch};
use crate::{KernelError, Write};

/// The rows before, and where their sum with a branch goes.
pub(super) struct Branch<'a, T> {
    pub(super) branch: View<'a, T>,
    pub(super) sum: ViewMut<'a, T>,
}

pub(super) struct Forward<'a, T> {
    pub(super) x: View<'a, T>,
    pub(super) w: View<'a, T>,
    pub(super) y: ViewMut<'a, T>,
    pub(super) rstd: ViewMut<'a, f32>,
}

/// What the backward calls read of each row.
pub(super) struct Saved<'a, T> {
    pub(super) dy: View<'a, T>,
    pub(super) x: View<'a, T>,
    pub(super) rstd: View<'a, f32>,
}

pub(super) fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    eps: f32,
    branch: Option<Branch<'_, T>>,
    all: Forward<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, channels } = shape;
    let Forward { x, w, y, rstd } = all;
    if channels == 0 {
        return Ok(rstd.fill(stream, 1.0 / eps.sqrt())?);
    }
    if rows == 0 {
        return Ok(());
    }
    let mut aligned = [x, w, y.as_view()].iter().all(|view| view.is_aligned(16));
    let [mut more, mut sum] = [Arg::pointer(0), Arg::pointer(0)];
    if let Some(branch) = branch {
        aligned &= branch.branch.is_aligned(16) && branch.sum.as_view().is_aligned(16);
        (more, sum) = (branch.branch.try_into()?, branch.sum.try_into()?);
    }
    let launch = RowLaunch::new::<T>("rmsnorm forward", [rows, channels], 1, aligned)?;
    let args = [
        x.try_into()?,
        more,
        sum,
        w.try_into()?,
        y.try_into()?,
        rstd.try_into()?,
        (rows as u32).into(),
        (channels as u32).into(),
        eps.into(),
        u32::from(launch.packed).into(),
        u32::from(launch.staged).into(),
    ];
    RMSNORM.launch::<T>(stream, "rmsnorm_forward_", launch.extent, &args)
}

pub(super) fn backward_input<T: Float>(
    stream: &Stream,
    shape: Shape,
    saved: Saved<'_, T>,
    w: View<'_, T>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { rows, channels } = shape;
    if rows == 0 || channels == 0 {
        return Ok(());
    }
    let Saved { dy, x, rstd } = saved;
    let aligned = [dy, x, w, dx.as_view()].iter().all(|view| view.is_aligned(16));
    let launch = RowLaunch::new::<T>("rmsnorm backward_input", [rows, channels], 2, aligned)?;
    let args = [
        dy.try_into()?,
        x.try_into()?,
        w.try_into()?,
        rstd.try_into()?,
        dx.try_into()?,
        (rows as u32).into(),
        (channels as u32).into(),
        u32::from(write == Write::Add).into(),
        u32::from(launch.packed).into(),
        u32::from(launch.staged).into(),
    ];
    RMSNORM.launch::<T>(stream, "rmsnorm_backward_input_", launch.extent, &args)
}

pub(super) fn backward_weight<T: Float>(
    stream: &Stream,
    shape: Shape,
    saved: Saved<'_, T>,
    dw: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Shape { rows, channels } = shape;
    if rows == 0 || channels == 0 {
        return Ok(());
    }
    let Saved { dy, x, rstd } = saved;
    let aligned = dy.is_aligned(16) && x.is_aligned(16);
    let launch = PartsLaunch::new::<T>("rmsnorm backward_weight", stream, [rows, channels], 1, aligned)?;
    let args = [
        dy.try_into()?,
        x.try_into()?,
        rstd.try_into()?,
        launch.partials.argument()?,
        (rows as u32).into(),
        (channels as u32).into(),
        u32::from(launch.packed).into(),
    ];
    RMSNORM.launch::<T>(stream, "rmsnorm_backward_weight_", launch.extent, &args)?;
    let args = [launch.partials.argument()?, launch.partials.parts.into(), (channels as u32).into(), dw.try_into()?];
    RMSNORM.launch::<f32>(stream, "rmsnorm_add_parts", launch.partials.add, &args)
}
