//! The residual sum on the CPU: tasks of whole rows.

use warpweft_device::{CpuPool, Float};

use super::Shape;
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
