//! Attention of Triton, forward and the three kernels of its backward, each against f64 on what it was given.

use half::{bf16, f16};

use crate::numbers::{Bounded, F32, Numbers, Real, close, wide};
use crate::softmax::{DIVISION, exp_error};
use crate::triton::Kernel;
use crate::vm::Ways;

/// Relative to the sum of absolute products: a dot product of length k on a tensor core (see `matmul::accumulation`).
fn dot(k: usize) -> f64 {
    k.div_ceil(8) as f64 * 20.0 * F32
}

/// One problem: heads one after another, each of `tokens` rows of `d` elements.
struct Problem {
    heads: usize,
    tokens: usize,
    d: usize,
    causal: bool,
    scale: f64,
    /// Relative error of rounding a probability to the format of the operands.
    rounding: f64,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dout: Vec<f64>,
}

impl Problem {
    fn row<'a>(&self, of: &'a [f64], head: usize, token: usize) -> &'a [f64] {
        let start = (head * self.tokens + token) * self.d;
        &of[start..start + self.d]
    }

    /// The scaled score, and the absolute error of computing it.
    fn score(&self, head: usize, query: usize, key: usize) -> Bounded {
        let (value, size) = self.dot(&self.q, &self.k, head, query, key);
        Bounded { value: value * self.scale, error: self.scale * (size * dot(self.d) + 3.0 * F32 * value.abs()) }
    }

    fn dot(&self, left: &[f64], right: &[f64], head: usize, query: usize, key: usize) -> (f64, f64) {
        let terms = self.row(left, head, query).iter().zip(self.row(right, head, key)).map(|(a, b)| a * b);
        terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()))
    }

    fn seen(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.tokens }
    }

    /// The outputs, and the log2 of the sum of exponentials, of every row.
    fn forward(&self, steps: usize) -> (Vec<Bounded>, Vec<Bounded>) {
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for row in 0..self.heads * self.tokens {
            let (head, query) = (row / self.tokens, row % self.tokens);
            let scores: Vec<Bounded> = (0..self.seen(query)).map(|key| self.score(head, query, key)).collect();
            let largest = scores.iter().map(|s| s.value).fold(f64::NEG_INFINITY, f64::max);
            let range = largest - scores.iter().map(|s| s.value).fold(f64::INFINITY, f64::min);
            let score_error = scores.iter().map(|s| s.error).fold(0.0, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| (s.value - largest).exp()).collect();
            let total: f64 = p.iter().sum();
            // Of one probability before it is rounded, of the rescalings on the way, and of the sum of positive terms.
            let each = 2.0 * score_error + exp_error(range);
            let sum = (steps + 1) as f64 * each + (self.tokens + steps) as f64 * F32;
            let relative = self.rounding + sum + each + dot(self.tokens) + DIVISION;
            out.extend((0..self.d).map(|column| {
                let terms = p.iter().enumerate().map(|(key, p)| p * self.row(&self.v, head, key)[column] / total);
                let (value, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                Bounded { value, error: 1.02 * size * relative }
            }));
            let log2 = std::f64::consts::LOG2_E;
            let value = (largest + total.ln()) * log2;
            let error =
                (score_error + sum) * log2 + 4.0 * F32 * (1.0 + total.log2() + value.abs() + largest.abs() * log2);
            lse.push(Bounded { value, error });
        }
        (out, lse)
    }

    /// p and ds of one pair with the errors of each, from the `lse` (of base 2) and `delta` that the kernel is given.
    fn gradient_of_score(
        &self,
        head: usize,
        query: usize,
        key: usize,
        lse: &[f64],
        delta: &[f64],
    ) -> (Bounded, Bounded) {
        let row = head * self.tokens + query;
        let score = self.score(head, query, key);
        let exponent = score.value * std::f64::consts::LOG2_E - lse[row];
        let p = exponent.exp2();
        // The difference of two rounded numbers, then ex2.
        let size = (score.value * std::f64::consts::LOG2_E).abs() + lse[row].abs();
        let p_error = 1.01 * p * (score.error + 2.0 * F32 * size + exp_error(exponent));
        let (dp, dp_size) = self.dot(&self.dout, &self.v, head, query, key);
        let dp_error = dp_size * dot(self.d);
        let value = p * (dp - delta[row]);
        let error =
            1.01 * (p * dp_error + p_error * (dp - delta[row]).abs() + 3.0 * F32 * p * (dp.abs() + delta[row].abs()));
        (Bounded { value: p, error: p_error }, Bounded { value, error })
    }

    fn gradients(&self, lse: &[f64], delta: &[f64]) -> Gradients {
        let size = self.heads * self.tokens * self.d;
        let mut sums = [(); 3].map(|()| vec![Bounded { value: 0.0, error: 0.0 }; size]);
        let mut add = |which: usize, row: usize, factor: Bounded, other: &[f64], scale: f64, length: usize| {
            for (column, x) in other.iter().enumerate() {
                let sum = &mut sums[which][row * self.d + column];
                sum.value += factor.value * x * scale;
                // The factor's own error, its rounding to 16 bits, and its part in a tensor core's sum.
                let relative = self.rounding + dot(length) + 2.0 * F32;
                sum.error += scale * x.abs() * (factor.error * 1.01 + factor.value.abs() * relative);
            }
        };
        for head in 0..self.heads {
            for query in 0..self.tokens {
                for key in 0..self.seen(query) {
                    let (p, ds) = self.gradient_of_score(head, query, key, lse, delta);
                    let (at_query, at_key) = (head * self.tokens + query, head * self.tokens + key);
                    add(0, at_query, ds, self.row(&self.k, head, key), self.scale, self.tokens);
                    add(1, at_key, ds, self.row(&self.q, head, query), self.scale, self.tokens);
                    add(2, at_key, p, self.row(&self.dout, head, query), 1.0, self.tokens);
                }
            }
        }
        let [dq, dk, dv] = sums;
        Gradients { dq, dk, dv }
    }
}

struct Gradients {
    dq: Vec<Bounded>,
    dk: Vec<Bounded>,
    dv: Vec<Bounded>,
}

/// The chain as a training step runs it: forward, delta, gradients. Every kernel is compared on what the one before gave it.
fn chain<T: Real>(ways: &Ways, tail: &str, tokens: usize) {
    let kernel = |name: &str| Kernel::open(&format!("{name}_{tail}"));
    let (forward, delta) = (kernel("attention"), kernel("attention_delta"));
    let (keys, queries) = (kernel("attention_backward_keys"), kernel("attention_backward_queries"));
    let (d, heads) = (forward.constant("D") as usize, 2);
    let (block_q, block_k) = (forward.constant("BLOCK_Q") as usize, forward.constant("BLOCK_K") as usize);
    let count = heads * tokens * d;
    let mut numbers = Numbers::new(41);
    let [q, k, v, dout] = [2.0, 2.0, 1.0, 1.0].map(|reach| numbers.reals::<T>(count, reach));
    let scale = 1.0 / (d as f32).sqrt();
    let problem = Problem {
        heads,
        tokens,
        d,
        causal: tail.ends_with("causal"),
        scale: scale.f64(),
        rounding: T::ROUNDING,
        q: wide(&q),
        k: wide(&k),
        v: wide(&v),
        dout: wide(&dout),
    };
    let (out_wanted, lse_wanted) = problem.forward(tokens.div_ceil(block_k));
    let sizes = [("tokens", tokens as i32)];
    let scales = [("scale", scale)];
    let over_queries = [tokens.div_ceil(block_q) as u32, heads as u32, 1];
    ways.each(|machine| {
        let [q, k, v, dout] = [&q, &k, &v, &dout].map(|x| machine.upload(x));
        let (out, lse) = (machine.output::<T>(count), machine.output::<f32>(heads * tokens));
        let call = forward.on(machine).buffer("q", &q).buffer("k", &k).buffer("v", &v).buffer("out", &out);
        call.buffer("lse", &lse).floats(&scales).integers(&sizes).launch(over_queries);
        let (given_out, given_lse) = (machine.download::<T>(&out), machine.download::<f32>(&lse));
        close("out", &given_out, &out_wanted);
        close("lse", &given_lse, &lse_wanted);

        let inner = machine.output::<f32>(heads * tokens);
        let grid = [tokens.div_ceil(delta.constant("BLOCK") as usize) as u32, heads as u32, 1];
        let call = delta.on(machine).buffer("out", &out).buffer("dout", &dout).buffer("delta", &inner);
        call.integers(&sizes).launch(grid);
        let given_delta = machine.download::<f32>(&inner);
        close("delta", &given_delta, &row_products(&wide(&given_out), &problem.dout, d));

        let gradients = problem.gradients(&wide(&given_lse), &wide(&given_delta));
        let [dq, dk, dv] = [(); 3].map(|()| machine.output::<T>(count));
        let call = keys.on(machine).buffer("q", &q).buffer("k", &k).buffer("v", &v).buffer("dout", &dout);
        let call = call.buffer("dk", &dk).buffer("dv", &dv).buffer("lse", &lse).buffer("delta", &inner);
        call.floats(&scales).integers(&sizes).launch([tokens.div_ceil(block_k) as u32, heads as u32, 1]);
        close("dk", &machine.download::<T>(&dk), &gradients.dk);
        close("dv", &machine.download::<T>(&dv), &gradients.dv);
        let call = queries.on(machine).buffer("q", &q).buffer("k", &k).buffer("v", &v).buffer("dout", &dout);
        let call = call.buffer("dq", &dq).buffer("lse", &lse).buffer("delta", &inner);
        call.floats(&scales).integers(&sizes).launch(over_queries);
        close("dq", &machine.download::<T>(&dq), &gradients.dq);
    });
}

fn row_products(left: &[f64], right: &[f64], d: usize) -> Vec<Bounded> {
    let row = |(a, b): (&[f64], &[f64])| {
        let terms = a.iter().zip(b).map(|(a, b)| a * b);
        let (value, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
        Bounded { value, error: size * (d + 1) as f64 * F32 }
    };
    left.chunks(d).zip(right.chunks(d)).map(row).collect()
}

pub(crate) fn bf16_full(ways: &Ways) {
    chain::<bf16>(ways, "bf16_full", 90);
}

pub(crate) fn bf16_causal(ways: &Ways) {
    chain::<bf16>(ways, "bf16_causal", 101);
}

pub(crate) fn f16_causal(ways: &Ways) {
    chain::<f16>(ways, "f16_causal", 77);
}
