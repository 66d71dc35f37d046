//! The numbers of a step, as both paths use them.

use super::{Options, Rule, Step};

/// What multiplies what: settings computed in f64 and rounded once. The kernels have the same struct.
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Coefficients {
    /// Not 0: no step is taken.
    pub(super) skip: u32,
    /// Not 0: the first step, at which SGD's sum is the gradient.
    first: u32,
    /// The lower bits of the step's number.
    pub(super) step: u32,
    /// Not 0: Nesterov's form of SGD.
    nesterov: u32,
    grad_scale: f32,
    /// 1 - lr * weight_decay, with the decay of AdamW.
    keep: f32,
    /// lr / (1 - beta1^t); lr for SGD.
    step_size: f32,
    /// sqrt(1 - beta2^t).
    root_correction: f32,
    /// The decay that joins the gradient: L2.
    l2: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    eps: f32,
    momentum: f32,
    one_minus_dampening: f32,
}

/// base^exponent by squares, which rounds alike on every device; the error is below `exponent` roundings.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

impl Coefficients {
    pub(super) fn new(options: &Options, now: &Step) -> Self {
        let Step { lr, number, grad_scale } = *now;
        let decay = options.weight_decay;
        let common = Self {
            first: u32::from(number == 1),
            step: number as u32,
            grad_scale: grad_scale as f32,
            keep: 1.0,
            ..Self::default()
        };
        match options.rule {
            Rule::AdamW(adam) | Rule::Adam(adam) => {
                let decoupled = matches!(options.rule, Rule::AdamW(_));
                Self {
                    keep: if decoupled { (1.0 - lr * decay) as f32 } else { 1.0 },
                    step_size: (lr / (1.0 - power(adam.beta1, number))) as f32,
                    root_correction: (1.0 - power(adam.beta2, number)).sqrt() as f32,
                    l2: if decoupled { 0.0 } else { decay as f32 },
                    beta2: adam.beta2 as f32,
                    one_minus_beta1: (1.0 - adam.beta1) as f32,
                    one_minus_beta2: (1.0 - adam.beta2) as f32,
                    eps: adam.eps as f32,
                    ..common
                }
            }
            Rule::Sgd(sgd) => Self {
                nesterov: u32::from(sgd.nesterov),
                step_size: lr as f32,
                l2: decay as f32,
                momentum: sgd.momentum as f32,
                one_minus_dampening: (1.0 - sgd.dampening) as f32,
                ..common
            },
        }
    }

    /// The same for tensors that do not decay.
    pub(super) fn without_decay(self) -> Self {
        Self { keep: 1.0, l2: 0.0, ..self }
    }

    #[inline(always)]
    fn gradient(&self, w: f32, grad: f32) -> f32 {
        let grad = grad * self.grad_scale;
        // Nothing is multiplied by no decay: an infinite weight would make a NaN of it.
        if self.l2 != 0.0 { w.mul_add(self.l2, grad) } else { grad }
    }

    /// Adam's new `w`, with `m` and `v` brought up to date.
    #[inline(always)]
    pub(super) fn adam(&self, w: f32, grad: f32, m: &mut f32, v: &mut f32) -> f32 {
        let grad = self.gradient(w, grad);
        *m = (grad - *m).mul_add(self.one_minus_beta1, *m);
        *v = (grad * grad).mul_add(self.one_minus_beta2, *v * self.beta2);
        let denominator = v.sqrt() / self.root_correction + self.eps;
        (*m / denominator).mul_add(-self.step_size, w * self.keep)
    }

    /// SGD's new `w` without momentum.
    #[inline(always)]
    pub(super) fn sgd(&self, w: f32, grad: f32) -> f32 {
        self.gradient(w, grad).mul_add(-self.step_size, w)
    }

    /// SGD's new `w`, with the sum `m` brought up to date.
    #[inline(always)]
    pub(super) fn sgd_with_momentum(&self, w: f32, grad: f32, m: &mut f32) -> f32 {
        let grad = self.gradient(w, grad);
        *m = if self.first != 0 { grad } else { grad.mul_add(self.one_minus_dampening, *m * self.momentum) };
        let direction = if self.nesterov != 0 { m.mul_add(self.momentum, grad) } else { *m };
        direction.mul_add(-self.step_size, w)
    }
}
