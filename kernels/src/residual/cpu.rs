//! The residual sum on the CPU: tasks of whole rows.

use warpweft_device::{CpuPool, Float};

use super::{Dropout, Shape};
use crate::reduce::rows_per_task;
use crate::simd::vectorised;

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    x: &[T],
    branch: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
) {
    let Shape { rows, channels } = shape;
    if channels == 0 {
        return;
    }
    let each = rows_per_task(rows, channels) * channels;
    let tasks = x.chunks(each).zip(branch.chunks(each)).zip(out.chunks_mut(each)).collect();
    pool.for_each(tasks, |((x, branch), out)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(channels).zip(branch.chunks_exact(channels));
                for ((x, branch), out) in rows.zip(out.chunks_exact_mut(channels)) {
                    let terms = x.iter().zip(branch).zip(out);
                    match bias {
                        Some(bias) => terms.zip(bias).for_each(|(((x, branch), out), bias)| {
                            *out = T::from_f32((x.to_f32() + bias.to_f32()) + branch.to_f32());
                        }),
                        None => terms.for_each(|((x, branch), out)| *out = T::from_f32(x.to_f32() + branch.to_f32())),
                    }
                }
            },
        );
    });
}

/// Tasks of some rows, each with the number of its first element.
fn tasks<'a, T>(
    shape: Shape,
    inputs: &'a [T],
    out: &'a mut [T],
) -> impl Iterator<Item = (usize, &'a [T], &'a mut [T])> {
    let each = (rows_per_task(shape.rows, shape.channels) * shape.channels).max(1);
    inputs.chunks(each).zip(out.chunks_mut(each)).enumerate().map(move |(task, (from, to))| (task * each, from, to))
}

pub(super) fn forward_dropout<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    dropout: Dropout,
    x: &[T],
    branch: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
) {
    let factor = dropout.factor() as f32;
    pool.for_each(tasks(shape, branch, out).collect(), |(first, branch, out)| {
        let x = &x[first..][..out.len()];
        vectorised(
            #[inline(always)]
            || {
                for (at, ((x, branch), out)) in x.iter().zip(branch).zip(out).enumerate() {
                    let bias = bias.map_or(0.0, |bias| bias[(first + at) % shape.channels].to_f32());
                    let kept = dropout.keeps((first + at) as u64);
                    let (x, sum) = (x.to_f32(), branch.to_f32() + bias);
                    *out = T::from_f32(if kept { sum.mul_add(factor, x) } else { x });
                }
            },
        );
    });
}

pub(super) fn backward_dropout<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    dropout: Dropout,
    dout: &[T],
    dbranch: &mut [T],
) {
    let factor = dropout.factor() as f32;
    pool.for_each(tasks(shape, dout, dbranch).collect(), |(first, dout, dbranch)| {
        vectorised(
            #[inline(always)]
            || {
                for (at, (dout, dbranch)) in dout.iter().zip(dbranch).enumerate() {
                    let kept = dropout.keeps((first + at) as u64);
                    *dbranch = T::from_f32(if kept { dout.to_f32() * factor } else { 0.0 });
                }
            },
        );
    });
}
