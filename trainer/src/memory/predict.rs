//! Bytes of a rank by class, from the sizes of model, recipe and mesh alone: what its account will say.
//!
//! The formulas stand apart from the code that allocates, so that each proves the other (`--test memory_prediction`). Of a
//! parameter on N data ranks: bf16 weights and f32 gradients take 6 + 12/N, 2 + 16/N, 18/N bytes at ZeRO's stages 1, 2
//! and 3, all f32 8 + 8/N, 4 + 12/N, 16/N; N = 1 is none of them. Activations are those of one micro-batch, as often as the
//! schedule holds it at once; all sizes are those of the rows that memory is made for, which the largest rank fills.

use warpweft_device::DType;
use warpweft_kernels::cross_entropy;
use warpweft_schedule::{Kind, Schedule};

use super::{Bytes, Class};
use crate::TrainError;
use crate::model::{Architecture, Chunk, Model, ModelShape, Recompute, Room, Spread, Unit};
use crate::parallel::context;
use crate::parallel::executor::{most_blocks, most_hops, most_passes};
use crate::parallel::layout::Axis;
use crate::parallel::mesh::{Place, Sizes};
use crate::parallel::share;
use crate::parallel::zero::{Zero, buffers_by_size};
use crate::recipe::Recipe;

/// f32, whatever the weights are.
const F32: usize = size_of::<f32>();

/// What the rank at `place` holds while it trains, all but what its communicators do.
///
/// # Errors
/// Sizes that do not fit together.
pub fn predict(
    shape: &ModelShape,
    recipe: &Recipe,
    (sizes, place): (Sizes, Place),
    dtype: DType,
) -> Result<Bytes, TrainError> {
    let schedule = recipe.passes(sizes)?;
    let spread = Spread::over(shape, (sizes, place), recipe.sequence_parallel, schedule.placement())?;
    let model = Model::new(*shape, spread)?;
    let room = recipe.room(shape, sizes)?;
    let rank = Rank { model: &model, recipe, sizes, place, room, element: dtype.bytes() };
    let mut bytes = Bytes::default();
    rank.state(&mut bytes);
    rank.passes(&schedule, &mut bytes);
    rank.sequences(&mut bytes);
    Ok(bytes)
}

/// One rank, and what its memory is made for.
struct Rank<'a> {
    model: &'a Model,
    recipe: &'a Recipe,
    sizes: Sizes,
    place: Place,
    room: Room,
    /// Bytes of a weight, and of an activation.
    element: usize,
}

/// Widths of what a block keeps of each row.
struct Widths {
    channels: usize,
    /// Of queries, keys and values; of queries alone.
    qkv: usize,
    queries: usize,
    /// Before the activation, and after.
    up: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    /// f32 that a norm keeps of a row.
    norm: usize,
}

impl Rank<'_> {
    fn add(bytes: &mut Bytes, class: Class, count: usize) {
        bytes.add(class, count as u64);
    }

    /// Weights, gradients, the optimizer's state, and units that are whole for a while.
    fn state(&self, bytes: &mut Bytes) {
        let Zero { stage, .. } = self.recipe.zero;
        let master = if self.element < F32 { F32 } else { 0 };
        let gradients_apart = stage >= 2 && !self.recipe.exact;
        for (_, unit) in self.model.table().units_here() {
            let (all, mine) = (unit.elements, self.part(unit));
            Self::add(bytes, Class::Parameters, self.element * if stage == 3 { mine } else { all });
            Self::add(bytes, Class::Gradients, F32 * if gradients_apart { mine } else { all });
            Self::add(bytes, Class::Optimizer, (2 * F32 + master) * mine);
        }
        // Biases of routers, which all ranks have.
        if let Some(moe) = self.model.shape().moe.filter(|moe| moe.bias_rate > 0.0) {
            Self::add(bytes, Class::Parameters, F32 * self.model.shape().layers * moe.experts);
        }
        let whole: usize =
            buffers_by_size(self.model.table()).iter().map(|(elements, buffers)| elements * buffers).sum();
        Self::add(bytes, Class::Buffers, if gradients_apart { F32 * whole } else { 0 });
        Self::add(bytes, Class::Buffers, if stage == 3 { self.element * whole } else { 0 });
    }

    /// Elements of a unit that are this rank's to update.
    fn part(&self, unit: &Unit) -> usize {
        let Sizes { dp, cp, ep, .. } = self.sizes;
        let Zero { stage, shards } = self.recipe.zero;
        if stage == 0 {
            return unit.elements;
        }
        let shards = shards.unwrap_or(dp * cp);
        let index = self.sizes.data_rank(self.place) % shards;
        // Of experts only the ranks that have the same hold parts.
        let ep = if unit.copies.has(Axis::Ep) { 1 } else { ep };
        share(unit.elements, shards / ep, index / ep).len()
    }

    fn widths(&self) -> Widths {
        let (shape, spread) = (self.model.shape(), self.model.spread());
        let (heads, kv_heads) = (spread.tp.share(shape.heads).len(), spread.kv_heads(shape).len());
        let (hidden, size) = (spread.tp.share(shape.hidden).len(), shape.head_size());
        let llama = shape.architecture == Architecture::Llama;
        Widths {
            channels: shape.channels,
            qkv: (heads + 2 * kv_heads) * size,
            queries: heads * size,
            up: if llama { 2 * hidden } else { hidden },
            hidden,
            heads,
            kv_heads,
            vocab: spread.tp.share(shape.vocab).len(),
            norm: if llama { 1 } else { 2 },
        }
    }

    /// What lies between passes, and memory that all of them use.
    fn passes(&self, schedule: &Schedule, bytes: &mut Bytes) {
        let Room { rows, stream_rows } = self.room;
        let Widths { channels, queries, hidden, .. } = self.widths();
        let (chunks, [block, cheap]) = (&self.model.spread().chunks, self.block());
        let steps = schedule.rank(self.place.pp);
        let splits = schedule.computations(self.place.pp).iter().any(|operation| operation.kind == Kind::B);
        let blocks = match self.recipe.recompute {
            Recompute::None => 0,
            Recompute::Selective => cheap,
            Recompute::Full => block * most_blocks(steps, |chunk| chunks[chunk].blocks.len()),
        };
        Self::add(bytes, Class::Activations, blocks);
        for (index, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.here) {
            for _ in 0..most_passes(steps, index).max(1) {
                self.pass(chunk, splits, bytes);
            }
        }
        let hops = most_hops(steps, schedule.placement(), self.place.pp);
        let inner = hidden.max(queries).max(channels);
        let between = hops * stream_rows * channels + rows * (2 * channels + inner);
        Self::add(bytes, Class::Errors, between * self.element + self.block_errors());
    }

    /// What a block has of a micro-batch besides its input, and what of it is cheap to compute again.
    fn block(&self) -> [usize; 2] {
        let Room { rows, stream_rows } = self.room;
        let Widths { channels, qkv, queries, up, hidden, heads, norm, .. } = self.widths();
        let cheap = (2 * stream_rows * channels + rows * hidden) * self.element;
        let dear = (stream_rows * channels + rows * (qkv + queries + up)) * self.element;
        [cheap + dear + (2 * norm * stream_rows + rows * heads) * F32, cheap]
    }

    /// One micro-batch's way through a chunk; `splits` where a pass to the weights may come later.
    fn pass(&self, chunk: &Chunk, splits: bool, bytes: &mut Bytes) {
        let Room { rows, stream_rows } = self.room;
        let (Widths { channels, vocab, norm, .. }, [block, cheap]) = (self.widths(), self.block());
        let (blocks, element) = (chunk.blocks.len(), self.element);
        let llama = self.model.shape().architecture == Architecture::Llama;
        let reads_tokens = chunk.embeds || chunk.ends || llama;
        Self::add(bytes, Class::Buffers, if reads_tokens { 3 * rows * size_of::<u32>() } else { 0 });
        let stream = (blocks + 1) * stream_rows * channels * element;
        let block = match self.recipe.recompute {
            Recompute::None => block,
            Recompute::Selective => block - cheap,
            Recompute::Full => 0,
        };
        Self::add(bytes, Class::Activations, stream + blocks * block);
        if chunk.ends {
            let parts = cross_entropy::PARTS * (1 + self.sizes.tp) + 2;
            let kept = (stream_rows * channels + rows * vocab) * element + (norm * stream_rows + rows) * F32;
            Self::add(bytes, Class::Activations, kept + rows * parts * size_of::<f64>());
            Self::add(bytes, Class::Errors, stream_rows * channels * element);
        }
        if splits {
            let embedded = if chunk.embeds { stream_rows * channels * element } else { 0 };
            Self::add(bytes, Class::Errors, blocks * self.block_errors() + embedded);
        }
    }

    /// What the backward pass to a block's input leaves for the one to its weights.
    fn block_errors(&self) -> usize {
        let (Room { rows, stream_rows }, Widths { channels, qkv, up, .. }) = (self.room, self.widths());
        (2 * stream_rows * channels + rows * (2 * channels + up + qkv)) * self.element
    }

    /// What attention over parts of sequences holds.
    fn sequences(&self, bytes: &mut Bytes) {
        let Sizes { dp, cp, .. } = self.sizes;
        if cp == 1 {
            return;
        }
        let Widths { heads, kv_heads, .. } = self.widths();
        let Recipe { batch, micro_batch, tokens, .. } = *self.recipe;
        let batch = share(batch, dp, self.place.dp).len().min(micro_batch);
        let head_size = self.model.shape().head_size();
        let sizes = context::Sizes { batch, heads, kv_heads, head_size, options: Default::default(), documents: &[] };
        let at = (cp, self.place.cp);
        bytes.add(Class::Buffers, context::held_bytes(self.recipe.context, at, tokens, &sizes, self.element));
    }
}
