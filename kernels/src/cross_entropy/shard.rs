//! Cross-entropy where each rank holds the logits of some classes only: what a rank finds in its own, put together.
//!
//! [`forward_shard`] gives three numbers a row, [`merge`] makes losses of those of all ranks, [`backward_shard`] needs the
//! normaliser that it leaves. One rank with all classes is the ordinary case. The classes need not be shared out evenly,
//! and a rank may have none.

use warpweft_device::{CpuPool, Float, Stream, View, ViewMut};

use super::{Options, Shape, Sum, cpu, gpu};
use crate::reduce::rows_per_task;
use crate::simd::vectorised;
use crate::softmax::online::Normaliser;
use crate::{KernelError, check};

/// The classes that a rank has: `shape.vocab` of them, from class `first` of `vocab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The first class held.
    pub first: usize,
    /// All classes.
    pub vocab: usize,
}

/// Numbers that a rank finds for a row: its largest logit, the sum of e^(logit - largest), and the target's logit (0
/// where another rank has it; with label smoothing its share of the mean of that and all logits).
pub const PARTS: usize = 3;

impl Shard {
    fn check(self, op: &'static str, shape: Shape) -> Result<(), KernelError> {
        if self.first.checked_add(shape.vocab).is_some_and(|end| end <= self.vocab) {
            return Ok(());
        }
        let most = self.vocab.saturating_sub(self.first);
        let allowed = format!("at most {most}, what {} classes have from class {}", self.vocab, self.first);
        Err(KernelError::Size { op, argument: "shape.vocab", given: shape.vocab, allowed })
    }

    /// The column of a target, where it is here.
    #[inline(always)]
    fn column(self, shape: Shape, target: u32) -> Option<usize> {
        (target as usize).checked_sub(self.first).filter(|column| *column < shape.vocab)
    }
}

/// Writes `parts [rows, 3]` from this rank's `logits [rows, shape.vocab]`.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; more classes than there are; a target outside all
/// classes that is not `ignore`, by its row. Nothing is written then.
pub fn forward_shard<T: Float>(
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    logits: View<'_, T>,
    targets: View<'_, u32>,
    options: impl Into<Options>,
    parts: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy forward_shard";
    let Shape { rows, vocab } = shape;
    shard.check(OP, shape)?;
    let options = options.into();
    options.check(OP)?;
    let logits = check::region(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::region(stream, OP, "targets", targets, &[rows])?;
    let parts = check::numbers_mut(stream, OP, "parts", parts, &[rows, PARTS])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        return gpu::parts(gpu::Op::FORWARD_SHARD, stream, shape, shard, options, logits, targets, parts.try_into()?);
    };
    let (logits, targets, parts) = (logits.host()?, targets.host()?, parts.host()?);
    check::tokens(OP, targets, shard.vocab, options.ignore)?;
    if vocab == 0 {
        parts.chunks_exact_mut(PARTS).for_each(|part| part.copy_from_slice(&[f64::NEG_INFINITY, 0.0, 0.0]));
        return Ok(());
    }
    let each = rows_per_task(rows, vocab);
    let inputs = logits.chunks(each * vocab).zip(targets.chunks(each));
    let tasks = inputs.zip(parts.chunks_mut(each * PARTS)).collect();
    pool.for_each(tasks, |((logits, targets), parts)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = logits.chunks_exact(vocab).zip(targets);
                for ((logits, &target), part) in rows.zip(parts.chunks_exact_mut(PARTS)) {
                    let column = shard.column(shape, target);
                    let (Normaliser { max, sum }, wanted) = cpu::parts(logits, column, &options, shard.vocab);
                    part.copy_from_slice(&[f64::from(max), sum, wanted]);
                }
            },
        );
    });
    Ok(())
}

/// Writes each row's loss (0 where ignored) to `losses [rows]` and its normaliser (largest logit and sum) to
/// `normaliser [rows, 2]`, from the `parts [ranks, rows, 3]` of all ranks in their order; returns the sum of the losses.
///
/// # Errors
/// No rank; an argument whose length is not its shape's, or of another device. Nothing is written then.
pub fn merge(
    stream: &Stream,
    ranks: usize,
    parts: View<'_, f64>,
    targets: View<'_, u32>,
    options: impl Into<Options>,
    losses: ViewMut<'_, f32>,
    normaliser: ViewMut<'_, f64>,
) -> Result<Sum, KernelError> {
    const OP: &str = "cross_entropy merge";
    if ranks == 0 {
        return Err(KernelError::Size { op: OP, argument: "ranks", given: 0, allowed: "at least 1".to_owned() });
    }
    let rows = targets.len();
    let options = options.into();
    options.check(OP)?;
    let parts = check::numbers(stream, OP, "parts", parts, &[ranks, rows, PARTS])?;
    let targets = check::region(stream, OP, "targets", targets, &[rows])?;
    let losses = check::region_mut(stream, OP, "losses", losses, &[rows])?;
    let normaliser = check::numbers_mut(stream, OP, "normaliser", normaliser, &[rows, 2])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::merge(stream, ranks, options, parts, targets, losses, normaliser);
    }
    let (parts, targets, losses, normaliser) = (parts.host()?, targets.host()?, losses.host()?, normaliser.host()?);
    let mut total = Sum::default();
    for (row, ((&target, loss), normaliser)) in
        targets.iter().zip(losses).zip(normaliser.chunks_exact_mut(2)).enumerate()
    {
        let of_ranks = || (0..ranks).map(|rank| &parts[(rank * rows + row) * PARTS..][..PARTS]);
        // NaN wins, as in a row that one rank has.
        let max =
            of_ranks().map(|part| part[0]).fold(f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
        let share = |part: &[f64]| if part[0] == max { part[1] } else { part[1] * (part[0] - max).exp() };
        let sum: f64 = of_ranks().filter(|part| part[1] != 0.0).map(share).sum();
        let logit: f64 = of_ranks().map(|part| part[2]).sum();
        normaliser.copy_from_slice(&[max, sum]);
        let ignored = Some(target) == options.ignore;
        let nats = if ignored { 0.0 } else { cpu::loss_of(&options, max, sum, logit) };
        *loss = nats as f32;
        total.loss += nats;
        total.count += usize::from(!ignored);
    }
    Ok(total)
}

/// Replaces this rank's `logits [rows, shape.vocab]` by their gradient `(softmax - onehot(target)) * scale`, 0 in ignored
/// rows, with the `normaliser [rows, 2]` that [`merge`] left.
///
/// # Errors
/// As [`forward_shard`], and a `scale` that is not finite. Nothing is written then.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward_shard<T: Float>(
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    logits: ViewMut<'_, T>,
    targets: View<'_, u32>,
    options: impl Into<Options>,
    normaliser: View<'_, f64>,
    scale: f32,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy backward_shard";
    let Shape { rows, vocab } = shape;
    shard.check(OP, shape)?;
    let options = options.into();
    options.check(OP)?;
    check::finite(OP, "scale", scale)?;
    let logits = check::region_mut(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::region(stream, OP, "targets", targets, &[rows])?;
    let normaliser = check::numbers(stream, OP, "normaliser", normaliser, &[rows, 2])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        let (of, saved) = (gpu::Op::BACKWARD_SHARD, gpu::Saved::Normaliser(normaliser));
        return gpu::backward(of, stream, shape, shard, options, logits, targets, saved, scale);
    };
    let targets = targets.host()?;
    check::tokens(OP, targets, shard.vocab, options.ignore)?;
    backward(pool, shape, shard, logits.host()?, (targets, options, normaliser.host()?), scale);
    Ok(())
}

fn backward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    shard: Shard,
    logits: &mut [T],
    (targets, options, normaliser): (&[u32], Options, &[f64]),
    scale: f32,
) {
    let vocab = shape.vocab;
    if vocab == 0 {
        return;
    }
    let each = rows_per_task(shape.rows, vocab);
    let scalars = targets.chunks(each).zip(normaliser.chunks(each * 2));
    pool.for_each(logits.chunks_mut(each * vocab).zip(scalars).collect(), |(logits, (targets, normaliser))| {
        vectorised(
            #[inline(always)]
            || {
                let rows = logits.chunks_exact_mut(vocab).zip(targets.iter().zip(normaliser.chunks_exact(2)));
                for (logits, (&target, normaliser)) in rows {
                    if Some(target) == options.ignore {
                        logits.fill(T::ZERO);
                        continue;
                    }
                    let (column, saved) = (shard.column(shape, target), (normaliser[0], normaliser[1]));
                    cpu::backward_row(logits, column, &options, shard.vocab, saved, scale);
                }
            },
        );
    });
}
