//! The fast backward paths: the same tiles as forward, and the activations' gradients row by row.

use ndarray::ArrayViewMut2;
use warpweft_device::{CpuPool, DType, Float};

use super::activation::{gelu_erf_derivative, gelu_tanh_derivative, relu_derivative, swiglu_gradients};
use super::{Activation, LEAST_ELEMENTS, Shape};
use crate::gemm::{Grid, Matrix, matrix_mut, multiply};
use crate::simd::vectorised;
use crate::{Write, rows};

/// Rows or columns of a tile that is computed in scratch memory.
pub(super) const SCRATCH_BLOCK: usize = 256;

/// Rows whose sum is taken first, so that a long sum's rounding errors do not grow with its length alone.
const SUM_BLOCK: usize = 64;

/// Columns of a bias gradient that one thread sums at a time.
const BIAS_COLUMNS: usize = 256;

pub(super) fn backward_weight<T: Float>(pool: &CpuPool, shape: Shape, x: &[T], dy: &[T], dw: &mut [f32]) {
    let Shape { m, n, k } = shape;
    let (x, dy) = (Matrix::row_major(x, m, k), Matrix::row_major(dy, m, n));
    product(pool, 1.0, dy.transposed(), x, Write::Add, matrix_mut(dw, n, k));
}

/// c (+)= scale a b, in place.
pub(super) fn product<T: Float>(
    pool: &CpuPool,
    scale: f32,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    write: Write,
    c: ArrayViewMut2<'_, f32>,
) {
    let largest = if T::DTYPE == DType::F32 { usize::MAX } else { SCRATCH_BLOCK };
    let grid = Grid::new(a.rows, b.columns, pool.threads(), largest);
    let places = grid.places(a.rows, b.columns);
    let beta = if write == Write::Add { 1.0 } else { 0.0 };
    pool.for_each(places.into_iter().zip(grid.cut(c)).collect(), |((rows, columns), mut c)| {
        a.rows(rows).with_f32(|a| b.columns(columns).with_f32(|b| multiply(scale, a, b, beta, &mut c)));
    });
}

pub(super) fn backward_bias<T: Float>(pool: &CpuPool, shape: Shape, dy: &[T], db: &mut [f32]) {
    let Shape { m, n, .. } = shape;
    if m == 0 || n == 0 {
        return;
    }
    let blocks = db.chunks_mut(BIAS_COLUMNS).enumerate().collect();
    pool.for_each(blocks, |(block, db)| {
        vectorised(
            #[inline(always)]
            || {
                let mut total = [0.0f32; BIAS_COLUMNS];
                for rows in dy.chunks(SUM_BLOCK * n) {
                    let mut sums = [0.0f32; BIAS_COLUMNS];
                    for row in rows.chunks_exact(n) {
                        let row = &row[block * BIAS_COLUMNS..][..db.len()];
                        for (sum, dy) in sums.iter_mut().zip(row) {
                            *sum += dy.to_f32();
                        }
                    }
                    for (total, sum) in total.iter_mut().zip(&sums) {
                        *total += sum;
                    }
                }
                for (db, total) in db.iter_mut().zip(&total) {
                    *db += total;
                }
            },
        );
    });
}

pub(super) fn backward_activation<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    activation: Activation,
    pre: &[T],
    dy: &[T],
    dpre: &mut [T],
) {
    let Shape { m, n, .. } = shape;
    if m == 0 || n == 0 {
        return;
    }
    let outputs = activation.outputs(n);
    let block = rows::block(m, pool, 2, LEAST_ELEMENTS.div_ceil(n));
    let blocks = pre.chunks(block * n).zip(dy.chunks(block * outputs)).zip(dpre.chunks_mut(block * n)).collect();
    pool.for_each(blocks, |((pre, dy), dpre)| {
        vectorised(
            #[inline(always)]
            || match activation {
                Activation::None => dpre.copy_from_slice(dy),
                Activation::GeluTanh => chain(pre, dy, dpre, gelu_tanh_derivative),
                Activation::GeluErf => chain(pre, dy, dpre, gelu_erf_derivative),
                Activation::Relu => chain(pre, dy, dpre, relu_derivative),
                Activation::SwiGlu => {
                    let rows = pre.chunks_exact(n).zip(dy.chunks_exact(outputs)).zip(dpre.chunks_exact_mut(n));
                    for ((pre, dy), dpre) in rows {
                        let ((gate, up), (dgate, dup)) = (pre.split_at(outputs), dpre.split_at_mut(outputs));
                        for ((((gate, up), dy), dgate), dup) in gate.iter().zip(up).zip(dy).zip(dgate).zip(dup) {
                            let gradients = swiglu_gradients(gate.to_f32(), up.to_f32(), dy.to_f32());
                            (*dgate, *dup) = (T::from_f32(gradients.0), T::from_f32(gradients.1));
                        }
                    }
                }
            },
        );
    });
}

/// dpre = dy derivative(pre).
#[inline(always)]
fn chain<T: Float>(pre: &[T], dy: &[T], dpre: &mut [T], derivative: impl Fn(f32) -> f32) {
    for ((dpre, pre), dy) in dpre.iter_mut().zip(pre).zip(dy) {
        *dpre = T::from_f32(dy.to_f32() * derivative(pre.to_f32()));
    }
}
