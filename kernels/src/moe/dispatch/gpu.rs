//! Rows to experts and back by the kernels of `cu/moe_dispatch.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::Rows;
use crate::launch::{Extent, MOE_DISPATCH, RowLaunch, Sort, fits};
use crate::moe::Shape;
use crate::{KernelError, Write};

/// Places and weights of a row that the shared memory of a block holds, for as many rows as it may have.
const MOST_TOP_K: usize = 3072;

/// Assignments by expert, in their own order; those that `keep` marks with 0 behind all. There is at least one.
fn sorted<'a>(
    op: &'static str,
    stream: &'a Stream,
    shape: Shape,
    what: &'static str,
    (experts, keep): (View<'_, u32>, Option<View<'_, u32>>),
) -> Result<Sort<'a>, KernelError> {
    fits(op, "experts", shape.experts, i32::MAX as usize)?;
    let sort = Sort::new(&MOE_DISPATCH, op, stream, experts.len())?;
    let [word, number] = stream.device().fault(what)?;
    let args = [
        experts.try_into()?,
        keep.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        sort.keys()?.try_into()?,
        (experts.len() as u32).into(),
        (shape.experts as u32).into(),
        (shape.top_k as u32).into(),
        word,
        number,
    ];
    MOE_DISPATCH.launch::<f32>(stream, "moe_dispatch_keys", Extent::of_threads(experts.len()), &args)?;
    Ok(sort)
}

pub(super) fn within_capacity(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    (of_a_sequence, capacity): (usize, usize),
    experts: View<'_, u32>,
    keep: ViewMut<'_, u32>,
) -> Result<usize, KernelError> {
    if experts.is_empty() {
        return Ok(0);
    }
    let len = experts.len();
    let what = "moe::dispatch::within_capacity: `experts`";
    let sort = sorted(op, stream, shape, what, (experts, None))?;
    let by_expert = sort.launch("moe_dispatch_", shape.experts as u32)?;
    let mut dropped = stream.device().uninitialized::<u32>(1)?;
    dropped.as_view_mut().fill(stream, 0)?;
    let args = [
        by_expert.keys.try_into()?,
        by_expert.rows.try_into()?,
        keep.try_into()?,
        (len as u32).into(),
        (shape.experts as u32).into(),
        (of_a_sequence as u32).into(),
        // More than all is as good as all.
        (capacity.min(len) as u32).into(),
        dropped.as_view_mut().try_into()?,
    ];
    MOE_DISPATCH.launch::<f32>(stream, "moe_dispatch_capacity", Extent::of_threads(len), &args)?;
    Ok(dropped.download(stream)?[0] as usize)
}

pub(super) fn sort(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    (experts, keep): (View<'_, u32>, Option<View<'_, u32>>),
    mut counts: ViewMut<'_, u32>,
    [order, places]: [ViewMut<'_, u32>; 2],
) -> Result<usize, KernelError> {
    if experts.is_empty() {
        counts.fill(stream, 0)?;
        return Ok(0);
    }
    let (len, most) = (Arg::from(experts.len() as u32), Arg::from(shape.experts as u32));
    let extent = Extent::of_threads(experts.len());
    let sort = sorted(op, stream, shape, "moe::dispatch::sort: `experts`", (experts, keep))?;
    let by_expert = sort.launch("moe_dispatch_", shape.experts as u32)?;
    let keys = Arg::try_from(by_expert.keys)?;
    let args =
        [keys.clone(), by_expert.rows.try_into()?, order.try_into()?, places.try_into()?, len.clone(), most.clone()];
    MOE_DISPATCH.launch::<f32>(stream, "moe_dispatch_places", extent, &args)?;
    let args = [keys, counts.reborrow().try_into()?, len, most];
    MOE_DISPATCH.launch::<f32>(stream, "moe_dispatch_counts", Extent::of_threads(shape.experts), &args)?;
    Ok(counts.as_view().download(stream)?.into_iter().map(|count| count as usize).sum())
}

/// Sizes against what kernels hold.
fn check(op: &'static str, of: Rows) -> Result<(), KernelError> {
    fits(op, "top_k", of.top_k, i32::MAX as usize)?;
    fits(op, "rows", of.rows, i32::MAX as usize)?;
    fits(op, "len", of.len, i32::MAX as usize)
}

pub(super) fn permute<T: Float>(
    op: &'static str,
    stream: &Stream,
    of: Rows,
    (order, weights): (View<'_, u32>, Option<View<'_, f32>>),
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Rows { rows, top_k, channels, len } = of;
    if len == 0 || channels == 0 {
        return Ok(());
    }
    check(op, of)?;
    let aligned = x.is_aligned(16) && y.as_view().is_aligned(16);
    let launch = RowLaunch::new::<T>(op, [len, channels], 0, aligned)?;
    let [word, number] = stream.device().fault("moe::dispatch::permute: `order`")?;
    let args = [
        order.try_into()?,
        weights.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        x.try_into()?,
        y.try_into()?,
        (len as u32).into(),
        (channels as u32).into(),
        (rows as u64 * top_k as u64).into(),
        (top_k as u32).into(),
        u32::from(launch.packed).into(),
        word,
        number,
    ];
    MOE_DISPATCH.launch::<T>(stream, "moe_dispatch_permute_", launch.extent, &args)
}

pub(super) fn combine<T: Float>(
    op: &'static str,
    stream: &Stream,
    of: Rows,
    (places, weights): (View<'_, u32>, Option<View<'_, f32>>),
    x: View<'_, T>,
    write: Write,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Rows { rows, top_k, channels, len } = of;
    if rows == 0 || channels == 0 {
        return Ok(());
    }
    check(op, of)?;
    fits(op, "top_k", top_k, MOST_TOP_K)?;
    let aligned = x.is_aligned(16) && y.as_view().is_aligned(16);
    let launch = RowLaunch::new::<T>(op, [rows, channels], 0, aligned)?;
    let kept = launch.extent.block[1] * (top_k * size_of::<[u32; 2]>()) as u32;
    let [word, number] = stream.device().fault("moe::dispatch::combine: `places`")?;
    let args = [
        places.try_into()?,
        weights.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        x.try_into()?,
        y.try_into()?,
        (rows as u32).into(),
        (channels as u32).into(),
        (top_k as u32).into(),
        (len as u32).into(),
        u32::from(write == Write::Add).into(),
        u32::from(launch.packed).into(),
        word,
        number,
    ];
    MOE_DISPATCH.launch::<T>(stream, "moe_dispatch_combine_", Extent { shared: kept, ..launch.extent }, &args)
}

pub(super) fn backward_weights<T: Float>(
    op: &'static str,
    stream: &Stream,
    of: Rows,
    places: View<'_, u32>,
    [x, dy]: [View<'_, T>; 2],
    mut dweights: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Rows { rows, top_k, channels, len } = of;
    if rows == 0 || top_k == 0 {
        return Ok(());
    }
    if channels == 0 {
        return Ok(dweights.reborrow().fill(stream, 0.0)?);
    }
    check(op, of)?;
    let launch = RowLaunch::new::<T>(op, [rows, channels], 1, x.is_aligned(16) && dy.is_aligned(16))?;
    let [word, number] = stream.device().fault("moe::dispatch::backward_weights: `places`")?;
    let args = [
        places.try_into()?,
        x.try_into()?,
        dy.try_into()?,
        dweights.try_into()?,
        (rows as u32).into(),
        (channels as u32).into(),
        (top_k as u32).into(),
        (len as u32).into(),
        u32::from(launch.packed).into(),
        u32::from(launch.staged).into(),
        word,
        number,
    ];
    MOE_DISPATCH.launch::<T>(stream, "moe_dispatch_backward_weights_", launch.extent, &args)
}
