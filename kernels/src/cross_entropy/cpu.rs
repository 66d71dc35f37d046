//! Cross-entropy on the CPU: tasks of whole rows.

use warpweft_device::{CpuPool, Float};

use super::{Shape, Sum};
use crate::elementary::exp;
use crate::reduce::rows_per_task;
use crate::simd::vectorised;
use crate::softmax::online::Normaliser;

/// What the backward call knows of each row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) targets: &'a [u32],
    pub(super) ignore: Option<u32>,
    pub(super) lse: &'a [f32],
}

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    logits: &[T],
    targets: &[u32],
    ignore: Option<u32>,
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
                    let normaliser = Normaliser::of(logits, 1.0);
                    *lse = normaliser.log_sum_exp() as f32;
                    let nats = match Some(target) == ignore {
                        true => 0.0,
                        false => loss_of(normaliser, logits[target as usize]),
                    };
                    *loss = nats as f32;
                    *partial += nats;
                }
            },
        );
    });
    Sum { loss: partial.iter().sum(), count: targets.iter().filter(|&&target| Some(target) != ignore).count() }
}

/// `lse - logit` without the digits that a large `lse` would cost.
#[inline(always)]
fn loss_of<T: Float>(normaliser: Normaliser, logit: T) -> f64 {
    (f64::from(normaliser.max) - logit.to_f64()) + normaliser.sum.ln()
}

/// From this size on the f32 rounding of a saved `lse` (a half unit in its last place is 2^-21) would show in the
/// probabilities; the row is then normalised anew.
const LARGE_LSE: f32 = 16.0;

pub(super) fn backward<T: Float>(pool: &CpuPool, shape: Shape, logits: &mut [T], all: Rows<'_>, scale: f32) {
    let vocab = shape.vocab;
    if vocab == 0 {
        return;
    }
    let rows = rows_per_task(shape.rows, vocab);
    let scalars = all.targets.chunks(rows).zip(all.lse.chunks(rows));
    pool.for_each(logits.chunks_mut(rows * vocab).zip(scalars).collect(), |(logits, (targets, lse))| {
        vectorised(
            #[inline(always)]
            || {
                for (logits, (&target, &lse)) in logits.chunks_exact_mut(vocab).zip(targets.iter().zip(lse)) {
                    if Some(target) == all.ignore {
                        logits.fill(T::ZERO);
                    } else {
                        backward_row(logits, target as usize, lse, scale);
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn backward_row<T: Float>(logits: &mut [T], target: usize, lse: f32, scale: f32) {
    let (shift, factor) = if lse.abs() < LARGE_LSE {
        (lse, scale)
    } else {
        let Normaliser { max, sum } = Normaliser::of(logits, 1.0);
        (max, (f64::from(scale) / sum) as f32)
    };
    let probability = |logit: T| exp(logit.to_f32() - shift) * factor;
    // Before it is overwritten, and subtracted before it is rounded to `T`.
    let at_target = T::from_f32(probability(logits[target]) - scale);
    for logit in logits.iter_mut() {
        *logit = T::from_f32(probability(*logit));
    }
    logits[target] = at_target;
}
