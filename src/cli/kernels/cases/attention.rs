//! Cases of attention over packed rows, of every head size that has kernels of its own. Options: `attention_options.rs`.

use warpweft::device::{Buffer, Device, Float, Stream, bf16, f16};
use warpweft::kernels::KernelError;
use warpweft::kernels::attention::{self, Options, Shape};

use super::super::case::{Case, Size, Work, normal, values};
use super::attention_options::roundings;

/// Packed rows of queries, keys and values.
struct Packed<T> {
    shape: Shape,
    qkv: Buffer<T>,
    out: Buffer<T>,
    lse: Buffer<f32>,
    /// The output's gradient and that of the rows, where the backward call is the case.
    backward: Option<[Buffer<T>; 2]>,
}

impl<T: Float> Work for Packed<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let Self { shape, qkv, out, lse, backward } = self;
        match backward {
            None => {
                let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
                attention::forward_packed(stream, *shape, Options::CAUSAL, qkv.as_view(), out, lse)
            }
            Some([dout, dqkv]) => {
                let (out, lse, dout) = (out.as_view(), lse.as_view(), dout.as_view());
                let dqkv = dqkv.as_view_mut();
                attention::backward_packed(stream, *shape, Options::CAUSAL, qkv.as_view(), out, lse, dout, dqkv)
            }
        }
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        values(self.backward.as_ref().map_or(&self.out, |[_, dqkv]| dqkv), stream)
    }
}

fn case<T: Float>(shape: Shape, backward: bool) -> Case {
    let Shape { batch, queries: tokens, heads, kv_heads, head_size, .. } = shape;
    let (rows, width) = (batch * tokens, (heads + 2 * kv_heads) * head_size);
    let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> {
        let (stream, qkv) = (device.stream(), normal::<T>(device, rows * width, 1)?);
        let (mut out, mut lse) = (device.zeros(rows * heads * head_size)?, device.zeros(rows * heads)?);
        let gradients = match backward {
            true => {
                let (out, lse) = (out.as_view_mut(), lse.as_view_mut());
                attention::forward_packed(&stream, shape, Options::CAUSAL, qkv.as_view(), out, lse)?;
                stream.synchronize()?;
                Some([normal(device, rows * heads * head_size, 2)?, device.zeros(rows * width)?])
            }
            false => None,
        };
        Ok(Box::new(Packed { shape, qkv, out, lse, backward: gradients }))
    };
    let way = if backward { "backward" } else { "forward" };
    // Two products of every query with every key that it sees, half of them; five backward.
    let flops = 2 * batch * heads * tokens * tokens * head_size;
    let moved = rows * (width + heads * head_size) * size_of::<T>();
    Case {
        op: "attention",
        what: format!("{way} {batch} x {tokens} tokens, {heads} heads of {head_size}, causal"),
        dtype: T::DTYPE,
        bytes: (if backward { 2 * moved } else { moved }) as u64,
        flops: (if backward { flops * 5 / 2 } else { flops }) as u64,
        roundings: roundings::<T>(head_size),
        make: Box::new(make),
    }
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let shape = |batch, tokens, heads, kv_heads, head_size| Shape {
        batch,
        queries: tokens,
        keys: tokens,
        heads,
        kv_heads,
        head_size,
    };
    let shapes = match size {
        Size::Small { .. } | Size::Counted { .. } => {
            let sizes = [32, 40, 80, 96, 256].map(|head_size| shape(1, 40, 1, 1, head_size));
            // More than one block of queries, and several tiles of keys.
            let long = [shape(2, 70, 2, 1, 64), shape(1, 300, 1, 1, 64), shape(1, 200, 1, 1, 128)];
            [&long[..], &[shape(1, 33, 2, 2, 16)], &sizes].concat()
        }
        Size::Large => vec![shape(1, 16_384, 16, 16, 128), shape(2, 8192, 16, 16, 64)],
    };
    let mut all = Vec::new();
    for shape in shapes {
        for backward in [false, true] {
            all.extend([case::<bf16>(shape, backward), case::<f16>(shape, backward)]);
            // f32 has no tensor cores that keep its accuracy: small sizes only.
            if size != Size::Large {
                all.push(case::<f32>(shape, backward));
            }
        }
    }
    all
}
