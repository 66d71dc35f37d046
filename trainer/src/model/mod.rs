//! GPT-2 and Llama style decoder-only models, without an autograd engine: each layer says how it goes forward and back.
//!
//! [`Model`] is structure only: which layers, which parameters, and what of them this rank holds. The weights are
//! [`Weights`](crate::parallel::weights::Weights); a [`Slot`] is the memory of a micro-batch's way through a [`Chunk`].

// A tensor is held in ranges of its dimensions, and most often there is one.
#![allow(clippy::single_range_in_vec_init)]

use std::ops::Range;

mod attention;
mod block;
mod chunk;
mod embedding;
mod head;
mod layers;
mod moe;
mod names;
mod pass;
mod portion;
mod recompute;
mod routing;
mod shape;
mod spread;
mod stored;
mod table;

pub use attention::Attention;
pub use block::{Block, BlockErrors, BlockKept};
pub use chunk::{Room, Slot, Weights, Work};
pub use embedding::{Embedding, Ids};
pub use head::{Head, HeadKept};
pub use layers::{Linear, Norm, NormRows};
pub use moe::{Moe, MoeErrors, MoeKept};
pub use names::wholes;
pub use pass::{MicroBatch, Pass};
pub use portion::{Portion, Stretch};
pub use recompute::Recompute;
pub use routing::{Biases, NARROW, Routed, Routing};
pub use shape::{Architecture, ModelShape, MoeShape, ShapeError};
pub use spread::{Chunk, Part, Spread};
pub(crate) use stored::{held, restore, save, save_biases, take};
pub use table::{Entry, Init, Parameter, Table, TensorId, Unit, UnitId};

/// Standard deviation of the initial weights.
const DEVIATION: f64 = 0.02;

/// A target that counts for nothing.
pub const IGNORE: u32 = u32::MAX;

/// A model's layers, as this rank holds them, and the table of its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    shape: ModelShape,
    spread: Spread,
    table: Table,
    embedding: Embedding,
    blocks: Vec<Block>,
    head: Head,
    /// The units that belong to each layer alone: the embedding's, each block's, the head's.
    units: Vec<Range<usize>>,
}

/// A layer of a model, whose weights are needed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The tables of tokens and positions.
    Embedding,
    /// A block, by its index.
    Block(usize),
    /// The last norm and the output projection, which may be the table of tokens.
    Head,
}

impl Model {
    /// The model of these sizes, spread so.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn new(shape: ModelShape, spread: Spread) -> Result<Self, ShapeError> {
        shape.check()?;
        let mut table = Table::default();
        let embedding = Embedding::new(&mut table, &shape, &spread, DEVIATION);
        let mut begins = vec![0, table.units().len()];
        let mut blocks = Vec::with_capacity(shape.layers);
        for index in 0..shape.layers {
            blocks.push(Block::new(&mut table, &shape, &spread, index));
            begins.push(table.units().len());
        }
        let head = Head::new(&mut table, &shape, &spread, &embedding, DEVIATION);
        begins.push(table.units().len());
        if spread.is_there_twice() {
            table.hold_twice();
        }
        let units = begins.windows(2).map(|ends| ends[0]..ends[1]).collect();
        Ok(Self { shape, spread, table, embedding, blocks, head, units })
    }

    /// The units that hold a layer's weights.
    pub fn units_of(&self, layer: Layer) -> impl Iterator<Item = UnitId> + use<> {
        let (index, tied) = match layer {
            Layer::Embedding => (0, None),
            Layer::Block(index) => (1 + index, None),
            Layer::Head => (1 + self.blocks.len(), self.shape.tied.then(|| self.table.get(self.embedding.tokens).unit)),
        };
        self.units[index].clone().map(UnitId).chain(tied)
    }

    /// How many passes each unit has a part in, by unit, where `micro_batches` are those of a copy of the model.
    pub fn passes(&self, micro_batches: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut passes = vec![0; self.table.units().len()];
        let copies = self.spread.chunks.iter().map(|chunk| chunk.copy).max().map_or(0, |last| last + 1);
        for copy in 0..copies {
            let chunks = self.spread.chunks.iter().filter(|chunk| chunk.here && chunk.copy == copy);
            let layers = chunks.flat_map(|chunk| {
                let ends = [chunk.embeds.then_some(Layer::Embedding), chunk.ends.then_some(Layer::Head)];
                chunk.blocks.clone().map(Layer::Block).chain(ends.into_iter().flatten())
            });
            let mut units: Vec<UnitId> = layers.flat_map(|layer| self.units_of(layer)).collect();
            // A tied table with both of its uses on this rank is there twice.
            units.sort_unstable();
            units.dedup();
            units.into_iter().for_each(|unit| passes[unit.0] += micro_batches(copy));
        }
        passes
    }

    /// Its sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// What of it this rank holds.
    pub fn spread(&self) -> &Spread {
        &self.spread
    }

    /// Its parameters.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The tables of its embedding.
    pub fn embedding_tables(&self) -> impl Iterator<Item = TensorId> {
        [Some(self.embedding.tokens), self.embedding.positions].into_iter().flatten()
    }

    /// Whether every chunk needs the positions of its tokens.
    fn needs_positions(&self) -> bool {
        self.shape.architecture == Architecture::Llama
    }
}
