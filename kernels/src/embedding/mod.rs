//! Token embedding: each token's row of a table, plus the row of its position where there is a table of positions.
//!
//! Storage `T`; the sum of two rows is taken in f32. The backward call adds the rows of `dy` to the rows of the tables:
//! each row of a table is summed in token order in f64 and rounded once, whatever the thread count. Bound by memory.
//!
//! A GPU finds a token outside the vocabulary while it runs: nothing is written for that row, and the next synchronisation
//! says which it was ([`DeviceError::BadData`](warpweft_device::DeviceError::BadData)).

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check};

/// A batch of token sequences and the tables that they index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences: B.
    pub batch: usize,
    /// Tokens of a sequence: T.
    pub tokens: usize,
    /// Elements of an embedding: C.
    pub channels: usize,
    /// Rows of the token table: V.
    pub vocab: usize,
    /// Rows of the table of positions, at least T where there is one; ignored without.
    pub positions: usize,
}

/// `y[b, t, :] = table[ids[b, t], :] + position_table[t, :]` with `ids [B, T]`, `table [V, C]`,
/// `position_table [positions, C]` and `y [B, T, C]`.
///
/// # Errors
/// An argument whose length is not its shape's, or of another device; fewer positions than tokens; a token outside the
/// vocabulary, by its row (`b * T + t`). Nothing is written then.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    ids: View<'_, u32>,
    table: View<'_, T>,
    position_table: Option<View<'_, T>>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "embedding forward";
    let Shape { batch, tokens, channels, vocab, positions } = shape;
    let ids = check::region(stream, OP, "ids", ids, &[batch, tokens])?;
    let table = check::region(stream, OP, "table", table, &[vocab, channels])?;
    let position_table = match position_table {
        Some(view) => {
            check_positions(OP, shape)?;
            Some(check::region(stream, OP, "position_table", view, &[positions, channels])?)
        }
        None => None,
    };
    let y = check::region_mut(stream, OP, "y", y, &[batch, tokens, channels])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        let (op, whole) = (gpu::Op { name: OP, ids: "embedding forward: `ids`" }, Shard { first: 0, vocab });
        return gpu::forward(op, stream, shape, whole, ids, table, position_table, Write::Set, y);
    };
    let ids = ids.host()?;
    check::tokens(OP, ids, vocab, None)?;
    let positions = position_table.map(View::host).transpose()?;
    cpu::forward(pool, shape, ids, table.host()?, positions, y.host()?);
    Ok(())
}

/// Adds the output's gradient `dy [B, T, C]` to the gradients of the tables: `dtable [V, C]` (f32) at each token's row,
/// `dpositions [positions, C]` (f32) at each position's.
///
/// # Errors
/// As for [`forward`]; on a GPU more than 8,388,480 channels.
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    ids: View<'_, u32>,
    dy: View<'_, T>,
    dtable: ViewMut<'_, f32>,
    dpositions: Option<ViewMut<'_, f32>>,
) -> Result<(), KernelError> {
    const OP: &str = "embedding backward";
    let Shape { batch, tokens, channels, vocab, positions } = shape;
    let ids = check::region(stream, OP, "ids", ids, &[batch, tokens])?;
    let dy = check::region(stream, OP, "dy", dy, &[batch, tokens, channels])?;
    let dtable = check::region_mut(stream, OP, "dtable", dtable, &[vocab, channels])?;
    let dpositions = match dpositions {
        Some(view) => {
            check_positions(OP, shape)?;
            Some(check::region_mut(stream, OP, "dpositions", view, &[positions, channels])?)
        }
        None => None,
    };
    let Ok(pool) = stream.device().cpu_pool() else {
        let (op, whole) = (gpu::Op { name: OP, ids: "embedding backward: `ids`" }, Shard { first: 0, vocab });
        gpu::backward_table(op, stream, shape, whole, ids, dy, dtable)?;
        return dpositions.map_or(Ok(()), |dpositions| gpu::backward_positions(op, stream, shape, dy, dpositions));
    };
    let (ids, dy) = (ids.host()?, dy.host()?);
    check::tokens(OP, ids, vocab, None)?;
    cpu::backward_table(pool, shape, 0, ids, dy, dtable.host()?);
    if let Some(dpositions) = dpositions {
        cpu::backward_positions(pool, shape, dy, dpositions.host()?);
    }
    Ok(())
}

/// The rows of a table that a rank holds: `shape.vocab` of them, from row `first` of a table of `vocab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The first row held.
    pub first: usize,
    /// Rows of the whole table.
    pub vocab: usize,
}

/// What a rank with some rows of a table has of an embedding: `y[b, t, :] = table[ids[b, t] - first, :]`, and 0 where the
/// row is another rank's. With [`Write::Add`] it is added to y. The sum over the ranks of all rows is the embedding.
/// `shape.positions` is ignored.
///
/// # Errors
/// As [`forward`]; more rows than the whole table has.
pub fn forward_shard<T: Float>(
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    ids: View<'_, u32>,
    table: View<'_, T>,
    write: Write,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "embedding forward_shard";
    let Shape { batch, tokens, channels, vocab, .. } = shape;
    check_shard(OP, shape, shard)?;
    let ids = check::region(stream, OP, "ids", ids, &[batch, tokens])?;
    let table = check::region(stream, OP, "table", table, &[vocab, channels])?;
    let y = check::region_mut(stream, OP, "y", y, &[batch, tokens, channels])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        let op = gpu::Op { name: OP, ids: "embedding forward_shard: `ids`" };
        return gpu::forward(op, stream, shape, shard, ids, table, None, write, y);
    };
    let ids = ids.host()?;
    check::tokens(OP, ids, shard.vocab, None)?;
    cpu::forward_shard(pool, shape, shard.first, ids, table.host()?, write, y.host()?);
    Ok(())
}

/// Adds `dy [B, T, C]` to the gradients `dtable [shape.vocab, C]` (f32) of the rows held; tokens of other rows add nothing.
///
/// # Errors
/// As [`forward_shard`].
pub fn backward_shard<T: Float>(
    stream: &Stream,
    shape: Shape,
    shard: Shard,
    ids: View<'_, u32>,
    dy: View<'_, T>,
    dtable: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "embedding backward_shard";
    let Shape { batch, tokens, channels, vocab, .. } = shape;
    check_shard(OP, shape, shard)?;
    let ids = check::region(stream, OP, "ids", ids, &[batch, tokens])?;
    let dy = check::region(stream, OP, "dy", dy, &[batch, tokens, channels])?;
    let dtable = check::region_mut(stream, OP, "dtable", dtable, &[vocab, channels])?;
    let Ok(pool) = stream.device().cpu_pool() else {
        let op = gpu::Op { name: OP, ids: "embedding backward_shard: `ids`" };
        return gpu::backward_table(op, stream, shape, shard, ids, dy, dtable);
    };
    let ids = ids.host()?;
    check::tokens(OP, ids, shard.vocab, None)?;
    cpu::backward_table(pool, shape, shard.first, ids, dy.host()?, dtable.host()?);
    Ok(())
}

fn check_shard(op: &'static str, shape: Shape, shard: Shard) -> Result<(), KernelError> {
    let allowed = || {
        format!(
            "at most {}, what a table of {} has from row {}",
            shard.vocab.saturating_sub(shard.first),
            shard.vocab,
            shard.first
        )
    };
    match shard.first.checked_add(shape.vocab).is_some_and(|end| end <= shard.vocab) {
        true => Ok(()),
        false => Err(KernelError::Size { op, argument: "shape.vocab", given: shape.vocab, allowed: allowed() }),
    }
}

fn check_positions(op: &'static str, shape: Shape) -> Result<(), KernelError> {
    if shape.positions >= shape.tokens {
        return Ok(());
    }
    let allowed = format!("at least the {} tokens of a sequence", shape.tokens);
    Err(KernelError::Size { op, argument: "positions", given: shape.positions, allowed })
}
