//! What becomes of the scores and weights of one head on the CPU beyond scale and mask: softcap, ALiBi, dropout.

use std::ops::Range;

use super::cpu::How;
use super::options::Dropout;
use crate::elementary::exp;
use crate::philox::Philox4x32;

/// The extras of one head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Scoring {
    softcap: Option<f32>,
    slope: f32,
    /// The key beside query 0.
    beside: i64,
    drop: Option<Drop>,
}

/// Dropout of one head.
#[derive(Clone, Copy)]
struct Drop {
    key: [u32; 2],
    threshold: u32,
    factor: f32,
    head: u32,
    sequence: u32,
}

impl Scoring {
    pub(super) fn of(how: &How<'_>, sequence: usize, head: usize) -> Self {
        let shape = how.shape;
        Self {
            softcap: how.softcap,
            slope: how.slopes.map_or(0.0, |slopes| slopes[head]),
            beside: shape.keys as i64 - shape.queries as i64,
            drop: how.dropout.map(|dropout| Drop::of(dropout, how.sequence + sequence, head)),
        }
    }

    /// Whether scores and weights stay as they are.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.softcap.is_none() && self.slope == 0.0 && self.drop.is_none()
    }

    /// A query's score of a key, and its derivative by what it was.
    #[inline(always)]
    fn score(&self, score: f32, query: usize, key: usize) -> (f32, f32) {
        let (score, derivative) = match self.softcap {
            Some(cap) => {
                let tanh = (score / cap).tanh();
                (cap * tanh, 1.0 - tanh * tanh)
            }
            None => (score, 1.0),
        };
        let distance = (query as i64 + self.beside - key as i64).abs();
        (score - self.slope * distance as f32, derivative)
    }

    /// Scores of a query's keys from `key` on.
    #[inline(always)]
    pub(super) fn scores(&self, scores: &mut [f32], query: usize, key: usize) {
        if self.softcap.is_some() || self.slope != 0.0 {
            for (at, score) in scores.iter_mut().enumerate() {
                *score = self.score(*score, query, key + at).0;
            }
        }
    }

    /// Weights after dropout.
    #[inline(always)]
    pub(super) fn drop(&self, weights: &mut [f32], query: usize, key: usize) {
        if let Some(drop) = self.drop {
            drop.for_each(query, key..key + weights.len(), |at, factor| weights[at] *= factor);
        }
    }

    /// As the plain softmax gradient: of scores and dP after dropout, the weights after dropout and the gradient of what
    /// the scores were.
    #[inline(always)]
    pub(super) fn gradient(
        &self,
        scores: &mut [f32],
        dweights: &mut [f32],
        (lse, delta): (f32, f32),
        query: usize,
        key: usize,
    ) {
        let keys = key..key + dweights.len();
        let mut one = |at: usize, factor: f32| {
            let (score, derivative) = self.score(scores[at], query, key + at);
            let weight = exp(score - lse);
            // What is dropped has no part in dP: not even a NaN.
            let dweight = if factor == 0.0 { 0.0 } else { factor * dweights[at] };
            dweights[at] = weight * (dweight - delta) * derivative;
            scores[at] = weight * factor;
        };
        match self.drop {
            Some(drop) => drop.for_each(query, keys, one),
            None => (0..keys.len()).for_each(|at| one(at, 1.0)),
        }
    }
}

impl Drop {
    fn of(dropout: Dropout, sequence: usize, head: usize) -> Self {
        // The counter's words wrap.
        Self {
            key: [dropout.seed as u32, (dropout.seed >> 32) as u32],
            threshold: dropout.threshold(),
            factor: dropout.factor() as f32,
            head: dropout.first_head.wrapping_add(head as u32),
            sequence: dropout.first_sequence.wrapping_add(sequence as u32),
        }
    }

    /// Calls `work` with the place of each key in `keys` and its weight's factor.
    #[inline(always)]
    fn for_each(&self, query: usize, keys: Range<usize>, mut work: impl FnMut(usize, f32)) {
        let mut words = [0; 4];
        for key in keys.clone() {
            if key == keys.start || key.is_multiple_of(8) {
                let counter = [(key / 8) as u32, query as u32, self.head, self.sequence];
                words = Philox4x32::cipher(counter, self.key);
            }
            let number = words[key % 8 / 2] >> (key % 2 * 16) & 0xffff;
            work(key - keys.start, if number < self.threshold { 0.0 } else { self.factor });
        }
    }
}
