//! The cross-entropy in f64, row by row.

use super::{Options, Shape};

/// The capped logits of a row, their largest, and the logarithm of the sum of exponentials below it.
fn row(options: &Options, logits: &[f64]) -> (Vec<f64>, f64, f64) {
    let cap = f64::from(options.softcap);
    let capped: Vec<f64> = logits.iter().map(|x| if cap > 0.0 { cap * (x / cap).tanh() } else { *x }).collect();
    let max = capped.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = capped.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
    (capped, max, log_sum)
}

/// Each row's loss and `lse`; the loss is 0 where the target is to ignore.
pub fn forward(shape: Shape, logits: &[f64], targets: &[u32], options: impl Into<Options>) -> (Vec<f64>, Vec<f64>) {
    let options = options.into();
    let (smoothing, z_loss) = (f64::from(options.smoothing), f64::from(options.z_loss));
    let rows = logits.chunks(shape.vocab.max(1)).zip(targets);
    rows.map(|(logits, &target)| {
        let (capped, max, log_sum) = row(&options, logits);
        if Some(target) == options.ignore {
            return (0.0, max + log_sum);
        }
        let mut wanted = capped[target as usize];
        if smoothing > 0.0 {
            let mean = capped.iter().sum::<f64>() / shape.vocab as f64;
            wanted = (1.0 - smoothing) * wanted + smoothing * mean;
        }
        let mut loss = max - wanted + log_sum;
        if z_loss > 0.0 {
            loss += z_loss * (max + log_sum).powi(2);
        }
        (loss, max + log_sum)
    })
    .unzip()
}

/// The gradient of the losses' sum times `scale`: `(softmax(logits) - onehot(target)) * scale` without options, 0 where the
/// target is to ignore.
pub fn backward(shape: Shape, logits: &[f64], targets: &[u32], options: impl Into<Options>, scale: f64) -> Vec<f64> {
    let options = options.into();
    let (smoothing, z_loss) = (f64::from(options.smoothing), f64::from(options.z_loss));
    let cap = f64::from(options.softcap);
    let mut gradient = Vec::new();
    for (logits, &target) in logits.chunks(shape.vocab.max(1)).zip(targets) {
        let (capped, max, log_sum) = row(&options, logits);
        gradient.extend(capped.iter().enumerate().map(|(class, logit)| {
            if Some(target) == options.ignore {
                return 0.0;
            }
            let wanted = (1.0 - smoothing) * f64::from(class == target as usize) + smoothing / shape.vocab as f64;
            let mut probability = (logit - max).exp() / log_sum.exp();
            if z_loss > 0.0 {
                probability *= 1.0 + 2.0 * z_loss * (max + log_sum);
            }
            let slope = if cap > 0.0 { 1.0 - (logit / cap).powi(2) } else { 1.0 };
            (probability - wanted) * slope * scale
        }));
    }
    gradient
}
