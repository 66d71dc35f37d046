//! Cross-entropy of rows of logits against a target class each, fused with the softmax: `loss = lse - logit[target]`
//! with `lse = ln(sum of e^logit)`, taken below the row's largest logit.
//!
//! Storage `T`, exponentials f32 (1 unit in the last place), sums and losses f64, rounded to f32 where saved.
//! Deterministic, whatever the thread count. The logits are read once forward and once or twice backward.
//!
//! Differences of any size are allowed (1e30 and more), and -inf, which is a class of probability 0: a target there has
//! loss +inf. A row with a NaN or +inf in it, or of -inf only, has no distribution: its loss and gradient are NaN. A
//! target to ignore has loss 0 and a gradient of 0, whatever its logits; where all are ignored, so is the sum.

mod cpu;
pub mod reference;
mod shard;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Rows of `vocab` logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows, each with a target: B * T.
    pub rows: usize,
    /// Classes: V.
    pub vocab: usize,
}

pub use shard::{PARTS, Shard, backward_shard, forward_shard, merge};

/// The losses' sum over the rows that are not ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The sum, in nats: taken in f64, in an order that the shape fixes.
    pub loss: f64,
    /// How many rows are in it. The mean loss is `loss / count`.
    pub count: usize,
}

/// Writes each row's loss (0 where ignored) to `losses [rows]` and its `lse [rows]` for the backward call, from
/// `logits [rows, V]` and `targets [rows]`, and returns the sum of the losses.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; a target outside the vocabulary that is not
/// `ignore`, by its row. Nothing is written then.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    logits: View<'_, T>,
    targets: View<'_, u32>,
    ignore: Option<u32>,
    losses: ViewMut<'_, f32>,
    lse: ViewMut<'_, f32>,
) -> Result<Sum, KernelError> {
    const OP: &str = "cross_entropy forward";
    let Shape { rows, vocab } = shape;
    let logits = check::view(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::view(stream, OP, "targets", targets, &[rows])?;
    let losses = check::view_mut(stream, OP, "losses", losses, &[rows])?;
    let lse = check::view_mut(stream, OP, "lse", lse, &[rows])?;
    check::tokens(OP, targets, vocab, ignore)?;
    Ok(cpu::forward(stream.device().cpu_pool()?, shape, logits, targets, ignore, losses, lse))
}

/// Replaces `logits [rows, V]` by their gradient `(softmax(logits) - onehot(target)) * scale`, 0 in ignored rows, with
/// `targets [rows]` and the `lse [rows]` that `forward` saved. For the mean loss `scale` is 1 / count.
///
/// # Errors
/// As for [`forward`], and a `scale` that is not finite. Nothing is written then.
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    logits: ViewMut<'_, T>,
    targets: View<'_, u32>,
    ignore: Option<u32>,
    lse: View<'_, f32>,
    scale: f32,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy backward";
    let Shape { rows, vocab } = shape;
    check::finite(OP, "scale", scale)?;
    let logits = check::view_mut(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::view(stream, OP, "targets", targets, &[rows])?;
    let lse = check::view(stream, OP, "lse", lse, &[rows])?;
    check::tokens(OP, targets, vocab, ignore)?;
    cpu::backward(stream.device().cpu_pool()?, shape, logits, cpu::Rows { targets, ignore, lse }, scale);
    Ok(())
}
