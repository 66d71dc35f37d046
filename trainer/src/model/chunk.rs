//! A chunk's way through a micro-batch: forward, backward to its input, and to its weights, as three calls; what each
//! leaves for the next lies in a [`Slot`].

use warpweft_device::{Buffer, Float, View};
use warpweft_kernels::cross_entropy;

use crate::TrainError;
use crate::dump::Kind;
use crate::memory::{Allocator, Class};
use crate::model::block::{BlockErrors, BlockKept};
use crate::model::embedding::Ids;
use crate::model::head::HeadKept;
use crate::model::pass::{MicroBatch, Pass};
use crate::model::recompute::{Again, Recompute};
use crate::model::routing::Routed;
use crate::model::spread::Chunk;
use crate::model::{Layer, Model};
use crate::parallel::exact::fixed_point;
use crate::parallel::gradients::Gradients;
use crate::parallel::weights::Weights as Parameters;

/// The most rows that memory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Rows inside a region, B T.
    pub rows: usize,
    /// Rows of the residual stream that a rank has.
    pub stream_rows: usize,
}

impl Room {
    /// For no row.
    pub(super) const NONE: Room = Room { rows: 0, stream_rows: 0 };
}

/// What one micro-batch of one chunk needs from its forward pass to the end of its backward pass.
pub struct Slot<T> {
    /// Sequences of the micro-batch that it holds.
    pub batch: usize,
    /// Tokens, their positions and their targets, `[B, T]`, where the chunk begins or ends the model.
    pub ids: Buffer<u32>,
    /// See `ids`.
    pub positions: Buffer<u32>,
    /// See `ids`.
    pub targets: Buffer<u32>,
    /// The residual stream before each block, and after the last.
    pub stream: Vec<Buffer<T>>,
    /// What the blocks keep; nothing while that is to be computed again.
    blocks: Vec<Option<BlockKept<T>>>,
    head: Option<HeadKept<T>>,
    /// Errors that wait for the backward pass to the weights: of each block, or of one after the other.
    errors: Vec<BlockErrors<T>>,
    /// The error of the embedding's output, where that waits.
    embedded: Option<Buffer<T>>,
}

/// Memory that every pass uses again.
pub struct Work<T> {
    /// Rows gathered at the border of a region, `[M, C]`.
    pub(super) whole: Buffer<T>,
    /// A summand on its way out of a region, `[M, C]`.
    pub(super) summand: Buffer<T>,
    /// Errors between two layers of a block, as wide as the widest.
    pub(super) inner: Buffer<T>,
    /// Errors of blocks, where backward passes to input and weights are one.
    pub(super) errors: Vec<BlockErrors<T>>,
    /// What passes do not keep.
    again: Again<T>,
    /// What the routers did since it was taken.
    pub(crate) routed: Routed,
}

/// When the gradients of the weights are formed.
pub enum Weights<'a> {
    /// With those of the input, layer by layer.
    Now(&'a mut Gradients),
    /// Later, from what the slot keeps.
    Later,
}

impl Model {
    /// Memory for a micro-batch of a chunk, for what is not computed again; with `split`, also for errors that wait for a
    /// later pass to the weights.
    ///
    /// # Errors
    /// No memory for it.
    pub fn slot<T: Float>(
        &self,
        chunk: &Chunk,
        room: Room,
        (split, recompute): (bool, Recompute),
        allocator: &mut Allocator<'_>,
    ) -> Result<Slot<T>, TrainError> {
        let channels = self.shape().channels;
        let tokens = if chunk.embeds || chunk.ends || self.needs_positions() { room.rows } else { 0 };
        let blocks = &self.blocks[chunk.blocks.clone()];
        let stream = (0..=blocks.len())
            .map(|_| allocator.zeros(Class::Activations, room.stream_rows * channels))
            .collect::<Result<_, _>>()?;
        Ok(Slot {
            batch: 0,
            ids: allocator.zeros(Class::Buffers, tokens)?,
            positions: allocator.zeros(Class::Buffers, tokens)?,
            targets: allocator.zeros(Class::Buffers, tokens)?,
            stream,
            blocks: blocks
                .iter()
                .map(|block| Again::kept(block, recompute, room, allocator))
                .collect::<Result<_, _>>()?,
            head: if chunk.ends { Some(self.head.kept(room, allocator)?) } else { None },
            errors: match split {
                true => blocks.iter().map(|block| block.errors(room, allocator)).collect::<Result<_, _>>()?,
                false => Vec::new(),
            },
            embedded: match split && chunk.embeds {
                true => Some(allocator.zeros(Class::Errors, room.stream_rows * channels)?),
                false => None,
            },
        })
    }

    /// Memory that all passes use one after the other; `blocks` are those that may be at work or wait for the gradients of
    /// their weights at once.
    ///
    /// # Errors
    /// No memory for it.
    pub fn work<T: Float>(
        &self,
        room: Room,
        (recompute, blocks): (Recompute, usize),
        allocator: &mut Allocator<'_>,
    ) -> Result<Work<T>, TrainError> {
        let channels = self.shape().channels;
        // All blocks have the same sizes, and a checked shape has at least one.
        let block = &self.blocks[0];
        Ok(Work {
            whole: allocator.zeros(Class::Errors, room.rows * channels)?,
            summand: allocator.zeros(Class::Errors, room.rows * channels)?,
            inner: allocator.zeros(Class::Errors, room.rows * block.widest_inside())?,
            errors: vec![block.errors(room, allocator)?],
            again: Again::new(block, (recompute, blocks), room, allocator)?,
            routed: Routed::new(self.shape()),
        })
    }

    /// Has the weights of a layer whole for its use, and those of the next one on their way.
    fn need<T: Float>(
        &self,
        micro: &MicroBatch<'_>,
        weights: &mut Parameters<T>,
        layer: Layer,
        next: Option<Layer>,
    ) -> Result<(), TrainError> {
        for unit in self.units_of(layer) {
            weights.need(micro.stream, unit)?;
        }
        for unit in next.into_iter().flat_map(|next| self.units_of(next)) {
            weights.prefetch(micro.stream, unit)?;
        }
        Ok(())
    }

    /// Ends the use of a layer's weights.
    fn done<T: Float>(&self, weights: &mut Parameters<T>, layer: Layer) -> Result<(), TrainError> {
        self.units_of(layer).try_for_each(|unit| weights.done(unit))
    }

    /// Goes forward from the tokens, or from the rows in `slot.stream[0]`, to the last of `slot.stream`, or on to the
    /// logits.
    ///
    /// # Errors
    /// A token outside the vocabulary; a pass larger than the memory was made for; a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        chunk: &Chunk,
        micro: &MicroBatch<'_>,
        weights: &mut Parameters<T>,
        slot: &mut Slot<T>,
        work: &mut Work<T>,
    ) -> Result<(), TrainError> {
        let channels = self.shape().channels;
        let after = |block: usize| match block + 1 < chunk.blocks.end {
            true => Some(Layer::Block(block + 1)),
            false => chunk.ends.then_some(Layer::Head),
        };
        if chunk.embeds {
            self.need(micro, weights, Layer::Embedding, Some(Layer::Block(chunk.blocks.start)))?;
            let pass = &micro.pass(weights, &slot.positions);
            let ids = Ids { tokens: pass.of(&slot.ids, 1)?, positions: pass.of(&slot.positions, 1)? };
            let y = &mut slot.stream[0];
            micro.timed(|| "forward embedding".into(), || self.embedding.forward(pass, ids, &mut work.summand, y))?;
            micro.dump((Kind::Forward, || "embedding".into()), pass, &slot.stream[0], channels)?;
            self.done(weights, Layer::Embedding)?;
        }
        for (index, place) in slot.blocks.iter_mut().enumerate() {
            let (before, behind) = slot.stream.split_at_mut(index + 1);
            let block = chunk.blocks.start + index;
            self.need(micro, weights, Layer::Block(block), after(block))?;
            let pass = &micro.pass(weights, &slot.positions);
            let (x, y) = (pass.stream_of(&before[index], channels)?, &mut behind[0]);
            let mut kept = work.again.take(place)?;
            micro.timed(
                || format!("forward block {block}").into(),
                || self.blocks[block].forward(pass, x, &mut kept, work, Some(y)),
            )?;
            work.again.done(kept, place);
            micro.dump((Kind::Forward, || format!("block.{block}")), pass, &behind[0], channels)?;
            self.done(weights, Layer::Block(block))?;
        }
        let Some(head) = &mut slot.head else { return Ok(()) };
        // Its weights stay for the backward pass, which begins with it.
        self.need(micro, weights, Layer::Head, None)?;
        let pass = &micro.pass(weights, &slot.positions);
        let x = pass.stream_of(&slot.stream[chunk.blocks.len()], channels)?;
        micro.timed(|| "forward head".into(), || self.head.forward(pass, x, head, &mut work.whole))
    }

    /// The loss of the micro-batch that went forward last in this slot, whose chunk ends the model; zero for others.
    ///
    /// # Errors
    /// A target outside the vocabulary; a failed operation among the ranks.
    pub fn loss<T: Float>(
        &self,
        micro: &MicroBatch<'_>,
        weights: &Parameters<T>,
        slot: &mut Slot<T>,
    ) -> Result<cross_entropy::Sum, TrainError> {
        let (targets, pass) = (slot.targets.view(..)?, micro.pass(weights, &slot.positions));
        let Some(head) = &mut slot.head else { return Ok(cross_entropy::Sum::default()) };
        let sum = self.head.loss(&pass, targets.slice(..pass.rows())?, head)?;
        micro.dump.map_or(Ok(()), |dump| dump.losses(micro, &pass, head.losses()))?;
        if !micro.plan.exact {
            return Ok(sum);
        }
        // Rows without a target have a loss of zero.
        let losses = pass.of(head.losses(), 1)?.to_host()?;
        Ok(cross_entropy::Sum { loss: losses.iter().map(|loss| fixed_point(*loss)).sum(), ..sum })
    }

    /// Goes back from the losses times `scale`, or from the error in `dx`, to the error of the chunk's input in `dx`;
    /// adds to the gradients of the weights on the way, or leaves them to [`backward_weight`](Self::backward_weight).
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a reduction.
    #[allow(clippy::too_many_arguments)] // the parts of one pass
    pub fn backward<T: Float>(
        &self,
        chunk: &Chunk,
        micro: &MicroBatch<'_>,
        weights: &mut Parameters<T>,
        scale: f32,
        slot: &mut Slot<T>,
        work: &mut Work<T>,
        dx: &mut Buffer<T>,
        mut gradients: Weights<'_>,
    ) -> Result<(), TrainError> {
        let channels = self.shape().channels;
        if let Some(head) = &mut slot.head {
            self.need(micro, weights, Layer::Head, Some(Layer::Block(chunk.blocks.end - 1)))?;
            let pass = &micro.pass(weights, &slot.positions);
            let stream = &slot.stream[chunk.blocks.len()];
            let (x, targets) = (pass.stream_of(stream, channels)?, pass.of(&slot.targets, 1)?);
            micro.timed(
                || "backward head".into(),
                || {
                    let dx = pass.stream_of_mut(dx, channels)?;
                    self.head.backward_input(pass, (targets, scale), x, head, &mut work.summand, dx)?;
                    let Weights::Now(gradients) = &mut gradients else { return Ok(()) };
                    gradients.of_sequences(micro, pass, Layer::Head, |pass, gradients| {
                        let x = pass.stream_of(stream, channels)?;
                        self.head.backward_weight(pass, x, head, &mut work.whole, gradients)
                    })
                },
            )?;
            micro.dump((Kind::Error, || "head".into()), pass, dx, channels)?;
            self.done(weights, Layer::Head)?;
        }
        for (index, place) in slot.blocks.iter_mut().enumerate().rev() {
            let block = chunk.blocks.start + index;
            let next = (index > 0).then(|| Layer::Block(block - 1));
            self.need(micro, weights, Layer::Block(block), next)?;
            let (pass, stream) = (&micro.pass(weights, &slot.positions), &slot.stream[index]);
            let x = pass.stream_of(stream, channels)?;
            let mut kept = work.again.take(place)?;
            self.again(micro, block, (pass, x), &mut kept, work, Recompute::Full)?;
            // Errors that nobody needs later lie in one place for all blocks, outside the memory of the pass.
            let mut shared = std::mem::take(&mut work.errors);
            let errors = if let Weights::Now(_) = gradients { &mut shared[0] } else { &mut slot.errors[index] };
            let done = micro.timed(
                || format!("backward block {block}").into(),
                || {
                    let layer = &self.blocks[block];
                    layer.backward_input(pass, scale, x, &kept, errors, work, dx)?;
                    let Weights::Now(gradients) = &mut gradients else { return Ok(()) };
                    self.again(micro, block, (pass, x), &mut kept, work, Recompute::Selective)?;
                    gradients.of_sequences(micro, pass, Layer::Block(block), |pass, gradients| {
                        let x = pass.stream_of(stream, channels)?;
                        layer.backward_weight(pass, x, &kept, errors, work, gradients)
                    })
                },
            );
            work.errors = shared;
            done?;
            match gradients {
                Weights::Now(_) => work.again.done(kept, place),
                Weights::Later => work.again.wait(kept, place),
            }
            micro.dump((Kind::Error, || format!("block.{block}")), pass, dx, channels)?;
            self.done(weights, Layer::Block(block))?;
        }
        if !chunk.embeds {
            return Ok(());
        }
        match (&mut gradients, &mut slot.embedded) {
            (Weights::Now(gradients), _) => {
                self.embedding_weight(micro, weights, (&slot.ids, &slot.positions), dx, work, gradients)
            }
            (Weights::Later, Some(kept)) => {
                let pass = micro.pass(weights, &slot.positions);
                let dy = pass.stream_of(dx, channels)?;
                Ok(pass.stream_of_mut(kept, channels)?.copy_from(pass.stream, dy)?)
            }
            (Weights::Later, None) => Ok(()),
        }
    }

    /// Computes again what a block's pass did not keep, where it is `mode` that keeps it not.
    fn again<T: Float>(
        &self,
        micro: &MicroBatch<'_>,
        block: usize,
        (pass, x): (&Pass<'_, T>, View<'_, T>),
        kept: &mut BlockKept<T>,
        work: &mut Work<T>,
        mode: Recompute,
    ) -> Result<(), TrainError> {
        if work.again.mode() != mode {
            return Ok(());
        }
        let layer = &self.blocks[block];
        micro.timed(
            || format!("again block {block}").into(),
            || match mode {
                Recompute::None => Ok(()),
                Recompute::Selective => layer.forward_cheap(pass, x, kept),
                Recompute::Full => layer.forward(pass, x, kept, work, None),
            },
        )
    }

    /// Adds to the gradients of the embedding's tables, from the error of its output.
    fn embedding_weight<T: Float>(
        &self,
        micro: &MicroBatch<'_>,
        weights: &Parameters<T>,
        (tokens, positions): (&Buffer<u32>, &Buffer<u32>),
        dy: &Buffer<T>,
        work: &mut Work<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let (pass, channels) = (&micro.pass(weights, positions), self.shape().channels);
        micro.timed(
            || "weights embedding".into(),
            || {
                gradients.of_sequences(micro, pass, Layer::Embedding, |pass, gradients| {
                    let ids = Ids { tokens: pass.of(tokens, 1)?, positions: pass.of(positions, 1)? };
                    let dy = pass.stream_of(dy, channels)?;
                    self.embedding.backward_weight(pass, ids, dy, &mut work.whole, gradients)
                })
            },
        )
    }

    /// Adds to the gradients of the weights what a [`backward`](Self::backward) pass of this slot left for later.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn backward_weight<T: Float>(
        &self,
        chunk: &Chunk,
        micro: &MicroBatch<'_>,
        weights: &mut Parameters<T>,
        slot: &mut Slot<T>,
        work: &mut Work<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let channels = self.shape().channels;
        if let Some(head) = &slot.head {
            let pass = &micro.pass(weights, &slot.positions);
            let stream = &slot.stream[chunk.blocks.len()];
            let add = |pass: &Pass<'_, T>, gradients: &mut Gradients| {
                let x = pass.stream_of(stream, channels)?;
                self.head.backward_weight(pass, x, head, &mut work.whole, gradients)
            };
            let name = || "weights head".into();
            micro.timed(name, || gradients.of_sequences(micro, pass, Layer::Head, add))?;
        }
        for (index, (place, errors)) in slot.blocks.iter_mut().zip(&slot.errors).enumerate().rev() {
            let (block, stream) = (chunk.blocks.start + index, &slot.stream[index]);
            let selective = work.again.mode() == Recompute::Selective;
            let mut kept = work.again.take(place)?;
            if selective {
                // What is computed again takes the weights of the norms.
                self.need(micro, weights, Layer::Block(block), (index > 0).then(|| Layer::Block(block - 1)))?;
                let pass = &micro.pass(weights, &slot.positions);
                let x = pass.stream_of(stream, channels)?;
                self.again(micro, block, (pass, x), &mut kept, work, Recompute::Selective)?;
            }
            let pass = &micro.pass(weights, &slot.positions);
            let add = |pass: &Pass<'_, T>, gradients: &mut Gradients| {
                let x = pass.stream_of(stream, channels)?;
                self.blocks[block].backward_weight(pass, x, &kept, errors, work, gradients)
            };
            let name = || format!("weights block {block}").into();
            micro.timed(name, || gradients.of_sequences(micro, pass, Layer::Block(block), add))?;
            work.again.done(kept, place);
            if selective {
                self.done(weights, Layer::Block(block))?;
            }
        }
        let Some(dy) = &slot.embedded else { return Ok(()) };
        self.embedding_weight(micro, weights, (&slot.ids, &slot.positions), dy, work, gradients)
    }
}

impl<T: Float> Slot<T> {
    /// The logits of the last forward pass, of this rank's part of the vocabulary; `None` where another stage has them.
    pub fn logits(&self) -> Option<View<'_, T>> {
        self.head.as_ref().map(HeadKept::logits)
    }

    /// Puts a micro-batch in: tokens, their positions and their targets, each `[B, T]`.
    ///
    /// # Errors
    /// More tokens than the slot has room for.
    pub fn load(
        &mut self,
        stream: &warpweft_device::Stream,
        batch: usize,
        (tokens, positions, targets): (&[u32], &[u32], &[u32]),
    ) -> Result<(), TrainError> {
        self.batch = batch;
        if self.ids.is_empty() {
            return Ok(());
        }
        for (buffer, values) in
            [(&mut self.ids, tokens), (&mut self.positions, positions), (&mut self.targets, targets)]
        {
            buffer.view_mut(..values.len())?.copy_from_host(stream, values)?;
        }
        Ok(())
    }
}
