//! Dropout as a function of numbers.

use crate::KernelError;
use crate::philox::Philox4x32;

/// Dropout of a tensor, as a pure function of its numbers: under the key `seed` and the stream `sequence`, element i has
/// the 16-bit number i of Philox 4x32-10, the lower half of a word first, and is dropped where that is below 65536 times the
/// probability. The mask is the same on every device, however the tensor is split, and in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability, from 0 to 1; it counts rounded to a multiple of 2^-16. At 1 nothing is kept, and no factor applies.
    pub probability: f32,
    /// The seed.
    pub seed: u64,
    /// Which numbers of the seed: those of a layer in a step, say.
    pub sequence: u64,
    /// The number that the first element here has in the whole tensor. On a GPU multiples of 8 are faster.
    pub first: u64,
}

impl Dropout {
    /// Numbers below this one are dropped.
    pub(super) fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 65536.0).round() as u32
    }

    /// The factor of what is kept; 0 where nothing is.
    pub(super) fn factor(&self) -> f64 {
        let kept = 65536 - self.threshold();
        if kept == 0 { 0.0 } else { 65536.0 / f64::from(kept) }
    }

    pub(super) fn generator(&self) -> Philox4x32 {
        Philox4x32::new(self.seed, self.sequence)
    }

    /// Whether the element `index` of this part is kept.
    pub(super) fn keeps(&self, index: u64) -> bool {
        let element = self.first.wrapping_add(index);
        let word = self.generator().block(element / 8)[(element % 8 / 2) as usize];
        (word >> (16 * (element % 2)) & 0xffff) >= self.threshold()
    }

    pub(super) fn check(&self, op: &'static str) -> Result<(), KernelError> {
        if (0.0..=1.0).contains(&self.probability) {
            return Ok(());
        }
        let allowed = "a probability, from 0 to 1".to_owned();
        Err(KernelError::Number { op, argument: "dropout", given: f64::from(self.probability), allowed })
    }
}
