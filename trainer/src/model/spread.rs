//! What of a model a rank holds: its stage's chunks, its heads and columns, its experts.

use std::ops::Range;

use crate::model::shape::{ModelShape, ShapeError};
use crate::parallel::mesh::{Place, Sizes};
use crate::parallel::share;
use warpweft_schedule::Placement;

/// One of some equal ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which.
    pub index: usize,
    /// Of how many.
    pub of: usize,
}

impl Part {
    /// Its share of `count` things.
    pub fn share(self, count: usize) -> Range<usize> {
        share(count, self.of, self.index)
    }
}

/// A piece of the model that a stage computes without a break: some blocks, the embedding before the first and the head
/// after the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its blocks.
    pub blocks: Range<usize>,
    /// Whether it begins with the embedding.
    pub embeds: bool,
    /// Whether it ends with the head and the loss.
    pub ends: bool,
    /// The stage that it is on.
    pub stage: usize,
    /// Whether it is this rank's.
    pub here: bool,
    /// Which copy of the model it belongs to, where there are two.
    pub copy: usize,
}

/// How the model is spread, as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// This rank's heads and columns.
    pub tp: Part,
    /// Tensor-parallel ranks to a key/value head: more than 1 where there are fewer heads than ranks.
    pub kv: usize,
    /// This rank's experts.
    pub ep: Part,
    /// Whether the rows of the residual stream are shared out over the tensor-parallel ranks.
    pub sequence_parallel: bool,
    /// The chunks, in the order of the forward pass; those of a second copy of the model after those of the first.
    pub chunks: Vec<Chunk>,
}

impl Spread {
    /// One rank that holds all.
    pub fn alone(shape: &ModelShape) -> Self {
        let one = Part { index: 0, of: 1 };
        let chunks = vec![Chunk { blocks: 0..shape.layers, embeds: true, ends: true, stage: 0, here: true, copy: 0 }];
        Self { tp: one, kv: 1, ep: one, sequence_parallel: false, chunks }
    }

    /// The spread of a model over a mesh, at one place, its chunks as a pipeline's schedule has them.
    ///
    /// # Errors
    /// Heads that the tensor-parallel ranks cannot share, more parts than layers.
    pub fn over(
        shape: &ModelShape,
        (sizes, place): (Sizes, Place),
        sequence_parallel: bool,
        placement: &Placement,
    ) -> Result<Self, ShapeError> {
        let tp = Part { index: place.tp, of: sizes.tp };
        let data = sizes.data_rank(place);
        let ep = Part { index: data % sizes.ep, of: sizes.ep };
        let kv = Self::ranks_to_a_head(shape, sizes.tp)?;
        let parts = placement.parts();
        if parts > shape.layers {
            return Err(ShapeError::Chunks { layers: shape.layers, pp: sizes.pp, each: parts / sizes.pp.max(1) });
        }
        let chunk = |index| {
            let (part, stage) = (placement.part(index), placement.place(index));
            Chunk {
                blocks: share(shape.layers, parts, part),
                embeds: part == 0,
                ends: part + 1 == parts,
                stage,
                here: stage == place.pp,
                copy: placement.copy_of(index),
            }
        };
        Ok(Self { tp, kv, ep, sequence_parallel, chunks: (0..placement.chunks()).map(chunk).collect() })
    }

    /// How many of `tp` tensor-parallel ranks share a key/value head.
    ///
    /// # Errors
    /// Heads or key/value heads that cannot be shared out.
    pub fn ranks_to_a_head(shape: &ModelShape, tp: usize) -> Result<usize, ShapeError> {
        super::shape::divides("heads", shape.heads, "tensor-parallel ranks (tp)", tp)?;
        if shape.kv_heads >= tp {
            super::shape::divides("kv-heads", shape.kv_heads, "tensor-parallel ranks (tp)", tp)?;
            return Ok(1);
        }
        super::shape::divides("tensor-parallel ranks (tp)", tp, "kv-heads", shape.kv_heads)?;
        Ok(tp / shape.kv_heads)
    }

    /// Whether a block is this rank's.
    pub fn has_block(&self, block: usize) -> bool {
        self.chunks.iter().any(|chunk| chunk.here && chunk.blocks.contains(&block))
    }

    /// Whether the embedding is.
    pub fn embeds(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.here && chunk.embeds)
    }

    /// Whether the head is.
    pub fn ends(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.here && chunk.ends)
    }

    /// Whether there are two copies of the model, in opposite directions over the stages.
    pub fn is_there_twice(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.copy > 0)
    }

    /// Whether the embedding and the head are on one stage, as every rank of the mesh sees it.
    pub fn ends_together(&self) -> bool {
        let stage =
            |wanted: fn(&Chunk) -> bool| self.chunks.iter().find(|chunk| wanted(chunk)).map(|chunk| chunk.stage);
        stage(|chunk| chunk.embeds) == stage(|chunk| chunk.ends)
    }

    /// This rank's key/value heads.
    pub fn kv_heads(&self, shape: &ModelShape) -> Range<usize> {
        Part { index: self.tp.index / self.kv, of: self.tp.of / self.kv }.share(shape.kv_heads)
    }
}
