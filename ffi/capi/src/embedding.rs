//! Embeddings, of whole tables and of the rows that a rank has.

use warpweft_device::Stream;
use warpweft_kernels::embedding::{self, Shape, Shard};

use crate::arguments::Arguments;
use crate::element::{with_float, write as write_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Input, Output, Ref};

/// `ww_embedding_shape`.
#[repr(C)]
pub struct EmbeddingShape {
    batch: usize,
    tokens: usize,
    channels: usize,
    vocab: usize,
    positions: usize,
}

impl EmbeddingShape {
    fn native(&self) -> Shape {
        let Self { batch, tokens, channels, vocab, positions } = *self;
        Shape { batch, tokens, channels, vocab, positions }
    }
}

/// Forward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_embedding_forward(
    stream: Ref<Stream>,
    shape: Ref<EmbeddingShape>,
    dtype: i32,
    ids: Input,
    table: Input,
    position_table: Input,
    y: Output,
) -> i32 {
    guard("ww_embedding_forward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = shape.get("shape")?.native();
        let Shape { batch, tokens, channels, vocab, positions } = shape;
        with_float!(dtype, T => {
            let ids = args.read::<u32>("ids", ids, &[batch, tokens])?;
            let table = args.read::<T>("table", table, &[vocab, channels])?;
            let position_table =
                args.read_if_given::<T>("position_table", position_table, &[positions, channels])?;
            let y = args.write::<T>("y", y, &[batch, tokens, channels])?;
            Ok(embedding::forward(args.handle, shape, ids, table, position_table, y)?)
        })
    })
}

/// Backward.
#[unsafe(no_mangle)]
pub extern "C" fn ww_embedding_backward(
    stream: Ref<Stream>,
    shape: Ref<EmbeddingShape>,
    dtype: i32,
    ids: Input,
    dy: Input,
    dtable: Output,
    dpositions: Output,
) -> i32 {
    guard("ww_embedding_backward", || {
        let mut args = Arguments::of("stream", &stream)?;
        let shape = shape.get("shape")?.native();
        let Shape { batch, tokens, channels, vocab, positions } = shape;
        with_float!(dtype, T => {
            let ids = args.read::<u32>("ids", ids, &[batch, tokens])?;
            let dy = args.read::<T>("dy", dy, &[batch, tokens, channels])?;
            let dtable = args.write::<f32>("dtable", dtable, &[vocab, channels])?;
            let dpositions = args.write_if_given::<f32>("dpositions", dpositions, &[positions, channels])?;
            Ok(embedding::backward(args.handle, shape, ids, dy, dtable, dpositions)?)
        })
    })
}

/// Forward, of the rows of the table that a rank has.
#[unsafe(no_mangle)]
pub extern "C" fn ww_embedding_forward_shard(
    stream: Ref<Stream>,
    shape: Ref<EmbeddingShape>,
    first: usize,
    all: usize,
    dtype: i32,
    ids: Input,
    table: Input,
    write: i32,
    y: Output,
) -> i32 {
    guard("ww_embedding_forward_shard", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, shard, write) = (shape.get("shape")?.native(), Shard { first, vocab: all }, write_of(write)?);
        let Shape { batch, tokens, channels, vocab, .. } = shape;
        with_float!(dtype, T => {
            let ids = args.read::<u32>("ids", ids, &[batch, tokens])?;
            let table = args.read::<T>("table", table, &[vocab, channels])?;
            let y = args.write::<T>("y", y, &[batch, tokens, channels])?;
            Ok(embedding::forward_shard(args.handle, shape, shard, ids, table, write, y)?)
        })
    })
}

/// Backward, of the rows of the table that a rank has.
#[unsafe(no_mangle)]
pub extern "C" fn ww_embedding_backward_shard(
    stream: Ref<Stream>,
    shape: Ref<EmbeddingShape>,
    first: usize,
    all: usize,
    dtype: i32,
    ids: Input,
    dy: Input,
    dtable: Output,
) -> i32 {
    guard("ww_embedding_backward_shard", || {
        let mut args = Arguments::of("stream", &stream)?;
        let (shape, shard) = (shape.get("shape")?.native(), Shard { first, vocab: all });
        let Shape { batch, tokens, channels, vocab, .. } = shape;
        with_float!(dtype, T => {
            let ids = args.read::<u32>("ids", ids, &[batch, tokens])?;
            let dy = args.read::<T>("dy", dy, &[batch, tokens, channels])?;
            let dtable = args.write::<f32>("dtable", dtable, &[vocab, channels])?;
            Ok(embedding::backward_shard(args.handle, shape, shard, ids, dy, dtable)?)
        })
    })
}
