//! Optimizers over a list of tensors, the numbers of a step on the device, and the norm of a list of gradients.

use warpweft_device::{Stream, View, ViewMut};
use warpweft_kernels::norm;
use warpweft_kernels::optimizer::{self, Adam, Control, Numbers, Place, Rounding, Rule, Sgd, Step};

use crate::arguments::Arguments;
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Out, Output, Ref, Settings, Versioned};

/// `ww_optimizer_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OptimizerOptions {
    size: usize,
    rule: i32,
    nesterov: i32,
    beta1: f64,
    beta2: f64,
    eps: f64,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    lr: f64,
    step: u64,
    grad_scale: f64,
    control: Input,
    seed: u64,
    stochastic: i32,
}

// SAFETY: numbers, and a pointer, which may be null.
unsafe impl Versioned for OptimizerOptions {}

/// `ww_optimizer_tensor`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OptimizerTensor {
    size: usize,
    param: Output,
    master: Output,
    grad: Input,
    m: Output,
    v: Output,
    count: usize,
    decay: i32,
    tensor: u32,
    first: u64,
}

// SAFETY: numbers, and pointers, which may be null.
unsafe impl Versioned for OptimizerTensor {}

const RULES: &str = "WW_ADAMW (0), WW_ADAM (1) or WW_SGD (2)";

impl OptimizerOptions {
    fn native(&self) -> Result<optimizer::Options, Fault> {
        let Self { rule, beta1, beta2, eps, momentum, dampening, weight_decay, seed, .. } = *self;
        let rule = match rule {
            0 => Rule::AdamW(Adam { beta1, beta2, eps }),
            1 => Rule::Adam(Adam { beta1, beta2, eps }),
            2 => Rule::Sgd(Sgd { momentum, dampening, nesterov: self.nesterov != 0 }),
            _ => return Err(Fault::Value { argument: "options.rule", given: rule.into(), allowed: RULES }),
        };
        let rounding = if self.stochastic != 0 { Rounding::Stochastic { seed } } else { Rounding::Nearest };
        Ok(optimizer::Options { rule, weight_decay, rounding })
    }

    fn numbers<'a>(&self, args: &mut Arguments<'a, Stream>) -> Result<Numbers<'a>, Fault> {
        let Self { lr, step, grad_scale, control, .. } = *self;
        Ok(match args.read_if_given::<f64>("control", control, &[Control::LEN])? {
            Some(control) => Numbers::Device(control),
            None => Numbers::Host(Step { lr, number: step, grad_scale }),
        })
    }
}

/// PyTorch's defaults of a rule.
#[unsafe(no_mangle)]
pub extern "C" fn ww_optimizer_options_default(rule: i32, options: Out<OptimizerOptions>) -> i32 {
    guard("ww_optimizer_options_default", || {
        let (Adam { beta1, beta2, eps }, Sgd { momentum, dampening, .. }) = (Adam::default(), Sgd::default());
        let Step { lr, number: step, grad_scale } = Step::default();
        let weight_decay = match rule {
            0 => optimizer::Options::default().weight_decay,
            1 | 2 => 0.0,
            _ => return Err(Fault::Value { argument: "rule", given: rule.into(), allowed: RULES }),
        };
        let all = OptimizerOptions {
            size: size_of::<OptimizerOptions>(),
            rule,
            nesterov: 0,
            beta1,
            beta2,
            eps,
            momentum,
            dampening,
            weight_decay,
            lr,
            step,
            grad_scale,
            control: Input::NULL,
            seed: 0,
            stochastic: 0,
        };
        options.set("options", all)
    })
}

/// One step of every tensor.
#[unsafe(no_mangle)]
pub extern "C" fn ww_optimizer_step(
    stream: Ref<Stream>,
    options: Settings<OptimizerOptions>,
    dtype: i32,
    m_dtype: i32,
    tensors: Settings<OptimizerTensor>,
    count: usize,
) -> i32 {
    guard("ww_optimizer_step", || {
        let mut args = Arguments::of("stream", &stream)?;
        let given = options.required("options")?;
        let options = given.native()?;
        let all = tensors.list("tensors", count)?;
        with_float!(dtype, T => with_float!("m_dtype", m_dtype, M => {
            // What is written comes first: each array that is read is then only looked for among that.
            let mut written = Vec::with_capacity(count);
            for tensor in &all {
                let len = [tensor.count];
                written.push((
                    args.write::<T>("param", tensor.param, &len)?,
                    args.write_if_given::<f32>("master", tensor.master, &len)?,
                    args.write_if_given::<M>("m", tensor.m, &len)?,
                    args.write_if_given::<f32>("v", tensor.v, &len)?,
                ));
            }
            let mut regions = Vec::with_capacity(count);
            for (tensor, (param, master, m, v)) in all.iter().zip(written) {
                let grad = args.read::<f32>("grad", tensor.grad, &[tensor.count])?;
                let place = Place { tensor: tensor.tensor, first: tensor.first };
                regions.push(optimizer::Tensor { param, master, grad, m, v, decay: tensor.decay != 0, place });
            }
            let numbers = given.numbers(&mut args)?;
            Ok(optimizer::step(args.handle, options, numbers, &mut regions)?)
        }))
    })
}

/// The numbers of a step, on the device.
#[unsafe(no_mangle)]
pub extern "C" fn ww_optimizer_begin(stream: Ref<Stream>, lr: f64, step: u64, grad_scale: f64, control: Output) -> i32 {
    guard("ww_optimizer_begin", || {
        let mut args = Arguments::of("stream", &stream)?;
        let control = args.write::<f64>("control", control, &[Control::LEN])?;
        Ok(Control::begin(args.handle, Step { lr, number: step, grad_scale }, control)?)
    })
}

/// The square of the global norm.
#[unsafe(no_mangle)]
pub extern "C" fn ww_norm_sum_of_squares(
    stream: Ref<Stream>,
    tensors: Ref<Input>,
    counts: Ref<usize>,
    count: usize,
    sum: Out<f64>,
) -> i32 {
    guard("ww_norm_sum_of_squares", || {
        let mut args = Arguments::of("stream", &stream)?;
        sum.check("sum")?;
        let given = tensors.list("tensors", count)?.iter().zip(counts.list("counts", count)?);
        let read = |(&tensor, &len): (&Input, &usize)| args.read::<f32>("tensors", tensor, &[len]);
        let all = given.map(read).collect::<Result<Vec<View<'_, f32>>, Fault>>()?;
        sum.set("sum", norm::sum_of_squares(args.handle, &all)?)
    })
}

/// The same on the device.
#[unsafe(no_mangle)]
pub extern "C" fn ww_norm_sum_of_squares_into(
    stream: Ref<Stream>,
    tensors: Ref<Input>,
    counts: Ref<usize>,
    count: usize,
    squares: Output,
) -> i32 {
    guard("ww_norm_sum_of_squares_into", || {
        let mut args = Arguments::of("stream", &stream)?;
        let squares = args.write::<f64>("squares", squares, &[1])?;
        let given = tensors.list("tensors", count)?.iter().zip(counts.list("counts", count)?);
        let read = |(&tensor, &len): (&Input, &usize)| args.read::<f32>("tensors", tensor, &[len]);
        let all = given.map(read).collect::<Result<Vec<View<'_, f32>>, Fault>>()?;
        Ok(norm::sum_of_squares_into(args.handle, &all, squares)?)
    })
}

/// Clipping on the device.
#[unsafe(no_mangle)]
pub extern "C" fn ww_norm_clip(stream: Ref<Stream>, squares: Input, max_norm: f64, control: Output) -> i32 {
    guard("ww_norm_clip", || {
        let mut args = Arguments::of("stream", &stream)?;
        let squares = args.read::<f64>("squares", squares, &[1])?;
        let control = args.write::<f64>("control", control, &[Control::LEN])?;
        Ok(norm::clip(args.handle, squares, max_norm, control)?)
    })
}

/// The factor of clipping.
#[unsafe(no_mangle)]
pub extern "C" fn ww_norm_clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    norm::clip_coefficient(norm, max_norm)
}

/// Multiplies all elements.
#[unsafe(no_mangle)]
pub extern "C" fn ww_norm_scale(
    stream: Ref<Stream>,
    tensors: Ref<Output>,
    counts: Ref<usize>,
    count: usize,
    factor: f64,
) -> i32 {
    guard("ww_norm_scale", || {
        let mut args = Arguments::of("stream", &stream)?;
        let given = tensors.list("tensors", count)?.iter().zip(counts.list("counts", count)?);
        let write = |(&tensor, &len): (&Output, &usize)| args.write::<f32>("tensors", tensor, &[len]);
        let mut all = given.map(write).collect::<Result<Vec<ViewMut<'_, f32>>, Fault>>()?;
        Ok(norm::scale(args.handle, &mut all, factor)?)
    })
}
