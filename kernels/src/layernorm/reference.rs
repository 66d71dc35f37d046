//! The formula of layer normalisation in f64, row by row.

use super::Shape;

/// What [`forward`] returns.
pub struct Forward {
    /// `[rows, C]`.
    pub y: Vec<f64>,
    /// `[rows]`.
    pub mean: Vec<f64>,
    /// `[rows]`.
    pub rstd: Vec<f64>,
}

/// `y = (x - mean) * rstd * w + b`.
pub fn forward(shape: Shape, eps: f64, x: &[f64], w: &[f64], b: &[f64]) -> Forward {
    let mut out = Forward { y: Vec::new(), mean: Vec::new(), rstd: Vec::new() };
    let channels = shape.channels as f64;
    for x in x.chunks(shape.channels.max(1)) {
        let mean = x.iter().sum::<f64>() / channels;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / channels;
        let rstd = 1.0 / (variance + eps).sqrt();
        out.y.extend((0..shape.channels).map(|c| (x[c] - mean) * rstd * w[c] + b[c]));
        out.mean.push(mean);
        out.rstd.push(rstd);
    }
    out
}

/// `dx = rstd * (g - avg(g) - xhat * avg(g * xhat))` with `g = dy * w` and `xhat = (x - mean) * rstd`.
pub fn backward_input(shape: Shape, dy: &[f64], x: &[f64], w: &[f64], mean: &[f64], rstd: &[f64]) -> Vec<f64> {
    let channels = shape.channels;
    let mut dx = Vec::new();
    for row in 0..shape.rows {
        let xhat = |c: usize| (x[row * channels + c] - mean[row]) * rstd[row];
        let g = |c: usize| dy[row * channels + c] * w[c];
        let avg_g = (0..channels).map(g).sum::<f64>() / channels as f64;
        let avg_gx = (0..channels).map(|c| g(c) * xhat(c)).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rstd[row] * (g(c) - avg_g - xhat(c) * avg_gx)));
    }
    dx
}

/// `dw = sum of dy * xhat` and `db = sum of dy` over the rows.
pub fn backward_weight(shape: Shape, dy: &[f64], x: &[f64], mean: &[f64], rstd: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let channels = shape.channels;
    let (mut dw, mut db) = (vec![0.0; channels], vec![0.0; channels]);
    for row in 0..shape.rows {
        for c in 0..channels {
            let i = row * channels + c;
            dw[c] += dy[i] * (x[i] - mean[row]) * rstd[row];
            db[c] += dy[i];
        }
    }
    (dw, db)
}
