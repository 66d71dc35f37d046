//! The fast forward path: one call of the GEMM crate a tile, tiles spread over threads, epilogues while the tile is in cache.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayViewMut1, ArrayViewMut2, Axis};
use warpweft_device::{CpuPool, DType, Float};

use super::activation::{gelu_erf, gelu_tanh, relu, swiglu};
use super::{Activation, Shape};
use crate::gemm::{Grid, Matrix, matrix_mut, multiply};
use crate::scratch;
use crate::simd::vectorised;

/// Rows or columns of a tile that is computed in scratch memory: 512 KiB, half of a common second-level cache.
const SCRATCH_BLOCK: usize = 256;

/// [`super::Epilogue`] as slices.
pub(super) struct Epilogue<'a, T> {
    pub(super) scale: f32,
    pub(super) bias: Option<&'a [T]>,
    pub(super) activation: Activation,
    pub(super) residual: Option<&'a [T]>,
}

/// A part of the result. Where the sums can be formed in place (in y or pre, when those are f32) `sums` is that place,
/// and what it stands for is `None`; otherwise they are formed in scratch memory and rounded from there.
struct Tile<'a, T> {
    rows: Range<usize>,
    columns: Range<usize>,
    sums: Vec<ArrayViewMut2<'a, f32>>,
    pre: Vec<ArrayViewMut2<'a, T>>,
    y: Option<ArrayViewMut2<'a, T>>,
}

impl<T> Tile<'_, T> {
    fn new((rows, columns): (Range<usize>, Range<usize>)) -> Self {
        Self { rows, columns, sums: Vec::new(), pre: Vec::new(), y: None }
    }
}

/// The halves (gate, up) of an activation's argument, or the whole where it is not halved.
fn halves<T>(data: &mut [T], m: usize, n: usize, activation: Activation) -> Vec<ArrayViewMut2<'_, T>> {
    let whole = matrix_mut(data, m, n);
    if activation != Activation::SwiGlu {
        return vec![whole];
    }
    let (gate, up) = whole.split_at(Axis(1), n / 2);
    vec![gate, up]
}

pub(super) fn forward<T: Float>(
    pool: &CpuPool,
    shape: Shape,
    x: &[T],
    w: &[T],
    epilogue: Epilogue<'_, T>,
    pre: Option<&mut [T]>,
    y: &mut [T],
) {
    let Shape { m, n, k } = shape;
    let activation = epilogue.activation;
    let outputs = activation.outputs(n);
    let in_place = T::DTYPE == DType::F32 && (activation == Activation::None || pre.is_some());
    let grid = Grid::new(m, outputs, pool.threads(), if in_place { usize::MAX } else { SCRATCH_BLOCK });

    let mut tiles: Vec<Tile<'_, T>> = grid.places(m, outputs).into_iter().map(Tile::new).collect();
    match pre {
        Some(pre) if in_place => {
            for half in halves(bytemuck::cast_slice_mut(pre), m, n, activation) {
                tiles.iter_mut().zip(grid.cut(half)).for_each(|(tile, piece)| tile.sums.push(piece));
            }
        }
        Some(pre) => {
            for half in halves(pre, m, n, activation) {
                tiles.iter_mut().zip(grid.cut(half)).for_each(|(tile, piece)| tile.pre.push(piece));
            }
        }
        None => {}
    }
    if in_place && activation == Activation::None {
        let pieces = grid.cut(matrix_mut(bytemuck::cast_slice_mut(y), m, n));
        tiles.iter_mut().zip(pieces).for_each(|(tile, piece)| tile.sums.push(piece));
    } else {
        let pieces = grid.cut(matrix_mut(y, m, outputs));
        tiles.iter_mut().zip(pieces).for_each(|(tile, piece)| tile.y = Some(piece));
    }

    let layer = Layer { x: Matrix::row_major(x, m, k), w: Matrix::row_major(w, n, k), outputs, epilogue };
    pool.for_each(tiles, |tile| layer.tile(tile));
}

/// The operands that all tiles share.
struct Layer<'a, T> {
    x: Matrix<'a, T>,
    w: Matrix<'a, T>,
    outputs: usize,
    epilogue: Epilogue<'a, T>,
}

impl<T: Float> Layer<'_, T> {
    fn tile(&self, mut tile: Tile<'_, T>) {
        let (height, width) = (tile.rows.len(), tile.columns.len());
        if !tile.sums.is_empty() {
            let mut sums = std::mem::take(&mut tile.sums);
            return self.fill(tile, &mut sums);
        }
        let parts = if self.epilogue.activation == Activation::SwiGlu { 2 } else { 1 };
        scratch::with(parts * height * width, |memory| {
            let mut sums: Vec<_> =
                memory.chunks_exact_mut(height * width).map(|part| matrix_mut(part, height, width)).collect();
            self.fill(tile, &mut sums);
        });
    }

    /// Forms the sums (one part, or gate and up), then what is made of them.
    fn fill(&self, tile: Tile<'_, T>, sums: &mut [ArrayViewMut2<'_, f32>]) {
        let Tile { rows, columns, mut pre, y, .. } = tile;
        vectorised(
            #[inline(always)]
            || self.start(&rows, &columns, sums),
        );
        let scale = self.epilogue.scale;
        self.x.rows(rows.clone()).with_f32(|x| {
            for (part, sums) in sums.iter_mut().enumerate() {
                let first = part * self.outputs + columns.start;
                self.w.rows(first..first + columns.len()).transposed().with_f32(|w| multiply(scale, x, w, 1.0, sums));
            }
        });
        vectorised(
            #[inline(always)]
            || {
                for (pre, sums) in pre.iter_mut().zip(&*sums) {
                    for (pre, sums) in pre.rows_mut().into_iter().zip(sums.rows()) {
                        each(line(sums), None, line_mut(pre), unchanged);
                    }
                }
                if let Some(y) = y {
                    self.finish(&rows, &columns, sums, y);
                }
            },
        );
    }

    /// What the product is added to: the bias, and the residual where no activation stands between.
    #[inline(always)]
    fn start(&self, rows: &Range<usize>, columns: &Range<usize>, sums: &mut [ArrayViewMut2<'_, f32>]) {
        for (part, sums) in sums.iter_mut().enumerate() {
            let bias = self.epilogue.bias.map(|bias| &bias[part * self.outputs..][columns.clone()]);
            for (row, sums) in rows.clone().zip(sums.rows_mut()) {
                let sums = line_mut(sums);
                match bias {
                    Some(bias) => {
                        for (sum, bias) in sums.iter_mut().zip(bias) {
                            *sum = bias.to_f32();
                        }
                    }
                    None => sums.fill(0.0),
                }
                if self.epilogue.activation == Activation::None {
                    self.add_residual(row, columns, sums);
                }
            }
        }
    }

    #[inline(always)]
    fn add_residual(&self, row: usize, columns: &Range<usize>, to: &mut [f32]) {
        if let Some(residual) = self.epilogue.residual {
            let residual = &residual[row * self.outputs..][columns.clone()];
            for (to, residual) in to.iter_mut().zip(residual) {
                *to += residual.to_f32();
            }
        }
    }

    /// y = activation(sums) + residual.
    #[inline(always)]
    fn finish(
        &self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        sums: &[ArrayViewMut2<'_, f32>],
        mut y: ArrayViewMut2<'_, T>,
    ) {
        for (index, (row, y)) in rows.clone().zip(y.rows_mut()).enumerate() {
            let y = line_mut(y);
            let sum = line(sums[0].row(index));
            let residual = self.epilogue.residual.map(|residual| &residual[row * self.outputs..][columns.clone()]);
            match self.epilogue.activation {
                // The residual is in the sum already.
                Activation::None => each(sum, None, y, unchanged),
                Activation::GeluTanh => each(sum, residual, y, gelu_tanh),
                Activation::GeluErf => each(sum, residual, y, gelu_erf),
                Activation::Relu => each(sum, residual, y, relu),
                Activation::SwiGlu => {
                    let up = line(sums[1].row(index));
                    match residual {
                        Some(residual) => {
                            for (((y, gate), up), residual) in y.iter_mut().zip(sum).zip(up).zip(residual) {
                                *y = T::from_f32(swiglu(*gate, *up) + residual.to_f32());
                            }
                        }
                        None => {
                            for ((y, gate), up) in y.iter_mut().zip(sum).zip(up) {
                                *y = T::from_f32(swiglu(*gate, *up));
                            }
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn unchanged(sum: f32) -> f32 {
    sum
}

/// A row of a tile, which is contiguous in every matrix that this module cuts.
#[inline(always)]
fn line(row: ArrayView1<'_, f32>) -> &[f32] {
    row.to_slice().expect("rows are contiguous")
}

#[inline(always)]
fn line_mut<T>(row: ArrayViewMut1<'_, T>) -> &mut [T] {
    row.into_slice().expect("rows are contiguous")
}

/// `to` = f(`from`) + `residual`.
#[inline(always)]
fn each<T: Float>(from: &[f32], residual: Option<&[T]>, to: &mut [T], f: impl Fn(f32) -> f32) {
    match residual {
        Some(residual) => {
            for ((to, from), residual) in to.iter_mut().zip(from).zip(residual) {
                *to = T::from_f32(f(*from) + residual.to_f32());
            }
        }
        None => {
            for (to, from) in to.iter_mut().zip(from) {
                *to = T::from_f32(f(*from));
            }
        }
    }
}
