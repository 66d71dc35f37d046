//! Layer normalisation on the CPU: tasks of whole rows, each row read while it is in the first cache.

use warpweft_device::{CpuPool, Float};

use super::Shape;
use crate::Write;
use crate::reduce::{add_partials, rows_per_partial, rows_per_task, square, sum};
use crate::simd::vectorised;

pub(super) struct Forward<'a, T> {
    pub(super) x: &'a [T],
    pub(super) w: &'a [T],
    pub(super) b: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) mean: &'a mut [f32],
    pub(super) rstd: &'a mut [f32],
}

/// What the backward calls read of each row.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a, T> {
    pub(super) dy: &'a [T],
    pub(super) x: &'a [T],
    pub(super) mean: &'a [f32],
    pub(super) rstd: &'a [f32],
}

pub(super) fn forward<T: Float>(pool: &CpuPool, shape: Shape, eps: f32, all: Forward<'_, T>) {
    let Forward { x, w, b, y, mean, rstd } = all;
    let channels = shape.channels;
    if channels == 0 {
        mean.fill(0.0);
        rstd.fill(1.0 / eps.sqrt());
        return;
    }
    let rows = rows_per_task(shape.rows, channels);
    let rows_in = x.chunks(rows * channels).zip(y.chunks_mut(rows * channels));
    let tasks = rows_in.zip(mean.chunks_mut(rows).zip(rstd.chunks_mut(rows))).collect();
    pool.for_each(tasks, |((x, y), (mean, rstd))| {
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
                for ((x, y), (mean, rstd)) in rows.zip(mean.iter_mut().zip(rstd)) {
                    (*mean, *rstd) = forward_row(eps, x, w, b, y);
                }
            },
        );
    });
}

/// Two passes over a row that is in the cache: the variance of a row far from zero keeps its digits.
#[inline(always)]
fn forward_row<T: Float>(eps: f32, x: &[T], w: &[T], b: &[T], y: &mut [T]) -> (f32, f32) {
    let channels = x.len() as f64;
    let total = sum([x], |[x]| f64::from(x));
    let mean = (total / channels) as f32;
    let squares = sum([x], |[x]| square(x - mean));
    let rstd = (1.0 / (squares / channels + f64::from(eps)).sqrt()) as f32;
    for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
        *y = T::from_f32(((x.to_f32() - mean) * rstd).mul_add(w.to_f32(), b.to_f32()));
    }
    (mean, rstd)
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
    let scalars = saved.mean.chunks(rows).zip(saved.rstd.chunks(rows));
    let tasks = rows_in.zip(scalars).zip(dx.chunks_mut(rows * channels)).collect();
    pool.for_each(tasks, |(((x, dy), (mean, rstd)), dx)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels)).zip(dx.chunks_exact_mut(channels));
                for (((x, dy), dx), (mean, rstd)) in rows.zip(mean.iter().zip(rstd)) {
                    backward_row(x, dy, w, *mean, *rstd, write, dx);
                }
            },
        );
    });
}

#[inline(always)]
fn backward_row<T: Float>(x: &[T], dy: &[T], w: &[T], mean: f32, rstd: f32, write: Write, dx: &mut [T]) {
    let channels = x.len() as f64;
    let g = sum([dy, w], |[dy, w]| f64::from(dy * w));
    let gx = sum([dy, x, w], |[dy, x, w]| f64::from(dy * w * ((x - mean) * rstd)));
    let (avg_g, avg_gx) = ((g / channels) as f32, (gx / channels) as f32);
    let gradient = |x: &T, dy: &T, w: &T| {
        let xhat = (x.to_f32() - mean) * rstd;
        rstd * xhat.mul_add(-avg_gx, dy.to_f32() * w.to_f32() - avg_g)
    };
    let elements = dx.iter_mut().zip(x).zip(dy).zip(w);
    match write {
        Write::Set => elements.for_each(|(((dx, x), dy), w)| *dx = T::from_f32(gradient(x, dy, w))),
        Write::Add => elements.for_each(|(((dx, x), dy), w)| *dx = T::from_f32(dx.to_f32() + gradient(x, dy, w))),
    }
}

pub(super) fn backward_weight<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    saved: Saved<'_, T>,
    dw: &mut [f32],
    db: &mut [f32],
) {
    let channels = shape.channels;
    if channels == 0 || shape.rows == 0 {
        return;
    }
    let rows = rows_per_partial(shape.rows, channels);
    // For each block of rows the partial sums of dw, then those of db.
    let mut partials = vec![0.0f64; shape.rows.div_ceil(rows) * 2 * channels];
    let rows_in = saved.x.chunks(rows * channels).zip(saved.dy.chunks(rows * channels));
    let scalars = saved.mean.chunks(rows).zip(saved.rstd.chunks(rows));
    let tasks = rows_in.zip(scalars).zip(partials.chunks_mut(2 * channels)).collect();
    pool.for_each(tasks, |(((x, dy), (mean, rstd)), partial)| {
        let (dw, db) = partial.split_at_mut(channels);
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
                for ((x, dy), (mean, rstd)) in rows.zip(mean.iter().zip(rstd)) {
                    for (((x, dy), dw), db) in x.iter().zip(dy).zip(&mut *dw).zip(&mut *db) {
                        let xhat = (x.to_f32() - mean) * rstd;
                        *dw += f64::from(dy.to_f32() * xhat);
                        *db += f64::from(dy.to_f32());
                    }
                }
            },
        );
    });
    add_partials(&partials, [dw, db]);
}
