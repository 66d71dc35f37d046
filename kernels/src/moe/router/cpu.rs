//! The router on the CPU, row by row.

use warpweft_device::Float;

use super::{Margin, Options, Score};
use crate::moe::Shape;

/// Of `[scores, weights]` and the experts; all are written.
pub(super) fn forward<T: Float>(
    shape: Shape,
    options: Options,
    logits: &[T],
    bias: Option<&[f32]>,
    [scores, weights]: [&mut [f32]; 2],
    experts: &mut [u32],
) -> Margin {
    let Shape { experts: count, top_k, .. } = shape;
    let mut margin = Margin::NONE;
    if count == 0 {
        return margin;
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
    margin
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

/// From scores and experts, the weights' gradients and the scores' own.
pub(super) fn backward<T: Float>(
    shape: Shape,
    options: Options,
    (scores, experts): (&[f32], &[u32]),
    (dweights, dscores): (&[f32], Option<&[f32]>),
    dlogits: &mut [T],
) {
    let Shape { rows, experts: count, top_k } = shape;
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
