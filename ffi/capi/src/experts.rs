//! Mixtures of experts: rows in the order of experts and back, and products by expert.

use warpweft_device::Stream;
use warpweft_kernels::moe::dispatch::{self, Rows};
use warpweft_kernels::moe::{Shape, grouped};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::matmul::activation as activation_of;
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

/// All rows of all experts.
fn rows_of(counts: &[usize]) -> Result<usize, Fault> {
    let rows = counts.iter().try_fold(0usize, |rows, &count| rows.checked_add(count));
    rows.ok_or(Fault::TooLarge { argument: "counts", len: usize::MAX })
}

/// Products by expert.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_forward(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    w: Input,
    activation: i32,
    pre: Output,
    y: Output,
) -> i32 {
    guard("ww_moe_grouped_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, activation) = (counts.list("counts", experts)?, activation_of(activation)?);
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, k])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let pre = args.write_if_given::<T>("pre", pre, &[rows, n])?;
            let y = args.write::<T>("y", y, &[rows, activation.outputs(n)])?;
            Ok(grouped::forward(args.handle, grouped::Shape { counts, n, k }, x, w, activation, pre, y)?)
        })
    })
}

/// The gradient of the input.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_input(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    dy: Input,
    w: Input,
    write: i32,
    dx: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_input", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (counts, write) = (counts.list("counts", experts)?, write_of(write)?);
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let w = args.read::<T>("w", w, &[experts, n, k])?;
            let dx = args.write::<T>("dx", dx, &[rows, k])?;
            Ok(grouped::backward_input(args.handle, grouped::Shape { counts, n, k }, dy, w, write, dx)?)
        })
    })
}

/// The gradient of the weights.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_grouped_backward_weight(
    stream: Ref<Stream>,
    experts: usize,
    counts: Ref<usize>,
    n: usize,
    k: usize,
    dtype: i32,
    x: Input,
    dy: Input,
    dw: Output,
) -> i32 {
    guard("ww_moe_grouped_backward_weight", || {
        let mut args = Arguments::of("stream", &stream)?;
        let counts = counts.list("counts", experts)?;
        let rows = rows_of(counts)?;
        with_float!(dtype, T => {
            let x = args.read::<T>("x", x, &[rows, k])?;
            let dy = args.read::<T>("dy", dy, &[rows, n])?;
            let dw = args.write::<f32>("dw", dw, &[experts, n, k])?;
            Ok(grouped::backward_weight(args.handle, grouped::Shape { counts, n, k }, x, dy, dw)?)
        })
    })
}
