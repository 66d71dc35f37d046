//! Even use of experts on the CPU. What the arrays hold has been checked.

use crate::moe::Shape;
use crate::moe::router::Score;

/// Of sequences of so many tokens.
pub(super) fn sums(
    (shape, tokens): (Shape, usize),
    score: Score,
    (scores, experts): (&[f32], &[u32]),
    sums: &mut [f64],
) {
    let Shape { rows, experts: count, top_k } = shape;
    sums.fill(0.0);
    for row in 0..if count == 0 { 0 } else { rows } {
        let (counts, shares) = sums[row / tokens * 2 * count..][..2 * count].split_at_mut(count);
        for expert in &experts[row * top_k..][..top_k] {
            counts[*expert as usize] += 1.0;
        }
        let scores = &scores[row * count..][..count];
        let whole = whole(score, scores);
        for (share, score) in shares.iter_mut().zip(scores) {
            *share += f64::from(*score) / whole;
        }
    }
}

/// What scores are divided by to be shares.
fn whole(score: Score, scores: &[f32]) -> f64 {
    match score {
        Score::Softmax => 1.0,
        Score::Sigmoid => scores.iter().copied().map(f64::from).sum::<f64>().max(f64::from(f32::MIN_POSITIVE)),
    }
}

/// `factor` is that of a count.
pub(super) fn backward(
    (shape, tokens): (Shape, usize),
    score: Score,
    factor: f64,
    (scores, sums): (&[f32], &[f64]),
    dscores: &mut [f32],
) {
    let Shape { rows, experts: count, .. } = shape;
    for row in 0..if count == 0 { 0 } else { rows } {
        let counts = &sums[row / tokens * 2 * count..][..count];
        let scores = &scores[row * count..][..count];
        let whole = whole(score, scores);
        let mean = match score {
            Score::Softmax => 0.0,
            Score::Sigmoid => counts.iter().zip(scores).map(|(n, s)| n * f64::from(*s)).sum::<f64>() / whole,
        };
        for (ds, n) in dscores[row * count..][..count].iter_mut().zip(counts) {
            *ds = (factor * (n - mean) / whole) as f32;
        }
    }
}

pub(super) fn move_bias(rate: f32, counts: &[f64], bias: &mut [f32]) {
    // Counts are whole numbers, so their sum is exact: the comparison needs no division.
    let total: f64 = counts.iter().sum();
    for (bias, count) in bias.iter_mut().zip(counts) {
        let excess = count * counts.len() as f64 - total;
        if excess != 0.0 {
            *bias -= rate * excess.signum() as f32;
        }
    }
}
