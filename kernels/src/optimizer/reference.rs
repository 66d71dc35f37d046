//! The formulas in f64, element by element.

use super::{Adam, Options, Rule, Sgd, Step};

/// One element with its state.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The weight.
    pub w: f64,
    /// The mean of gradients; SGD's sum of them.
    pub m: f64,
    /// The mean of squared gradients.
    pub v: f64,
}

/// The element after one step.
pub fn step(options: &Options, now: &Step, decay: bool, element: Element, grad: f64) -> Element {
    let (g, decay) = (grad * now.grad_scale, if decay { options.weight_decay * element.w } else { 0.0 });
    match options.rule {
        Rule::AdamW(rule) => adam(rule, now, element, g, decay),
        Rule::Adam(rule) => adam(rule, now, element, g + decay, 0.0),
        Rule::Sgd(rule) => sgd(rule, now, element, g + decay),
    }
}

fn adam(Adam { beta1, beta2, eps }: Adam, now: &Step, element: Element, g: f64, decay: f64) -> Element {
    let t = now.number as f64;
    let m = beta1 * element.m + (1.0 - beta1) * g;
    let v = beta2 * element.v + (1.0 - beta2) * g * g;
    let direction = (m / (1.0 - beta1.powf(t))) / ((v / (1.0 - beta2.powf(t))).sqrt() + eps);
    Element { w: element.w - now.lr * (direction + decay), m, v }
}

fn sgd(rule: Sgd, now: &Step, element: Element, g: f64) -> Element {
    let Element { w, m, v } = element;
    if rule.momentum == 0.0 {
        return Element { w: w - now.lr * g, m, v };
    }
    let m = if now.number == 1 { g } else { rule.momentum * m + (1.0 - rule.dampening) * g };
    let direction = if rule.nesterov { g + rule.momentum * m } else { m };
    Element { w: w - now.lr * direction, m, v }
}
