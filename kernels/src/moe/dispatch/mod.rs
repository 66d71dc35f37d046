//! From rows to experts and back: which assignment goes where, the rows in the order of experts, their weighted sums.
//!
//! Sums are f32 in the order of a row's choices, fused, so that every device gives the same bits; but those of
//! [`backward_weights`] run along rows, in f64 on the CPU and in f32 on a GPU. Rows with 16 bytes' alignment are moved 16 bytes
//! at a time, each byte once (x of [`permute`] once for each of a row's experts). Deterministic.
//!
//! What an array must not hold (an expert or a place that there is not) is an error of the call on the CPU. A GPU tells it at
//! the next synchronisation, with the row; nothing is written for that row. [`sort`] and [`within_capacity`] wait for what
//! they count, on a GPU too, and so are told of it themselves.

mod cpu;
mod gpu;

use warpweft_device::{Float, Stream, View, ViewMut};

use super::Shape;
use crate::{KernelError, Write, check};

/// In place of an assignment or a place: there is none.
pub const NONE: u32 = u32::MAX;

/// Marks the assignments `[sequences, T, K]` that fit where each expert takes at most `capacity` of each sequence: 1 those
/// that do, the first ones of the sequence, 0 the others, whose number it gives.
///
/// # Errors
/// Rows that are not `sequences` whole ones, an expert that there is not, a length that contradicts the shape.
pub fn within_capacity(
    stream: &Stream,
    shape: Shape,
    sequences: usize,
    capacity: usize,
    experts: View<'_, u32>,
    keep: ViewMut<'_, u32>,
) -> Result<usize, KernelError> {
    const OP: &str = "moe::dispatch::within_capacity";
    shape.check(OP)?;
    let Shape { rows, top_k, .. } = shape;
    if rows > 0 && (sequences == 0 || !rows.is_multiple_of(sequences)) {
        let allowed = format!("a divisor of the {rows} rows");
        return Err(KernelError::Size { op: OP, argument: "sequences", given: sequences, allowed });
    }
    let experts = check::region(stream, OP, "experts", experts, &[rows, top_k])?;
    let keep = check::region_mut(stream, OP, "keep", keep, &[rows, top_k])?;
    let of_a_sequence = (rows / sequences.max(1) * top_k).max(1);
    if stream.device().cpu_pool().is_err() {
        return gpu::within_capacity(OP, stream, shape, (of_a_sequence, capacity), experts, keep);
    }
    let experts = experts.host()?;
    shape.check_experts(OP, experts)?;
    Ok(cpu::within_capacity(shape.experts, (of_a_sequence, capacity), experts, keep.host()?))
}

/// Sorts assignments by expert, those of an expert by their number: writes how many each expert has (`counts` `[E]`), which
/// one lies at each place (`order` `[M K]`, [`NONE`] behind the last), and where each one lies (`places` `[M K]`, [`NONE`] for
/// those that `keep` marks with 0). Gives how many there are.
///
/// # Errors
/// An expert that there is not, a length that contradicts the shape, an argument of another device.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn sort(
    stream: &Stream,
    shape: Shape,
    experts: View<'_, u32>,
    keep: Option<View<'_, u32>>,
    counts: ViewMut<'_, u32>,
    order: ViewMut<'_, u32>,
    places: ViewMut<'_, u32>,
) -> Result<usize, KernelError> {
    const OP: &str = "moe::dispatch::sort";
    shape.check(OP)?;
    let Shape { rows, experts: count, top_k } = shape;
    let experts = check::region(stream, OP, "experts", experts, &[rows, top_k])?;
    let keep = keep.map(|keep| check::region(stream, OP, "keep", keep, &[rows, top_k])).transpose()?;
    let counts = check::region_mut(stream, OP, "counts", counts, &[count])?;
    let order = check::region_mut(stream, OP, "order", order, &[rows, top_k])?;
    let places = check::region_mut(stream, OP, "places", places, &[rows, top_k])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::sort(OP, stream, shape, (experts, keep), counts, [order, places]);
    }
    let (experts, keep) = (experts.host()?, keep.map(View::host).transpose()?);
    shape.check_experts(OP, experts)?;
    Ok(cpu::sort(experts, keep, counts.host()?, [order.host()?, places.host()?]))
}

/// Sizes of rows on their way to experts: x is `[rows, channels]`, and there are `len` rows in the order of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Rows (M).
    pub rows: usize,
    /// Experts of a row (K).
    pub top_k: usize,
    /// Elements of a row (C).
    pub channels: usize,
    /// Assignments that have a place.
    pub len: usize,
}

/// y `[len, C]`: the row of the assignment at each place, from x `[M, C]`; times its weight where `weights` `[M, K]` are
/// given (the gradient of [`combine`] for the experts' outputs).
///
/// # Errors
/// An assignment that there is not in `order` `[len]`, a length that contradicts the shape, an argument of another device.
pub fn permute<T: Float>(
    stream: &Stream,
    of: Rows,
    order: View<'_, u32>,
    weights: Option<View<'_, f32>>,
    x: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::dispatch::permute";
    let Rows { rows, top_k, channels, len } = of;
    let order = check::region(stream, OP, "order", order, &[len])?;
    let weights = weights.map(|weights| check::region(stream, OP, "weights", weights, &[rows, top_k])).transpose()?;
    let x = check::region(stream, OP, "x", x, &[rows, channels])?;
    let y = check::region_mut(stream, OP, "y", y, &[len, channels])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::permute(OP, stream, of, (order, weights), x, y);
    }
    let (order, weights) = (order.host()?, weights.map(View::host).transpose()?);
    in_range(OP, "order", order, rows * top_k, false)?;
    cpu::permute(of, (order, weights), x.host()?, y.host()?);
    Ok(())
}

/// y `[M, C]`: for each row the sum, in the order of its choices, of the rows of x `[len, C]` at its places, each times its
/// weight where `weights` are given. Assignments without a place add nothing.
///
/// # Errors
/// A place that there is not in `places` `[M, K]`, a length that contradicts the shape, an argument of another device; on a GPU
/// more than 3072 experts a row.
pub fn combine<T: Float>(
    stream: &Stream,
    of: Rows,
    places: View<'_, u32>,
    weights: Option<View<'_, f32>>,
    x: View<'_, T>,
    write: Write,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::dispatch::combine";
    let Rows { rows, top_k, channels, len } = of;
    let places = check::region(stream, OP, "places", places, &[rows, top_k])?;
    let weights = weights.map(|weights| check::region(stream, OP, "weights", weights, &[rows, top_k])).transpose()?;
    let x = check::region(stream, OP, "x", x, &[len, channels])?;
    let y = check::region_mut(stream, OP, "y", y, &[rows, channels])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::combine(OP, stream, of, (places, weights), x, write, y);
    }
    let (places, weights) = (places.host()?, weights.map(View::host).transpose()?);
    in_range(OP, "places", places, len, true)?;
    cpu::combine(of, (places, weights), x.host()?, write, y.host()?);
    Ok(())
}

/// The gradients of [`combine`]'s weights `[M, K]`: the product of dy's row `[M, C]` and x's at each place; 0 without one.
///
/// # Errors
/// As [`combine`].
pub fn backward_weights<T: Float>(
    stream: &Stream,
    of: Rows,
    places: View<'_, u32>,
    x: View<'_, T>,
    dy: View<'_, T>,
    dweights: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::dispatch::backward_weights";
    let Rows { rows, top_k, channels, len } = of;
    let places = check::region(stream, OP, "places", places, &[rows, top_k])?;
    let x = check::region(stream, OP, "x", x, &[len, channels])?;
    let dy = check::region(stream, OP, "dy", dy, &[rows, channels])?;
    let dweights = check::region_mut(stream, OP, "dweights", dweights, &[rows, top_k])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::backward_weights(OP, stream, of, places, [x, dy], dweights);
    }
    let places = places.host()?;
    in_range(OP, "places", places, len, true)?;
    cpu::backward_weights(of, places, [x.host()?, dy.host()?], dweights.host()?);
    Ok(())
}

/// Each entry below `end`, or [`NONE`] where that may be.
fn in_range(
    op: &'static str,
    argument: &'static str,
    entries: &[u32],
    end: usize,
    or_none: bool,
) -> Result<(), KernelError> {
    match entries.iter().find(|entry| **entry as usize >= end && !(or_none && **entry == NONE)) {
        Some(&given) => {
            let allowed = format!("below {end}");
            Err(KernelError::Size { op, argument, given: given as usize, allowed })
        }
        None => Ok(()),
    }
}
