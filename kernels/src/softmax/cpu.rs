//! Softmax on the CPU: tasks of whole rows.

use warpweft_device::{CpuPool, Float};

use super::online::Normaliser;
use super::{Options, Shape};
use crate::Write;
use crate::elementary::exp;
use crate::reduce::{rows_per_task, sum};
use crate::simd::vectorised;

pub(super) fn forward<T: Float>(pool: &CpuPool, shape: Shape, options: Options, x: &[T], y: &mut [T]) {
    let columns = shape.columns;
    if columns == 0 {
        return;
    }
    let rows = rows_per_task(shape.rows, columns);
    let tasks = x.chunks(rows * columns).zip(y.chunks_mut(rows * columns)).enumerate().collect();
    pool.for_each(tasks, |(task, (x, y))| {
        vectorised(
            #[inline(always)]
            || {
                for (row, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate() {
                    let visible = options.visible(task * rows + row, columns);
                    let (y, masked) = y.split_at_mut(visible);
                    masked.fill(T::ZERO);
                    forward_row(&x[..visible], options.scale, y);
                }
            },
        );
    });
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
    let dot = sum([dy, y], |[dy, y]| f64::from(dy * y)) as f32;
    let gradient = |dy: &T, y: &T| scale * y.to_f32() * (dy.to_f32() - dot);
    let elements = dx.iter_mut().zip(dy).zip(y);
    match write {
        Write::Set => elements.for_each(|((dx, dy), y)| *dx = T::from_f32(gradient(dy, y))),
        Write::Add => elements.for_each(|((dx, dy), y)| *dx = T::from_f32(dx.to_f32() + gradient(dy, y))),
    }
}
