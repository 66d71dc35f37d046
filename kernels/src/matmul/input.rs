//! The fast path of the input's gradient, and of what it is multiplied with where the input came out of an activation.

use std::ops::Range;

use ndarray::{ArrayViewMut2, Axis};
use warpweft_device::{CpuPool, DType, Float};

use super::activation::{gelu_erf_derivative, gelu_tanh_derivative, relu_derivative, swiglu_gradients};
use super::gradients::{SCRATCH_BLOCK, product};
use super::{Activation, Shape};
use crate::gemm::{Grid, Matrix, matrix_mut, multiply};
use crate::simd::vectorised;
use crate::{Write, scratch};

/// [`super::Through`] as slices.
pub(super) struct Through<'a, T> {
    pub(super) scale: f32,
    pub(super) activation: Activation,
    pub(super) pre: Option<&'a [T]>,
}

pub(super) fn backward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    dy: &[T],
    w: &[T],
    through: Through<'_, T>,
    write: Write,
    dx: &mut [T],
) {
    let Shape { m, n, k } = shape;
    let (dy, w) = (Matrix::row_major(dy, m, n), Matrix::row_major(w, n, k));
    if T::DTYPE == DType::F32 && through.pre.is_none() {
        return product(pool, through.scale, dy, w, write, matrix_mut(bytemuck::cast_slice_mut(dx), m, k));
    }
    let grid = Grid::new(m, k, pool.threads(), SCRATCH_BLOCK);
    // The parts of a tile: one, or the gradients of gate and up.
    let mut parts: Vec<Vec<ArrayViewMut2<'_, T>>> = grid.places(m, k).iter().map(|_| Vec::new()).collect();
    let halves = if through.halved() {
        let (gate, up) = matrix_mut(dx, m, 2 * k).split_at(Axis(1), k);
        vec![gate, up]
    } else {
        vec![matrix_mut(dx, m, k)]
    };
    for half in halves {
        parts.iter_mut().zip(grid.cut(half)).for_each(|(parts, piece)| parts.push(piece));
    }
    pool.for_each(grid.places(m, k).into_iter().zip(parts).collect(), |((rows, columns), mut parts)| {
        let (height, width) = (rows.len(), columns.len());
        scratch::with(height * width, |sums| {
            let mut result = matrix_mut(sums, height, width);
            let (dy, w) = (dy.rows(rows.clone()), w.columns(columns.clone()));
            dy.with_f32(|dy| w.with_f32(|w| multiply(through.scale, dy, w, 0.0, &mut result)));
            vectorised(
                #[inline(always)]
                || {
                    for (index, sums) in sums.chunks_exact(width).enumerate() {
                        let mut lines =
                            parts.iter_mut().map(|part| part.row_mut(index).into_slice().expect("rows are contiguous"));
                        let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
                        let row = (rows.start + index) * if through.halved() { 2 * k } else { k };
                        through.finish(row + columns.start..row + columns.end, k, sums, write, first, second);
                    }
                },
            );
        });
    });
}

impl<T: Float> Through<'_, T> {
    fn halved(&self) -> bool {
        self.pre.is_some() && self.activation == Activation::SwiGlu
    }

    /// `to` (+)= `sums` activation'(pre), or `to` and `up`; the arguments lie `at` that range of pre, up's `k` behind.
    #[inline(always)]
    fn finish(&self, at: Range<usize>, k: usize, sums: &[f32], write: Write, to: &mut [T], up: &mut [T]) {
        let Some(pre) = self.pre else {
            return to.iter_mut().zip(sums).for_each(|(to, sum)| put(to, *sum, write));
        };
        let of_first = &pre[at.clone()];
        match self.activation {
            Activation::None => to.iter_mut().zip(sums).for_each(|(to, sum)| put(to, *sum, write)),
            Activation::GeluTanh => chain(of_first, sums, write, to, gelu_tanh_derivative),
            Activation::GeluErf => chain(of_first, sums, write, to, gelu_erf_derivative),
            Activation::Relu => chain(of_first, sums, write, to, relu_derivative),
            Activation::SwiGlu => {
                let of_up = &pre[at.start + k..at.end + k];
                for ((((to, up), sum), gate), of_up) in to.iter_mut().zip(up).zip(sums).zip(of_first).zip(of_up) {
                    let gradients = swiglu_gradients(gate.to_f32(), of_up.to_f32(), *sum);
                    put(to, gradients.0, write);
                    put(up, gradients.1, write);
                }
            }
        }
    }
}

#[inline(always)]
fn put<T: Float>(to: &mut T, value: f32, write: Write) {
    *to = match write {
        Write::Set => T::from_f32(value),
        Write::Add => T::from_f32(to.to_f32() + value),
    };
}

/// to (+)= sum derivative(pre).
#[inline(always)]
fn chain<T: Float>(pre: &[T], sums: &[f32], write: Write, to: &mut [T], derivative: impl Fn(f32) -> f32) {
    for ((to, pre), sum) in to.iter_mut().zip(pre).zip(sums) {
        put(to, sum * derivative(pre.to_f32()), write);
    }
}
