//! AdamW's formula in f64, element by element.

use super::Options;

/// One element with its state.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The weight.
    pub w: f64,
    /// The mean of gradients.
    pub m: f64,
    /// The mean of squared gradients.
    pub v: f64,
}

/// The element after one step.
pub fn step(options: &Options, decay: bool, element: Element, grad: f64) -> Element {
    let Options { lr, beta1, beta2, eps, weight_decay, step, grad_scale } = *options;
    let (g, t) = (grad * grad_scale, step as f64);
    let m = beta1 * element.m + (1.0 - beta1) * g;
    let v = beta2 * element.v + (1.0 - beta2) * g * g;
    let direction = (m / (1.0 - beta1.powf(t))) / ((v / (1.0 - beta2.powf(t))).sqrt() + eps);
    let decay = if decay { weight_decay * element.w } else { 0.0 };
    Element { w: element.w - lr * (direction + decay), m, v }
}
