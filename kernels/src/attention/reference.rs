//! Attention in f64, one score matrix row at a time: what the fast paths are tested against.

use std::ops::Range;

use super::options::{Options, Shape};
use crate::philox::Philox4x32;

/// Which keys a query sees.
pub type Seen<'a> = &'a dyn Fn(usize) -> Range<usize>;

/// What is computed, in f64.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// Sizes.
    pub shape: Shape,
    /// The options; where `seen` is given they say nothing of masks.
    pub options: Options,
    /// ALiBi's slopes, `[H]`.
    pub slopes: Option<&'a [f32]>,
    /// Which keys a query sees, where the options do not say it.
    pub seen: Option<Seen<'a>>,
    /// The index of the first sequence, for dropout.
    pub sequence: usize,
    /// Rounds what a kernel rounds to its storage between two products, and what it saves for backward: the error of the
    /// formula at a lower precision.
    pub round: Option<fn(f64) -> f64>,
}

/// One key of a query's row.
struct Entry {
    key: usize,
    /// Its weight, the derivative of its score by what softcap took, and dropout's factor.
    weight: f64,
    derivative: f64,
    factor: f64,
}

impl<'a> Problem<'a> {
    /// The problem of a shape and options alone.
    pub fn new(shape: Shape, options: Options) -> Self {
        Self { shape, options, slopes: None, seen: None, sequence: 0, round: None }
    }

    fn rounded(&self, value: f64) -> f64 {
        self.round.map_or(value, |round| round(value))
    }

    fn scale(&self) -> f64 {
        self.options.scale.map_or(1.0 / (self.shape.head_size as f64).sqrt(), f64::from)
    }

    fn visible(&self, query: usize) -> Range<usize> {
        if let Some(seen) = self.seen {
            return seen(query);
        }
        let (window, keys) = (self.options.window, self.shape.keys);
        let beside = (query + keys) as i128 - self.shape.queries as i128;
        let inside = |key: i128| key.clamp(0, keys as i128) as usize;
        let left = window.left.map_or(0, |left| inside(beside - left as i128));
        let mut right = window.right.map_or(keys, |right| inside(beside + right as i128 + 1));
        if self.options.causal {
            right = right.min(inside(beside + 1));
        }
        left.min(right)..right
    }

    /// Dropout's factor of a weight.
    fn factor(&self, [sequence, query, head]: [usize; 3], key: usize) -> f64 {
        let Some(dropout) = self.options.dropout else { return 1.0 };
        let counter = [
            (key / 8) as u32,
            query as u32,
            dropout.first_head + head as u32,
            dropout.first_sequence + (self.sequence + sequence) as u32,
        ];
        let words = Philox4x32::cipher(counter, [dropout.seed as u32, (dropout.seed >> 32) as u32]);
        let halves = words.map(|word| [word & 0xffff, word >> 16]);
        if halves.as_flattened()[key % 8] < dropout.threshold() { 0.0 } else { dropout.factor() }
    }

    /// A query's visible keys with their weights, and the logarithm of the sum; all zero and -inf where nothing is visible.
    fn row(&self, q: &[f64], k: &[f64], at: [usize; 3]) -> (Vec<Entry>, f64) {
        let Shape { heads, kv_heads, head_size, queries, keys, .. } = self.shape;
        let [sequence, query, head] = at;
        let q = &q[((sequence * queries + query) * heads + head) * head_size..][..head_size];
        let slope = self.slopes.map_or(0.0, |slopes| f64::from(slopes[head]));
        let score = |key: usize| {
            let k = &k[((sequence * keys + key) * kv_heads + head / self.shape.group()) * head_size..][..head_size];
            let score = self.scale() * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
            let (score, derivative) = match self.options.softcap.map(f64::from) {
                Some(cap) => (cap * (score / cap).tanh(), 1.0 - (score / cap).tanh().powi(2)),
                None => (score, 1.0),
            };
            let distance = ((query + keys) as f64 - (queries + key) as f64).abs();
            // A slope of 0 is none, however far it is.
            let score = if slope == 0.0 { score } else { score - slope * distance };
            Entry { key, weight: score, derivative, factor: self.factor(at, key) }
        };
        let mut row: Vec<Entry> = self.visible(query).map(score).collect();
        let largest = row.iter().map(|entry| entry.weight).fold(f64::NEG_INFINITY, f64::max);
        if row.iter().all(|entry| entry.weight == f64::NEG_INFINITY) {
            row.iter_mut().for_each(|entry| entry.weight = 0.0);
            return (row, f64::NEG_INFINITY);
        }
        row.iter_mut().for_each(|entry| entry.weight = (entry.weight - largest).exp());
        let sum: f64 = row.iter().map(|entry| entry.weight).sum();
        row.iter_mut().for_each(|entry| entry.weight /= sum);
        (row, largest + sum.ln())
    }

    /// out `[B, Tq, H, D]` and lse `[B, H, Tq]`.
    pub fn forward(&self, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let Shape { batch, queries, keys, heads, kv_heads, head_size } = self.shape;
        let mut out = vec![0.0; batch * queries * heads * head_size];
        let mut lse = vec![0.0; batch * heads * queries];
        for at in places(self.shape) {
            let [sequence, query, head] = at;
            let (row, sum) = self.row(q, k, at);
            lse[(sequence * heads + head) * queries + query] = sum;
            let out = &mut out[((sequence * queries + query) * heads + head) * head_size..][..head_size];
            // What is dropped has no part, be it NaN.
            for entry in row.iter().filter(|entry| entry.factor != 0.0) {
                let start = ((sequence * keys + entry.key) * kv_heads + head / self.shape.group()) * head_size;
                for (d, out) in out.iter_mut().enumerate() {
                    *out += self.rounded(entry.weight) * entry.factor * v[start + d];
                }
            }
            out.iter_mut().for_each(|out| *out = self.rounded(*out));
        }
        (out, lse)
    }

    /// dq, dk and dv for the gradient `dout`: `[B, Tq, H, D]`, and twice `[B, Tk, G, D]`.
    pub fn backward(&self, q: &[f64], k: &[f64], v: &[f64], dout: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let Shape { queries, keys, heads, kv_heads, head_size, .. } = self.shape;
        let out = self.round.map(|_| self.forward(q, k, v).0);
        let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        for place in places(self.shape) {
            let [sequence, query, head] = place;
            let (row, _) = self.row(q, k, place);
            let at = ((sequence * queries + query) * heads + head) * head_size;
            let key_at = |key: usize| ((sequence * keys + key) * kv_heads + head / self.shape.group()) * head_size;
            // The gradient of a weight, and its mean under the weights: softmax's derivative is P (dP - mean).
            let dweight = |entry: &Entry| -> f64 {
                let dot: f64 = (0..head_size).map(|d| dout[at + d] * v[key_at(entry.key) + d]).sum();
                if entry.factor == 0.0 { 0.0 } else { entry.factor * dot }
            };
            let mean: f64 = match &out {
                Some(out) => (at..at + head_size).map(|d| out[d] * dout[d]).sum(),
                None => row.iter().map(|entry| entry.weight * dweight(entry)).sum(),
            };
            for entry in &row {
                let dscore = self.scale() * self.rounded(entry.weight * (dweight(entry) - mean) * entry.derivative);
                let weight = self.rounded(entry.weight * entry.factor);
                for d in 0..head_size {
                    dv[key_at(entry.key) + d] += weight * dout[at + d];
                    dq[at + d] += dscore * k[key_at(entry.key) + d];
                    dk[key_at(entry.key) + d] += dscore * q[at + d];
                }
            }
        }
        (dq, dk, dv)
    }
}

/// Every query of every head: sequence, query, head.
fn places(shape: Shape) -> impl Iterator<Item = [usize; 3]> {
    let Shape { batch, queries, heads, .. } = shape;
    (0..batch * heads * queries).map(move |i| [i / queries / heads, i % queries, i / queries % heads])
}

/// out `[B, Tq, H, D]` and lse `[B, H, Tq]`.
pub fn forward(shape: Shape, options: Options, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
    Problem::new(shape, options).forward(q, k, v)
}

/// dq, dk and dv for the gradient `dout`: `[B, Tq, H, D]`, and twice `[B, Tk, G, D]`.
pub fn backward(
    shape: Shape,
    options: Options,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    dout: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    Problem::new(shape, options).backward(q, k, v, dout)
}
