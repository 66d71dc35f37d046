//! The cross-entropy in f64, row by row.

use super::Shape;

/// Each row's loss and `lse`; the loss is 0 where the target is `ignore`.
pub fn forward(shape: Shape, logits: &[f64], targets: &[u32], ignore: Option<u32>) -> (Vec<f64>, Vec<f64>) {
    let rows = logits.chunks(shape.vocab.max(1)).zip(targets);
    rows.map(|(logits, &target)| {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = logits.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
        let loss = if Some(target) == ignore { 0.0 } else { max - logits[target as usize] + log_sum };
        (loss, max + log_sum)
    })
    .unzip()
}

/// `(softmax(logits) - onehot(target)) * scale`, 0 where the target is `ignore`.
pub fn backward(shape: Shape, logits: &[f64], targets: &[u32], ignore: Option<u32>, scale: f64) -> Vec<f64> {
    let mut gradient = Vec::new();
    for (logits, &target) in logits.chunks(shape.vocab.max(1)).zip(targets) {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = logits.iter().map(|logit| (logit - max).exp()).sum::<f64>();
        gradient.extend(logits.iter().enumerate().map(|(class, logit)| {
            let onehot = f64::from(class == target as usize);
            if Some(target) == ignore { 0.0 } else { ((logit - max).exp() / sum - onehot) * scale }
        }));
    }
    gradient
}
