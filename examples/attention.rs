//! Causal attention with grouped queries, forward and backward, on arrays of the caller's own.
//!
//! `cargo run --release --example attention`
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use warpweft::device::{Device, View, ViewMut};
use warpweft::kernels::KernelError;
use warpweft::kernels::attention::{self, Options, Shape};

/// Values in [-1, 1) that do not repeat soon.
fn some(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7919 + seed * 104_729) % 2000) as f32 / 1000.0 - 1.0).collect()
}

fn main() -> Result<(), KernelError> {
    let device = Device::cpu()?;
    let stream = device.stream();
    let shape = Shape { batch: 2, queries: 128, keys: 128, heads: 8, kv_heads: 2, head_size: 64 };
    let options = Options { causal: true, ..Options::default() };
    let q = some(shape.batch * shape.queries * shape.heads * shape.head_size, 1);
    let (k, v): (Vec<f32>, Vec<f32>) = {
        let count = shape.batch * shape.keys * shape.kv_heads * shape.head_size;
        (some(count, 2), some(count, 3))
    };
    let (mut out, mut lse) = (vec![0.0f32; q.len()], vec![0.0f32; shape.batch * shape.heads * shape.queries]);
    let read = |slice| View::from_host(&device, slice);
    attention::forward(
        &stream,
        shape,
        options,
        read(&q)?,
        read(&k)?,
        read(&v)?,
        ViewMut::from_host(&device, &mut out)?,
        ViewMut::from_host(&device, &mut lse)?,
    )?;
    // The first query of a sequence sees the first key only, so its output is that key's value.
    assert!(out[..64].iter().zip(&v[..64]).all(|(out, v)| out == v));

    let dout = some(q.len(), 4);
    let (mut dq, mut dk, mut dv) = (vec![0.0f32; q.len()], vec![0.0f32; k.len()], vec![0.0f32; v.len()]);
    attention::backward(
        &stream,
        shape,
        options,
        read(&q)?,
        read(&k)?,
        read(&v)?,
        read(&out)?,
        read(&lse)?,
        read(&dout)?,
        ViewMut::from_host(&device, &mut dq)?,
        ViewMut::from_host(&device, &mut dk)?,
        ViewMut::from_host(&device, &mut dv)?,
    )?;
    println!("{shape:?}: out[0] = {}, dq of the last query = {}", out[0], dq[dq.len() - 1]);
    Ok(())
}
