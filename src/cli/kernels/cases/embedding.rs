//! Cases of the embedding, whole and in shards, and of the residual sum.

use warpweft::device::{Device, Float, Stream, bf16, f16};
use warpweft::kernels::embedding::{self, Shape, Shard};
use warpweft::kernels::{KernelError, Write, residual};

use super::super::case::{Arrays, Case, Size, indices, normal};

/// Which table, of which rows.
#[derive(Clone, Copy, PartialEq)]
enum Table {
    /// Of tokens.
    Tokens,
    /// With one of positions.
    Positions,
    /// A rank's half of the rows of tokens.
    Half,
}

/// Where a half begins, and which rows there are.
fn half(vocab: usize) -> Shard {
    Shard { first: vocab / 2, vocab }
}

fn embedding_case<T: Float>(shape: Shape, table: Table, backward: bool) -> Case {
    let Shape { batch, tokens, channels, vocab, positions } = shape;
    let (rows, elements) = (batch * tokens, batch * tokens * channels);
    let held = if table == Table::Half { vocab - half(vocab).first } else { vocab };
    let with_positions = table == Table::Positions;
    let arrays = move |device: &Device| {
        let indices = vec![indices(device, rows, vocab)?];
        let sizes = [held * channels, positions * channels];
        let (mut floats, mut stored) = (Vec::new(), Vec::new());
        if backward {
            floats.extend([device.zeros(sizes[0])?, device.zeros(sizes[1])?]);
        } else {
            stored.extend([normal(device, sizes[0], 2)?, normal(device, sizes[1], 4)?]);
        }
        stored.push(normal::<T>(device, elements, 3)?);
        let written = if backward { [0, 2, 0, 0] } else { [1, 0, 0, 0] };
        let part = Shape { vocab: held, ..shape };
        let call = move |stream: &Stream, all: &mut Arrays<T>| forward_or_backward(stream, (shape, part), table, all);
        Ok(Arrays { stored, floats, indices, written, ..Arrays::of(call) })
    };
    let of = match table {
        Table::Tokens => "",
        Table::Positions => ", with positions",
        Table::Half => ", half of them here",
    };
    let way = if backward { "backward" } else { "forward" };
    // Rows of gradients are read and written.
    let element = if backward { size_of::<T>() + 8 } else { 2 * size_of::<T>() };
    let bytes = elements * if with_positions { element * 3 / 2 } else { element };
    let what = format!("{way} {rows} x {channels} of {vocab}{of}");
    Case { bytes: bytes as u64, ..Case::new("embedding", what, arrays) }
}

fn forward_or_backward<T: Float>(
    stream: &Stream,
    (shape, part): (Shape, Shape),
    table: Table,
    all: &mut Arrays<T>,
) -> Result<(), KernelError> {
    let ids = all.indices[0].as_view();
    match (&mut all.stored[..], &mut all.floats[..]) {
        ([rows, of_positions, y], []) => {
            let (rows, y) = (rows.as_view(), y.as_view_mut());
            let of_positions = (table == Table::Positions).then(|| of_positions.as_view());
            match table {
                Table::Half => embedding::forward_shard(stream, part, half(shape.vocab), ids, rows, Write::Add, y),
                _ => embedding::forward(stream, shape, ids, rows, of_positions, y),
            }
        }
        ([dy], [rows, of_positions]) => {
            let (dy, rows) = (dy.as_view(), rows.as_view_mut());
            let of_positions = (table == Table::Positions).then(|| of_positions.as_view_mut());
            match table {
                Table::Half => embedding::backward_shard(stream, part, half(shape.vocab), ids, dy, rows),
                _ => embedding::backward(stream, shape, ids, dy, rows, of_positions),
            }
        }
        _ => Ok(()),
    }
}

fn add<T: Float>(stream: &Stream, all: &mut Arrays<T>) -> Result<(), KernelError> {
    let [bias, x, branch, out] = &mut all.stored[..] else { return Ok(()) };
    let shape = residual::Shape { rows: x.len() / bias.len(), channels: bias.len() };
    residual::forward(stream, shape, x.as_view(), branch.as_view(), Some(bias.as_view()), out.as_view_mut())
}

fn residual_case<T: Float>(rows: usize, channels: usize) -> Case {
    let elements = rows * channels;
    let arrays = move |device: &Device| {
        let [x, branch] = [normal(device, elements, 1)?, normal(device, elements, 2)?];
        let stored = vec![normal::<T>(device, channels, 3)?, x, branch, device.zeros(elements)?];
        Ok(Arrays { stored, written: [1, 0, 0, 0], ..Arrays::of(add) })
    };
    let bytes = (3 * elements * size_of::<T>()) as u64;
    Case { bytes, ..Case::new("residual", format!("forward {rows} x {channels}"), arrays) }
}

fn both<T: Float>(shape: Shape, table: Table) -> [Case; 2] {
    [false, true].map(|backward| embedding_case::<T>(shape, table, backward))
}

fn of_type<T: Float>(size: Size) -> Vec<Case> {
    let shape = match size {
        Size::Small { .. } => Shape { batch: 2, tokens: 75, channels: 512, vocab: 300, positions: 80 },
        Size::Counted { .. } => Shape { batch: 1, tokens: 256, channels: 1024, vocab: 1000, positions: 0 },
        Size::Large => Shape { batch: 16, tokens: 2048, channels: 4096, vocab: 50_257, positions: 2048 },
    };
    let mut all = vec![residual_case::<T>(shape.batch * shape.tokens, shape.channels)];
    all.extend(both::<T>(shape, Table::Tokens));
    if size.is_small() {
        all.extend([Table::Positions, Table::Half].into_iter().flat_map(|table| both::<T>(shape, table)));
        all.extend(both::<T>(Shape { channels: 72, ..shape }, Table::Tokens).map(Case::edge));
        all.push(residual_case::<T>(7, 75).edge());
    }
    all
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    [of_type::<f32>(size), of_type::<bf16>(size), of_type::<f16>(size)].into_iter().flatten().collect()
}
