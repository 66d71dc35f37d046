//! The softmax in f64, row by row.

use super::{MaskShape, Options, Shape};

/// `y = e^(scale x - max) / sum`, 0 where masked and in a row with nothing unmasked or finite.
pub fn forward(shape: Shape, options: Options, x: &[f64]) -> Vec<f64> {
    let all_seen = vec![0; shape.rows * shape.columns];
    forward_masked(shape, options, MaskShape { heads: 1, queries: 1 }, &all_seen, x)
}

/// The same where bytes of a given mask hide elements: `hidden [rows / mask.heads, columns]`.
pub fn forward_masked(shape: Shape, options: Options, mask: MaskShape, hidden: &[u8], x: &[f64]) -> Vec<f64> {
    let columns = shape.columns;
    let mut y = Vec::new();
    for row in 0..shape.rows {
        let seen =
            |column: usize| column < options.visible(row, columns) && hidden[mask.row(row) * columns + column] == 0;
        // -inf has no part in a sum.
        let scaled = |column: usize| {
            if seen(column) { x[row * columns + column] * f64::from(options.scale) } else { f64::NEG_INFINITY }
        };
        let max = (0..columns).map(scaled).fold(f64::NEG_INFINITY, f64::max);
        let nothing = (0..columns).all(|column| scaled(column) == f64::NEG_INFINITY);
        let sum = (0..columns).filter(|&column| seen(column)).map(|column| (scaled(column) - max).exp()).sum::<f64>();
        y.extend((0..columns).map(|column| match seen(column) && !nothing {
            true => (scaled(column) - max).exp() / sum,
            false => 0.0,
        }));
    }
    y
}

/// `dx = scale * y * (dy - sum of y dy)`; where masked or y is 0, `dx` is 0 and `dy` has no part in the sum.
pub fn backward(shape: Shape, options: Options, dy: &[f64], y: &[f64]) -> Vec<f64> {
    let columns = shape.columns;
    let mut dx = Vec::new();
    for row in 0..shape.rows {
        let at = |c: usize| row * columns + c;
        let has_part = |c: &usize| *c < options.visible(row, columns) && y[at(*c)] != 0.0;
        let dot = (0..columns).filter(has_part).map(|c| y[at(c)] * dy[at(c)]).sum::<f64>();
        dx.extend((0..columns).map(|c| match has_part(&c) {
            true => f64::from(options.scale) * y[at(c)] * (dy[at(c)] - dot),
            false => 0.0,
        }));
    }
    dx
}
