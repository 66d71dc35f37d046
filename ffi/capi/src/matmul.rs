//! Products of a linear layer.

use warpweft_device::Stream;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape, Through};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, Settings, Versioned};

/// `ww_matmul_epilogue`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MatmulEpilogue {
    size: usize,
    pub(crate) bias: Input,
    pub(crate) pre: Output,
    pub(crate) residual: Input,
    pub(crate) activation: i32,
    pub(crate) scale: f32,
}

// SAFETY: pointers, which may be null, and numbers.
unsafe impl Versioned for MatmulEpilogue {}

pub(crate) fn activation(code: i32) -> Result<Activation, Fault> {
    match code {
        0 => Ok(Activation::None),
        1 => Ok(Activation::GeluTanh),
        2 => Ok(Activation::GeluErf),
        3 => Ok(Activation::SwiGlu),
        4 => Ok(Activation::Relu),
        _ => {
            let allowed = "WW_NONE (0), WW_GELU_TANH (1), WW_GELU_ERF (2), WW_SWIGLU (3) or WW_RELU (4)";
            Err(Fault::Value { argument: "activation", given: code.into(), allowed })
        }
    }
}

/// The factor of a product: 0 means 1.
pub(crate) fn factor(scale: f32) -> f32 {
    if scale == 0.0 { 1.0 } else { scale }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_forward(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    w: Input,
    epilogue: Settings<MatmulEpilogue>,
    y: Output,
) -> i32 {
    guard("ww_matmul_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let epilogue = epilogue.get("epilogue")?;
        let activation = activation(epilogue.activation)?;
        let outputs = activation.outputs(n);
        let scale = factor(epilogue.scale);
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[m, k])?;
            let w = args.read::<T>("w", w, &[n, k])?;
            let bias = args.read_if_given::<T>("bias", epilogue.bias, &[n])?;
            let residual = args.read_if_given::<T>("residual", epilogue.residual, &[m, outputs])?;
            let pre = args.write_if_given::<T>("pre", epilogue.pre, &[m, n])?;
            let y = args.write::<T>("y", y, &[m, outputs])?;
            let epilogue = Epilogue { scale, bias, activation, pre, residual };
            Ok(matmul::forward(args.handle, Shape { m, n, k }, x, w, epilogue, y)?)
        })
    })
}

/// The activation alone.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_activate(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    code: i32,
    dtype: i32,
    pre: Input,
    y: Output,
) -> i32 {
    guard("ww_matmul_activate", || {
        let mut args = Arguments::of("stream", &stream)?;
        let activation = activation(code)?;
        with_float!(dtype, T => {
            let pre = args.read::<T>("pre", pre, &[m, n])?;
            let y = args.write::<T>("y", y, &[m, activation.outputs(n)])?;
            Ok(matmul::activate(args.handle, Shape { m, n, k: 0 }, activation, pre, y)?)
        })
    })
}

/// The gradient of the input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_input(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_matmul_backward_input", || {
        let mut args = Arguments::of("stream", &stream)?;
        let write = write_of(write)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[m, n])?;
            let w = args.read::<T>("w", w, &[n, k])?;
            let dx = args.write::<T>("dx", dx, &[m, k])?;
            Ok(matmul::backward_input(args.handle, Shape { m, n, k }, dy, w, write, dx)?)
        })
    })
}

/// `ww_matmul_through`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MatmulThrough {
    size: usize,
    pub(crate) pre: Input,
    pub(crate) activation: i32,
    pub(crate) scale: f32,
    pub(crate) db: Output,
}

// SAFETY: numbers, and pointers, which may be null.
unsafe impl Versioned for MatmulThrough {}

/// The gradient of the input, and through the activation that it came out of.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_input_through(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    through: Settings<MatmulThrough>,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_matmul_backward_input_through", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (through, write) = (through.get("through")?, write_of(write)?);
        let (activation, scale) = (activation(through.activation)?, factor(through.scale));
        let columns = activation.inputs(k);
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[m, n])?;
            let w = args.read::<T>("w", w, &[n, k])?;
            let pre = args.read_if_given::<T>("pre", through.pre, &[m, columns])?;
            let dx = args.write::<T>("dx", dx, &[m, columns])?;
            let db = args.write_if_given::<f32>("db", through.db, &[columns])?;
            let through = Through { scale, activation, pre, db };
            Ok(matmul::backward_input_through(args.handle, Shape { m, n, k }, dy, w, through, write, dx)?)
        })
    })
}

/// The gradient of the weight.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_weight(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    dy: Input,
    dw: Output,
) -> i32 {
    guard("ww_matmul_backward_weight", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[m, k])?;
            let dy = args.read::<T>("dy", dy, &[m, n])?;
            let dw = args.write::<f32>("dw", dw, &[n, k])?;
            Ok(matmul::backward_weight(args.handle, Shape { m, n, k }, x, dy, dw)?)
        })
    })
}

/// The gradient of the bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_bias(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    dtype: i32,
    dy: Input,
    db: Output,
) -> i32 {
    guard("ww_matmul_backward_bias", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[m, n])?;
            let db = args.write::<f32>("db", db, &[n])?;
            // The sum over rows knows no K.
            Ok(matmul::backward_bias(args.handle, Shape { m, n, k: 0 }, dy, db)?)
        })
    })
}

/// The gradient through the activation.
#[unsafe(no_mangle)]
pub extern "C" fn ww_matmul_backward_activation(
    stream: Ref<Stream>,
    m: usize,
    n: usize,
    code: i32,
    dtype: i32,
    pre: Input,
    dy: Input,
    dpre: Output,
) -> i32 {
    guard("ww_matmul_backward_activation", || {
        let mut args = Arguments::of("stream", &stream)?;
        let activation = activation(code)?;
        with_float!(dtype, T => {
            let pre = args.read::<T>("pre", pre, &[m, n])?;
            let dy = args.read::<T>("dy", dy, &[m, activation.outputs(n)])?;
            let dpre = args.write::<T>("dpre", dpre, &[m, n])?;
            Ok(matmul::backward_activation(args.handle, Shape { m, n, k: 0 }, activation, pre, dy, dpre)?)
        })
    })
}
