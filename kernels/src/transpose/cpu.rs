//! The transpose on the CPU: tasks of some rows of y, each in squares that stay in the cache.

use warpweft_device::{CpuPool, Float};

use super::Shape;

/// Rows and columns of a square.
const SQUARE: usize = 32;

pub(super) fn transpose<T: Float>(pool: &CpuPool, shape: Shape, x: &[T], y: &mut [T]) {
    let Shape { rows, columns, .. } = shape;
    let matrices = x.chunks_exact(rows * columns).zip(y.chunks_exact_mut(rows * columns));
    let tasks = matrices.flat_map(|(x, y)| {
        let bands = y.chunks_mut(SQUARE * rows).enumerate();
        bands.map(move |(band, y)| (x, band * SQUARE, y))
    });
    pool.for_each(tasks.collect(), |(x, first, y)| {
        for begin in (0..rows).step_by(SQUARE) {
            let end = rows.min(begin + SQUARE);
            for (within, y) in y.chunks_exact_mut(rows).enumerate() {
                for (row, y) in (begin..end).zip(&mut y[begin..end]) {
                    *y = x[row * columns + first + within];
                }
            }
        }
    });
}
