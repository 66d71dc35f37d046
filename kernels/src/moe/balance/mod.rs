//! Keeping experts evenly used: an auxiliary loss of each sequence, or a bias moved after each step.
//!
//! The loss of a sequence of T tokens is Σ over experts of f P, with f = E / (K T) times the tokens that chose the expert and
//! P the mean of its share of the scores: 1 where use is even. It is the loss of Switch (Fedus 2021, arXiv 2101.03961, eq. 4
//! to 6) for K choices, taken sequence by sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17 to 20). Softmax scores are shares
//! already; sigmoid scores are divided by their sum. f has no gradient.
//!
//! What a rank with a part of a sequence knows of it is [`sums`], which is to be added up over the parts.
//!
//! All in f64, on every device. A GPU adds tokens up in parts of 128, in an order that the shape fixes. Deterministic.

mod cpu;
mod gpu;

use warpweft_device::{Stream, View, ViewMut};

use super::Shape;
use super::router::Score;
use crate::{KernelError, check};

/// Sizes: a routing's rows are those of `sequences` sequences, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// The routing.
    pub shape: Shape,
    /// Sequences, a divisor of the rows.
    pub sequences: usize,
    /// Tokens of a whole sequence, wherever they are.
    pub tokens: usize,
}

impl Sequences {
    fn check(&self, op: &'static str) -> Result<usize, KernelError> {
        self.shape.check(op)?;
        if self.sequences == 0 && self.shape.rows == 0 {
            return Ok(0);
        }
        if self.sequences == 0 || !self.shape.rows.is_multiple_of(self.sequences) {
            let allowed = format!("a divisor of the {} rows", self.shape.rows);
            return Err(KernelError::Size { op, argument: "sequences", given: self.sequences, allowed });
        }
        Ok(self.shape.rows / self.sequences)
    }

    /// E / (K T²): the factor of counts times sums of shares.
    fn factor(&self) -> f64 {
        let assignments = self.shape.top_k as f64 * self.tokens as f64 * self.tokens as f64;
        if assignments > 0.0 { self.shape.experts as f64 / assignments } else { 0.0 }
    }
}

/// Writes `[sequences, 2, E]`: how many of a sequence's tokens here chose each expert, and the sum of its shares.
///
/// # Errors
/// Rows that are not whole sequences, an expert that there is not (which a GPU tells at the next synchronisation, by its row), a
/// length that contradicts the shape.
pub fn sums(
    stream: &Stream,
    of: Sequences,
    score: Score,
    scores: View<'_, f32>,
    experts: View<'_, u32>,
    sums: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::balance::sums";
    let tokens = of.check(OP)?;
    let Shape { rows, experts: count, top_k } = of.shape;
    let scores = check::region(stream, OP, "scores", scores, &[rows, count])?;
    let experts = check::region(stream, OP, "experts", experts, &[rows, top_k])?;
    let sums = check::numbers_mut(stream, OP, "sums", sums, &[of.sequences, 2, count])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::sums(OP, stream, (of, tokens), score, (scores, experts), sums);
    }
    let experts = experts.host()?;
    of.shape.check_experts(OP, experts)?;
    cpu::sums((of.shape, tokens), score, (scores.host()?, experts), sums.host()?);
    Ok(())
}

/// The losses of all sequences, added up, from their whole [`sums`]: those are few, so a GPU's come to the host. The call
/// waits for them.
///
/// # Errors
/// A length that contradicts the shape.
pub fn loss(stream: &Stream, of: Sequences, sums: View<'_, f64>) -> Result<f64, KernelError> {
    const OP: &str = "moe::balance::loss";
    of.check(OP)?;
    let count = of.shape.experts;
    let sums = check::numbers(stream, OP, "sums", sums, &[of.sequences, 2, count])?.download(stream)?;
    let mut loss = 0.0;
    for sums in sums.chunks_exact(2 * count.max(1)) {
        let (counts, shares) = sums.split_at(count);
        loss += of.factor() * counts.iter().zip(shares).map(|(count, share)| count * share).sum::<f64>();
    }
    Ok(loss)
}

/// Writes the gradients of the scores `[M, E]` of `coefficient` times the losses.
///
/// # Errors
/// Rows that are not whole sequences, a length that contradicts the shape; a coefficient that is not finite.
pub fn backward(
    stream: &Stream,
    of: Sequences,
    score: Score,
    coefficient: f32,
    scores: View<'_, f32>,
    sums: View<'_, f64>,
    dscores: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::balance::backward";
    let tokens = of.check(OP)?;
    check::finite(OP, "coefficient", coefficient)?;
    let Shape { rows, experts: count, .. } = of.shape;
    let scores = check::region(stream, OP, "scores", scores, &[rows, count])?;
    let sums = check::numbers(stream, OP, "sums", sums, &[of.sequences, 2, count])?;
    let dscores = check::region_mut(stream, OP, "dscores", dscores, &[rows, count])?;
    let (of, factor) = ((of.shape, tokens), f64::from(coefficient) * of.factor());
    match stream.device().cpu_pool() {
        Ok(_) => cpu::backward(of, score, factor, (scores.host()?, sums.host()?), dscores.host()?),
        Err(_) => gpu::backward(OP, stream, of, score, factor, (scores, sums), dscores)?,
    }
    Ok(())
}

/// Moves the bias of each expert by `rate`, up where the step's count is below the mean of all, down where it is above
/// (Wang 2024, arXiv 2408.15664). Counts are whole numbers, so that every device moves the same.
///
/// # Errors
/// A rate that is not finite, lengths that differ, an argument of another device.
pub fn move_bias(stream: &Stream, rate: f32, counts: View<'_, f64>, bias: ViewMut<'_, f32>) -> Result<(), KernelError> {
    const OP: &str = "moe::balance::move_bias";
    check::finite(OP, "rate", rate)?;
    let counts = check::numbers(stream, OP, "counts", counts, &[bias.len()])?;
    let bias = check::region_mut(stream, OP, "bias", bias, &[counts.len()])?;
    match stream.device().cpu_pool() {
        Ok(_) => cpu::move_bias(rate, counts.host()?, bias.host()?),
        Err(_) => gpu::move_bias(OP, stream, rate, counts, bias)?,
    }
    Ok(())
}
