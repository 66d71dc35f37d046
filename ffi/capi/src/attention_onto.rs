//! Attention over keys that come in parts: each call joins some more to what the calls before have found.

use warpweft_device::Stream;
use warpweft_kernels::attention;

use crate::arguments::Arguments;
use crate::attention::{AttentionOptions, Shape};
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, Settings};

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_forward_onto(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    seen: Input,
    q: Input,
    k: Input,
    v: Input,
    out: Output,
    lse: Output,
) -> i32 {
    guard("ww_attention_forward_onto", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        let (options, sizes) = (given.without_arrays("keys that come in parts")?, shape.sizes());
        with_float!(dtype, T => {
            let seen = args.read_if_given::<u32>("seen", seen, &[shape.native().queries])?;
            let inputs = given.inputs::<T>(&mut args, &sizes, [q, k, v])?;
            let out = args.write::<f32>("out", out, &sizes.q)?;
            let lse = args.write::<f32>("lse", lse, &sizes.lse)?;
            Ok(attention::forward_onto(args.handle, shape.native(), options, seen, inputs, out, lse)?)
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_backward_onto(
    stream: Ref<Stream>,
    shape: Ref<Shape>,
    options: Settings<AttentionOptions>,
    dtype: i32,
    seen: Input,
    q: Input,
    k: Input,
    v: Input,
    out: Input,
    lse: Input,
    dout: Input,
    dq: Output,
    dk: Output,
    dv: Output,
) -> i32 {
    guard("ww_attention_backward_onto", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, given) = (shape.get("shape")?, options.get("options")?);
        let (options, sizes) = (given.without_arrays("keys that come in parts")?, shape.sizes());
        with_float!(dtype, T => {
            let seen = args.read_if_given::<u32>("seen", seen, &[shape.native().queries])?;
            let inputs = given.inputs::<T>(&mut args, &sizes, [q, k, v])?;
            let out = args.read::<T>("out", out, &sizes.q)?;
            let lse = args.read::<f32>("lse", lse, &sizes.lse)?;
            let dout = args.read::<T>("dout", dout, &sizes.q)?;
            let dq = args.write::<f32>("dq", dq, &sizes.q)?;
            let dk = args.write::<f32>("dk", dk, &sizes.kv)?;
            let dv = args.write::<f32>("dv", dv, &sizes.kv)?;
            let saved = (out, lse, dout);
            Ok(attention::backward_onto(args.handle, shape.native(), options, seen, inputs, saved, dq, dk, dv)?)
        })
    })
}
