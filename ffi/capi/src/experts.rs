//! Mixtures of experts: rows in the order of experts and back.

use warpweft_device::Stream;
use warpweft_kernels::moe::Shape;
use warpweft_kernels::moe::dispatch::{self, Rows};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::moe::MoeShape;
use crate::pointer::{Input, Out, Output, Ref};

/// `ww_moe_rows`.
#[repr(C)]
pub struct MoeRows {
    rows: usize,
    top_k: usize,
    channels: usize,
    placed: usize,
}

impl MoeRows {
    fn native(&self) -> Rows {
        let Self { rows, top_k, channels, placed } = *self;
        Rows { rows, top_k, channels, len: placed }
    }
}

/// Marks what fits.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_within_capacity(
    stream: Ref<Stream>,
    shape: Ref<MoeShape>,
    sequences: usize,
    capacity: usize,
    experts: Input,
    keep: Output,
    dropped: Out<usize>,
) -> i32 {
    guard("ww_moe_within_capacity", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = shape.get("shape")?.native();
        dropped.check_if_wanted("dropped")?;
        let experts = args.read::<u32>("experts", experts, &[shape.rows, shape.top_k])?;
        let keep = args.write::<u32>("keep", keep, &[shape.rows, shape.top_k])?;
        let number = dispatch::within_capacity(args.handle, shape, sequences, capacity, experts, keep)?;
        dropped.set_if_wanted("dropped", number)
    })
}

/// Sorts assignments by expert.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_sort(
    stream: Ref<Stream>,
    shape: Ref<MoeShape>,
    experts: Input,
    keep: Input,
    counts: Output,
    order: Output,
    places: Output,
    placed: Out<usize>,
) -> i32 {
    guard("ww_moe_sort", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = shape.get("shape")?.native();
        placed.check("placed")?;
        let Shape { rows, experts: count, top_k } = shape;
        let experts = args.read::<u32>("experts", experts, &[rows, top_k])?;
        let keep = args.read_if_given::<u32>("keep", keep, &[rows, top_k])?;
        let counts = args.write::<u32>("counts", counts, &[count])?;
        let order = args.write::<u32>("order", order, &[rows, top_k])?;
        let places = args.write::<u32>("places", places, &[rows, top_k])?;
        placed.set("placed", dispatch::sort(args.handle, shape, experts, keep, counts, order, places)?)
    })
}

/// Rows to experts.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_permute(
    stream: Ref<Stream>,
    of: Ref<MoeRows>,
    dtype: i32,
    order: Input,
    weights: Input,
    x: Input,
    y: Output,
) -> i32 {
    guard("ww_moe_permute", || {
        let mut args = Arguments::of("stream", &stream)?;
        let of = of.get("of")?.native();
        with_float!(dtype, T => {
            let order = args.read::<u32>("order", order, &[of.len])?;
            let weights = args.read_if_given::<f32>("weights", weights, &[of.rows, of.top_k])?;
            let x = args.read::<T>("x", x, &[of.rows, of.channels])?;
            let y = args.write::<T>("y", y, &[of.len, of.channels])?;
            Ok(dispatch::permute(args.handle, of, order, weights, x, y)?)
        })
    })
}

/// Their weighted sums back.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_combine(
    stream: Ref<Stream>,
    of: Ref<MoeRows>,
    dtype: i32,
    places: Input,
    weights: Input,
    x: Input,
    write: i32,
    y: Output,
) -> i32 {
    guard("ww_moe_combine", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (of, write) = (of.get("of")?.native(), write_of(write)?);
        with_float!(dtype, T => {
            let places = args.read::<u32>("places", places, &[of.rows, of.top_k])?;
            let weights = args.read_if_given::<f32>("weights", weights, &[of.rows, of.top_k])?;
            let x = args.read::<T>("x", x, &[of.len, of.channels])?;
            let y = args.write::<T>("y", y, &[of.rows, of.channels])?;
            Ok(dispatch::combine(args.handle, of, places, weights, x, write, y)?)
        })
    })
}

/// The gradients of the weights.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_backward_weights(
    stream: Ref<Stream>,
    of: Ref<MoeRows>,
    dtype: i32,
    places: Input,
    x: Input,
    dy: Input,
    dweights: Output,
) -> i32 {
    guard("ww_moe_backward_weights", || {
        let mut args = Arguments::of("stream", &stream)?;
        let of = of.get("of")?.native();
        with_float!(dtype, T => {
            let places = args.read::<u32>("places", places, &[of.rows, of.top_k])?;
            let x = args.read::<T>("x", x, &[of.len, of.channels])?;
            let dy = args.read::<T>("dy", dy, &[of.rows, of.channels])?;
            let dweights = args.write::<f32>("dweights", dweights, &[of.rows, of.top_k])?;
            Ok(dispatch::backward_weights(args.handle, of, places, x, dy, dweights)?)
        })
    })
}
