//! Attention in f64, one score matrix row at a time: what the fast path is tested against.

use super::{Options, Shape};

/// The weights of one query's visible keys and the logarithm of their sum; all zero and -inf where nothing is visible.
fn weights(shape: Shape, seen: Seen<'_>, scale: f64, q: &[f64], k: &[f64], at: [usize; 3]) -> (Vec<f64>, f64) {
    let Shape { heads, kv_heads, head_size, queries, keys, .. } = shape;
    let [sequence, query, head] = at;
    let q = &q[((sequence * queries + query) * heads + head) * head_size..][..head_size];
    let scores: Vec<f64> = (0..seen(query))
        .map(|key| {
            let k = &k[((sequence * keys + key) * kv_heads + head / shape.group()) * head_size..][..head_size];
            scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if scores.iter().all(|&score| score == f64::NEG_INFINITY) {
        return (vec![0.0; scores.len()], f64::NEG_INFINITY);
    }
    let exponentials: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    (exponentials.iter().map(|e| e / sum).collect(), largest + sum.ln())
}

fn scale(shape: Shape, options: Options) -> f64 {
    options.scale.map_or(1.0 / (shape.head_size as f64).sqrt(), f64::from)
}

/// How many keys a query sees: the first ones.
pub type Seen<'a> = &'a dyn Fn(usize) -> usize;

/// out `[B, Tq, H, D]` and lse `[B, H, Tq]`.
pub fn forward(shape: Shape, options: Options, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
    forward_seen(shape, &|query| shape.visible(options, query), options, q, k, v)
}

/// [`forward`] where `seen` says what a query sees.
pub fn forward_seen(
    shape: Shape,
    seen: Seen<'_>,
    options: Options,
    q: &[f64],
    k: &[f64],
    v: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let scale = scale(shape, options);
    let Shape { batch, queries, keys, heads, kv_heads, head_size } = shape;
    let mut out = vec![0.0; batch * queries * heads * head_size];
    let mut lse = vec![0.0; batch * heads * queries];
    for sequence in 0..batch {
        for head in 0..heads {
            for query in 0..queries {
                let (weights, sum) = weights(shape, seen, scale, q, k, [sequence, query, head]);
                lse[(sequence * heads + head) * queries + query] = sum;
                let out = &mut out[((sequence * queries + query) * heads + head) * head_size..][..head_size];
                for (key, weight) in weights.iter().enumerate() {
                    let start = ((sequence * keys + key) * kv_heads + head / shape.group()) * head_size;
                    for (d, out) in out.iter_mut().enumerate() {
                        *out += weight * v[start + d];
                    }
                }
            }
        }
    }
    (out, lse)
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
    backward_seen(shape, &|query| shape.visible(options, query), options, [q, k, v], dout)
}

/// [`backward`] where `seen` says what a query sees.
pub fn backward_seen(
    shape: Shape,
    seen: Seen<'_>,
    options: Options,
    [q, k, v]: [&[f64]; 3],
    dout: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let Shape { batch, queries, keys, heads, kv_heads, head_size } = shape;
    let scale = scale(shape, options);
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for sequence in 0..batch {
        for head in 0..heads {
            for query in 0..queries {
                let (weights, _) = weights(shape, seen, scale, q, k, [sequence, query, head]);
                let at = ((sequence * queries + query) * heads + head) * head_size;
                let key_at = |key: usize| ((sequence * keys + key) * kv_heads + head / shape.group()) * head_size;
                // The gradient of a weight, and its mean under the weights: softmax's derivative is P (dP - mean).
                let dweight = |key: usize| -> f64 { (0..head_size).map(|d| dout[at + d] * v[key_at(key) + d]).sum() };
                let mean: f64 = weights.iter().enumerate().map(|(key, weight)| weight * dweight(key)).sum();
                for (key, weight) in weights.iter().enumerate() {
                    let dscore = scale * weight * (dweight(key) - mean);
                    for d in 0..head_size {
                        dv[key_at(key) + d] += weight * dout[at + d];
                        dq[at + d] += dscore * k[key_at(key) + d];
                        dk[key_at(key) + d] += dscore * q[at + d];
                    }
                }
            }
        }
    }
    (dq, dk, dv)
}
