//! Rows to experts and back on the CPU. What the arrays hold has been checked.

use warpweft_device::Float;

use super::{NONE, Rows};
use crate::Write;
use crate::reduce::sum;

/// Gives how many are dropped.
pub(super) fn within_capacity(
    count: usize,
    (of_a_sequence, capacity): (usize, usize),
    experts: &[u32],
    keep: &mut [u32],
) -> usize {
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
    dropped
}

/// Gives how many have a place.
pub(super) fn sort(
    experts: &[u32],
    keep: Option<&[u32]>,
    counts: &mut [u32],
    [order, places]: [&mut [u32]; 2],
) -> usize {
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
    counts.iter().map(|count| *count as usize).sum()
}

pub(super) fn permute<T: Float>(of: Rows, (order, weights): (&[u32], Option<&[f32]>), x: &[T], y: &mut [T]) {
    let Rows { top_k, channels, .. } = of;
    for (assignment, y) in order.iter().zip(y.chunks_exact_mut(channels.max(1))) {
        let x = &x[*assignment as usize / top_k * channels..][..channels];
        match weights.map(|weights| weights[*assignment as usize]) {
            None => y.copy_from_slice(x),
            Some(weight) => y.iter_mut().zip(x).for_each(|(y, x)| *y = T::from_f32(weight * x.to_f32())),
        }
    }
}

pub(super) fn combine<T: Float>(
    of: Rows,
    (places, weights): (&[u32], Option<&[f32]>),
    x: &[T],
    write: Write,
    y: &mut [T],
) {
    let Rows { top_k, channels, .. } = of;
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
}

pub(super) fn backward_weights<T: Float>(of: Rows, places: &[u32], [x, dy]: [&[T]; 2], dweights: &mut [f32]) {
    let Rows { top_k, channels, .. } = of;
    for (assignment, dweight) in dweights.iter_mut().enumerate() {
        *dweight = 0.0;
        if places[assignment] != NONE {
            let x = &x[places[assignment] as usize * channels..][..channels];
            let dy = &dy[assignment / top_k * channels..][..channels];
            *dweight = sum([x, dy], |[x, dy]| f64::from(x) * f64::from(dy)) as f32;
        }
    }
}
