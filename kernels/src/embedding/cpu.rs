//! The embedding on the CPU: forward by blocks of tokens, backward by blocks of table rows.

use warpweft_device::{CpuPool, Float};

use super::Shape;
use crate::Write;
use crate::reduce::rows_per_task;
use crate::simd::vectorised;

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    ids: &[u32],
    table: &[T],
    position_table: Option<&[T]>,
    y: &mut [T],
) {
    let Shape { tokens, channels, .. } = shape;
    if channels == 0 {
        return;
    }
    let rows = rows_per_task(ids.len(), channels);
    let tasks = ids.chunks(rows).zip(y.chunks_mut(rows * channels)).enumerate().collect();
    pool.for_each(tasks, |(task, (ids, y))| {
        vectorised(
            #[inline(always)]
            || {
                for (row, (&id, y)) in ids.iter().zip(y.chunks_exact_mut(channels)).enumerate() {
                    let entry = row_of(table, id as usize, channels);
                    let Some(positions) = position_table else {
                        y.copy_from_slice(entry);
                        continue;
                    };
                    let position = row_of(positions, (task * rows + row) % tokens, channels);
                    for ((y, entry), position) in y.iter_mut().zip(entry).zip(position) {
                        *y = T::from_f32(entry.to_f32() + position.to_f32());
                    }
                }
            },
        );
    });
}

pub(super) fn forward_shard<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    first: usize,
    ids: &[u32],
    table: &[T],
    write: Write,
    y: &mut [T],
) {
    let Shape { channels, vocab, .. } = shape;
    if channels == 0 {
        return;
    }
    let rows = rows_per_task(ids.len(), channels);
    pool.for_each(ids.chunks(rows).zip(y.chunks_mut(rows * channels)).collect(), |(ids, y)| {
        vectorised(
            #[inline(always)]
            || {
                for (&id, y) in ids.iter().zip(y.chunks_exact_mut(channels)) {
                    let held = (id as usize).checked_sub(first).filter(|row| *row < vocab);
                    match (held.map(|row| row_of(table, row, channels)), write) {
                        (Some(entry), Write::Set) => y.copy_from_slice(entry),
                        (Some(entry), Write::Add) => {
                            y.iter_mut()
                                .zip(entry)
                                .for_each(|(y, entry)| *y = T::from_f32(y.to_f32() + entry.to_f32()));
                        }
                        (None, Write::Set) => y.fill(T::ZERO),
                        (None, Write::Add) => {}
                    }
                }
            },
        );
    });
}

/// The rows of `dy` of one row of a table: where they are listed, and that row's gradient.
struct TableRow<'a> {
    rows: &'a [usize],
    gradient: &'a mut [f32],
}

/// `dtable` holds the rows of the tokens from `first` on.
pub(super) fn backward_table<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    first: usize,
    ids: &[u32],
    dy: &[T],
    dtable: &mut [f32],
) {
    let channels = shape.channels;
    if channels == 0 {
        return;
    }
    let (starts, order) = rows_by_token(ids, first, shape.vocab);
    // Tasks of neighbouring table rows, closed when they have enough work.
    let enough = rows_per_task(ids.len(), channels);
    let (mut tasks, mut task, mut work) = (Vec::new(), Vec::new(), 0);
    for (span, gradient) in starts.windows(2).zip(dtable.chunks_exact_mut(channels)) {
        let rows = &order[span[0]..span[1]];
        if rows.is_empty() {
            continue;
        }
        work += rows.len();
        task.push(TableRow { rows, gradient });
        if work >= enough {
            tasks.push(std::mem::take(&mut task));
            work = 0;
        }
    }
    tasks.push(task);
    pool.for_each(tasks, |task| {
        let mut sum = vec![0.0f64; channels];
        vectorised(
            #[inline(always)]
            || {
                for TableRow { rows, gradient } in task {
                    add_rows(rows.iter().map(|&row| row_of(dy, row, channels)), &mut sum, gradient);
                }
            },
        );
    });
}

pub(super) fn backward_positions<T: Float>(pool: &CpuPool, shape: Shape, dy: &[T], dpositions: &mut [f32]) {
    let Shape { batch, tokens, channels, .. } = shape;
    if channels == 0 || batch == 0 || tokens == 0 {
        return;
    }
    let positions = rows_per_task(tokens, channels * batch);
    let tasks = dpositions[..tokens * channels].chunks_mut(positions * channels).enumerate().collect();
    pool.for_each(tasks, |(task, gradients)| {
        let mut sum = vec![0.0f64; channels];
        vectorised(
            #[inline(always)]
            || {
                for (position, gradient) in gradients.chunks_exact_mut(channels).enumerate() {
                    let token = task * positions + position;
                    add_rows((0..batch).map(|b| row_of(dy, b * tokens + token, channels)), &mut sum, gradient);
                }
            },
        );
    });
}

/// Adds the sum of `rows`, taken in their order, to `gradient`.
#[inline(always)]
fn add_rows<'a, T: Float>(rows: impl Iterator<Item = &'a [T]>, sum: &mut [f64], gradient: &mut [f32]) {
    sum.fill(0.0);
    for row in rows {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += f64::from(value.to_f32());
        }
    }
    for (gradient, sum) in gradient.iter_mut().zip(&*sum) {
        *gradient = (f64::from(*gradient) + sum) as f32;
    }
}

/// The rows that hold each of the tokens `first..first + vocab`, in order, by counting: those of token `first + v` are
/// `order[starts[v]..starts[v + 1]]`.
fn rows_by_token(ids: &[u32], first: usize, vocab: usize) -> (Vec<usize>, Vec<usize>) {
    let held = || {
        let rows = ids.iter().map(|id| (*id as usize).checked_sub(first).filter(|v| *v < vocab)).enumerate();
        rows.filter_map(|(row, v)| Some((row, v?)))
    };
    let mut starts = vec![0usize; vocab + 1];
    for (_, v) in held() {
        starts[v + 1] += 1;
    }
    for v in 0..vocab {
        starts[v + 1] += starts[v];
    }
    let mut next = starts.clone();
    let mut order = vec![0; starts[vocab]];
    for (row, v) in held() {
        order[next[v]] = row;
        next[v] += 1;
    }
    (starts, order)
}

#[inline(always)]
fn row_of<T>(table: &[T], row: usize, channels: usize) -> &[T] {
    &table[row * channels..][..channels]
}
