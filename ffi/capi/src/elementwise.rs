//! Rotary positions, casts, the end of a residual branch, transposes, fills, random numbers.

use warpweft_device::{Float, Stream};
use warpweft_kernels::philox::{self, Philox4x32};
use warpweft_kernels::{cast, residual, rope, transpose};

use crate::arguments::Arguments;
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, Settings, Versioned};

/// `ww_rope_shape`.
#[repr(C)]
pub struct RopeShape {
    batch: usize,
    tokens: usize,
    heads: usize,
    head_size: usize,
    row_stride: usize,
}

/// `ww_rope_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RopeOptions {
    size: usize,
    position: usize,
    base: f32,
    interleaved: i32,
}

// SAFETY: numbers.
unsafe impl Versioned for RopeOptions {}

impl RopeShape {
    fn native(&self) -> rope::Shape {
        let Self { batch, tokens, heads, head_size, row_stride } = *self;
        let row_stride = if row_stride == 0 { heads.saturating_mul(head_size) } else { row_stride };
        rope::Shape { batch, tokens, heads, head_size, row_stride }
    }
}

impl RopeOptions {
    fn native(&self) -> rope::Options {
        let base = if self.base == 0.0 { rope::Options::default().base } else { self.base };
        rope::Options { base, position: self.position, interleaved: self.interleaved != 0 }
    }
}

/// Forward, in place.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rope_forward(
    stream: Ref<Stream>,
    shape: Ref<RopeShape>,
    options: Settings<RopeOptions>,
    dtype: i32,
    positions: Input,
    x: Output,
) -> i32 {
    guard("ww_rope_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, options) = (shape.get("shape")?.native(), options.get("options")?.native());
        with_float!(dtype, T => {
            let positions = args.read_if_given::<u32>("positions", positions, &[shape.batch, shape.tokens])?;
            let x = args.write::<T>("x", x, &[shape.batch, shape.tokens, shape.row_stride])?;
            Ok(rope::forward(args.handle, shape, options, positions, x)?)
        })
    })
}

/// Backward, in place.
#[unsafe(no_mangle)]
pub extern "C" fn ww_rope_backward(
    stream: Ref<Stream>,
    shape: Ref<RopeShape>,
    options: Settings<RopeOptions>,
    dtype: i32,
    positions: Input,
    dx: Output,
) -> i32 {
    guard("ww_rope_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, options) = (shape.get("shape")?.native(), options.get("options")?.native());
        with_float!(dtype, T => {
            let positions = args.read_if_given::<u32>("positions", positions, &[shape.batch, shape.tokens])?;
            let dx = args.write::<T>("dx", dx, &[shape.batch, shape.tokens, shape.row_stride])?;
            Ok(rope::backward(args.handle, shape, options, positions, dx)?)
        })
    })
}

/// From one float type to another.
#[unsafe(no_mangle)]
pub extern "C" fn ww_cast(
    stream: Ref<Stream>,
    count: usize,
    from_dtype: i32,
    from: Input,
    to_dtype: i32,
    to: Output,
) -> i32 {
    guard("ww_cast", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!("from_dtype", from_dtype, A => {
            let from = args.read::<A>("from", from, &[count])?;
            with_float!("to_dtype", to_dtype, B => {
                Ok(cast::convert(args.handle, from, args.write::<B>("to", to, &[count])?)?)
            })
        })
    })
}

/// x + branch + bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_residual_forward(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dtype: i32,
    x: Input,
    branch: Input,
    bias: Input,
    out: Output,
) -> i32 {
    guard("ww_residual_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let branch = args.read::<T>("branch", branch, &[rows, channels])?;
            let bias = args.read_if_given::<T>("bias", bias, &[channels])?;
            let out = args.write::<T>("out", out, &[rows, channels])?;
            Ok(residual::forward(args.handle, residual::Shape { rows, channels }, x, branch, bias, out)?)
        })
    })
}

/// `ww_dropout`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Dropout {
    size: usize,
    seed: u64,
    sequence: u64,
    first: u64,
    probability: f32,
}

// SAFETY: numbers.
unsafe impl Versioned for Dropout {}

impl Dropout {
    fn native(&self) -> residual::Dropout {
        let Self { seed, sequence, first, probability, .. } = *self;
        residual::Dropout { probability, seed, sequence, first }
    }
}

/// x + dropout of branch + bias.
#[unsafe(no_mangle)]
pub extern "C" fn ww_residual_forward_dropout(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dropout: Settings<Dropout>,
    dtype: i32,
    x: Input,
    branch: Input,
    bias: Input,
    out: Output,
) -> i32 {
    guard("ww_residual_forward_dropout", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, dropout) = (residual::Shape { rows, channels }, dropout.required("dropout")?.native());
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, channels])?;
            let branch = args.read::<T>("branch", branch, &[rows, channels])?;
            let bias = args.read_if_given::<T>("bias", bias, &[channels])?;
            let out = args.write::<T>("out", out, &[rows, channels])?;
            Ok(residual::forward_dropout(args.handle, shape, dropout, x, branch, bias, out)?)
        })
    })
}

/// The gradient of the branch.
#[unsafe(no_mangle)]
pub extern "C" fn ww_residual_backward_dropout(
    stream: Ref<Stream>,
    rows: usize,
    channels: usize,
    dropout: Settings<Dropout>,
    dtype: i32,
    dout: Input,
    dbranch: Output,
) -> i32 {
    guard("ww_residual_backward_dropout", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, dropout) = (residual::Shape { rows, channels }, dropout.required("dropout")?.native());
        with_float!(dtype, T => {
            let dout = args.read::<T>("dout", dout, &[rows, channels])?;
            let dbranch = args.write::<T>("dbranch", dbranch, &[rows, channels])?;
            Ok(residual::backward_dropout(args.handle, shape, dropout, dout, dbranch)?)
        })
    })
}

/// Transposes of matrices.
#[unsafe(no_mangle)]
pub extern "C" fn ww_transpose(
    stream: Ref<Stream>,
    batch: usize,
    rows: usize,
    columns: usize,
    dtype: i32,
    x: Input,
    y: Output,
) -> i32 {
    guard("ww_transpose", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[batch, rows, columns])?;
            let y = args.write::<T>("y", y, &[batch, columns, rows])?;
            Ok(transpose::transpose(args.handle, transpose::Shape { batch, rows, columns }, x, y)?)
        })
    })
}

/// One value everywhere.
#[unsafe(no_mangle)]
pub extern "C" fn ww_fill(stream: Ref<Stream>, count: usize, value: f64, dtype: i32, out: Output) -> i32 {
    guard("ww_fill", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let value = <T as Float>::from_f64(value);
            Ok(args.write::<T>("out", out, &[count])?.fill(args.handle, value)?)
        })
    })
}

/// Uniform numbers.
#[unsafe(no_mangle)]
pub extern "C" fn ww_random_uniform(
    stream: Ref<Stream>,
    seed: u64,
    sequence: u64,
    first: u64,
    low: f32,
    high: f32,
    count: usize,
    dtype: i32,
    out: Output,
) -> i32 {
    guard("ww_random_uniform", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let out = args.write::<T>("out", out, &[count])?;
            Ok(philox::uniform(args.handle, Philox4x32::new(seed, sequence), first, (low, high), out)?)
        })
    })
}

/// Normal numbers.
#[unsafe(no_mangle)]
pub extern "C" fn ww_random_normal(
    stream: Ref<Stream>,
    seed: u64,
    sequence: u64,
    first: u64,
    mean: f32,
    std: f32,
    count: usize,
    dtype: i32,
    out: Output,
) -> i32 {
    guard("ww_random_normal", || {
        let mut args = Arguments::of("stream", &stream)?;
        with_float!(dtype, T => {
            let out = args.write::<T>("out", out, &[count])?;
            Ok(philox::normal(args.handle, Philox4x32::new(seed, sequence), first, (mean, std), out)?)
        })
    })
}
