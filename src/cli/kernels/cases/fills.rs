//! Cases of transposes, random numbers, and dropout at the end of a residual branch.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::philox::{self, Philox4x32};
use warpweft::kernels::residual::{self, Dropout};
use warpweft::kernels::{KernelError, transpose};

use super::super::case::{Arrays, Case, Function, Size, normal};

const COLUMNS: usize = 4096;
const GENERATOR: Philox4x32 = Philox4x32::new(5, 9);
const DROPOUT: Dropout = Dropout { probability: 0.1, seed: 5, sequence: 9, first: 0 };

fn turned<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [x, y] = &mut all.stored[..] else { return Ok(()) };
    let (rows, columns) = (x.len() / COLUMNS, COLUMNS);
    transpose::transpose(stream, transpose::Shape { batch: 1, rows, columns }, x.as_view(), y.as_view_mut())
}

fn uniform<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    philox::uniform(stream, GENERATOR, 0, (-1.0, 1.0), all.stored[0].as_view_mut())
}

fn normals<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    philox::normal(stream, GENERATOR, 0, (0.0, 0.02), all.stored[0].as_view_mut())
}

fn dropped<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [x, branch, out] = &mut all.stored[..] else { return Ok(()) };
    let shape = residual::Shape { rows: x.len() / COLUMNS, channels: COLUMNS };
    let bias = Some(branch.view(..COLUMNS)?);
    residual::forward_dropout(stream, shape, DROPOUT, x.as_view(), branch.as_view(), bias, out.as_view_mut())
}

fn dropped_back<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [dout, dbranch] = &mut all.stored[..] else { return Ok(()) };
    let shape = residual::Shape { rows: dout.len() / COLUMNS, channels: COLUMNS };
    residual::backward_dropout(stream, shape, DROPOUT, dout.as_view(), dbranch.as_view_mut())
}

/// A call on `arrays` arrays, of which it writes the last.
fn case<T: Float>(
    op: &'static str,
    what: &str,
    (rows, arrays): (usize, usize),
    roundings: f64,
    call: Function<T>,
) -> Case {
    let elements = rows * COLUMNS;
    let bytes = (arrays * elements * size_of::<T>()) as u64;
    let arrays = move |device: &Device| {
        let stored = (1..).take(arrays).map(|seed| normal::<T>(device, elements, seed)).collect::<Result<_, _>>()?;
        Ok(Arrays { stored, written: [1, 0, 0, 0], ..Arrays::of(call) })
    };
    Case { bytes, roundings, ..Case::new(op, format!("{what} {rows} x {COLUMNS}"), arrays) }
}

fn of_type<T: Float>(rows: usize) -> [Case; 5] {
    [
        case::<T>("transpose", "of", (rows, 2), 0.0, turned),
        case::<T>("philox", "uniform", (rows, 1), 0.0, uniform),
        // A last bit of f64 may decide a tie.
        case::<T>("philox", "normal", (rows, 1), 2.0, normals),
        case::<T>("residual", "dropout forward", (rows, 3), 0.0, dropped),
        case::<T>("residual", "dropout backward", (rows, 2), 0.0, dropped_back),
    ]
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    // Rows of the transpose that are no whole sectors of 32 bytes, and some that are.
    let rows = match size {
        Size::Small { .. } => vec![32],
        Size::Counted { .. } => vec![12, 64],
        Size::Large => vec![1 << 15],
    };
    let of_rows = |rows| [of_type::<f32>(rows), of_type::<bf16>(rows), of_type::<f16>(rows)];
    let mut all: Vec<Case> = rows.into_iter().flat_map(of_rows).flatten().collect();
    if size.is_small() {
        let edges =
            [case::<f32>("transpose", "of", (3, 2), 0.0, turned), case::<bf16>("transpose", "of", (3, 2), 0.0, turned)];
        all.extend(edges.map(Case::edge));
    }
    all
}
