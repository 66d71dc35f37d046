//! Products of f32 matrices, and matrices of any storage seen as f32 block by block.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, ShapeBuilder};
use warpweft_device::{DType, Float};

use crate::scratch;
use crate::simd::vectorised;

/// A matrix seen through strides (in elements).
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a, T: Float> Matrix<'a, T> {
    /// `data` as `rows` contiguous rows.
    pub(crate) fn row_major(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    pub(crate) fn rows(self, range: Range<usize>) -> Self {
        let data = self.data.get(range.start * self.row_stride..).unwrap_or_default();
        Self { data, rows: range.len(), ..self }
    }

    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// Calls `work` with the matrix in f32: itself where it is stored so, else a copy in the thread's scratch.
    pub(crate) fn with_f32<R>(self, work: impl FnOnce(ArrayView2<'_, f32>) -> R) -> R {
        if T::DTYPE == DType::F32 {
            return work(view(
                bytemuck::cast_slice(self.data),
                self.rows,
                self.columns,
                self.row_stride,
                self.column_stride,
            ));
        }
        // Copied in the order of memory, so that the inner loop reads neighbours.
        let flipped = self.row_stride < self.column_stride;
        let Matrix { data, rows, columns, row_stride, .. } = if flipped { self.transposed() } else { self };
        scratch::with(rows * columns, |copy| {
            vectorised(
                #[inline(always)]
                || {
                    for (row, copy) in copy.chunks_exact_mut(columns.max(1)).enumerate() {
                        let from = &data[row * row_stride..][..columns];
                        for (to, from) in copy.iter_mut().zip(from) {
                            *to = from.to_f32();
                        }
                    }
                },
            );
            let copy = view(copy, rows, columns, columns, 1);
            work(if flipped { copy.reversed_axes() } else { copy })
        })
    }
}

fn view(data: &[f32], rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> ArrayView2<'_, f32> {
    // No element, whatever the strides would reach for.
    if rows * columns == 0 {
        return ArrayView2::from_shape((rows, columns), &[]).expect("nothing has no bounds");
    }
    ArrayView2::from_shape((rows, columns).strides((row_stride, column_stride)), data)
        .expect("a block lies inside its matrix")
}

/// `data` as contiguous rows.
pub(crate) fn matrix_mut<T>(data: &mut [T], rows: usize, columns: usize) -> ArrayViewMut2<'_, T> {
    ArrayViewMut2::from_shape((rows, columns), data).expect("the length was checked against the shape")
}

/// `c = scale a b + beta c`. An element's sum runs over k in blocks of a constant size, so its bits depend on nothing but its
/// row of `a`, its column of `b` and itself.
pub(crate) fn multiply(
    scale: f32,
    a: ArrayView2<'_, f32>,
    b: ArrayView2<'_, f32>,
    beta: f32,
    c: &mut ArrayViewMut2<'_, f32>,
) {
    general_mat_mul(scale, &a, &b, beta, c);
}

/// How a result is cut into tiles, one call of [`multiply`] each.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    row_block: usize,
    column_block: usize,
}

/// The kernel's own tile: blocks are multiples of it.
const REGISTER_BLOCK: usize = 16;

impl Grid {
    /// One tile a thread (or more, none larger than `largest` rows or columns), cut so that the least is packed twice.
    pub(crate) fn new(rows: usize, columns: usize, threads: usize, largest: usize) -> Self {
        // With p parts of rows and q of columns, a's rows are packed q times and b's columns p times.
        let divisors = (1..=threads).filter(|&p| threads.is_multiple_of(p));
        let packed = |p: usize| (threads / p).saturating_mul(rows).saturating_add(p.saturating_mul(columns));
        let p = divisors.min_by_key(|&p| packed(p)).unwrap_or(1);
        let block = |size: usize, parts: usize| size.div_ceil(parts).next_multiple_of(REGISTER_BLOCK).min(largest);
        Self { row_block: block(rows, p), column_block: block(columns, threads / p) }
    }

    /// The tiles' rows and columns in a matrix of this size, in the order of [`cut`](Self::cut).
    pub(crate) fn places(self, rows: usize, columns: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let blocks = |size: usize, block: usize| {
            (0..size.div_ceil(block.max(1))).map(move |i| i * block..(i * block).saturating_add(block).min(size))
        };
        // Rows of nothing are no tiles, however many there are.
        let rows = if columns == 0 { 0 } else { rows };
        blocks(rows, self.row_block)
            .flat_map(|rows| blocks(columns, self.column_block).map(move |columns| (rows.clone(), columns)))
            .collect()
    }

    /// The tiles of a matrix.
    pub(crate) fn cut<T>(self, matrix: ArrayViewMut2<'_, T>) -> Vec<ArrayViewMut2<'_, T>> {
        let mut tiles = Vec::new();
        let mut rest = matrix;
        while !rest.is_empty() {
            let height = self.row_block.min(rest.nrows());
            let (mut band, below) = rest.split_at(Axis(0), height);
            while band.ncols() > 0 {
                let width = self.column_block.min(band.ncols());
                let (tile, right) = band.split_at(Axis(1), width);
                tiles.push(tile);
                band = right;
            }
            rest = below;
        }
        tiles
    }
}
