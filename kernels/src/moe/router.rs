//! The router: scores of all experts, the K best of each token, their weights.
//!
//! Scores are softmax (Shazeer 2017, arXiv 1701.06538) or sigmoid (DeepSeek-V3, arXiv 2412.19437). A bias may be added to
//! the scores for the choice alone (Wang 2024, arXiv 2408.15664). Weights are the scores of the chosen, divided by their sum
//! where asked for, times a factor.

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

/// Writes scores `[M, E]`, the experts `[M, K]` of each row by falling value, and their weights `[M, K]`, from logits
/// `[M, E]`; `bias` `[E]` is added to the scores for the choice.
///
/// Of equal values the lower expert comes first. A NaN is chosen last, and its
/// weight is NaN.
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
    let logits = check::view(stream, OP, "logits", logits, &[rows, count])?;
    let bias = bias.map(|bias| check::view(stream, OP, "bias", bias, &[count])).transpose()?;
    let scores = check::view_mut(stream, OP, "scores", scores, &[rows, count])?;
    let experts = check::view_mut(stream, OP, "experts", experts, &[rows, top_k])?;
    let weights = check::view_mut(stream, OP, "weights", weights, &[rows, top_k])?;
    let mut margin = Margin { smallest: f32::INFINITY, row: 0 };
    if count == 0 {
        return Ok(margin);
    }
    let mut order: Vec<u32> = Vec::with_capacity(count);
    for (row, (logits, scores)) in logits.chunks_exact(count).zip(scores.chunks_exact_mut(count)).enumerate() {
        score(options.score, logits, scores);
        let value = |expert: u32| {
            let value = scores[expert as usize] + bias.map_or(0.0, |bias| bias[expert as usize]);
            if value.is_nan() { f32::NEG_INFINITY } else { value }
        };
        order.clear();
        order.extend(0..count as u32);
        // Stable, so that the lower of equal experts stays first.
        order.sort_by(|a, b| value(*b).partial_cmp(&value(*a)).unwrap_or(std::cmp::Ordering::Equal));
        if 0 < top_k && top_k < count {
            let apart = value(order[top_k - 1]) - value(order[top_k]);
            if apart < margin.smallest {
                margin = Margin { smallest: apart, row };
            }
        }
        let chosen = &order[..top_k];
        experts[row * top_k..][..top_k].copy_from_slice(chosen);
        let sum: f64 = chosen.iter().map(|expert| f64::from(scores[*expert as usize])).sum();
        let divisor = if options.normalize { sum.max(f64::from(f32::MIN_POSITIVE)) } else { 1.0 };
        for (weight, expert) in weights[row * top_k..][..top_k].iter_mut().zip(chosen) {
            *weight = (f64::from(scores[*expert as usize]) / divisor * f64::from(options.scale)) as f32;
        }
    }
    Ok(margin)
}

/// The scores of a row, in f64 and rounded once.
fn score<T: Float>(score: Score, logits: &[T], scores: &mut [f32]) {
    let logits = logits.iter().map(|logit| logit.to_f64());
    match score {
        Score::Sigmoid => {
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = (1.0 / (1.0 + (-logit).exp())) as f32;
            }
        }
        Score::Softmax => {
            let largest = logits.clone().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.clone().map(|logit| (logit - largest).exp()).sum();
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = ((logit - largest).exp() / sum) as f32;
            }
        }
    }
}

/// dlogits `[M, E]`, overwritten, from the weights' gradients `[M, K]` and, where there are some, the scores' own `[M, E]`
/// (those of an auxiliary loss). The choice is held fixed: almost everywhere its derivative is zero.
///
/// # Errors
/// As [`forward`]; an expert that there is not.
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
    let scores = check::view(stream, OP, "scores", scores, &[rows, count])?;
    let experts = check::view(stream, OP, "experts", experts, &[rows, top_k])?;
    shape.check_experts(OP, experts)?;
    let dweights = check::view(stream, OP, "dweights", dweights, &[rows, top_k])?;
    let dscores = dscores.map(|dscores| check::view(stream, OP, "dscores", dscores, &[rows, count])).transpose()?;
    let dlogits = check::view_mut(stream, OP, "dlogits", dlogits, &[rows, count])?;
    let mut ds = vec![0.0f64; count];
    for row in 0..rows {
        let places = row * count..(row + 1) * count;
        let scores = &scores[places.clone()];
        match dscores {
            Some(given) => ds.iter_mut().zip(&given[places.clone()]).for_each(|(ds, given)| *ds = f64::from(*given)),
            None => ds.fill(0.0),
        }
        let assignments = row * top_k..(row + 1) * top_k;
        weights_backward(options, scores, &experts[assignments.clone()], &dweights[assignments], &mut ds);
        let mean: f64 = match options.score {
            Score::Softmax => scores.iter().zip(&ds).map(|(s, ds)| f64::from(*s) * ds).sum(),
            Score::Sigmoid => 0.0,
        };
        for ((dlogit, s), ds) in dlogits[places].iter_mut().zip(scores).zip(&ds) {
            let s = f64::from(*s);
            *dlogit = T::from_f64(match options.score {
                Score::Softmax => s * (ds - mean),
                Score::Sigmoid => s * (1.0 - s) * ds,
            });
        }
    }
    Ok(())
}

/// Adds to `ds` what the gradients of a row's weights make of it.
fn weights_backward(options: Options, scores: &[f32], experts: &[u32], dweights: &[f32], ds: &mut [f64]) {
    let scale = f64::from(options.scale);
    let of = |expert: &u32| f64::from(scores[*expert as usize]);
    let (mut divisor, mut mean) = (1.0, 0.0);
    if options.normalize {
        divisor = experts.iter().map(of).sum::<f64>().max(f64::from(f32::MIN_POSITIVE));
        mean = experts.iter().zip(dweights).map(|(expert, dw)| f64::from(*dw) * of(expert)).sum::<f64>() / divisor;
    }
    for (expert, dw) in experts.iter().zip(dweights) {
        ds[*expert as usize] += scale * (f64::from(*dw) - mean) / divisor;
    }
}
