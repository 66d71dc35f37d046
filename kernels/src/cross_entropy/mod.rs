//! Cross-entropy of rows of logits against a target class each, fused with the softmax: `loss = lse - logit[target]`
//! with `lse = ln(sum of e^logit)`, taken below the row's largest logit.
//!
//! Storage `T`, exponentials f32 (1 unit in the last place), sums and losses f64, rounded to f32 where saved.
//! Deterministic, whatever the thread count. The logits are read once forward and once or twice backward.
//!
//! Differences of any size are allowed (1e30 and more), and -inf, which is a class of probability 0: a target there has
//! loss +inf. A row with a NaN or +inf in it, or of -inf only, has no distribution: its loss and gradient are NaN. A
//! target to ignore has loss 0 and a gradient of 0, whatever its logits; where all are ignored, so is the sum.
//!
//! Label smoothing, a z-loss and a cap on the logits are [`Options`].
//!
//! On a GPU the sum of exponentials is f32 in each thread (a thread has 64 bytes of the row at a time) and f64 over threads. A
//! target outside the vocabulary is found while the kernel runs: nothing is written for its row, and the synchronisation, which
//! the forward calls have in them, says which it was ([`DeviceError::BadData`](warpweft_device::DeviceError::BadData)).

mod cpu;
mod gpu;
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

/// What a row's loss is made of. Where nothing is said but which target to ignore, an `Option<u32>` does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The target whose rows do not count.
    pub ignore: Option<u32>,
    /// Label smoothing s, in [0, 1]: the loss is that of a target distribution of `1 - s` at the target and `s` spread evenly
    /// over all classes (Szegedy 2015, arXiv 1512.00567).
    pub smoothing: f32,
    /// The z-loss's coefficient, at least 0: `z_loss * lse^2` is added to each row's loss (PaLM, arXiv 2204.02311).
    pub z_loss: f32,
    /// A cap c on the logits, `c * tanh(logit / c)`; 0 is none (Gemma 2, arXiv 2408.00118).
    pub softcap: f32,
}

impl From<Option<u32>> for Options {
    fn from(ignore: Option<u32>) -> Self {
        Self { ignore, ..Self::default() }
    }
}

impl Options {
    fn check(&self, op: &'static str) -> Result<(), KernelError> {
        let rules = [
            ("smoothing", self.smoothing, (0.0..=1.0).contains(&self.smoothing), "between 0 and 1"),
            ("z_loss", self.z_loss, self.z_loss.is_finite() && self.z_loss >= 0.0, "finite and at least 0"),
            (
                "softcap",
                self.softcap,
                self.softcap.is_finite() && self.softcap >= 0.0,
                "finite, and positive or 0 for none",
            ),
        ];
        match rules.into_iter().find(|(_, _, allowed, _)| !allowed) {
            Some((argument, given, _, allowed)) => {
                Err(KernelError::Number { op, argument, given: given.into(), allowed: allowed.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// A logit under the cap.
    #[inline(always)]
    fn capped(&self, logit: f32) -> f32 {
        if self.softcap > 0.0 { self.softcap * (logit / self.softcap).tanh() } else { logit }
    }
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
    options: impl Into<Options>,
    losses: ViewMut<'_, f32>,
    lse: ViewMut<'_, f32>,
) -> Result<Sum, KernelError> {
    const OP: &str = "cross_entropy forward";
    let Shape { rows, vocab } = shape;
    let options = options.into();
    options.check(OP)?;
    let logits = check::region(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::region(stream, OP, "targets", targets, &[rows])?;
    let losses = check::region_mut(stream, OP, "losses", losses, &[rows])?;
    let lse = check::region_mut(stream, OP, "lse", lse, &[rows])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        return gpu::forward(stream, shape, options, logits, targets, losses, lse);
    };
    let targets = targets.host()?;
    check::tokens(OP, targets, vocab, options.ignore)?;
    Ok(cpu::forward(pool, shape, logits.host()?, targets, options, losses.host()?, lse.host()?))
}

/// Replaces `logits [rows, V]` by their gradient `(softmax(logits) - onehot(target)) * scale`, 0 in ignored rows (with all
/// options, with z the capped logit: `(p (1 + 2 z_loss lse) - (1 - s) onehot - s / V) (1 - (z / cap)^2) scale`), with
/// `targets [rows]` and the `lse [rows]` that `forward` saved. For the mean loss `scale` is 1 / count.
///
/// # Errors
/// As for [`forward`], and a `scale` that is not finite. Nothing is written then.
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    logits: ViewMut<'_, T>,
    targets: View<'_, u32>,
    options: impl Into<Options>,
    lse: View<'_, f32>,
    scale: f32,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy backward";
    let Shape { rows, vocab } = shape;
    let options = options.into();
    options.check(OP)?;
    check::finite(OP, "scale", scale)?;
    let logits = check::region_mut(stream, OP, "logits", logits, &[rows, vocab])?;
    let targets = check::region(stream, OP, "targets", targets, &[rows])?;
    let lse = check::region(stream, OP, "lse", lse, &[rows])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        let (of, whole) = (gpu::Op::BACKWARD, Shard { first: 0, vocab });
        return gpu::backward(of, stream, shape, whole, options, logits, targets, gpu::Saved::Lse(lse), scale);
    };
    let targets = targets.host()?;
    check::tokens(OP, targets, vocab, options.ignore)?;
    cpu::backward(pool, shape, logits.host()?, cpu::Rows { targets, options, lse: lse.host()? }, scale);
    Ok(())
}
