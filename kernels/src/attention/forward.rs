//! The fast forward path: a span of queries of one head, past which tiles of keys go.

use ndarray::{ArrayView2, ArrayView4, ArrayViewMut2, ArrayViewMut4, Axis};
use pulp::{Arch, Simd, WithSimd};
use warpweft_device::{CpuPool, Float};

use super::cpu::{KEYS, QUERIES, blocks, each, load, load_transposed, part, store};
use super::{Options, Shape};
use crate::elementary::{exp, largest};
use crate::scratch;
use crate::tile::{Left, multiply, multiply_add, padded};

/// Queries that one thread takes at a time; a tile of keys is loaded once for all of them.
const SPAN: usize = 256;

pub(super) fn run<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    options: Options,
    [q, k, v]: [ArrayView4<'_, T>; 3],
    out: ArrayViewMut4<'_, T>,
    lse: &mut [f32],
) {
    if lse.is_empty() {
        return;
    }
    let mut lse = lse.chunks_mut(shape.queries);
    let mut spans = Vec::new();
    for (sequence, out) in each(out, Axis(0)).into_iter().enumerate() {
        let [q, k, v] = [q, k, v].map(|view| view.index_axis_move(Axis(0), sequence));
        for (head, out) in each(out, Axis(1)).into_iter().enumerate() {
            let q = q.index_axis_move(Axis(1), head);
            let [k, v] = [k, v].map(|view| view.index_axis_move(Axis(1), head / shape.group()));
            let mut rest = out;
            for (index, lse) in lse.next().unwrap_or_default().chunks_mut(SPAN).enumerate() {
                let (out, below) = rest.split_at(Axis(0), lse.len());
                rest = below;
                let first = index * SPAN;
                let q = part(q, Axis(0), first..first + lse.len());
                spans.push(Span { shape, options, first, q, k, v, out, lse });
            }
        }
    }
    pool.for_each(spans, |span| Arch::new().dispatch(span));
}

/// A span of queries of one head of one sequence.
struct Span<'a, T> {
    shape: Shape,
    options: Options,
    /// The first query.
    first: usize,
    q: ArrayView2<'a, T>,
    k: ArrayView2<'a, T>,
    v: ArrayView2<'a, T>,
    out: ArrayViewMut2<'a, T>,
    lse: &'a mut [f32],
}

/// The running softmax of a span: `out` is the sum of e^(score - largest) v, `sum` that of e^(score - largest).
struct Running<'a> {
    out: &'a mut [f32],
    largest: &'a mut [f32],
    sum: &'a mut [f32],
}

impl<T: Float> WithSimd for Span<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (rows, width) = (self.lse.len(), padded(self.shape.head_size));
        let sizes = [rows * width, rows * width, rows, rows, self.shape.head_size * KEYS, KEYS * width, QUERIES * KEYS];
        scratch::with_parts(sizes, |[q, out, largest, sum, keys, values, scores]| {
            out.fill(0.0);
            largest.fill(f32::NEG_INFINITY);
            sum.fill(0.0);
            load(self.q, 0..rows, self.options.scale(self.shape.head_size), q);
            let mut running = Running { out, largest, sum };
            let seen = self.shape.visible(self.options, self.first + rows - 1);
            for tile in blocks(seen, KEYS) {
                load_transposed(self.k, tile.clone(), keys);
                load(self.v, tile.clone(), 1.0, values);
                for block in blocks(rows, QUERIES) {
                    // How many of the tile's keys a row of the block sees.
                    let seen = |row: usize| {
                        let visible = self.shape.visible(self.options, self.first + block.start + row);
                        visible.saturating_sub(tile.start).min(tile.len())
                    };
                    if seen(block.len() - 1) == 0 {
                        continue;
                    }
                    let q = Left::rows(&q[block.start * width..], width);
                    multiply(simd, q, keys, scores, (block.len(), self.shape.head_size, KEYS), seen);
                    for row in 0..block.len() {
                        let scores = &mut scores[row * KEYS..][..KEYS];
                        running.absorb(block.start + row, width, scores, seen(row));
                    }
                    let out = &mut running.out[block.start * width..];
                    let weights = Left::rows(scores, KEYS);
                    multiply_add(simd, weights, values, out, (block.len(), width), |row| 0..seen(row));
                }
            }
            running.finish(width);
            self.lse.copy_from_slice(running.largest);
            store(running.out, 1.0, self.out);
        });
    }
}

impl Running<'_> {
    /// Turns the first `seen` scores of a row into weights relative to the row's new largest score, and what the row has
    /// summed so far likewise.
    #[inline(always)]
    fn absorb(&mut self, row: usize, width: usize, scores: &mut [f32], seen: usize) {
        if seen == 0 {
            return;
        }
        let before = self.largest[row];
        let highest = largest(&scores[..seen], before);
        // Scores that are all -inf weigh nothing; -inf less -inf would be NaN.
        let reference = if highest == f32::NEG_INFINITY { 0.0 } else { highest };
        let sum = exponentials(&mut scores[..padded(seen)], seen, reference);
        let shrink = exp(before - reference);
        self.largest[row] = highest;
        self.sum[row] = self.sum[row].mul_add(shrink, sum);
        self.out[row * width..][..width].iter_mut().for_each(|out| *out *= shrink);
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
            out.iter_mut().for_each(|out| *out *= inverse);
            *largest += sum.ln();
        }
    }
}

/// Replaces the first `seen` scores by e^(score - reference), the rest by zero, and returns their sum.
#[inline(always)]
fn exponentials(scores: &mut [f32], seen: usize, reference: f32) -> f32 {
    const LANES: usize = 16;
    scores[seen..].fill(f32::NEG_INFINITY);
    let mut partial = [0.0f32; LANES];
    for scores in scores.chunks_exact_mut(LANES) {
        for (score, partial) in scores.iter_mut().zip(&mut partial) {
            *score = exp(*score - reference);
            *partial += *score;
        }
    }
    partial.iter().sum()
}
