//! AdamW over a list of tensors, and the norm of a list of gradients.

use warpweft_device::{Stream, View, ViewMut};
use warpweft_kernels::{adamw, norm};

use crate::arguments::Arguments;
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Out, Output, Ref, Settings, Versioned};

/// `ww_adamw_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AdamwOptions {
    size: usize,
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    step: u64,
    grad_scale: f64,
}

// SAFETY: numbers.
unsafe impl Versioned for AdamwOptions {}

/// `ww_adamw_tensor`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AdamwTensor {
    size: usize,
    param: Output,
    master: Output,
    grad: Input,
    m: Output,
    v: Output,
    count: usize,
    decay: i32,
}

// SAFETY: numbers, and pointers, which may be null.
unsafe impl Versioned for AdamwTensor {}

/// PyTorch's defaults.
#[unsafe(no_mangle)]
pub extern "C" fn ww_adamw_options_default(options: Out<AdamwOptions>) -> i32 {
    guard("ww_adamw_options_default", || {
        let adamw::Options { lr, beta1, beta2, eps, weight_decay, step, grad_scale, .. } = adamw::Options::default();
        let size = size_of::<AdamwOptions>();
        options.set("options", AdamwOptions { size, lr, beta1, beta2, eps, weight_decay, step, grad_scale })
    })
}

/// One step of every tensor.
#[unsafe(no_mangle)]
pub extern "C" fn ww_adamw_step(
    stream: Ref<Stream>,
    options: Settings<AdamwOptions>,
    dtype: i32,
    tensors: Settings<AdamwTensor>,
    count: usize,
) -> i32 {
    guard("ww_adamw_step", || {
        let mut args = Arguments::of("stream", &stream)?;
        let AdamwOptions { lr, beta1, beta2, eps, weight_decay, step, grad_scale, .. } = options.required("options")?;
        let options = adamw::Options { lr, beta1, beta2, eps, weight_decay, step, grad_scale };
        let given = tensors.list("tensors", count)?;
        with_float!(dtype, T => {
            // What is written comes first: each gradient is then only looked for among that.
            let mut written = Vec::with_capacity(count);
            for tensor in &given {
                let len = [tensor.count];
                written.push((
                    args.write::<T>("param", tensor.param, &len)?,
                    args.write_if_given::<f32>("master", tensor.master, &len)?,
                    args.write::<f32>("m", tensor.m, &len)?,
                    args.write::<f32>("v", tensor.v, &len)?,
                ));
            }
            let mut all = Vec::with_capacity(count);
            for (tensor, (param, master, m, v)) in given.iter().zip(written) {
                let grad = args.read::<f32>("grad", tensor.grad, &[tensor.count])?;
                all.push(adamw::Tensor { param, master, grad, m, v, decay: tensor.decay != 0 });
            }
            Ok(adamw::step(args.handle, options, &mut all)?)
        })
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
