//! Root-mean-square normalisation on the CPU: tasks of whole rows, each row read while it is in the first cache.

use warpweft_device::{CpuPool, Float};

use super::Shape;
use crate::Write;
use crate::reduce::{add_partials, rows_per_partial, rows_per_task, square, sum};
use crate::simd::vectorised;

/// What the backward calls read of each row.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a, T> {
    pub(super) dy: &'a [T],
    pub(super) x: &'a [T],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    eps: f32,
    x: &[T],
    w: &[T],
    y: &mut [T],
    rstd: &mut [f32],
) {
    let channels = shape.channels;
    if channels == 0 {
        rstd.fill(1.0 / eps.sqrt());
        return;
    }
    let rows = rows_per_task(shape.rows, channels);
    let tasks = x.chunks(rows * channels).zip(y.chunks_mut(rows * channels)).zip(rstd.chunks_mut(rows)).collect();
    pool.for_each(tasks, |((x, y), rstd)| {
        vectorised(
            #[inline(always)]
            || {
                for ((x, y), rstd) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)).zip(rstd) {
                    *rstd = forward_row(eps, x, w, y);
                }
            },
        );
    });
}

#[inline(always)]
fn forward_row<T: Float>(eps: f32, x: &[T], w: &[T], y: &mut [T]) -> f32 {
    let squares = sum([x], |[x]| square(x));
    let rstd = (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32;
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = T::from_f32(x.to_f32() * rstd * w.to_f32());
    }
    rstd
}

pub(super) fn backward_input<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    saved: Saved<'_, T>,
    w: &[T],
    write: Write,
    dx: &mut [T],
) {
    let channels = shape.channels;
    if channels == 0 {
        return;
    }
    let rows = rows_per_task(shape.rows, channels);
    let rows_in = saved.x.chunks(rows * channels).zip(saved.dy.chunks(rows * channels));
    let tasks = rows_in.zip(saved.rstd.chunks(rows)).zip(dx.chunks_mut(rows * channels)).collect();
    pool.for_each(tasks, |(((x, dy), rstd), dx)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels)).zip(dx.chunks_exact_mut(channels));
                for (((x, dy), dx), rstd) in rows.zip(rstd) {
                    backward_row(x, dy, w, *rstd, write, dx);
                }
            },
        );
    });
}

#[inline(always)]
fn backward_row<T: Float>(x: &[T], dy: &[T], w: &[T], rstd: f32, write: Write, dx: &mut [T]) {
    let gx = sum([dy, x, w], |[dy, x, w]| f64::from(dy * w * (x * rstd)));
    let avg_gx = (gx / x.len() as f64) as f32;
    let gradient = |x: &T, dy: &T, w: &T| {
        let xhat = x.to_f32() * rstd;
        rstd * xhat.mul_add(-avg_gx, dy.to_f32() * w.to_f32())
    };
    let elements = dx.iter_mut().zip(x).zip(dy).zip(w);
    match write {
        Write::Set => elements.for_each(|(((dx, x), dy), w)| *dx = T::from_f32(gradient(x, dy, w))),
        Write::Add => elements.for_each(|(((dx, x), dy), w)| *dx = T::from_f32(dx.to_f32() + gradient(x, dy, w))),
    }
}

pub(super) fn backward_weight<T: Float>(pool: &CpuPool, shape: Shape, saved: Saved<'_, T>, dw: &mut [f32]) {
    let channels = shape.channels;
    if channels == 0 || shape.rows == 0 {
        return;
    }
    let rows = rows_per_partial(shape.rows, channels);
    let mut partials = vec![0.0f64; shape.rows.div_ceil(rows) * channels];
    let rows_in = saved.x.chunks(rows * channels).zip(saved.dy.chunks(rows * channels));
    let tasks = rows_in.zip(saved.rstd.chunks(rows)).zip(partials.chunks_mut(channels)).collect();
    pool.for_each(tasks, |(((x, dy), rstd), dw)| {
        vectorised(
            #[inline(always)]
            || {
                for ((x, dy), rstd) in x.chunks_exact(channels).zip(dy.chunks_exact(channels)).zip(rstd) {
                    for ((x, dy), dw) in x.iter().zip(dy).zip(&mut *dw) {
                        *dw += f64::from(dy.to_f32() * (x.to_f32() * rstd));
                    }
                }
            },
        );
    });
    add_partials(&partials, [dw]);
}
