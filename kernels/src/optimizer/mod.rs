//! Optimizers over a list of tensors in one call: AdamW, Adam with L2, SGD. With `g = grad_scale * grad` and step t from 1:
//!
//! ```text
//! AdamW    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//!          w = w - lr * ( (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w )
//! Adam     the same of g + weight_decay * w, and no other decay
//! SGD      g = g + weight_decay * w;  m = g at t = 1, else momentum m + (1 - dampening) g
//!          w = w - lr * (m, or g + momentum m with nesterov, or g without momentum)
//! ```
//!
//! Sources: Loshchilov, Hutter, "Decoupled weight decay regularization", arXiv 1711.05101, 2019, in PyTorch's form (the decay
//! is multiplied by the learning rate and `eps` is added outside the square root); Kingma, Ba, arXiv 1412.6980, 2015; SGD as
//! `torch.optim.SGD` has it.
//!
//! Coefficients are computed in f64 and rounded to f32 once; element arithmetic is f32, each operation rounded alike on every
//! device: a GPU has the CPU's bits. A mean of gradients in bf16 is rounded to nearest even where it is kept; the update has it
//! as it is. A gradient beyond 1.8e19 has an infinite square: `v` becomes infinite and that element stops moving, as in PyTorch.
//! Elements are independent, so the result has nothing to do with threads. Bound by memory: AdamW in f32 moves 28 bytes an
//! element.

mod coefficients;
mod control;
mod cpu;
mod gpu;
mod options;
pub mod reference;
mod rounding;

use warpweft_device::{DType, DeviceError, Float, Stream, View, ViewMut};

use crate::{KernelError, check};
use coefficients::Coefficients;

pub use control::Control;
pub use options::{Adam, Numbers, Options, Rounding, Rule, Sgd, Step};

/// One tensor with its gradient and state, all of the same number of elements.
pub struct Tensor<'a, T, M = f32> {
    /// The parameter.
    pub param: ViewMut<'a, T>,
    /// The parameter in f32. With it the update is done on it, and `param` becomes its rounding; without it `param` is
    /// updated in f32 and rounded.
    pub master: Option<ViewMut<'a, f32>>,
    /// The gradient.
    pub grad: View<'a, f32>,
    /// The mean of gradients, or SGD's sum of them, in f32 or bf16; none for SGD without momentum.
    pub m: Option<ViewMut<'a, M>>,
    /// The mean of squared gradients; none for SGD.
    pub v: Option<ViewMut<'a, f32>>,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Which tensor it is, and which of the whole tensor's elements is its first where ranks share it: what random numbers
    /// are functions of.
    pub place: Place,
}

/// Where the elements of a tensor are among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the tensor.
    pub tensor: u32,
    /// The number of its first element. On a GPU multiples of 4 are faster.
    pub first: u64,
}

/// One step of every tensor. On a GPU one launch (and a small one before it where `numbers` are on the device), in which
/// nothing is updated once the device's status word says that a kernel before has found wrong data.
///
/// # Errors
/// Tensors of unequal lengths or of another device; state that the rule has not, or lacks; a mean that is not f32 or bf16;
/// stochastic rounding of anything but bf16 parameters without master; step 0; a setting outside its range. Nothing is written
/// then. Of numbers on a GPU: a step or rate that cannot be is an error of the next synchronisation, and no step is taken.
pub fn step<'n, T: Float, M: Float>(
    stream: &Stream,
    options: Options,
    numbers: impl Into<Numbers<'n>>,
    tensors: &mut [Tensor<'_, T, M>],
) -> Result<(), KernelError> {
    let numbers = numbers.into();
    options.check()?;
    match numbers {
        Numbers::Host(step) => step.check()?,
        Numbers::Device(control) => drop(check::numbers(stream, OP, "control", control, &[Control::LEN])?),
    }
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        all.push(Regions::checked(stream, &options, tensor)?);
    }
    let Ok(pool) = stream.device().cpu_pool() else { return gpu::step(stream, options, numbers, all) };
    let Some(now) = on_host(numbers)? else { return Ok(()) };
    let parts = all.into_iter().map(Regions::host).collect::<Result<_, _>>()?;
    cpu::step(pool, options, Coefficients::new(&options, &now), parts);
    Ok(())
}

/// The numbers of a step on the CPU; none where it is to be skipped.
fn on_host(numbers: Numbers<'_>) -> Result<Option<Step>, KernelError> {
    let Control { lr, step, grad_scale, skip, .. } = match numbers {
        Numbers::Host(step) => return Ok(Some(step)),
        Numbers::Device(control) => Control::from_slice(control.host()?),
    };
    let now = Step { lr, number: step as u64, grad_scale };
    Step { grad_scale: 1.0, ..now }.check()?;
    if now.number as f64 != step {
        let allowed = "a whole number from 1 on".to_owned();
        return Err(KernelError::Number { op: OP, argument: "step", given: step, allowed });
    }
    Ok((skip == 0.0 && grad_scale.is_finite()).then_some(now))
}

const OP: &str = "optimizer";

/// A tensor whose regions have passed the checks.
struct Regions<'a, T, M> {
    param: ViewMut<'a, T>,
    master: Option<ViewMut<'a, f32>>,
    grad: View<'a, f32>,
    m: Option<ViewMut<'a, M>>,
    v: Option<ViewMut<'a, f32>>,
    decay: bool,
    place: Place,
}

fn combination<R>(argument: &'static str, rule: &'static str) -> Result<R, KernelError> {
    Err(KernelError::Combination { op: OP, argument, rule })
}

impl<'a, T: Float, M: Float> Regions<'a, T, M> {
    /// The tensor's regions, checked against the parameter's length and what the rule has.
    fn checked(stream: &Stream, options: &Options, tensor: &'a mut Tensor<'_, T, M>) -> Result<Self, KernelError> {
        let dims = [tensor.param.len()];
        for (argument, given, wanted) in
            [("m", tensor.m.is_some(), options.means()[0]), ("v", tensor.v.is_some(), options.means()[1])]
        {
            match (given, wanted) {
                (true, false) => return combination(argument, "is nothing that this rule keeps"),
                (false, true) => return combination(argument, "is missing, which this rule keeps"),
                _ => {}
            }
        }
        if tensor.m.is_some() && ![DType::F32, DType::BF16].contains(&M::DTYPE) {
            return combination("m", "is kept in f32 or bf16");
        }
        if options.rounding != Rounding::Nearest && (T::DTYPE != DType::BF16 || tensor.master.is_some()) {
            return combination("rounding", "is to nearest but for bf16 parameters without master");
        }
        let floats = |name, floats: &'a mut Option<ViewMut<'_, f32>>| match floats {
            Some(floats) => check::region_mut(stream, OP, name, floats.reborrow(), &dims).map(Some),
            None => Ok(None),
        };
        let m = match &mut tensor.m {
            Some(m) => Some(check::region_mut(stream, OP, "m", m.reborrow(), &dims)?),
            None => None,
        };
        Ok(Self {
            param: check::region_mut(stream, OP, "param", tensor.param.reborrow(), &dims)?,
            master: floats("master", &mut tensor.master)?,
            grad: check::region(stream, OP, "grad", tensor.grad, &dims)?,
            m,
            v: floats("v", &mut tensor.v)?,
            decay: tensor.decay,
            place: tensor.place,
        })
    }

    fn host(self) -> Result<cpu::Part<'a, T, M>, DeviceError> {
        let Self { param, master, grad, m, v, decay, place } = self;
        let [master, v] = [master, v].map(|floats| floats.map(ViewMut::host).transpose());
        let m = m.map(ViewMut::host).transpose()?;
        let (param, grad) = (param.host()?, grad.host()?);
        Ok(cpu::Part { param, master: master?, grad, m, v: v?, decay, place })
    }
}
