//! Products of small tiles that are already in the first-level cache, blocked for registers: no packing, and rows whose
//! sums run over a range of their own, so that what a mask hides is never touched (and a NaN there does no harm).
//!
//! A tile is a slice of f32 with rows of a whole number of vectors: [`padded`] gives the width. The padding of the right
//! operand is zero, or its columns are ignored.

use std::ops::Range;

use pulp::Simd;

/// The widest vector of any instruction set, in f32.
const WIDEST: usize = 16;

/// `width` rounded up to a whole number of the widest vectors.
pub(crate) const fn padded(width: usize) -> usize {
    width.next_multiple_of(WIDEST)
}

/// The left operand: element (r, k) is `data[r * row_stride + k * depth_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) depth_stride: usize,
}

impl<'a> Left<'a> {
    /// Rows of `width`.
    pub(crate) fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, row_stride: width, depth_stride: 1 }
    }

    /// The columns of rows of `width`, as rows.
    pub(crate) fn columns(data: &'a [f32], width: usize) -> Self {
        Self { data, row_stride: 1, depth_stride: width }
    }

    #[inline(always)]
    fn at(&self, row: usize, depth: usize) -> f32 {
        self.data[row * self.row_stride + depth * self.depth_stride]
    }
}

/// Whether a product replaces what is there or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Zero,
    There,
}

/// c = a b for `rows` rows: only the first `columns(r)` columns of row r need be right; what is beyond is unspecified.
/// b is `depth` rows of `width`, c `rows` rows of `width`. `columns` must not fall from row to row.
#[inline(always)]
pub(crate) fn multiply<S: Simd>(
    simd: S,
    a: Left<'_>,
    b: &[f32],
    c: &mut [f32],
    (rows, depth, width): (usize, usize, usize),
    columns: impl Fn(usize) -> usize,
) {
    let mut row = 0;
    while row < rows {
        let height = group(simd, rows - row);
        let last = columns(row + height - 1).div_ceil(S::F32_LANES);
        sweep(simd, a, b, c, width, row..row + height, 0..depth, last, Start::Zero);
        row += height;
    }
}

/// c += a b for `rows` rows of all `width` columns, row r summed over the depths `range(r)` only. Ranges must overlap
/// from row to row where speed matters; they may be empty.
#[inline(always)]
pub(crate) fn multiply_add<S: Simd>(
    simd: S,
    a: Left<'_>,
    b: &[f32],
    c: &mut [f32],
    (rows, width): (usize, usize),
    range: impl Fn(usize) -> Range<usize>,
) {
    let vectors = width / S::F32_LANES;
    let mut row = 0;
    while row < rows {
        let group = row..row + group(simd, rows - row);
        // What all rows of the group share goes through registers together; the ends of each row follow alone.
        let (first, last) = (range(group.start), range(group.end - 1));
        let common = first.start.max(last.start)..first.end.min(last.end);
        if common.is_empty() {
            for row in group.clone() {
                sweep(simd, a, b, c, width, row..row + 1, range(row), vectors, Start::There);
            }
        } else {
            sweep(simd, a, b, c, width, group.clone(), common.clone(), vectors, Start::There);
            for row in group.clone() {
                let Range { start, end } = range(row);
                for rest in [start..common.start, common.end..end] {
                    if !rest.is_empty() {
                        sweep(simd, a, b, c, width, row..row + 1, rest, vectors, Start::There);
                    }
                }
            }
        }
        row = group.end;
    }
}

/// Rows that share a pass over the right operand: as many as registers allow, else one.
#[inline(always)]
fn group<S: Simd>(_: S, rows: usize) -> usize {
    let most = if S::REGISTER_COUNT >= 32 { 8 } else { 4 };
    if rows >= most { most } else { 1 }
}

/// One group of rows over `vectors` vectors of columns.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // all are needed, and all are inlined away
fn sweep<S: Simd>(
    simd: S,
    a: Left<'_>,
    b: &[f32],
    c: &mut [f32],
    width: usize,
    rows: Range<usize>,
    depth: Range<usize>,
    vectors: usize,
    start: Start,
) {
    let lanes = S::F32_LANES;
    let mut vector = 0;
    while vector < vectors {
        let column = vector * lanes;
        let two = vectors - vector >= 2;
        match (rows.len(), two) {
            (8, true) => block::<S, 8, 2>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
            (8, false) => block::<S, 8, 1>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
            (4, true) => block::<S, 4, 2>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
            (4, false) => block::<S, 4, 1>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
            (_, true) => block::<S, 1, 2>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
            (_, false) => block::<S, 1, 1>(simd, a, b, c, width, rows.start, column, depth.clone(), start),
        }
        vector += if two { 2 } else { 1 };
    }
}

/// R rows times C vectors of columns in registers.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // all are needed, and all are inlined away
fn block<S: Simd, const R: usize, const C: usize>(
    simd: S,
    a: Left<'_>,
    b: &[f32],
    c: &mut [f32],
    width: usize,
    row: usize,
    column: usize,
    depth: Range<usize>,
    start: Start,
) {
    let lanes = S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    if start == Start::There {
        for (r, sums) in sums.iter_mut().enumerate() {
            let (there, _) = S::as_simd_f32s(&c[(row + r) * width + column..][..C * lanes]);
            sums.copy_from_slice(&there[..C]);
        }
    }
    for k in depth {
        let (right, _) = S::as_simd_f32s(&b[k * width + column..][..C * lanes]);
        let right: [S::f32s; C] = std::array::from_fn(|i| right[i]);
        for (r, sums) in sums.iter_mut().enumerate() {
            let left = simd.splat_f32s(a.at(row + r, k));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = simd.mul_add_f32s(left, right, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let (to, _) = S::as_mut_simd_f32s(&mut c[(row + r) * width + column..][..C * lanes]);
        to.copy_from_slice(sums);
    }
}
