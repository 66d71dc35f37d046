//! Token embedding, plus learned positions where there are some.
//!
//! A tensor-parallel rank holds the rows of some tokens; the sum over the ranks is the embedding. Positions are added to
//! that sum, on the rows of the residual stream.

use std::ops::Range;

use warpweft_device::{Buffer, Float, View};
use warpweft_kernels::{Write, embedding};

use crate::TrainError;
use crate::model::layers::seen_by_rows;
use crate::model::pass::Pass;
use crate::model::portion::Portion;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::spread::Spread;
use crate::model::table::{Entry, Init, Table, TensorId};
use crate::parallel::gradients::Gradients;
use crate::parallel::layout::{Axes, Layout, Placement};
use crate::parallel::tensor;

/// The embedding of a model.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The table of the tokens `[V, C]`.
    pub tokens: TensorId,
    /// The table of the positions `[context, C]`.
    pub positions: Option<TensorId>,
    vocab: usize,
    held: Range<usize>,
    context: usize,
    channels: usize,
}

/// Tokens of a micro-batch and the places where they stand, `[B, T]` each.
#[derive(Clone, Copy)]
pub struct Ids<'a> {
    /// The tokens.
    pub tokens: View<'a, u32>,
    /// Their positions in their sequence.
    pub positions: View<'a, u32>,
}

impl Embedding {
    /// The embedding of a model; enters its tables.
    pub(super) fn new(table: &mut Table, shape: &ModelShape, spread: &Spread, deviation: f64) -> Self {
        let gpt2 = shape.architecture == Architecture::Gpt2;
        let (vocab, context, channels) = (shape.vocab, shape.context, shape.channels);
        let held = spread.tp.share(vocab);
        let name = if gpt2 { "transformer.wte.weight" } else { "model.embed_tokens.weight" };
        table.begin_unit("token embedding", spread.embeds(), Axes::TOKENS);
        let sizes = vec![vocab, channels];
        let [tokens] = table.group([Entry {
            portion: Portion::whole(&sizes).only(0, vec![held.clone()]),
            layout: Layout::REPLICATED.with(Axes::TENSOR, Placement::Sharded(0)),
            ..Entry::replicated(name.into(), sizes, Init::Normal(deviation))
        }]);
        let positions = gpt2.then(|| {
            table.begin_unit("positions", spread.embeds(), Axes::TOKENS);
            let name = "transformer.wpe.weight".to_owned();
            let [positions] = table.group([Entry {
                seen_in_part: seen_by_rows(spread.sequence_parallel),
                ..Entry::replicated(name, vec![context, channels], Init::Normal(deviation))
            }]);
            positions
        });
        Self { tokens, positions, vocab, held, context, channels }
    }

    /// The rows of the token table that this rank holds.
    pub fn held(&self) -> Range<usize> {
        self.held.clone()
    }

    fn tokens_shape<T>(&self, pass: &Pass<'_, T>) -> (embedding::Shape, embedding::Shard) {
        let (batch, tokens, channels, vocab) = (pass.batch, pass.tokens, self.channels, self.held.len());
        let shape = embedding::Shape { batch, tokens, channels, vocab, positions: 0 };
        (shape, embedding::Shard { first: self.held.start, vocab: self.vocab })
    }

    /// The lookup of positions for `rows` rows.
    fn positions_shape(&self, rows: usize) -> (embedding::Shape, embedding::Shard) {
        let (channels, vocab) = (self.channels, self.context);
        let shape = embedding::Shape { batch: rows, tokens: 1, channels, vocab, positions: 0 };
        (shape, embedding::Shard { first: 0, vocab })
    }

    /// `y`, the rows of the residual stream; `summand` is room for `[M, C]`.
    ///
    /// # Errors
    /// A token outside the vocabulary; regions that do not have the layer's shape.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        ids: Ids<'_>,
        summand: &mut Buffer<T>,
        y: &mut Buffer<T>,
    ) -> Result<(), TrainError> {
        let channels = self.channels;
        let (shape, shard) = self.tokens_shape(pass);
        let table = pass.weights.view(self.tokens)?;
        let own = pass.of_mut(summand, channels)?;
        embedding::forward_shard(pass.stream, shape, shard, ids.tokens, table, Write::Set, own)?;
        let sum = tensor::leave(pass, pass.plan.embedding.forward.leave, summand, channels)?;
        pass.stream_of_mut(y, channels)?.copy_from(pass.stream, sum)?;
        let Some(positions) = self.positions else { return Ok(()) };
        let rows = pass.stream_rows();
        let (shape, shard) = self.positions_shape(rows.len());
        let (table, places) = (pass.weights.view(positions)?, ids.positions.slice(rows)?);
        let y = pass.stream_of_mut(y, channels)?;
        Ok(embedding::forward_shard(pass.stream, shape, shard, places, table, Write::Add, y)?)
    }

    /// Adds to the gradients of the tables, from the error of the residual stream; `whole` is room for `[M, C]`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        ids: Ids<'_>,
        dy: View<'_, T>,
        whole: &mut Buffer<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        if let Some(positions) = self.positions {
            let rows = pass.stream_rows();
            let (shape, shard) = self.positions_shape(rows.len());
            let dtable = gradients.view(positions)?;
            embedding::backward_shard(pass.stream, shape, shard, ids.positions.slice(rows)?, dy, dtable)?;
            gradients.done(positions, positions)?;
        }
        let dy = tensor::enter(pass, pass.plan.embedding.backward.enter, dy, self.channels, whole)?;
        let (shape, shard) = self.tokens_shape(pass);
        embedding::backward_shard(pass.stream, shape, shard, ids.tokens, dy, gradients.view(self.tokens)?)?;
        gradients.done(self.tokens, self.tokens)
    }
}
