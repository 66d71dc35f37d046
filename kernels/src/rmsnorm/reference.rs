//! The formula of root-mean-square normalisation in f64, row by row.

use super::Shape;

/// `y = x * rstd * w`: returns `y [rows, C]` and `rstd [rows]`.
pub fn forward(shape: Shape, eps: f64, x: &[f64], w: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut rstd) = (Vec::new(), Vec::new());
    for x in x.chunks(shape.channels.max(1)) {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / shape.channels as f64;
        let r = 1.0 / (mean_square + eps).sqrt();
        y.extend(x.iter().zip(w).map(|(x, w)| x * r * w));
        rstd.push(r);
    }
    (y, rstd)
}

/// `dx = rstd * (g - xhat * avg(g * xhat))` with `g = dy * w` and `xhat = x * rstd`.
pub fn backward_input(shape: Shape, dy: &[f64], x: &[f64], w: &[f64], rstd: &[f64]) -> Vec<f64> {
    let channels = shape.channels;
    let mut dx = Vec::new();
    for row in 0..shape.rows {
        let xhat = |c: usize| x[row * channels + c] * rstd[row];
        let g = |c: usize| dy[row * channels + c] * w[c];
        let avg_gx = (0..channels).map(|c| g(c) * xhat(c)).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rstd[row] * (g(c) - xhat(c) * avg_gx)));
    }
    dx
}

/// `dw = sum of dy * xhat` over the rows.
pub fn backward_weight(shape: Shape, dy: &[f64], x: &[f64], rstd: &[f64]) -> Vec<f64> {
    let mut dw = vec![0.0; shape.channels];
    for (row, rstd) in rstd.iter().enumerate() {
        for (c, dw) in dw.iter_mut().enumerate() {
            let i = row * shape.channels + c;
            *dw += dy[i] * x[i] * rstd;
        }
    }
    dw
}
