//! The router: scores of all experts, the K best of each token, their weights.
//!
//! Scores are softmax (Shazeer 2017, arXiv 1701.06538) or sigmoid (DeepSeek-V3, arXiv 2412.19437). A bias may be added to
//! the scores for the choice alone (Wang 2024, arXiv 2408.15664). Weights are the scores of the chosen, divided by their sum
//! where asked for, times a factor.
//!
//! All in f64 and rounded once, on every device; a GPU adds up a row's scores in another order, so that its numbers are the
//! CPU's but where the last places of an f64 decide a rounding. Deterministic.

mod cpu;
mod gpu;

use warpweft_device::{Float, Stream, View, ViewMut};

use super::Shape;
use crate::{KernelError, check};

/// What makes scores of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Score {
    /// e^logit over the sum of all.
    #[default]
    Softmax,
    /// 1 / (1 + e^-logit).
    Sigmoid,
}

/// How weights come of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The scores.
    pub score: Score,
    /// Whether the weights of a token are divided by their sum.
    pub normalize: bool,
    /// What they are multiplied by at the end.
    pub scale: f32,
}

impl Default for Options {
    fn default() -> Self {
        Self { score: Score::Softmax, normalize: true, scale: 1.0 }
    }
}

/// How near a choice came to be another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// The smallest difference, over all rows, of the last chosen value and the best one that was not: 0 is a tie, infinity
    /// means that nothing was left to choose.
    pub smallest: f32,
    /// Its row.
    pub row: usize,
}

impl Margin {
    /// Of no choice.
    const NONE: Self = Self { smallest: f32::INFINITY, row: 0 };
}

/// Where [`forward`] writes.
pub(crate) struct Routed<'a> {
    scores: ViewMut<'a, f32>,
    experts: ViewMut<'a, u32>,
    weights: ViewMut<'a, f32>,
}

/// Writes scores `[M, E]`, the experts `[M, K]` of each row by falling value, and their weights `[M, K]`, from logits
/// `[M, E]`; `bias` `[E]` is added to the scores for the choice.
///
/// Of equal values the lower expert comes first. A NaN is chosen last, and its
/// weight is NaN. The call waits for the margin, on a GPU too.
///
/// # Errors
/// More experts a token than there are, a scale that is not finite, a length that contradicts the shape, an argument of
/// another device. Nothing is written then.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    logits: View<'_, T>,
    bias: Option<View<'_, f32>>,
    scores: ViewMut<'_, f32>,
    experts: ViewMut<'_, u32>,
    weights: ViewMut<'_, f32>,
) -> Result<Margin, KernelError> {
    const OP: &str = "moe::router::forward";
    shape.check(OP)?;
    check::finite(OP, "scale", options.scale)?;
    let Shape { rows, experts: count, top_k } = shape;
    let logits = check::region(stream, OP, "logits", logits, &[rows, count])?;
    let bias = bias.map(|bias| check::region(stream, OP, "bias", bias, &[count])).transpose()?;
    let scores = check::region_mut(stream, OP, "scores", scores, &[rows, count])?;
    let experts = check::region_mut(stream, OP, "experts", experts, &[rows, top_k])?;
    let weights = check::region_mut(stream, OP, "weights", weights, &[rows, top_k])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::forward(OP, stream, shape, options, logits, bias, Routed { scores, experts, weights });
    }
    let bias = bias.map(View::host).transpose()?;
    Ok(cpu::forward(shape, options, logits.host()?, bias, [scores.host()?, weights.host()?], experts.host()?))
}

/// dlogits `[M, E]`, overwritten, from the weights' gradients `[M, K]` and, where there are some, the scores' own `[M, E]`
/// (those of an auxiliary loss). The choice is held fixed: almost everywhere its derivative is zero.
///
/// # Errors
/// As [`forward`]; an expert that there is not, which on a GPU is told at the next synchronisation, by its row.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    scores: View<'_, f32>,
    experts: View<'_, u32>,
    dweights: View<'_, f32>,
    dscores: Option<View<'_, f32>>,
    dlogits: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::router::backward";
    shape.check(OP)?;
    check::finite(OP, "scale", options.scale)?;
    let Shape { rows, experts: count, top_k } = shape;
    let scores = check::region(stream, OP, "scores", scores, &[rows, count])?;
    let experts = check::region(stream, OP, "experts", experts, &[rows, top_k])?;
    let dweights = check::region(stream, OP, "dweights", dweights, &[rows, top_k])?;
    let dscores = dscores.map(|dscores| check::region(stream, OP, "dscores", dscores, &[rows, count])).transpose()?;
    let dlogits = check::region_mut(stream, OP, "dlogits", dlogits, &[rows, count])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::backward(OP, stream, shape, options, (scores, experts), (dweights, dscores), dlogits);
    }
    let (experts, dscores) = (experts.host()?, dscores.map(View::host).transpose()?);
    shape.check_experts(OP, experts)?;
    cpu::backward(shape, options, (scores.host()?, experts), (dweights.host()?, dscores), dlogits.host()?);
    Ok(())
}
