//! Even use of experts by the kernels of `cu/moe_router.cu`.

use warpweft_device::{Arg, Stream, View, ViewMut};

use super::Sequences;
use crate::KernelError;
use crate::launch::{Extent, MOE_ROUTER, fits};
use crate::moe::Shape;
use crate::moe::router::Score;

/// Tokens of a partial sum, experts of a block and its warps, as in `cu/moe_router.cu`.
const TOKENS: usize = 128;
const LANES: usize = 32;
const WARPS: u32 = 8;
/// Threads of blocks that have a sum each, and of the one that moves biases.
const THREADS: usize = 256;
/// Blocks along the second dimension of a grid.
const MOST_TILES: usize = 65_535;

/// Sizes against what kernels hold.
fn check(op: &'static str, shape: Shape) -> Result<(), KernelError> {
    fits(op, "rows", shape.rows, i32::MAX as usize)?;
    fits(op, "experts", shape.experts, MOST_TILES * LANES)
}

pub(super) fn sums(
    op: &'static str,
    stream: &Stream,
    (of, tokens): (Sequences, usize),
    score: Score,
    (scores, experts): (View<'_, f32>, View<'_, u32>),
    mut sums: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    let Shape { rows, experts: count, top_k } = of.shape;
    if rows == 0 || count == 0 {
        return Ok(sums.reborrow().fill(stream, 0.0)?);
    }
    check(op, of.shape)?;
    let (parts, columns) = (tokens.div_ceil(TOKENS), 2 * count);
    let partials = stream.workspace(of.sequences * parts * columns * size_of::<f64>())?;
    let [word, number] = stream.device().fault("moe::balance::sums: `experts`")?;
    let tiles = count.div_ceil(LANES) as u32;
    let extent = Extent { grid: [(of.sequences * parts) as u32, tiles, 1], block: [LANES as u32, WARPS, 1], shared: 0 };
    let args = [
        scores.try_into()?,
        experts.try_into()?,
        partials.as_view().try_into()?,
        (tokens as u32).into(),
        (parts as u32).into(),
        (count as u32).into(),
        (top_k as u32).into(),
        sigmoid(score),
        word,
        number,
    ];
    MOE_ROUTER.launch::<f32>(stream, "moe_router_balance_sums", extent, &args)?;
    let grid = [of.sequences as u32, columns.div_ceil(THREADS) as u32, 1];
    let extent = Extent { grid, block: [THREADS as u32, 1, 1], shared: 0 };
    let args = [partials.as_view().try_into()?, sums.try_into()?, (parts as u32).into(), (columns as u32).into()];
    MOE_ROUTER.launch::<f32>(stream, "moe_router_balance_add", extent, &args)
}

fn sigmoid(score: Score) -> Arg {
    u32::from(score == Score::Sigmoid).into()
}

pub(super) fn backward(
    op: &'static str,
    stream: &Stream,
    (shape, tokens): (Shape, usize),
    score: Score,
    factor: f64,
    (scores, sums): (View<'_, f32>, View<'_, f64>),
    dscores: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Shape { rows, experts, .. } = shape;
    if rows == 0 || experts == 0 {
        return Ok(());
    }
    check(op, shape)?;
    let args = [
        scores.try_into()?,
        sums.try_into()?,
        dscores.try_into()?,
        (rows as u32).into(),
        (tokens as u32).into(),
        (experts as u32).into(),
        sigmoid(score),
        factor.into(),
    ];
    MOE_ROUTER.launch::<f32>(stream, "moe_router_balance_backward", Extent::of_warps(rows), &args)
}

pub(super) fn move_bias(
    op: &'static str,
    stream: &Stream,
    rate: f32,
    counts: View<'_, f64>,
    bias: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let experts = counts.len();
    if experts == 0 {
        return Ok(());
    }
    fits(op, "experts", experts, i32::MAX as usize)?;
    let extent = Extent { grid: [1, 1, 1], block: [THREADS as u32, 1, 1], shared: 0 };
    let args = [counts.try_into()?, bias.try_into()?, (experts as u32).into(), rate.into()];
    MOE_ROUTER.launch::<f32>(stream, "moe_router_move_bias", extent, &args)
}
