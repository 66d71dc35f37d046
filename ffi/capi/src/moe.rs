//! Mixtures of experts: the router, and what keeps experts evenly used.

use warpweft_device::Stream;
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::router::{self, Options, Score};
use warpweft_kernels::moe::{self, Shape};

use crate::arguments::Arguments;
use crate::element::with_float;
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Out, Output, Ref, Settings, Versioned};

/// `ww_moe_shape`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MoeShape {
    rows: usize,
    experts: usize,
    top_k: usize,
}

impl MoeShape {
    pub(crate) fn native(&self) -> Shape {
        let Self { rows, experts, top_k } = *self;
        moe::Shape { rows, experts, top_k }
    }
}

/// `ww_moe_router_options`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RouterOptions {
    size: usize,
    score: i32,
    unnormalized: i32,
    scale: f32,
}

// SAFETY: numbers.
unsafe impl Versioned for RouterOptions {}

fn score_of(code: i32) -> Result<Score, Fault> {
    match code {
        0 => Ok(Score::Softmax),
        1 => Ok(Score::Sigmoid),
        _ => Err(Fault::Value {
            argument: "score",
            given: code.into(),
            allowed: "WW_SCORE_SOFTMAX (0) or WW_SCORE_SIGMOID (1)",
        }),
    }
}

impl RouterOptions {
    fn native(&self) -> Result<Options, Fault> {
        let scale = if self.scale == 0.0 { 1.0 } else { self.scale };
        Ok(Options { score: score_of(self.score)?, normalize: self.unnormalized == 0, scale })
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_router_forward(
    stream: Ref<Stream>,
    shape: Ref<MoeShape>,
    options: Settings<RouterOptions>,
    dtype: i32,
    logits: Input,
    bias: Input,
    scores: Output,
    experts: Output,
    weights: Output,
    margin: Out<f32>,
    margin_row: Out<usize>,
) -> i32 {
    guard("ww_moe_router_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, options) = (shape.get("shape")?.native(), options.get("options")?.native()?);
        margin.check_if_wanted("margin")?;
        margin_row.check_if_wanted("margin_row")?;
        let Shape { rows, experts: count, top_k } = shape;
        with_float!(dtype, T => {
            let logits = args.read::<T>("logits", logits, &[rows, count])?;
            let bias = args.read_if_given::<f32>("bias", bias, &[count])?;
            let scores = args.write::<f32>("scores", scores, &[rows, count])?;
            let experts = args.write::<u32>("experts", experts, &[rows, top_k])?;
            let weights = args.write::<f32>("weights", weights, &[rows, top_k])?;
            let nearest = router::forward(args.handle, shape, options, logits, bias, scores, experts, weights)?;
            margin.set_if_wanted("margin", nearest.smallest)?;
            margin_row.set_if_wanted("margin_row", nearest.row)
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_router_backward(
    stream: Ref<Stream>,
    shape: Ref<MoeShape>,
    options: Settings<RouterOptions>,
    dtype: i32,
    scores: Input,
    experts: Input,
    dweights: Input,
    dscores: Input,
    dlogits: Output,
) -> i32 {
    guard("ww_moe_router_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, options) = (shape.get("shape")?.native(), options.get("options")?.native()?);
        let Shape { rows, experts: count, top_k } = shape;
        with_float!(dtype, T => {
            let scores = args.read::<f32>("scores", scores, &[rows, count])?;
            let experts = args.read::<u32>("experts", experts, &[rows, top_k])?;
            let dweights = args.read::<f32>("dweights", dweights, &[rows, top_k])?;
            let dscores = args.read_if_given::<f32>("dscores", dscores, &[rows, count])?;
            let dlogits = args.write::<T>("dlogits", dlogits, &[rows, count])?;
            Ok(router::backward(args.handle, shape, options, scores, experts, dweights, dscores, dlogits)?)
        })
    })
}

/// `ww_moe_sequences`.
#[repr(C)]
pub struct MoeSequences {
    shape: MoeShape,
    sequences: usize,
    tokens: usize,
}

impl MoeSequences {
    fn native(&self) -> Sequences {
        Sequences { shape: self.shape.native(), sequences: self.sequences, tokens: self.tokens }
    }
}

/// What the rows here know of each sequence.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_balance_sums(
    stream: Ref<Stream>,
    of: Ref<MoeSequences>,
    score: i32,
    scores: Input,
    experts: Input,
    sums: Output,
) -> i32 {
    guard("ww_moe_balance_sums", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (of, score) = (of.get("of")?.native(), score_of(score)?);
        let Shape { rows, experts: count, top_k } = of.shape;
        let scores = args.read::<f32>("scores", scores, &[rows, count])?;
        let experts = args.read::<u32>("experts", experts, &[rows, top_k])?;
        let sums = args.write::<f64>("sums", sums, &[of.sequences, 2, count])?;
        Ok(balance::sums(args.handle, of, score, scores, experts, sums)?)
    })
}

/// The losses, added up.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_balance_loss(stream: Ref<Stream>, of: Ref<MoeSequences>, sums: Input, loss: Out<f64>) -> i32 {
    guard("ww_moe_balance_loss", || {
        let mut args = Arguments::of("stream", &stream)?;
        let of = of.get("of")?.native();
        loss.check("loss")?;
        let sums = args.read::<f64>("sums", sums, &[of.sequences, 2, of.shape.experts])?;
        loss.set("loss", balance::loss(args.handle, of, sums)?)
    })
}

/// The gradients of the scores.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_balance_backward(
    stream: Ref<Stream>,
    of: Ref<MoeSequences>,
    score: i32,
    coefficient: f32,
    scores: Input,
    sums: Input,
    dscores: Output,
) -> i32 {
    guard("ww_moe_balance_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (of, score) = (of.get("of")?.native(), score_of(score)?);
        let Shape { rows, experts: count, .. } = of.shape;
        let scores = args.read::<f32>("scores", scores, &[rows, count])?;
        let sums = args.read::<f64>("sums", sums, &[of.sequences, 2, count])?;
        let dscores = args.write::<f32>("dscores", dscores, &[rows, count])?;
        Ok(balance::backward(args.handle, of, score, coefficient, scores, sums, dscores)?)
    })
}

/// Moves the bias of each expert.
#[unsafe(no_mangle)]
pub extern "C" fn ww_moe_move_bias(stream: Ref<Stream>, experts: usize, rate: f32, counts: Input, bias: Output) -> i32 {
    guard("ww_moe_move_bias", || {
        let mut args = Arguments::of("stream", &stream)?;
        let counts = args.read::<f64>("counts", counts, &[experts])?;
        let bias = args.write::<f32>("bias", bias, &[experts])?;
        Ok(balance::move_bias(args.handle, rate, counts, bias)?)
    })
}
