//! AdamW on the CPU: every tensor cut into chunks of a fixed size, the chunks spread over the threads.

use warpweft_device::{CpuPool, Float};

use super::Options;
use crate::simd::vectorised;

/// A tensor, or a chunk of one, as slices of equal length.
pub(super) struct Part<'a, T> {
    pub(super) param: &'a mut [T],
    pub(super) master: Option<&'a mut [f32]>,
    pub(super) grad: &'a [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) decay: bool,
}

/// Elements of a chunk: 7 streams of 64 KiB.
const CHUNK: usize = 16 * 1024;

/// What multiplies what, computed in f64 and rounded once.
#[derive(Clone, Copy)]
struct Coefficients {
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
    fn new(options: &Options, decay: bool) -> Self {
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
    fn update(&self, w: f32, grad: f32, m: &mut f32, v: &mut f32) -> f32 {
        let grad = grad * self.grad_scale;
        *m = (grad - *m).mul_add(self.one_minus_beta1, *m);
        *v = (grad * grad).mul_add(self.one_minus_beta2, *v * self.beta2);
        let denominator = v.sqrt() / self.root_correction + self.eps;
        (*m / denominator).mul_add(-self.step_size, w * self.keep)
    }
}

pub(super) fn step<T: Float>(pool: &CpuPool, options: Options, parts: Vec<Part<'_, T>>) {
    let [without_decay, with_decay] = [false, true].map(|decay| Coefficients::new(&options, decay));
    let mut chunks = Vec::new();
    for part in parts {
        let decay = part.decay;
        let mut masters = part.master.map(|master| master.chunks_mut(CHUNK));
        let state = part.m.chunks_mut(CHUNK).zip(part.v.chunks_mut(CHUNK));
        for ((param, grad), (m, v)) in part.param.chunks_mut(CHUNK).zip(part.grad.chunks(CHUNK)).zip(state) {
            let master = masters.as_mut().and_then(Iterator::next);
            chunks.push(Part { param, master, grad, m, v, decay });
        }
    }
    pool.for_each(chunks, |chunk| {
        let coefficients = if chunk.decay { with_decay } else { without_decay };
        vectorised(
            #[inline(always)]
            || step_chunk(coefficients, chunk),
        );
    });
}

#[inline(always)]
fn step_chunk<T: Float>(coefficients: Coefficients, chunk: Part<'_, T>) {
    let Part { param, master, grad, m, v, .. } = chunk;
    let state = m.iter_mut().zip(v);
    match master {
        Some(master) => {
            for (((param, master), grad), (m, v)) in param.iter_mut().zip(master).zip(grad).zip(state) {
                *master = coefficients.update(*master, *grad, m, v);
                *param = T::from_f32(*master);
            }
        }
        None => {
            for ((param, grad), (m, v)) in param.iter_mut().zip(grad).zip(state) {
                *param = T::from_f32(coefficients.update(param.to_f32(), *grad, m, v));
            }
        }
    }
}
