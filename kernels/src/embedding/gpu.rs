//! The embedding by the kernels of `cu/embedding.cu`.

use warpweft_device::{Arg, Float, Stream, View, ViewMut};

use super::{Shape, Shard};
use crate::launch::{EMBEDDING, Extent, RowLaunch, Sort, fits};
use crate::{KernelError, Write};

/// Columns of a block of the backward kernels, or runs of 16 bytes.
const THREADS: u32 = 128;
/// Blocks along the second dimension of a grid.
const MOST_TILES: usize = 65_535;

/// What an op that goes through tokens is called, and the data that it may find wrong.
#[derive(Clone, Copy)]
pub(super) struct Op {
    pub(super) name: &'static str,
    pub(super) ids: &'static str,
}

/// The rows of the table that are here, as numbers of a kernel.
fn held(op: Op, shape: Shape, shard: Shard) -> Result<[u32; 3], KernelError> {
    // One more is the key of tokens that are not here.
    fits(op.name, "vocab", shard.vocab, i32::MAX as usize)?;
    Ok([shard.first as u32, shape.vocab as u32, shard.vocab as u32])
}

#[expect(clippy::too_many_arguments, reason = "the op's tensors, each with a role of its own")]
pub(super) fn forward<T: Float>(
    op: Op,
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    ids: View<'_, u32>,
    table: View<'_, T>,
    positions: Option<View<'_, T>>,
    write: Write,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    let Shape { tokens, channels, .. } = shape;
    if ids.is_empty() || channels == 0 {
        return Ok(());
    }
    let [first, held, vocab] = held(op, shape, shard)?;
    let aligned =
        table.is_aligned(16) && y.as_view().is_aligned(16) && positions.is_none_or(|view| view.is_aligned(16));
    let launch = RowLaunch::new::<T>(op.name, [ids.len(), channels], 0, aligned)?;
    let [word, number] = stream.device().fault(op.ids)?;
    let args = [
        ids.try_into()?,
        table.try_into()?,
        positions.map_or(Ok(Arg::pointer(0)), Arg::try_from)?,
        y.try_into()?,
        (ids.len() as u32).into(),
        (channels as u32).into(),
        (tokens as u32).into(),
        first.into(),
        held.into(),
        vocab.into(),
        u32::from(write == Write::Add).into(),
        u32::from(launch.packed).into(),
        word,
        number,
    ];
    EMBEDDING.launch::<T>(stream, "embedding_forward_", launch.extent, &args)
}

pub(super) fn backward_table<T: Float>(
    op: Op,
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    ids: View<'_, u32>,
    dy: View<'_, T>,
    dtable: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let channels = shape.channels;
    if ids.is_empty() || channels == 0 {
        return Ok(());
    }
    let [first, held, vocab] = held(op, shape, shard)?;
    let (packed, extent) = extent(op, [ids.len(), channels], dy, &dtable)?;
    let sort = Sort::new(&EMBEDDING, op.name, stream, ids.len())?;
    let [word, number] = stream.device().fault(op.ids)?;
    let len = Arg::from(ids.len() as u32);
    let args =
        [ids.try_into()?, sort.keys()?.try_into()?, len.clone(), first.into(), held.into(), vocab.into(), word, number];
    let keys = Extent { grid: [(ids.len() as u32).div_ceil(THREADS), 1, 1], block: [THREADS, 1, 1], shared: 0 };
    EMBEDDING.launch::<T>(stream, "embedding_keys", keys, &args)?;
    let sorted = sort.launch("embedding_", held)?;
    let args = [
        sorted.keys.try_into()?,
        sorted.rows.try_into()?,
        dy.try_into()?,
        dtable.try_into()?,
        len,
        (channels as u32).into(),
        held.into(),
        u32::from(packed).into(),
    ];
    EMBEDDING.launch::<T>(stream, "embedding_backward_table_", extent, &args)
}

pub(super) fn backward_positions<T: Float>(
    op: Op,
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    dpositions: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let Shape { batch, tokens, channels, .. } = shape;
    if batch == 0 || tokens == 0 || channels == 0 {
        return Ok(());
    }
    let (packed, extent) = extent(op, [tokens, channels], dy, &dpositions)?;
    let args = [
        dy.try_into()?,
        dpositions.try_into()?,
        ((batch * tokens) as u32).into(),
        (channels as u32).into(),
        u32::from(packed).into(),
    ];
    EMBEDDING.launch::<T>(stream, "embedding_backward_positions_", extent, &args)
}

/// Whether four elements are moved at a time, and a block for each of `rows` sums and each `THREADS` runs of columns.
fn extent<T: Float>(
    op: Op,
    [rows, channels]: [usize; 2],
    dy: View<'_, T>,
    gradient: &ViewMut<'_, f32>,
) -> Result<(bool, Extent), KernelError> {
    const RUN: usize = 4;
    fits(op.name, "rows", dy.len() / channels, i32::MAX as usize)?;
    fits(op.name, "channels", channels, MOST_TILES * THREADS as usize)?;
    let aligned = dy.is_aligned(RUN * size_of::<T>()) && gradient.as_view().is_aligned(RUN * size_of::<f32>());
    let packed = aligned && channels.is_multiple_of(RUN);
    let tiles = channels.div_ceil(THREADS as usize * if packed { RUN } else { 1 }) as u32;
    Ok((packed, Extent { grid: [rows as u32, tiles, 1], block: [THREADS, 1, 1], shared: 0 }))
}
