//! AdamW over a list of tensors in one call (Loshchilov, Hutter, "Decoupled weight decay regularization",
//! arXiv 1711.05101, 2019) in PyTorch's form: the decay is multiplied by the learning rate and `eps` is added outside
//! the square root. With `g = grad_scale * grad` and step t from 1:
//!
//! ```text
//! m = beta1 m + (1 - beta1) g
//! v = beta2 v + (1 - beta2) g^2
//! w = w - lr * ( (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w )
//! ```
//!
//! Coefficients are computed in f64 and rounded to f32 once; element arithmetic is f32. A gradient beyond 1.8e19 has an
//! infinite square: `v` becomes infinite and that element stops moving, as in PyTorch. Elements are independent, so the
//! result has nothing to do with threads. Bound by memory: 28 bytes an element in f32.

mod coefficients;
mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{DeviceError, Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// The settings of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Learning rate, at least 0.
    pub lr: f64,
    /// Decay of the mean of gradients, in [0, 1).
    pub beta1: f64,
    /// Decay of the mean of squared gradients, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the mean square, at least 0.
    pub eps: f64,
    /// Weight decay, at least 0, of the tensors that have `decay` set.
    pub weight_decay: f64,
    /// The number of this step, from 1.
    pub step: u64,
    /// The factor on every gradient: the clip coefficient, 1 without. It must be finite, so that a step whose gradients
    /// have a NaN for their norm is refused; skip that step.
    pub grad_scale: f64,
}

impl Default for Options {
    /// PyTorch's defaults, at step 1.
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2, step: 1, grad_scale: 1.0 }
    }
}

/// One tensor with its gradient and state, all of the same number of elements.
pub struct Tensor<'a, T> {
    /// The parameter.
    pub param: ViewMut<'a, T>,
    /// The parameter in f32. With it the update is done on it, and `param` becomes its rounding; without it `param` is
    /// updated in f32 and rounded.
    pub master: Option<ViewMut<'a, f32>>,
    /// The gradient.
    pub grad: View<'a, f32>,
    /// The mean of gradients.
    pub m: ViewMut<'a, f32>,
    /// The mean of squared gradients.
    pub v: ViewMut<'a, f32>,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// One step of every tensor.
///
/// # Errors
/// Tensors of unequal lengths or of another device; step 0; a setting outside its range. Nothing is written then.
pub fn step<T: Float>(stream: &Stream, options: Options, tensors: &mut [Tensor<'_, T>]) -> Result<(), KernelError> {
    options.check()?;
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        all.push(Regions::checked(stream, tensor)?);
    }
    let Ok(pool) = stream.device().cpu_pool() else { return gpu::step(stream, options, all) };
    let parts = all.into_iter().map(Regions::host).collect::<Result<_, _>>()?;
    cpu::step(pool, options, parts);
    Ok(())
}

const OP: &str = "adamw";

impl Options {
    fn check(&self) -> Result<(), KernelError> {
        if self.step == 0 {
            let allowed = "at least 1: the first step is number 1".to_owned();
            return Err(KernelError::Size { op: OP, argument: "step", given: 0, allowed });
        }
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let below_one = |value: f64| (0.0..1.0).contains(&value);
        let rules = [
            ("lr", self.lr, not_negative(self.lr), "finite and at least 0"),
            ("beta1", self.beta1, below_one(self.beta1), "at least 0 and less than 1"),
            ("beta2", self.beta2, below_one(self.beta2), "at least 0 and less than 1"),
            ("eps", self.eps, not_negative(self.eps), "finite and at least 0"),
            ("weight_decay", self.weight_decay, not_negative(self.weight_decay), "finite and at least 0"),
            ("grad_scale", self.grad_scale, self.grad_scale.is_finite(), "finite; skip a step of NaN gradients"),
        ];
        match rules.into_iter().find(|(_, _, allowed, _)| !allowed) {
            Some((argument, given, _, allowed)) => {
                Err(KernelError::Number { op: OP, argument, given, allowed: allowed.to_owned() })
            }
            None => Ok(()),
        }
    }
}

/// A tensor whose regions have passed the checks.
struct Regions<'a, T> {
    param: ViewMut<'a, T>,
    master: Option<ViewMut<'a, f32>>,
    grad: View<'a, f32>,
    m: ViewMut<'a, f32>,
    v: ViewMut<'a, f32>,
    decay: bool,
}

impl<'a, T: Float> Regions<'a, T> {
    /// The tensor's regions, checked against the parameter's length.
    fn checked(stream: &Stream, tensor: &'a mut Tensor<'_, T>) -> Result<Self, KernelError> {
        let dims = [tensor.param.len()];
        let master = match &mut tensor.master {
            Some(master) => Some(check::region_mut(stream, OP, "master", master.reborrow(), &dims)?),
            None => None,
        };
        Ok(Self {
            param: check::region_mut(stream, OP, "param", tensor.param.reborrow(), &dims)?,
            master,
            grad: check::region(stream, OP, "grad", tensor.grad, &dims)?,
            m: check::region_mut(stream, OP, "m", tensor.m.reborrow(), &dims)?,
            v: check::region_mut(stream, OP, "v", tensor.v.reborrow(), &dims)?,
            decay: tensor.decay,
        })
    }

    fn host(self) -> Result<cpu::Part<'a, T>, DeviceError> {
        let Self { param, master, grad, m, v, decay } = self;
        let master = master.map(ViewMut::host).transpose()?;
        Ok(cpu::Part { param: param.host()?, master, grad: grad.host()?, m: m.host()?, v: v.host()?, decay })
    }
}
