//! The numbers of a step, as both paths use them.

use super::Options;

/// What multiplies what, computed in f64 and rounded once. The kernel has the same struct.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Coefficients {
    grad_scale: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    /// 1 - lr * weight_decay.
    keep: f32,
    /// lr / (1 - beta1^t).
    step_size: f32,
    /// sqrt(1 - beta2^t).
    root_correction: f32,
    eps: f32,
}

impl Coefficients {
    pub(super) fn new(options: &Options, decay: bool) -> Self {
        let Options { lr, beta1, beta2, eps, weight_decay, step, grad_scale } = *options;
        let power = |beta: f64| beta.powf(step as f64);
        Self {
            grad_scale: grad_scale as f32,
            beta2: beta2 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            keep: if decay { (1.0 - lr * weight_decay) as f32 } else { 1.0 },
            step_size: (lr / (1.0 - power(beta1))) as f32,
            root_correction: (1.0 - power(beta2)).sqrt() as f32,
            eps: eps as f32,
        }
    }

    /// The new `w`, with `m` and `v` brought up to date.
    #[inline(always)]
    pub(super) fn update(&self, w: f32, grad: f32, m: &mut f32, v: &mut f32) -> f32 {
        let grad = grad * self.grad_scale;
        *m = (grad - *m).mul_add(self.one_minus_beta1, *m);
        *v = (grad * grad).mul_add(self.one_minus_beta2, *v * self.beta2);
        let denominator = v.sqrt() / self.root_correction + self.eps;
        (*m / denominator).mul_add(-self.step_size, w * self.keep)
    }
}
