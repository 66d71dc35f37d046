//! The fast backward path: everything of one key/value head of one sequence, so that its gradients are summed in a fixed
//! order by one thread.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayView3, ArrayView4, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4, Axis};
use pulp::{Arch, Simd, WithSimd};
use warpweft_device::{CpuPool, Float};

use super::cpu::{KEYS, QUERIES, blocks, each, load, load_transposed, part, store};
use super::{Options, Saved, Shape};
use crate::elementary::exp;
use crate::scratch;
use crate::tile::{Left, multiply, multiply_add, padded};

pub(super) fn run<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    options: Options,
    [q, k, v]: [ArrayView4<'_, T>; 3],
    saved: Saved<'_, T>,
    [dq, dk, dv]: [ArrayViewMut4<'_, T>; 3],
) {
    if shape.batch == 0 || shape.heads == 0 {
        return;
    }
    let group = shape.group();
    let mut heads = Vec::new();
    let gradients = each(dq, Axis(0)).into_iter().zip(each(dk, Axis(0))).zip(each(dv, Axis(0)));
    for (sequence, ((dq, dk), dv)) in gradients.enumerate() {
        let [q, out, dout] = [q, saved.out, saved.dout].map(|view| view.index_axis_move(Axis(0), sequence));
        let [k, v] = [k, v].map(|view| view.index_axis_move(Axis(0), sequence));
        let mut rest = dq;
        for (head, (dk, dv)) in each(dk, Axis(1)).into_iter().zip(each(dv, Axis(1))).enumerate() {
            let (dq, right) = rest.split_at(Axis(1), group);
            rest = right;
            let first = head * group;
            let [q, out, dout] = [q, out, dout].map(|view| part(view, Axis(1), first..first + group));
            let [k, v] = [k, v].map(|view| view.index_axis_move(Axis(1), head));
            let lse = &saved.lse[(sequence * shape.heads + first) * shape.queries..][..group * shape.queries];
            heads.push(KvHead { shape, options, q, k, v, out, dout, lse, dq, dk, dv });
        }
    }
    pool.for_each(heads, |head| Arch::new().dispatch(head));
}

/// One key/value head of one sequence with its query heads: q `[Tq, H/G, D]`, k `[Tk, D]`, lse `[H/G, Tq]`.
struct KvHead<'a, T> {
    shape: Shape,
    options: Options,
    q: ArrayView3<'a, T>,
    k: ArrayView2<'a, T>,
    v: ArrayView2<'a, T>,
    out: ArrayView3<'a, T>,
    dout: ArrayView3<'a, T>,
    lse: &'a [f32],
    dq: ArrayViewMut3<'a, T>,
    dk: ArrayViewMut2<'a, T>,
    dv: ArrayViewMut2<'a, T>,
}

/// One query head in f32, padded: q times the scale, the gradient of out, Σ dout out of each row, and dq so far.
struct Query<'a> {
    q: &'a [f32],
    dout: &'a [f32],
    delta: &'a [f32],
    lse: &'a [f32],
    dq: &'a mut [f32],
}

/// A tile of keys in f32: k as rows and as columns, v as columns, and the gradients' rows.
struct Tile<'a> {
    range: Range<usize>,
    keys: &'a [f32],
    keys_transposed: &'a [f32],
    values_transposed: &'a [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl<T: Float> WithSimd for KvHead<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Shape { queries, keys, head_size, .. } = self.shape;
        let width = padded(head_size);
        let (query, key) = (queries * width, keys * width);
        let sizes = [key, key, query, query, query, queries, KEYS * width, head_size * KEYS, head_size * KEYS];
        scratch::with_parts(sizes, |[dk, dv, q, dout, dq, delta, keys, keys_transposed, values_transposed]| {
            dk.fill(0.0);
            dv.fill(0.0);
            let scale = self.options.scale(head_size);
            for head in 0..self.shape.group() {
                load(self.q.index_axis(Axis(1), head), 0..queries, scale, q);
                load(self.dout.index_axis(Axis(1), head), 0..queries, 1.0, dout);
                self.deltas(head, dout, delta);
                dq.fill(0.0);
                let lse = &self.lse[head * queries..][..queries];
                let mut query = Query { q, dout, delta, lse, dq };
                for range in blocks(self.shape.keys, KEYS) {
                    load(self.k, range.clone(), 1.0, keys);
                    load_transposed(self.k, range.clone(), keys_transposed);
                    load_transposed(self.v, range.clone(), values_transposed);
                    let rows = range.start * width..range.end * width;
                    let (dk, dv) = (&mut dk[rows.clone()], &mut dv[rows]);
                    let tile = Tile { range, keys, keys_transposed, values_transposed, dk, dv };
                    self.tile(simd, &mut query, tile);
                }
                store(query.dq, scale, self.dq.index_axis_mut(Axis(1), head));
            }
            store(dk, 1.0, self.dk);
            store(dv, 1.0, self.dv);
        });
    }
}

impl<T: Float> KvHead<'_, T> {
    /// Σ dout out of each row: the mean of a row's dP under its weights.
    #[inline(always)]
    fn deltas(&self, head: usize, dout: &[f32], delta: &mut [f32]) {
        let width = padded(self.shape.head_size);
        let out = self.out.index_axis(Axis(1), head);
        for ((out, dout), delta) in out.rows().into_iter().zip(dout.chunks_exact(width)).zip(delta) {
            let out = out.to_slice().expect("a head is contiguous");
            *delta = crate::simd::sum(out.len(), |d| dout[d] * out[d].to_f32());
        }
    }

    /// What one tile of keys gives to every gradient.
    #[inline(always)]
    fn tile<S: Simd>(&self, simd: S, query: &mut Query<'_>, tile: Tile<'_>) {
        let width = padded(self.shape.head_size);
        scratch::with_parts([QUERIES * KEYS, QUERIES * KEYS], |[weights, dscores]| {
            for block in blocks(self.shape.queries, QUERIES) {
                let seen = |row: usize| {
                    let visible = self.shape.visible(self.options, block.start + row);
                    visible.saturating_sub(tile.range.start).min(tile.range.len())
                };
                if seen(block.len() - 1) == 0 {
                    continue;
                }
                let rows = block.start * width..block.end * width;
                let (q, dout) = (&query.q[rows.clone()], &query.dout[rows.clone()]);
                let sizes = (block.len(), self.shape.head_size, KEYS);
                multiply(simd, Left::rows(q, width), tile.keys_transposed, weights, sizes, seen);
                multiply(simd, Left::rows(dout, width), tile.values_transposed, dscores, sizes, seen);
                for row in 0..block.len() {
                    let (lse, delta) = (query.lse[block.start + row], query.delta[block.start + row]);
                    let columns = row * KEYS..row * KEYS + seen(row);
                    softmax_gradient(&mut weights[columns.clone()], &mut dscores[columns], lse, delta);
                }
                // Rows before the first that sees a key are left out of the key's sums.
                let queries = |key: usize| {
                    let first = self.shape.first_query(self.options, tile.range.start + key);
                    first.clamp(block.start, block.end) - block.start..block.len()
                };
                let sizes = (tile.range.len(), width);
                multiply_add(simd, Left::columns(weights, KEYS), dout, tile.dv, sizes, queries);
                multiply_add(simd, Left::columns(dscores, KEYS), q, tile.dk, sizes, queries);
                let dq = &mut query.dq[rows];
                multiply_add(simd, Left::rows(dscores, KEYS), tile.keys, dq, (block.len(), width), |row| 0..seen(row));
            }
        });
    }
}

/// Scores become the weights P = e^(score - lse), and dP becomes P (dP - delta).
#[inline(always)]
fn softmax_gradient(scores: &mut [f32], dweights: &mut [f32], lse: f32, delta: f32) {
    if lse == f32::NEG_INFINITY {
        scores.fill(0.0);
        dweights.fill(0.0);
        return;
    }
    for (score, dweight) in scores.iter_mut().zip(dweights) {
        *score = exp(*score - lse);
        *dweight = *score * (*dweight - delta);
    }
}
