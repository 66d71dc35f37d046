//! The softmax in f64, row by row.

use super::{Options, Shape};

/// `y = e^(scale x - max) / sum`, 0 where masked and in a row with nothing unmasked or finite.
pub fn forward(shape: Shape, options: Options, x: &[f64]) -> Vec<f64> {
    let mut y = Vec::new();
    for (row, x) in x.chunks(shape.columns.max(1)).enumerate() {
        let visible = options.visible(row, shape.columns);
        let scaled: Vec<f64> = x[..visible].iter().map(|x| x * f64::from(options.scale)).collect();
        let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let nothing = scaled.iter().all(|&x| x == f64::NEG_INFINITY);
        let sum = scaled.iter().map(|x| (x - max).exp()).sum::<f64>();
        y.extend(scaled.iter().map(|x| if nothing { 0.0 } else { (x - max).exp() / sum }));
        y.resize((row + 1) * shape.columns, 0.0);
    }
    y
}

/// `dx = scale * y * (dy - sum of y dy)`, 0 where masked.
pub fn backward(shape: Shape, options: Options, dy: &[f64], y: &[f64]) -> Vec<f64> {
    let columns = shape.columns;
    let mut dx = Vec::new();
    for row in 0..shape.rows {
        let visible = options.visible(row, columns);
        let at = |c: usize| row * columns + c;
        let dot = (0..visible).map(|c| y[at(c)] * dy[at(c)]).sum::<f64>();
        dx.extend((0..visible).map(|c| f64::from(options.scale) * y[at(c)] * (dy[at(c)] - dot)));
        dx.resize((row + 1) * columns, 0.0);
    }
    dx
}
