//! Text from a model: one token after the other, each drawn from the model's distribution.

use warpweft_device::Float;
use warpweft_kernels::philox::Philox4x32;

use crate::TrainError;
use crate::step::Trainer;

/// The Philox stream of the draws; those below it belong to the initial values of parameters.
const DRAWS: u64 = 1 << 63;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Tokens to draw.
    pub tokens: usize,
    /// Divides the logits: below 1 the likely becomes more likely; 0 takes the likeliest.
    pub temperature: f64,
    /// Of the draws, which are a pure function of it.
    pub seed: u64,
}

/// `prompt` continued. Where that is longer than the model's context, the model sees its end.
///
/// # Errors
/// A token outside the vocabulary.
pub fn sample<T: Float>(trainer: &mut Trainer<T>, prompt: &[u32], sampling: Sampling) -> Result<Vec<u32>, TrainError> {
    let random = Philox4x32::new(sampling.seed, DRAWS);
    let mut tokens = if prompt.is_empty() { vec![0] } else { prompt.to_vec() };
    let first = tokens.len();
    for index in 0..sampling.tokens {
        let seen = tokens.len().saturating_sub(trainer.recipe.tokens);
        let logits = trainer.next_logits(&tokens[seen..])?;
        tokens.push(draw(&logits, sampling.temperature, f64::from(random.uniform(index as u64))));
    }
    Ok(tokens.split_off(first))
}

/// Tokens as text that a terminal can be given: bytes as UTF-8, with U+FFFD for what is none and for control characters
/// (which could move the cursor or worse) but line breaks and tabs; other tokens by their numbers.
pub fn shown(tokens: &[u32], are_bytes: bool) -> String {
    if !are_bytes {
        return tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    }
    // A vocabulary may have more entries than there are bytes; no UTF-8 holds 0xff.
    let bytes: Vec<u8> = tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xff)).collect();
    let safe = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(&bytes).chars().map(safe).collect()
}

/// The token at which the running sum of the probabilities passes `uniform`, of `[0, 1)`.
fn draw(logits: &[f32], temperature: f64, uniform: f64) -> u32 {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
    if temperature <= 0.0 {
        return best as u32;
    }
    let weight = |logit: f32| (f64::from(logit - logits[best]) / temperature).exp();
    let target = uniform * logits.iter().copied().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let drawn = logits.iter().position(|logit| {
        sum += weight(*logit);
        sum > target
    });
    // Rounding may leave the last sum at the target; NaN logits never pass it.
    drawn.unwrap_or(best) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_does_nothing_to_the_terminal() {
        let tokens = |bytes: &[u8]| bytes.iter().copied().map(u32::from).collect::<Vec<_>>();
        assert_eq!(shown(&tokens("warp\tund Schuß\n".as_bytes()), true), "warp\tund Schuß\n");
        // A screen cleared, a bell, a carriage return, a C1 control (0xc2 0x9b), half a character, no character.
        let wild = shown(&tokens(b"\x1b[2J\x07\r\xc2\x9b\xc3 \xff\0"), true);
        assert_eq!(wild, "\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd} \u{fffd}\u{fffd}");
        assert_eq!(shown(&[97, 300], true), "a\u{fffd}");
        assert_eq!(shown(&[10, 64, 27], false), "10 64 27");
    }

    #[test]
    fn a_draw_follows_the_distribution() {
        // Probabilities 1/2, 1/4, 1/4.
        let logits = [2.0f32.ln(), 0.0, 0.0];
        let draws = [0.0, 0.49, 0.51, 0.74, 0.76, 0.999].map(|uniform| draw(&logits, 1.0, uniform));
        assert_eq!(draws, [0, 0, 1, 1, 2, 2]);
        assert_eq!(draw(&[0.0, 3.0, 1.0], 0.0, 0.9), 1);
        assert_eq!(draw(&[0.0, 1.0], 0.01, 0.5), 1, "a low temperature takes the likeliest");
    }
}
