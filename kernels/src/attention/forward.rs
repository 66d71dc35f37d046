//! The fast forward path: a span of queries of one head, past which tiles of keys go.

use std::ops::Range;

use ndarray::{ArrayView2, ArrayView4, ArrayViewMut2, ArrayViewMut4, Axis};
use pulp::{Arch, Simd, WithSimd};
use warpweft_device::{CpuPool, Float};

use super::cpu::{How, KEYS, QUERIES, View, blocks, each, load, part, store, transpose};
use super::scoring::Scoring;
use crate::Write;
use crate::elementary::exp;
use crate::scratch;
use crate::simd::{LANES, add, fold, larger, vectorised};
use crate::tile::{Left, multiply, multiply_add, padded};

/// Queries that one thread takes at a time; a tile of keys is loaded once for all of them.
const SPAN: usize = 256;

/// With [`Write::Add`] the keys join those that out and lse already stand for.
pub(super) fn run<T: Float, O: Float>(
    pool: &CpuPool,
    how: How<'_>,
    [q, k, v]: [ArrayView4<'_, T>; 3],
    write: Write,
    out: ArrayViewMut4<'_, O>,
    lse: &mut [f32],
) {
    if lse.is_empty() {
        return;
    }
    let shape = how.shape;
    let mut lse = lse.chunks_mut(shape.queries);
    let mut spans = Vec::new();
    for (sequence, out) in each(out, Axis(0)).into_iter().enumerate() {
        let [q, k, v] = [q, k, v].map(|view| view.index_axis_move(Axis(0), sequence));
        for (head, out) in each(out, Axis(1)).into_iter().enumerate() {
            let (scoring, q) = (Scoring::of(&how, sequence, head), q.index_axis_move(Axis(1), head));
            let [k, v] = [k, v].map(|view| view.index_axis_move(Axis(1), head / shape.group()));
            let mut rest = out;
            for (index, lse) in lse.next().unwrap_or_default().chunks_mut(SPAN).enumerate() {
                let (out, below) = rest.split_at(Axis(0), lse.len());
                rest = below;
                let first = index * SPAN;
                let q = part(q, Axis(0), first..first + lse.len());
                spans.push(Span { how, scoring, first, q, k, v, write, out, lse });
            }
        }
    }
    pool.for_each(spans, Span::compute);
}

/// A span of queries of one head of one sequence.
struct Span<'a, T, O> {
    how: How<'a>,
    scoring: Scoring,
    /// The first query.
    first: usize,
    q: ArrayView2<'a, T>,
    k: ArrayView2<'a, T>,
    v: ArrayView2<'a, T>,
    write: Write,
    out: ArrayViewMut2<'a, O>,
    lse: &'a mut [f32],
}

impl<T: Float, O: Float> Span<'_, T, O> {
    fn compute(self) {
        let Self { how, scoring, first, write, lse, .. } = self;
        let How { shape, mask, scale, .. } = how;
        let (rows, width) = (lse.len(), padded(shape.head_size));
        // All keys that the span sees.
        let keys = mask.visible(first).start..mask.visible(first + rows - 1).end;
        let seen = keys.len();
        if write == Write::Add && seen == 0 {
            return;
        }
        let tile = [shape.head_size * KEYS, QUERIES * KEYS];
        let sizes = [rows * width, seen * width, seen * width, rows * width, rows, rows, tile[0], tile[1]];
        scratch::with_parts(sizes, |[q, k, v, out, largest, sum, columns, scores]| {
            vectorised(
                #[inline(always)]
                || {
                    load(self.q, scale, q);
                    load(part(self.k, Axis(0), keys.clone()), 1.0, k);
                    load(part(self.v, Axis(0), keys.clone()), 1.0, v);
                    if write == Write::Add {
                        load(self.out.view(), 1.0, out);
                    }
                },
            );
            let mut running = Running { out, largest, sum };
            match write {
                Write::Set => running.begin(),
                Write::Add => running.go_on(lse, width),
            }
            let before = keys.start;
            pass(Pass { how, scoring, first, rows, before, q, k, v, running, keys: columns, scores });
            lse.copy_from_slice(largest);
            vectorised(
                #[inline(always)]
                || store(out, 1.0, Write::Set, self.out),
            );
        });
    }
}

/// The running softmax of a span: `out` is the sum of e^(score - largest) v, `sum` that of e^(score - largest).
struct Running<'a> {
    out: &'a mut [f32],
    largest: &'a mut [f32],
    sum: &'a mut [f32],
}

/// A span in f32, padded, with its scaled queries and the keys and values that it sees, and memory for one tile.
struct Pass<'a> {
    how: How<'a>,
    scoring: Scoring,
    first: usize,
    rows: usize,
    /// Keys before those in `k` and `v`.
    before: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    running: Running<'a>,
    keys: &'a mut [f32],
    scores: &'a mut [f32],
}

/// Compiled here once for each instruction set, and not wherever the op is used with a new type.
fn pass(pass: Pass<'_>) {
    Arch::new().dispatch(pass);
}

impl WithSimd for Pass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { how, scoring, first, rows, before, q, k, v, mut running, keys, scores } = self;
        let How { shape, mask, .. } = how;
        let width = padded(shape.head_size);
        for tile in blocks(k.len() / width, KEYS) {
            let there = tile.start * width..tile.end * width;
            transpose(&k[there.clone()], width, shape.head_size, keys);
            for block in blocks(rows, QUERIES) {
                let queries = first + block.start..first + block.end;
                let view = View { mask, queries, keys: before + tile.start..before + tile.end };
                if view.is_hidden() {
                    continue;
                }
                let q = Left::rows(&q[block.start * width..], width);
                multiply(
                    simd,
                    q,
                    keys,
                    scores,
                    (block.len(), shape.head_size, KEYS),
                    #[inline(always)]
                    |row| view.seen(row).end,
                );
                running.absorb(block.clone(), width, scores, &view, &scoring);
                multiply_add(
                    simd,
                    Left::rows(scores, KEYS),
                    &v[there.clone()],
                    &mut running.out[block.start * width..],
                    (block.len(), width),
                    #[inline(always)]
                    |row| view.seen(row),
                );
            }
        }
        running.finish(width);
    }
}

impl Running<'_> {
    fn begin(&mut self) {
        self.out.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
    }

    /// From a finished softmax over other keys: its rows, already in `out`, are those of a sum of 1 relative to the LSE.
    fn go_on(&mut self, lse: &[f32], width: usize) {
        self.largest.copy_from_slice(lse);
        for ((out, sum), lse) in self.out.chunks_exact_mut(width).zip(&mut *self.sum).zip(lse) {
            *sum = 1.0;
            if *lse == f32::NEG_INFINITY {
                out.fill(0.0);
                *sum = 0.0;
            }
        }
    }

    /// Turns the scores of the block `rows` into weights relative to each row's new largest score, and what the rows have
    /// summed so far likewise. Each step is a loop over all rows, so that short rows keep the vector units busy too.
    #[inline(always)]
    fn absorb(&mut self, rows: Range<usize>, width: usize, scores: &mut [f32], view: &View<'_>, scoring: &Scoring) {
        let (largest, sum) = (&mut self.largest[rows.clone()], &mut self.sum[rows.clone()]);
        let (mut highest, mut shrink, mut sums) = ([0.0f32; QUERIES], [0.0f32; QUERIES], [0.0f32; QUERIES]);
        for (row, scores) in scores.chunks_exact_mut(KEYS).take(rows.len()).enumerate() {
            let seen = view.seen(row);
            scoring.scores(&mut scores[seen.clone()], view.queries.start + row, view.keys.start + seen.start);
            highest[row] = largest_of(&scores[seen], largest[row]);
        }
        for (shrink, (highest, before)) in shrink.iter_mut().zip(highest.iter().zip(&*largest)) {
            *shrink = exp(*before - finite_reference(*highest));
        }
        for (row, scores) in scores.chunks_exact_mut(KEYS).take(rows.len()).enumerate() {
            let seen = view.seen(row);
            sums[row] = exponentials(scores, seen.clone(), finite_reference(highest[row]));
            scoring.drop(&mut scores[seen.clone()], view.queries.start + row, view.keys.start + seen.start);
        }
        for (row, (largest, sum)) in largest.iter_mut().zip(sum).enumerate() {
            *largest = highest[row];
            *sum = sum.mul_add(shrink[row], sums[row]);
        }
        for (out, shrink) in self.out[rows.start * width..rows.end * width].chunks_exact_mut(width).zip(&shrink) {
            for out in out {
                *out *= shrink;
            }
        }
    }

    /// Divides by the sums; `largest` becomes the LSE.
    #[inline(always)]
    fn finish(&mut self, width: usize) {
        let rows = self.out.chunks_exact_mut(width).zip(&mut *self.largest).zip(&*self.sum);
        for ((out, largest), &sum) in rows {
            if sum == 0.0 {
                *largest = f32::NEG_INFINITY;
                continue;
            }
            let inverse = 1.0 / sum;
            for out in out {
                *out *= inverse;
            }
            *largest += sum.ln();
        }
    }
}

/// Scores that are all -inf weigh nothing; -inf less -inf would be NaN.
#[inline(always)]
fn finite_reference(highest: f32) -> f32 {
    if highest == f32::NEG_INFINITY { 0.0 } else { highest }
}

/// Replaces the `seen` scores by e^(score - reference) and returns their sum. Scores beyond, to the ends of whole vectors,
/// become 0.
#[inline(always)]
fn exponentials(scores: &mut [f32], seen: Range<usize>, reference: f32) -> f32 {
    let begin = seen.start / LANES * LANES;
    let scores = &mut scores[begin..padded(seen.end).max(begin)];
    let (before, after) = (seen.start - begin, (seen.end - begin).min(scores.len()));
    scores[..before.min(after)].fill(f32::NEG_INFINITY);
    scores[after..].fill(f32::NEG_INFINITY);
    let mut partial = [0.0f32; LANES];
    for scores in scores.chunks_exact_mut(LANES) {
        for (score, partial) in scores.iter_mut().zip(&mut partial) {
            *score = exp(*score - reference);
            *partial += *score;
        }
    }
    fold(partial, add)
}

/// The largest of `values` and `floor`; NaNs are passed over.
#[inline(always)]
fn largest_of(values: &[f32], floor: f32) -> f32 {
    let mut lanes = [floor; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = larger(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, *value);
    }
    fold(lanes, larger)
}
