//! The residual sum in f64.

use super::Shape;

/// `x + branch + bias`.
pub fn forward(shape: Shape, x: &[f64], branch: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let bias = |index: usize| bias.map_or(0.0, |bias| bias[index % shape.channels]);
    x.iter().zip(branch).enumerate().map(|(index, (x, branch))| x + branch + bias(index)).collect()
}
