//! The router by the kernels of `cu/moe_router.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{Margin, Options, Routed, Score};
use crate::KernelError;
use crate::launch::{Extent, MOE_ROUTER, fits};
use crate::moe::Shape;

/// Threads of the block that looks for the smallest margin.
const SEEKERS: u32 = 1024;

/// Shared memory that a block has at most, which every card has for a block that asks for it.
const STAGING: usize = 96 << 10;

/// A warp a row, whose arrays of so many bytes each stay in shared memory where they fit; and what the kernels want to know of that:
/// the bytes of a row, and whether 16 bytes are moved at a time.
fn staged<T: Float>(shape: Shape, arrays: &[usize], aligned: bool) -> (Extent, [Arg; 2]) {
    let mut extent = Extent::of_warps(shape.rows);
    let bytes: usize = arrays.iter().map(|bytes| bytes.next_multiple_of(16)).sum();
    let of_block = bytes * extent.block[1] as usize;
    let fit = of_block <= STAGING;
    extent.shared = if fit { of_block as u32 } else { 0 };
    let packed = aligned && (shape.experts * size_of::<T>()).is_multiple_of(16);
    (extent, [(if fit { bytes as u32 } else { 0 }).into(), u32::from(packed).into()])
}

/// The sizes and options of both kernels.
fn numbers(op: &'static str, shape: Shape, options: Options) -> Result<[Arg; 6], KernelError> {
    let Shape { rows, experts, top_k } = shape;
    fits(op, "rows", rows, i32::MAX as usize)?;
    fits(op, "experts", experts, i32::MAX as usize)?;
    let (sigmoid, normalize) = (options.score == Score::Sigmoid, options.normalize);
    let sizes = [rows, experts, top_k].map(|size| Arg::from(size as u32));
    let [rows, experts, top_k] = sizes;
    Ok([rows, experts, top_k, options.scale.into(), u32::from(sigmoid).into(), u32::from(normalize).into()])
}

pub(super) fn forward<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    options: Options,
    logits: View<'_, T>,
    bias: Option<View<'_, f32>>,
    routed: Routed<'_>,
) -> Result<Margin, KernelError> {
    let Shape { rows, experts, top_k } = shape;
    if rows == 0 || experts == 0 {
        return Ok(Margin::NONE);
    }
    let numbers = numbers(op, shape, options)?;
    let has_margin = 0 < top_k && top_k < experts;
    // The smallest, and then that of each row.
    let workspace = stream.workspace(if has_margin { size_of::<u64>() + rows * size_of::<f32>() } else { 0 })?;
    let of_rows = if has_margin { workspace.as_view().slice(size_of::<u64>()..)?.try_into()? } else { Arg::pointer(0) };
    let aligned = logits.is_aligned(16) && routed.scores.as_view().is_aligned(16);
    let row = experts * size_of::<f32>();
    let of_chosen = top_k * size_of::<f32>();
    let arrays = [experts * size_of::<T>(), row, of_chosen, of_chosen, if bias.is_some() { row } else { 0 }];
    let (extent, staging) = staged::<T>(shape, &arrays, aligned);
    let mut args = vec![
        logits.try_into()?,
        bias.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        routed.scores.try_into()?,
        routed.experts.try_into()?,
        routed.weights.try_into()?,
        of_rows.clone(),
    ];
    args.extend(numbers.into_iter().chain(staging));
    MOE_ROUTER.launch::<T>(stream, "moe_router_forward_", extent, &args)?;
    if !has_margin {
        return Ok(Margin::NONE);
    }
    let smallest = workspace.as_view().slice(..size_of::<u64>())?;
    let extent = Extent { grid: [1, 1, 1], block: [SEEKERS, 1, 1], shared: 0 };
    MOE_ROUTER.launch::<f32>(
        stream,
        "moe_router_margin",
        extent,
        &[of_rows, (rows as u32).into(), smallest.try_into()?],
    )?;
    let mut found = 0u64;
    smallest.copy_to_host(stream, bytemuck::bytes_of_mut(&mut found))?;
    Ok(Margin { smallest: f32::from_bits((found >> 32) as u32), row: found as u32 as usize })
}

pub(super) fn backward<T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    options: Options,
    (scores, experts): (View<'_, f32>, View<'_, u32>),
    (dweights, dscores): (View<'_, f32>, Option<View<'_, f32>>),
    dlogits: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    if shape.rows == 0 || shape.experts == 0 {
        return Ok(());
    }
    let aligned = [Some(scores), dscores].into_iter().flatten().all(|rows| rows.is_aligned(16));
    let (of_experts, of_chosen) = (shape.experts * size_of::<f32>(), shape.top_k * size_of::<f32>());
    let of_dscores = if dscores.is_some() { of_experts } else { 0 };
    let arrays = [of_experts, of_chosen, of_chosen, of_chosen, of_dscores, shape.experts * size_of::<T>()];
    let (extent, staging) = staged::<T>(shape, &arrays, aligned && dlogits.as_view().is_aligned(16));
    let mut args = vec![
        scores.try_into()?,
        experts.try_into()?,
        dweights.try_into()?,
        dscores.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        dlogits.try_into()?,
    ];
    args.extend(numbers(op, shape, options)?);
    args.extend(stream.device().fault("moe::router::backward: `experts`")?);
    args.extend(staging);
    MOE_ROUTER.launch::<T>(stream, "moe_router_backward_", extent, &args)
}
