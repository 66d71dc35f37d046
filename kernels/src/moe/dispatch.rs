//! From rows to experts and back: which assignment goes where, the rows in the order of experts, their weighted sums.

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
    let Shape { rows, experts: count, top_k } = shape;
    if rows > 0 && (sequences == 0 || !rows.is_multiple_of(sequences)) {
        let allowed = format!("a divisor of the {rows} rows");
        return Err(KernelError::Size { op: OP, argument: "sequences", given: sequences, allowed });
    }
    let experts = check::view(stream, OP, "experts", experts, &[rows, top_k])?;
    shape.check_experts(OP, experts)?;
    let keep = check::view_mut(stream, OP, "keep", keep, &[rows, top_k])?;
    let of_a_sequence = (rows / sequences.max(1) * top_k).max(1);
    let mut dropped = 0;
    let mut taken = vec![0usize; count];
    for (experts, keep) in experts.chunks(of_a_sequence).zip(keep.chunks_mut(of_a_sequence)) {
        taken.fill(0);
        for (expert, keep) in experts.iter().zip(keep) {
            let taken = &mut taken[*expert as usize];
            *keep = u32::from(*taken < capacity);
            *taken += 1;
            dropped += usize::from(*keep == 0);
        }
    }
    Ok(dropped)
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
    let experts = check::view(stream, OP, "experts", experts, &[rows, top_k])?;
    shape.check_experts(OP, experts)?;
    let keep = keep.map(|keep| check::view(stream, OP, "keep", keep, &[rows, top_k])).transpose()?;
    let counts = check::view_mut(stream, OP, "counts", counts, &[count])?;
    let order = check::view_mut(stream, OP, "order", order, &[rows, top_k])?;
    let places = check::view_mut(stream, OP, "places", places, &[rows, top_k])?;
    let kept = |assignment: usize| keep.is_none_or(|keep| keep[assignment] != 0);
    counts.fill(0);
    for (assignment, expert) in experts.iter().enumerate() {
        counts[*expert as usize] += u32::from(kept(assignment));
    }
    let mut next: Vec<u32> = counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + count))).collect();
    order.fill(NONE);
    for (assignment, expert) in experts.iter().enumerate() {
        places[assignment] = NONE;
        if kept(assignment) {
            let next = &mut next[*expert as usize];
            places[assignment] = *next;
            order[*next as usize] = assignment as u32;
            *next += 1;
        }
    }
    Ok(counts.iter().map(|count| *count as usize).sum())
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
    let order = check::view(stream, OP, "order", order, &[len])?;
    let weights = weights.map(|weights| check::view(stream, OP, "weights", weights, &[rows, top_k])).transpose()?;
    let x = check::view(stream, OP, "x", x, &[rows, channels])?;
    let y = check::view_mut(stream, OP, "y", y, &[len, channels])?;
    let assignments = rows * top_k;
    in_range(OP, "order", order, assignments, false)?;
    for (assignment, y) in order.iter().zip(y.chunks_exact_mut(channels.max(1))) {
        let x = &x[*assignment as usize / top_k * channels..][..channels];
        match weights.map(|weights| weights[*assignment as usize]) {
            None => y.copy_from_slice(x),
            Some(weight) => y.iter_mut().zip(x).for_each(|(y, x)| *y = T::from_f32(weight * x.to_f32())),
        }
    }
    Ok(())
}

/// y `[M, C]`: for each row the sum, in the order of its choices, of the rows of x `[len, C]` at its places, each times its
/// weight where `weights` are given. Assignments without a place add nothing.
///
/// # Errors
/// A place that there is not in `places` `[M, K]`, a length that contradicts the shape, an argument of another device.
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
    let places = check::view(stream, OP, "places", places, &[rows, top_k])?;
    in_range(OP, "places", places, len, true)?;
    let weights = weights.map(|weights| check::view(stream, OP, "weights", weights, &[rows, top_k])).transpose()?;
    let x = check::view(stream, OP, "x", x, &[len, channels])?;
    let y = check::view_mut(stream, OP, "y", y, &[rows, channels])?;
    let mut sum = vec![0.0f32; channels];
    for (row, y) in y.chunks_exact_mut(channels.max(1)).enumerate() {
        match write {
            Write::Set => sum.fill(0.0),
            Write::Add => sum.iter_mut().zip(&*y).for_each(|(sum, y)| *sum = y.to_f32()),
        }
        for assignment in row * top_k..(row + 1) * top_k {
            if places[assignment] != NONE {
                let weight = weights.map_or(1.0, |weights| weights[assignment]);
                let x = &x[places[assignment] as usize * channels..][..channels];
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum = weight.mul_add(x.to_f32(), *sum));
            }
        }
        y.iter_mut().zip(&sum).for_each(|(y, sum)| *y = T::from_f32(*sum));
    }
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
    let places = check::view(stream, OP, "places", places, &[rows, top_k])?;
    in_range(OP, "places", places, len, true)?;
    let x = check::view(stream, OP, "x", x, &[len, channels])?;
    let dy = check::view(stream, OP, "dy", dy, &[rows, channels])?;
    let dweights = check::view_mut(stream, OP, "dweights", dweights, &[rows, top_k])?;
    for (assignment, dweight) in dweights.iter_mut().enumerate() {
        *dweight = 0.0;
        if places[assignment] != NONE {
            let x = &x[places[assignment] as usize * channels..][..channels];
            let dy = &dy[assignment / top_k * channels..][..channels];
            *dweight = crate::reduce::sum([x, dy], |[x, dy]| f64::from(x) * f64::from(dy)) as f32;
        }
    }
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
