//! The end of a model: the last norm, the output projection, and the loss.
//!
//! A tensor-parallel rank has the logits of some tokens of the vocabulary. Three numbers of each row are gathered to know
//! the loss; the logits themselves never travel.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::{Write, cross_entropy};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::chunk::Room;
use crate::model::layers::{Columns, Linear, Norm, NormRows};
use crate::model::pass::Pass;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::spread::Spread;
use crate::model::table::Table;
use crate::model::{Embedding, IGNORE};
use crate::parallel::gradients::Gradients;
use crate::parallel::layout::Axes;
use crate::parallel::tensor;

/// The layers after the last block.
#[derive(Clone, Debug)]
pub struct Head {
    norm: Norm,
    projection: Linear,
    shard: cross_entropy::Shard,
    channels: usize,
    ranks: usize,
}

/// What the head keeps for its backward pass, up to a number of rows.
pub struct HeadKept<T> {
    norm: NormRows,
    /// Rows of the residual stream.
    normed: Buffer<T>,
    /// `[M, V]`, of this rank's tokens; a backward pass turns them into their errors in place.
    logits: Buffer<T>,
    losses: Buffer<f32>,
    parts: Buffer<f64>,
    all_parts: Buffer<f64>,
    normaliser: Buffer<f64>,
    /// The error of `normed`.
    dnormed: Buffer<T>,
}

impl Head {
    /// The head of a model; enters its parameters, or takes the embedding's table where that is tied.
    pub(super) fn new(
        table: &mut Table,
        shape: &ModelShape,
        spread: &Spread,
        embedding: &Embedding,
        deviation: f64,
    ) -> Self {
        let gpt2 = shape.architecture == Architecture::Gpt2;
        let (vocab, channels) = (shape.vocab, shape.channels);
        let here = spread.ends();
        table.begin_unit("head", here, Axes::TOKENS);
        let name = if gpt2 { "transformer.ln_f" } else { "model.norm" };
        let norm = Norm::new(table, name, channels, gpt2, spread.sequence_parallel);
        let held = embedding.held();
        let projection = if shape.tied {
            table.use_again(embedding.tokens, !spread.ends_together(), here);
            Linear::on(embedding.tokens, [held.len(), channels])
        } else {
            let columns = [Columns::shared_out(vocab, vec![held.clone()])];
            Linear::of_columns(table, "lm_head", columns, channels, false, deviation)
        };
        let shard = cross_entropy::Shard { first: held.start, vocab };
        Self { norm, projection, shard, channels, ranks: spread.tp.of }
    }

    /// Memory for what a forward pass of up to `room` keeps.
    ///
    /// # Errors
    /// No memory for it.
    pub fn kept<T: Float>(&self, room: Room, allocator: &mut Allocator<'_>) -> Result<HeadKept<T>, TrainError> {
        let Room { rows, stream_rows } = room;
        Ok(HeadKept {
            norm: self.norm.rows(stream_rows, allocator)?,
            normed: allocator.zeros(Class::Activations, stream_rows * self.channels)?,
            logits: allocator.zeros(Class::Activations, rows * self.projection.outputs())?,
            losses: allocator.zeros(Class::Activations, rows)?,
            parts: allocator.zeros(Class::Activations, rows * cross_entropy::PARTS)?,
            all_parts: allocator.zeros(Class::Activations, rows * cross_entropy::PARTS * self.ranks)?,
            normaliser: allocator.zeros(Class::Activations, rows * 2)?,
            dnormed: allocator.zeros(Class::Errors, stream_rows * self.channels)?,
        })
    }

    /// From the residual stream to this rank's logits; `whole` is room for `[M, C]`.
    ///
    /// # Errors
    /// A pass larger than the memory was made for; a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &mut HeadKept<T>,
        whole: &mut Buffer<T>,
    ) -> Result<(), TrainError> {
        let channels = self.channels;
        self.norm.forward(pass, x, &mut kept.norm, pass.stream_of_mut(&mut kept.normed, channels)?)?;
        let normed = pass.stream_of(&kept.normed, channels)?;
        let normed = tensor::enter(pass, pass.plan.head.forward.enter, normed, channels, whole)?;
        self.projection.product(pass, normed, pass.of_mut(&mut kept.logits, self.projection.outputs())?)
    }

    fn shape<T>(&self, pass: &Pass<'_, T>) -> cross_entropy::Shape {
        cross_entropy::Shape { rows: pass.rows(), vocab: self.projection.outputs() }
    }

    /// The loss of every row against its target, summed in f64, and the number of targets; rows whose target is
    /// [`IGNORE`] have none. Every tensor-parallel rank has the same.
    ///
    /// # Errors
    /// A target outside the vocabulary; a failed operation among the ranks.
    pub fn loss<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        targets: View<'_, u32>,
        kept: &mut HeadKept<T>,
    ) -> Result<cross_entropy::Sum, TrainError> {
        let logits = pass.of(&kept.logits, self.projection.outputs())?;
        let parts = pass.of_mut(&mut kept.parts, cross_entropy::PARTS)?;
        let shape = self.shape(pass);
        cross_entropy::forward_shard(pass.stream, shape, self.shard, logits, targets, Some(IGNORE), parts)?;
        tensor::gather(pass, pass.of(&kept.parts, cross_entropy::PARTS)?, &mut kept.all_parts)?;
        let all = pass.of(&kept.all_parts, cross_entropy::PARTS * self.ranks)?;
        let (losses, normaliser) = (pass.of_mut(&mut kept.losses, 1)?, pass.of_mut(&mut kept.normaliser, 2)?);
        Ok(cross_entropy::merge(pass.stream, self.ranks, all, targets, Some(IGNORE), losses, normaliser)?)
    }

    /// From the losses times `scale` to the error of the residual stream, `dx`; `summand` is room for `[M, C]`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        (targets, scale): (View<'_, u32>, f32),
        x: View<'_, T>,
        kept: &mut HeadKept<T>,
        summand: &mut Buffer<T>,
        dx: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let (channels, vocab) = (self.channels, self.projection.outputs());
        let normaliser = pass.of(&kept.normaliser, 2)?;
        let logits = pass.of_mut(&mut kept.logits, vocab)?;
        let shape = self.shape(pass);
        let (shard, ignore) = (self.shard, Some(IGNORE));
        cross_entropy::backward_shard(pass.stream, shape, shard, logits, targets, ignore, normaliser, scale)?;
        let dlogits = pass.of(&kept.logits, vocab)?;
        self.projection.backward_input(pass, dlogits, Write::Set, pass.of_mut(summand, channels)?)?;
        let dnormed = tensor::leave(pass, pass.plan.head.backward.leave, summand, channels)?;
        pass.stream_of_mut(&mut kept.dnormed, channels)?.copy_from(pass.stream, dnormed)?;
        let dnormed = pass.stream_of(&kept.dnormed, channels)?;
        self.norm.backward_input(pass, dnormed, x, &kept.norm, Write::Set, dx)
    }

    /// Adds to the gradients of norm and projection; `whole` is room for `[M, C]`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &HeadKept<T>,
        whole: &mut Buffer<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let channels = self.channels;
        let normed = pass.stream_of(&kept.normed, channels)?;
        let normed = tensor::enter(pass, pass.plan.head.forward.enter, normed, channels, whole)?;
        let dlogits = pass.of(&kept.logits, self.projection.outputs())?;
        self.projection.backward_weight(pass, normed, dlogits, gradients)?;
        self.norm.backward_weight(pass, pass.stream_of(&kept.dnormed, channels)?, x, &kept.norm, gradients)
    }
}

impl<T: Float> HeadKept<T> {
    /// This rank's logits, `[M, V]` and whatever larger passes left behind them.
    pub fn logits(&self) -> View<'_, T> {
        self.logits.as_view()
    }

    /// The loss of each row of the last pass, and whatever larger passes left behind.
    pub fn losses(&self) -> &Buffer<f32> {
        &self.losses
    }
}
