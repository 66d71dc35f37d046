//! The transpose, element by element.

use super::Shape;

/// y[b, c, r] = x[b, r, c].
pub fn transpose<T: Copy>(shape: Shape, x: &[T]) -> Vec<T> {
    let Shape { batch, rows, columns } = shape;
    let mut y = Vec::with_capacity(x.len());
    for matrix in 0..batch {
        for column in 0..columns {
            y.extend((0..rows).map(|row| x[(matrix * rows + row) * columns + column]));
        }
    }
    y
}
