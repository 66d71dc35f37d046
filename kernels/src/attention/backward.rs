//! The fast backward path: everything of one key/value head of one sequence, so that its gradients are summed in a fixed
//! order by one thread.

use ndarray::{ArrayView2, ArrayView3, ArrayView4, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4, Axis};
use pulp::{Arch, Simd, WithSimd};
use warpweft_device::{CpuPool, Float};

use super::cpu::{How, KEYS, QUERIES, View, blocks, each, load, part, store, transpose};
use super::options::Shape;
use super::scoring::Scoring;
use crate::Write;
use crate::elementary::exp;
use crate::scratch;
use crate::simd::{LANES, add, fold, vectorised};
use crate::tile::{Left, multiply, multiply_add, padded};

/// What is read beside the inputs.
pub(super) struct Saved<'a, T> {
    pub(super) out: ArrayView4<'a, T>,
    pub(super) lse: &'a [f32],
    pub(super) dout: ArrayView4<'a, T>,
}

pub(super) fn run<T: Float, O: Float>(
    pool: &CpuPool,
    how: How<'_>,
    [q, k, v]: [ArrayView4<'_, T>; 3],
    saved: Saved<'_, T>,
    write: Write,
    [dq, dk, dv]: [ArrayViewMut4<'_, O>; 3],
) {
    let shape = how.shape;
    // Without queries and keys there is nothing, in however many sequences.
    if shape.batch == 0 || shape.heads == 0 || (shape.queries == 0 && shape.keys == 0) {
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
            heads.push(KvHead { how, sequence, first, q, k, v, out, dout, lse, write, dq, dk, dv });
        }
    }
    pool.for_each(heads, KvHead::compute);
}

/// One key/value head of one sequence with its query heads: q `[Tq, H/G, D]`, k `[Tk, D]`, lse `[H/G, Tq]`.
struct KvHead<'a, T, O> {
    how: How<'a>,
    sequence: usize,
    /// The first query head.
    first: usize,
    q: ArrayView3<'a, T>,
    k: ArrayView2<'a, T>,
    v: ArrayView2<'a, T>,
    out: ArrayView3<'a, T>,
    dout: ArrayView3<'a, T>,
    lse: &'a [f32],
    write: Write,
    dq: ArrayViewMut3<'a, O>,
    dk: ArrayViewMut2<'a, O>,
    dv: ArrayViewMut2<'a, O>,
}

impl<T: Float, O: Float> KvHead<'_, T, O> {
    fn compute(mut self) {
        let Self { how, write, .. } = self;
        let How { shape, scale, .. } = how;
        let Shape { queries, keys, head_size, .. } = shape;
        let width = padded(head_size);
        let (query, key) = (queries * width, keys * width);
        let sizes = [key, key, key, key, query, query, query, queries, Tile::floats(head_size)];
        scratch::with_parts(sizes, |[k, v, dk, dv, q, dout, dq, delta, tile]| {
            vectorised(
                #[inline(always)]
                || {
                    load(self.k, 1.0, k);
                    load(self.v, 1.0, v);
                },
            );
            dk.fill(0.0);
            dv.fill(0.0);
            for head in 0..shape.group() {
                let out = self.out.index_axis(Axis(1), head);
                vectorised(
                    #[inline(always)]
                    || {
                        load(self.q.index_axis(Axis(1), head), scale, q);
                        load(self.dout.index_axis(Axis(1), head), 1.0, dout);
                        deltas(out, dout, delta);
                    },
                );
                let lse = &self.lse[head * queries..][..queries];
                let scoring = Scoring::of(&how, self.sequence, self.first + head);
                query_head(QueryHead { how, scoring, q, dout, delta, lse, k, v, dq, dk, dv, tile });
                vectorised(
                    #[inline(always)]
                    || store(dq, scale, write, self.dq.index_axis_mut(Axis(1), head)),
                );
            }
            vectorised(
                #[inline(always)]
                || {
                    store(dk, 1.0, write, self.dk);
                    store(dv, 1.0, write, self.dv);
                },
            );
        });
    }
}

/// Σ dout out of each row: the mean of a row's dP under its weights.
#[inline(always)]
fn deltas<T: Float>(out: ArrayView2<'_, T>, dout: &[f32], delta: &mut [f32]) {
    let width = padded(out.ncols());
    for ((out, dout), delta) in out.rows().into_iter().zip(dout.chunks_exact(width)).zip(delta) {
        let out = out.to_slice().expect("a head is contiguous");
        let mut partial = [0.0f32; LANES];
        let ((whole, rest), (dout, _)) = (out.as_chunks::<LANES>(), dout.as_chunks::<LANES>());
        for (out, dout) in whole.iter().zip(dout) {
            for lane in 0..LANES {
                partial[lane] = out[lane].to_f32().mul_add(dout[lane], partial[lane]);
            }
        }
        for (lane, out) in rest.iter().enumerate() {
            partial[lane] = out.to_f32().mul_add(dout[whole.len()][lane], partial[lane]);
        }
        *delta = fold(partial, add);
    }
}

/// One query head beside its key/value head, in f32, padded: q times the scale; dq is overwritten, dk and dv added to.
struct QueryHead<'a> {
    how: How<'a>,
    scoring: Scoring,
    q: &'a [f32],
    dout: &'a [f32],
    delta: &'a [f32],
    lse: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    tile: &'a mut [f32],
}

/// Memory for a tile of keys as columns, the same of values, and a block's weights and score gradients.
struct Tile<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn floats(head_size: usize) -> usize {
        2 * (head_size + QUERIES) * KEYS
    }

    fn of(memory: &'a mut [f32], head_size: usize) -> Self {
        let (columns, block) = memory.split_at_mut(2 * head_size * KEYS);
        let (keys, values) = columns.split_at_mut(head_size * KEYS);
        let (weights, dscores) = block.split_at_mut(QUERIES * KEYS);
        Self { keys, values, weights, dscores }
    }
}

/// Compiled here once for each instruction set, and not wherever the op is used with a new type.
fn query_head(head: QueryHead<'_>) {
    Arch::new().dispatch(head);
}

impl WithSimd for QueryHead<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { how, scoring, q, dout, delta, lse, k, v, dq, dk, dv, tile: memory } = self;
        let How { shape, mask, .. } = how;
        let (head_size, width) = (shape.head_size, padded(shape.head_size));
        let Tile { keys, values, weights, dscores } = Tile::of(memory, head_size);
        dq.fill(0.0);
        for tile in blocks(shape.keys, KEYS) {
            let there = tile.start * width..tile.end * width;
            transpose(&k[there.clone()], width, head_size, keys);
            transpose(&v[there.clone()], width, head_size, values);
            for block in blocks(shape.queries, QUERIES) {
                let view = View { mask, queries: block.clone(), keys: tile.clone() };
                if view.is_hidden() {
                    continue;
                }
                let rows = block.start * width..block.end * width;
                let (q, dout) = (&q[rows.clone()], &dout[rows.clone()]);
                for (left, right, product) in [(q, &*keys, &mut *weights), (dout, &*values, &mut *dscores)] {
                    multiply(
                        simd,
                        Left::rows(left, width),
                        right,
                        product,
                        (block.len(), head_size, KEYS),
                        #[inline(always)]
                        |row| view.seen(row).end,
                    );
                }
                for row in 0..block.len() {
                    let (seen, query) = (view.seen(row), block.start + row);
                    let columns = row * KEYS + seen.start..row * KEYS + seen.end;
                    let (weights, dscores) = (&mut weights[columns.clone()], &mut dscores[columns]);
                    let saved = (lse[query], delta[query]);
                    softmax_gradient(weights, dscores, saved, &scoring, (query, tile.start + seen.start));
                }
                for (left, right, sums) in [(&*weights, dout, &mut *dv), (&*dscores, q, &mut *dk)] {
                    multiply_add(
                        simd,
                        Left::columns(left, KEYS),
                        right,
                        &mut sums[there.clone()],
                        (tile.len(), width),
                        #[inline(always)]
                        |key| view.seeing(key),
                    );
                }
                multiply_add(
                    simd,
                    Left::rows(dscores, KEYS),
                    &k[there.clone()],
                    &mut dq[rows],
                    (block.len(), width),
                    #[inline(always)]
                    |row| view.seen(row),
                );
            }
        }
    }
}

/// Scores become the weights P = e^(score - lse), and dP becomes P (dP - delta).
#[inline(always)]
fn softmax_gradient(
    scores: &mut [f32],
    dweights: &mut [f32],
    (lse, delta): (f32, f32),
    scoring: &Scoring,
    (query, key): (usize, usize),
) {
    if lse == f32::NEG_INFINITY {
        scores.fill(0.0);
        dweights.fill(0.0);
        return;
    }
    if !scoring.is_plain() {
        return scoring.gradient(scores, dweights, (lse, delta), query, key);
    }
    for (score, dweight) in scores.iter_mut().zip(dweights) {
        *score = exp(*score - lse);
        *dweight = *score * (*dweight - delta);
    }
}
