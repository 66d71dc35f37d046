//! Rounding by chance.

use warpweft_device::bf16;

use super::Rounding;
use crate::philox::Philox4x32;

/// The random numbers of one tensor in one step: element i has the lower 16 bits of word i.
pub(super) fn generator(rounding: Rounding, step: u32, tensor: u32) -> Option<Philox4x32> {
    match rounding {
        Rounding::Nearest => None,
        Rounding::Stochastic { seed } => Some(Philox4x32::new(seed, u64::from(tensor) << 32 | u64::from(step))),
    }
}

/// `w` cut to bf16 after random bits were added to those that are cut off: up with the probability that makes the mean
/// right. What is infinite, or the NaN of an operation, stays so.
#[inline(always)]
pub(super) fn stochastic(w: f32, word: u32) -> bf16 {
    let random = if w.is_finite() { word & 0xffff } else { 0 };
    bf16::from_bits(((w.to_bits() + random) >> 16) as u16)
}
