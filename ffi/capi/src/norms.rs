//! LayerNorm and RMSNorm.

use warpweft_device::Stream;
use warpweft_kernels::{layernorm, rmsnorm};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref};

/// LayerNorm forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_forward(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    w: Input,
    b: Input,
    y: Output,
    mean: Output,
    rstd: Output,
) -> i32 {
    guard("ww_layernorm_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = layernorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let b = args.read::<T>("b", b, &[channels])?;
            let y = args.write::<T>("y", y, &[rows, channels])?;
            let mean = args.write::<f32>("mean", mean, &[rows])?;
            let rstd = args.write::<f32>("rstd", rstd, &[rows])?;
            Ok(layernorm::forward(args.handle, shape, eps, x, w, b, y, mean, rstd)?)
        })
    })
}

/// The end of a residual branch, and LayerNorm of it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_forward_residual(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    branch: Input,
    w: Input,
    b: Input,
    sum: Output,
    y: Output,
    mean: Output,
    rstd: Output,
) -> i32 {
    guard("ww_layernorm_forward_residual", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = layernorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let branch = args.read::<T>("branch", branch, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let b = args.read::<T>("b", b, &[channels])?;
            let sum = args.write::<T>("sum", sum, &[rows, channels])?;
            let y = args.write::<T>("y", y, &[rows, channels])?;
            let mean = args.write::<f32>("mean", mean, &[rows])?;
            let rstd = args.write::<f32>("rstd", rstd, &[rows])?;
            Ok(layernorm::forward_residual(args.handle, shape, eps, x, branch, w, b, sum, y, mean, rstd)?)
        })
    })
}

/// The gradient of LayerNorm's input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_backward_input(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    w: Input,
    mean: Input,
    rstd: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_layernorm_backward_input", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, write) = (layernorm::Shape { rows, channels }, write_of(write)?);
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, channels])?;
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let mean = args.read::<f32>("mean", mean, &[rows])?;
            let rstd = args.read::<f32>("rstd", rstd, &[rows])?;
            let dx = args.write::<T>("dx", dx, &[rows, channels])?;
            Ok(layernorm::backward_input(args.handle, shape, dy, x, w, mean, rstd, write, dx)?)
        })
    })
}

/// The gradients of LayerNorm's weight and bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_layernorm_backward_weight(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    mean: Input,
    rstd: Input,
    dw: Output,
    db: Output,
) -> i32 {
    guard("ww_layernorm_backward_weight", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = layernorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, channels])?;
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let mean = args.read::<f32>("mean", mean, &[rows])?;
            let rstd = args.read::<f32>("rstd", rstd, &[rows])?;
            let dw = args.write::<f32>("dw", dw, &[channels])?;
            let db = args.write::<f32>("db", db, &[channels])?;
            Ok(layernorm::backward_weight(args.handle, shape, dy, x, mean, rstd, dw, db)?)
        })
    })
}

/// RMSNorm forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_forward(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    w: Input,
    y: Output,
    rstd: Output,
) -> i32 {
    guard("ww_rmsnorm_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = rmsnorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let y = args.write::<T>("y", y, &[rows, channels])?;
            let rstd = args.write::<f32>("rstd", rstd, &[rows])?;
            Ok(rmsnorm::forward(args.handle, shape, eps, x, w, y, rstd)?)
        })
    })
}

/// The end of a residual branch, and RMSNorm of it.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_forward_residual(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    eps: f32,
    dtype: i32,
    x: Input,
    branch: Input,
    w: Input,
    sum: Output,
    y: Output,
    rstd: Output,
) -> i32 {
    guard("ww_rmsnorm_forward_residual", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = rmsnorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let branch = args.read::<T>("branch", branch, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let sum = args.write::<T>("sum", sum, &[rows, channels])?;
            let y = args.write::<T>("y", y, &[rows, channels])?;
            let rstd = args.write::<f32>("rstd", rstd, &[rows])?;
            Ok(rmsnorm::forward_residual(args.handle, shape, eps, x, branch, w, sum, y, rstd)?)
        })
    })
}

/// The gradient of RMSNorm's input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_backward_input(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    w: Input,
    rstd: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_rmsnorm_backward_input", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, write) = (rmsnorm::Shape { rows, channels }, write_of(write)?);
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, channels])?;
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let w = args.read::<T>("w", w, &[channels])?;
            let rstd = args.read::<f32>("rstd", rstd, &[rows])?;
            let dx = args.write::<T>("dx", dx, &[rows, channels])?;
            Ok(rmsnorm::backward_input(args.handle, shape, dy, x, w, rstd, write, dx)?)
        })
    })
}

/// The gradient of RMSNorm's weight.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rmsnorm_backward_weight(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dtype: i32,
    dy: Input,
    x: Input,
    rstd: Input,
    dw: Output,
) -> i32 {
    guard("ww_rmsnorm_backward_weight", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = rmsnorm::Shape { rows, channels };
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, channels])?;
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let rstd = args.read::<f32>("rstd", rstd, &[rows])?;
            let dw = args.write::<f32>("dw", dw, &[channels])?;
            Ok(rmsnorm::backward_weight(args.handle, shape, dy, x, rstd, dw)?)
        })
    })
}
