//! Attention on host memory.

use warpweft_device::{Device, View, ViewMut};
use warpweft_kernels::attention::{self, Options};

use crate::element::{count, with_float};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref, disjoint};

/// `ww_attention_shape`.
#[repr(C)]
pub struct Shape {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
}

/// `ww_attention_options`.
#[repr(C)]
pub struct AttentionOptions {
    causal: i32,
    scale: f32,
}

/// Elements of each argument.
struct Lengths {
    q: usize,
    kv: usize,
    lse: usize,
}

impl Shape {
    fn lengths(&self) -> Result<Lengths, Fault> {
        Ok(Lengths {
            q: count("q", &[self.batch, self.queries, self.heads, self.head_size])?,
            kv: count("k", &[self.batch, self.keys, self.kv_heads, self.head_size])?,
            lse: count("lse", &[self.batch, self.heads, self.queries])?,
        })
    }

    fn native(&self) -> attention::Shape {
        attention::Shape {
            batch: self.batch,
            queries: self.queries,
            keys: self.keys,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
        }
    }
}

fn native(options: Option<&AttentionOptions>) -> Options {
    options.map_or_else(Options::default, |options| Options {
        causal: options.causal != 0,
        scale: (options.scale != 0.0).then_some(options.scale),
        ..Options::FULL
    })
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_forward(
    device: Ref<Device>,
    shape: Ref<Shape>,
    options: Ref<AttentionOptions>,
    dtype: i32,
    q: Input,
    k: Input,
    v: Input,
    mut out: Output,
    mut lse: Output,
) -> i32 {
    guard("ww_attention_forward", || {
        let device = device.get("device")?;
        let shape = shape.get("shape")?;
        let options = native(options.optional("options")?);
        let Lengths { q: q_len, kv, lse: rows } = shape.lengths()?;
        with_float!(dtype, T => {
            disjoint(
                &[out.extent::<T>("out", q_len)?, lse.extent::<f32>("lse", rows)?],
                &[q.extent::<T>("q", q_len)?, k.extent::<T>("k", kv)?, v.extent::<T>("v", kv)?],
            )?;
            Ok(attention::forward(
                &device.stream(),
                shape.native(),
                options,
                View::from_host(device, q.slice::<T>("q", q_len)?)?,
                View::from_host(device, k.slice::<T>("k", kv)?)?,
                View::from_host(device, v.slice::<T>("v", kv)?)?,
                ViewMut::from_host(device, out.slice::<T>("out", q_len)?)?,
                ViewMut::from_host(device, lse.slice::<f32>("lse", rows)?)?,
            )?)
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_attention_backward(
    device: Ref<Device>,
    shape: Ref<Shape>,
    options: Ref<AttentionOptions>,
    dtype: i32,
    q: Input,
    k: Input,
    v: Input,
    out: Input,
    lse: Input,
    dout: Input,
    mut dq: Output,
    mut dk: Output,
    mut dv: Output,
) -> i32 {
    guard("ww_attention_backward", || {
        let device = device.get("device")?;
        let shape = shape.get("shape")?;
        let options = native(options.optional("options")?);
        let Lengths { q: q_len, kv, lse: rows } = shape.lengths()?;
        with_float!(dtype, T => {
            disjoint(
                &[dq.extent::<T>("dq", q_len)?, dk.extent::<T>("dk", kv)?, dv.extent::<T>("dv", kv)?],
                &[
                    q.extent::<T>("q", q_len)?,
                    k.extent::<T>("k", kv)?,
                    v.extent::<T>("v", kv)?,
                    out.extent::<T>("out", q_len)?,
                    lse.extent::<f32>("lse", rows)?,
                    dout.extent::<T>("dout", q_len)?,
                ],
            )?;
            Ok(attention::backward(
                &device.stream(),
                shape.native(),
                options,
                View::from_host(device, q.slice::<T>("q", q_len)?)?,
                View::from_host(device, k.slice::<T>("k", kv)?)?,
                View::from_host(device, v.slice::<T>("v", kv)?)?,
                View::from_host(device, out.slice::<T>("out", q_len)?)?,
                View::from_host(device, lse.slice::<f32>("lse", rows)?)?,
                View::from_host(device, dout.slice::<T>("dout", q_len)?)?,
                ViewMut::from_host(device, dq.slice::<T>("dq", q_len)?)?,
                ViewMut::from_host(device, dk.slice::<T>("dk", kv)?)?,
                ViewMut::from_host(device, dv.slice::<T>("dv", kv)?)?,
            )?)
        })
    })
}
