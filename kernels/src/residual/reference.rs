//! The residual sum in f64.

use super::{Dropout, Shape};

/// `x + branch + bias`.
pub fn forward(shape: Shape, x: &[f64], branch: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let bias = |index: usize| bias.map_or(0.0, |bias| bias[index % shape.channels]);
    x.iter().zip(branch).enumerate().map(|(index, (x, branch))| x + branch + bias(index)).collect()
}

/// `x + kept (branch + bias) / (1 - p)`.
pub fn forward_dropout(shape: Shape, dropout: Dropout, x: &[f64], branch: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let bias = |index: usize| bias.map_or(0.0, |bias| bias[index % shape.channels]);
    let term = |index: usize, branch: f64| {
        if dropout.keeps(index as u64) { (branch + bias(index)) * dropout.factor() } else { 0.0 }
    };
    x.iter().zip(branch).enumerate().map(|(index, (x, branch))| x + term(index, *branch)).collect()
}

/// `kept dout / (1 - p)`.
pub fn backward_dropout(dropout: Dropout, dout: &[f64]) -> Vec<f64> {
    let kept = |(index, dout): (usize, &f64)| if dropout.keeps(index as u64) { dout * dropout.factor() } else { 0.0 };
    dout.iter().enumerate().map(kept).collect()
}
