//! What a call of attention is told: sizes, options, and arrays beside the inputs; and that they make sense.

use warpweft_device::View;

use crate::KernelError;

/// Sizes: q is `[batch, queries, heads, head_size]`, k and v `[batch, keys, kv_heads, head_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence (Tq); of the longest one where sequences have [`Starts`].
    pub queries: usize,
    /// Keys of a sequence (Tk); of the longest one where sequences have [`Starts`].
    pub keys: usize,
    /// Query heads (H).
    pub heads: usize,
    /// Key/value heads (G), a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head (D). On a GPU a multiple of 8, at most 256.
    pub head_size: usize,
}

impl Shape {
    /// Query heads to a key/value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    pub(super) fn q(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_size]
    }

    pub(super) fn kv(&self) -> [usize; 4] {
        [self.batch, self.keys, self.kv_heads, self.head_size]
    }

    pub(super) fn check(&self, op: &'static str) -> Result<(), KernelError> {
        let Self { heads, kv_heads, head_size, .. } = *self;
        if head_size == 0 {
            let allowed = "at least 1".to_owned();
            return Err(KernelError::Size { op, argument: "head_size", given: head_size, allowed });
        }
        if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) || heads == 0 && kv_heads > 0 {
            let allowed = format!("a divisor of the {heads} query heads");
            return Err(KernelError::Size { op, argument: "kv_heads", given: kv_heads, allowed });
        }
        Ok(())
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Whether query i sees only the keys j <= i + Tk - Tq: a window whose right end is 0.
    pub causal: bool,
    /// The factor of the scores; `None` is 1 / sqrt(D).
    pub scale: Option<f32>,
    /// A sliding window, beside the causal mask where there is one.
    pub window: Window,
    /// With `Some(c)` a score is c tanh(score / c).
    pub softcap: Option<f32>,
    /// Weights that are left out at random.
    pub dropout: Option<Dropout>,
}

/// Query i sees the keys from i + Tk - Tq - left to i + Tk - Tq + right, both included; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Keys before the one beside the query.
    pub left: Option<usize>,
    /// Keys after it.
    pub right: Option<usize>,
}

/// Each weight, once normalised, is zero with a probability, and divided by that of the others else. Backward must be
/// told the same.
///
/// Which ones is a pure function of seed, sequence, head, query and key, the same on every device: of Philox 4x32-10 under
/// the key `seed`, the block at the counter (key / 8, query, head, sequence) has a 16-bit number for each of the eight keys,
/// the lower half of a word first, and a weight is dropped where its number is below 65536 times the probability. Queries
/// and keys are counted within their sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability, from 0 to less than 1; it counts rounded to a multiple of 2^-16.
    pub probability: f32,
    /// The seed.
    pub seed: u64,
    /// The index that the first sequence of this call has among all.
    pub first_sequence: u32,
    /// The index that the first query head of this call has among all.
    pub first_head: u32,
}

impl Dropout {
    /// Numbers below this one are dropped.
    pub(crate) fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 65536.0).round() as u32
    }

    /// The factor of weights that are kept.
    pub(crate) fn factor(&self) -> f64 {
        65536.0 / f64::from(65536 - self.threshold())
    }
}

impl Options {
    /// Every query sees every key.
    pub const FULL: Self =
        Self { causal: false, scale: None, window: Window { left: None, right: None }, softcap: None, dropout: None };
    /// Query i sees the keys j <= i + Tk - Tq.
    pub const CAUSAL: Self = Self { causal: true, ..Self::FULL };

    pub(crate) fn scale(&self, head_size: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (head_size as f32).sqrt())
    }

    /// The window, which says what causal says too.
    pub(super) fn window(&self) -> Window {
        Window { right: if self.causal { Some(0) } else { self.window.right }, ..self.window }
    }

    pub(super) fn check(&self, op: &'static str) -> Result<(), KernelError> {
        let number = |argument, given: f32, allowed: &str| {
            Err(KernelError::Number { op, argument, given: given.into(), allowed: allowed.to_owned() })
        };
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite()) {
            return number("scale", scale, "finite");
        }
        if let Some(cap) = self.softcap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return number("softcap", cap, "finite and above 0");
        }
        match self.dropout {
            Some(dropout) if !(0.0..1.0).contains(&dropout.probability) || dropout.threshold() > 65535 => {
                number("dropout", dropout.probability, "a probability below 1 (at most 1 - 2^-16)")
            }
            _ => Ok(()),
        }
    }
}

/// Arrays beside q, k and v.
#[derive(Clone, Copy, Default)]
pub struct Extra<'a> {
    /// ALiBi (Press, Smith, Lewis 2021, arXiv 2108.12409): `[H]`, of which `slope * |i + Tk - Tq - j|` is taken from the
    /// score of query i and key j, after scale and softcap.
    pub slopes: Option<View<'a, f32>>,
    /// Where sequences begin, one behind the other without padding: q is then `[all queries, heads, head_size]`, k and v
    /// `[all keys, kv_heads, head_size]`, and the LSE `[H, all queries]`.
    pub starts: Option<Starts<'a>>,
}

/// `[batch + 1]` each: the first token of each sequence, and the number of all.
#[derive(Clone, Copy)]
pub struct Starts<'a> {
    /// Of queries.
    pub queries: View<'a, u32>,
    /// Of keys.
    pub keys: View<'a, u32>,
}
