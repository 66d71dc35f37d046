//! The router and its loss in f64, as the formulas are written.

use super::Shape;
use super::balance::Sequences;
use super::router::{Options, Score};

/// The scores of all experts `[M, E]`.
pub fn scores(shape: Shape, score: Score, logits: &[f64]) -> Vec<f64> {
    let row = |logits: &[f64]| -> Vec<f64> {
        match score {
            Score::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
            Score::Softmax => {
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.iter().map(|power| power / sum).collect()
            }
        }
    };
    logits.chunks_exact(shape.experts.max(1)).flat_map(row).collect()
}

/// The K experts of each row, one after the other the best that is left; of equal ones the lowest.
pub fn choose(shape: Shape, scores: &[f64], bias: &[f64]) -> Vec<usize> {
    let mut chosen = Vec::new();
    for scores in scores.chunks_exact(shape.experts.max(1)) {
        let mut own: Vec<usize> = Vec::new();
        for _ in 0..shape.top_k {
            let left = (0..shape.experts).filter(|expert| !own.contains(expert));
            let value = |expert: usize| scores[expert] + bias[expert];
            let best = left.reduce(|best, other| if value(other) > value(best) { other } else { best });
            own.extend(best);
        }
        chosen.extend(own);
    }
    chosen
}

/// The weights of the chosen `[M, K]`.
pub fn weights(shape: Shape, options: Options, scores: &[f64], chosen: &[usize]) -> Vec<f64> {
    let rows = scores.chunks_exact(shape.experts.max(1)).zip(chosen.chunks_exact(shape.top_k.max(1)));
    let row = |(scores, chosen): (&[f64], &[usize])| -> Vec<f64> {
        let sum: f64 = if options.normalize { chosen.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
        chosen.iter().map(|expert| scores[*expert] / sum * f64::from(options.scale)).collect()
    };
    rows.flat_map(row).collect()
}

/// The auxiliary losses of all sequences, added up.
pub fn balance_loss(of: Sequences, score: Score, scores: &[f64], chosen: &[usize]) -> f64 {
    let Shape { rows, experts, top_k } = of.shape;
    let tokens = rows / of.sequences;
    let mut loss = 0.0;
    for sequence in 0..of.sequences {
        for expert in 0..experts {
            let own = sequence * tokens..(sequence + 1) * tokens;
            let choices = chosen[own.start * top_k..own.end * top_k].iter().filter(|&&other| other == expert).count();
            let share = |row: usize| {
                let scores = &scores[row * experts..][..experts];
                if score == Score::Sigmoid { scores[expert] / scores.iter().sum::<f64>() } else { scores[expert] }
            };
            let mean = own.map(share).sum::<f64>() / tokens as f64;
            loss += experts as f64 / (top_k * tokens) as f64 * choices as f64 * mean;
        }
    }
    loss
}
