//! Softmax on the CPU: tasks of whole rows.

use warpweft_device::{CpuPool, Float};

use super::online::Normaliser;
use super::{MaskShape, Options, Shape};
use crate::Write;
use crate::elementary::exp;
use crate::reduce::{rows_per_task, sum};
use crate::simd::vectorised;

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    options: Options,
    mask: Option<(MaskShape, &[u8])>,
    x: &[T],
    y: &mut [T],
) {
    let columns = shape.columns;
    if columns == 0 {
        return;
    }
    let rows = rows_per_task(shape.rows, columns);
    let tasks = x.chunks(rows * columns).zip(y.chunks_mut(rows * columns)).enumerate().collect();
    pool.for_each(tasks, |(task, (x, y))| {
        // The scaled elements of a row under a given mask.
        let mut scaled = vec![0.0; if mask.is_some() { columns } else { 0 }];
        vectorised(
            #[inline(always)]
            || {
                for (row, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate() {
                    let row = task * rows + row;
                    let visible = options.visible(row, columns);
                    let (y, masked) = y.split_at_mut(visible);
                    masked.fill(T::ZERO);
                    match mask {
                        None => forward_row(&x[..visible], options.scale, y),
                        Some((mask, hidden)) => {
                            let hidden = &hidden[mask.row(row) * columns..][..visible];
                            masked_row(&x[..visible], hidden, options.scale, &mut scaled[..visible], y);
                        }
                    }
                }
            },
        );
    });
}

/// With -inf in the place of what is hidden the row has the same sum, and the bits that it has without a mask that hides nothing.
#[inline(always)]
fn masked_row<T: Float>(x: &[T], hidden: &[u8], scale: f32, scaled: &mut [f32], y: &mut [T]) {
    for ((scaled, x), &hidden) in scaled.iter_mut().zip(x).zip(hidden) {
        *scaled = if hidden == 0 { x.to_f32() * scale } else { f32::NEG_INFINITY };
    }
    let Normaliser { max, sum } = Normaliser::of(scaled, 1.0);
    if sum == 0.0 {
        y.fill(T::ZERO);
        return;
    }
    let factor = (1.0 / sum) as f32;
    for ((y, scaled), &hidden) in y.iter_mut().zip(&*scaled).zip(hidden) {
        *y = T::from_f32(if hidden == 0 { exp(scaled - max) * factor } else { 0.0 });
    }
}

#[inline(always)]
fn forward_row<T: Float>(x: &[T], scale: f32, y: &mut [T]) {
    let Normaliser { max, sum } = Normaliser::of(x, scale);
    if sum == 0.0 {
        y.fill(T::ZERO);
        return;
    }
    let factor = (1.0 / sum) as f32;
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::from_f32(exp(x.to_f32() * scale - max) * factor);
    }
}

pub(super) fn backward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    options: Options,
    dy: &[T],
    y: &[T],
    write: Write,
    dx: &mut [T],
) {
    let columns = shape.columns;
    if columns == 0 {
        return;
    }
    let rows = rows_per_task(shape.rows, columns);
    let inputs = dy.chunks(rows * columns).zip(y.chunks(rows * columns));
    let tasks = inputs.zip(dx.chunks_mut(rows * columns)).enumerate().collect();
    pool.for_each(tasks, |(task, ((dy, y), dx))| {
        vectorised(
            #[inline(always)]
            || {
                let rows_in = dy.chunks_exact(columns).zip(y.chunks_exact(columns)).zip(dx.chunks_exact_mut(columns));
                for (row, ((dy, y), dx)) in rows_in.enumerate() {
                    let visible = options.visible(task * rows + row, columns);
                    let (dx, masked) = dx.split_at_mut(visible);
                    if write == Write::Set {
                        masked.fill(T::ZERO);
                    }
                    backward_row(&dy[..visible], &y[..visible], options.scale, write, dx);
                }
            },
        );
    });
}

#[inline(always)]
fn backward_row<T: Float>(dy: &[T], y: &[T], scale: f32, write: Write, dx: &mut [T]) {
    // What is 0 has no part, whatever its dy.
    let dot = sum([dy, y], |[dy, y]| if y == 0.0 { 0.0 } else { f64::from(dy * y) }) as f32;
    let gradient = |dy: &T, y: &T| match y.to_f32() {
        0.0 => 0.0,
        y => scale * y * (dy.to_f32() - dot),
    };
    let elements = dx.iter_mut().zip(dy).zip(y);
    match write {
        Write::Set => elements.for_each(|((dx, dy), y)| *dx = T::from_f32(gradient(dy, y))),
        Write::Add => elements.for_each(|((dx, dy), y)| *dx = T::from_f32(dx.to_f32() + gradient(dy, y))),
    }
}
