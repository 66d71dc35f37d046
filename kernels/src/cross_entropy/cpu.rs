//! Cross-entropy on the CPU: tasks of whole rows, which the calls for all classes and those for a rank's share.

use warpweft_device::{CpuPool, Float};

use super::{Options, Shape, Sum};
use crate::elementary::exp;
use crate::reduce::rows_per_task;
use crate::scratch;
use crate::simd::vectorised;
use crate::softmax::online::Normaliser;

/// What the backward call knows of each row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) targets: &'a [u32],
    pub(super) options: Options,
    pub(super) lse: &'a [f32],
}

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    logits: &[T],
    targets: &[u32],
    options: Options,
    losses: &mut [f32],
    lse: &mut [f32],
) -> Sum {
    let vocab = shape.vocab;
    if vocab == 0 {
        // Every target is ignored, as none is inside an empty vocabulary.
        losses.fill(0.0);
        lse.fill(f32::NEG_INFINITY);
        return Sum::default();
    }
    let rows = rows_per_task(shape.rows, vocab);
    let mut partial = vec![0.0f64; shape.rows.div_ceil(rows)];
    let inputs = logits.chunks(rows * vocab).zip(targets.chunks(rows));
    let outputs = losses.chunks_mut(rows).zip(lse.chunks_mut(rows)).zip(&mut partial);
    pool.for_each(inputs.zip(outputs).collect(), |((logits, targets), ((losses, lse), partial))| {
        vectorised(
            #[inline(always)]
            || {
                let rows = logits.chunks_exact(vocab).zip(targets).zip(losses.iter_mut().zip(lse));
                for ((logits, &target), (loss, lse)) in rows {
                    let ignored = Some(target) == options.ignore;
                    let column = if ignored { None } else { Some(target as usize) };
                    let (normaliser, wanted) = parts(logits, column, &options, vocab);
                    *lse = normaliser.log_sum_exp() as f32;
                    let nats = if ignored {
                        0.0
                    } else {
                        loss_of(&options, f64::from(normaliser.max), normaliser.sum, wanted)
                    };
                    *loss = nats as f32;
                    *partial += nats;
                }
            },
        );
    });
    let count = targets.iter().filter(|&&target| Some(target) != options.ignore).count();
    Sum { loss: partial.iter().sum(), count }
}

/// The normaliser of the classes that are here, and what they have of the logit that the loss takes away: that of the target
/// where its `column` is here, or with smoothing their share of the mean of it and of all `vocab` logits.
#[inline(always)]
pub(super) fn parts<T: Float>(
    logits: &[T],
    column: Option<usize>,
    options: &Options,
    vocab: usize,
) -> (Normaliser, f64) {
    if options.softcap == 0.0 {
        return plain_parts(logits, column, options, vocab);
    }
    scratch::with(logits.len(), |capped| {
        for (capped, logit) in capped.iter_mut().zip(logits) {
            *capped = options.capped(logit.to_f32());
        }
        plain_parts(capped, column, options, vocab)
    })
}

/// The same of logits that have no cap, or have been under it.
#[inline(always)]
fn plain_parts<T: Float>(logits: &[T], column: Option<usize>, options: &Options, vocab: usize) -> (Normaliser, f64) {
    let mut wanted = column.map_or(0.0, |column| logits[column].to_f64());
    if options.smoothing > 0.0 {
        let (smoothing, total) = (f64::from(options.smoothing), logits.iter().map(|logit| logit.to_f64()).sum::<f64>());
        wanted = (1.0 - smoothing) * wanted + smoothing * total / vocab as f64;
    }
    (Normaliser::of(logits, 1.0), wanted)
}

/// `lse - wanted`, without the digits that a large `lse` would cost, and the z-loss.
#[inline(always)]
pub(super) fn loss_of(options: &Options, max: f64, sum: f64, wanted: f64) -> f64 {
    let loss = (max - wanted) + sum.ln();
    if options.z_loss > 0.0 { loss + f64::from(options.z_loss) * (max + sum.ln()).powi(2) } else { loss }
}

/// From this size on the f32 rounding of a saved `lse` (a half unit in its last place is 2^-21) would show in the
/// probabilities; the row is then normalised anew.
const LARGE_LSE: f32 = 16.0;

pub(super) fn backward<T: Float>(pool: &CpuPool, shape: Shape, logits: &mut [T], all: Rows<'_>, scale: f32) {
    let vocab = shape.vocab;
    if vocab == 0 {
        return;
    }
    let options = &all.options;
    let rows = rows_per_task(shape.rows, vocab);
    let scalars = all.targets.chunks(rows).zip(all.lse.chunks(rows));
    pool.for_each(logits.chunks_mut(rows * vocab).zip(scalars).collect(), |(logits, (targets, lse))| {
        vectorised(
            #[inline(always)]
            || {
                for (logits, (&target, &lse)) in logits.chunks_exact_mut(vocab).zip(targets.iter().zip(lse)) {
                    if Some(target) == options.ignore {
                        logits.fill(T::ZERO);
                        continue;
                    }
                    let (max, sum) = if lse.abs() < LARGE_LSE {
                        (f64::from(lse), 1.0)
                    } else {
                        let (Normaliser { max, sum }, _) = parts(logits, None, options, vocab);
                        (f64::from(max), sum)
                    };
                    backward_row(logits, Some(target as usize), options, vocab, (max, sum), scale);
                }
            },
        );
    });
}

/// The gradient of a row, of which the target's `column` may be another rank's, from its normaliser: largest logit and sum.
#[inline(always)]
pub(super) fn backward_row<T: Float>(
    logits: &mut [T],
    column: Option<usize>,
    options: &Options,
    vocab: usize,
    (max, sum): (f64, f64),
    scale: f32,
) {
    let wide = f64::from(scale);
    let pull = if options.z_loss > 0.0 { 1.0 + 2.0 * f64::from(options.z_loss) * (max + sum.ln()) } else { 1.0 };
    let (shift, factor) = (max as f32, (wide * pull / sum) as f32);
    if *options == Options::from(options.ignore) {
        let probability = |logit: T| exp(logit.to_f32() - shift) * factor;
        // Before it is overwritten, and subtracted before it is rounded to `T`.
        let at_target = column.map(|at| (at, T::from_f32(probability(logits[at]) - scale)));
        for logit in logits.iter_mut() {
            *logit = T::from_f32(probability(*logit));
        }
        if let Some((at, value)) = at_target {
            logits[at] = value;
        }
        return;
    }
    let smoothing = f64::from(options.smoothing);
    let (each, hit) = ((wide * smoothing / vocab as f64) as f32, (wide * (1.0 - smoothing)) as f32);
    for (at, logit) in logits.iter_mut().enumerate() {
        let capped = options.capped(logit.to_f32());
        let slope = if options.softcap > 0.0 { 1.0 - (capped / options.softcap).powi(2) } else { 1.0 };
        let wanted = if Some(at) == column { each + hit } else { each };
        *logit = T::from_f32((exp(capped - shift) * factor - wanted) * slope);
    }
}
