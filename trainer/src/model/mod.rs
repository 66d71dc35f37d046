//! GPT-2 and Llama style dense decoder-only models, without an autograd engine: each layer says how it goes forward and
//! back.
//!
//! [`Model`] is structure only (which layers, which parameters); [`Parameters`] are the weights, [`Activations`] and
//! [`Errors`] the memory of a pass, made once and used for every one.

mod attention;
mod block;
mod layers;
mod parameters;
mod pass;
mod shape;
mod stored;
mod table;

use warpweft_device::{Buffer, Float, View};
use warpweft_kernels::{Write, cross_entropy};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::parallel::data::Gradients;

pub use attention::Attention;
pub use block::{Block, BlockActivations, BlockErrors};
pub use layers::{Embedding, Linear, Norm, NormRows};
pub use parameters::{Parameters, initial_values};
pub use pass::Pass;
pub use shape::{Architecture, ModelShape, ShapeError};
pub use stored::{from_tensors, to_tensors};
pub use table::{Init, Parameter, Table, TensorId};

/// Standard deviation of the initial weights.
const DEVIATION: f64 = 0.02;

/// A model's layers and the table of its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    shape: ModelShape,
    table: Table,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

/// What a forward pass keeps for its backward pass, up to a number of rows.
pub struct Activations<T> {
    /// The residual stream before each block, and after the last.
    stream: Vec<Buffer<T>>,
    blocks: Vec<BlockActivations<T>>,
    norm: NormRows,
    normed: Buffer<T>,
    /// `[M, V]`; a backward pass turns them into their errors in place.
    logits: Buffer<T>,
    losses: Buffer<f32>,
    lse: Buffer<f32>,
}

/// Gradients of activations on their way back, up to a number of rows.
pub struct Errors<T> {
    stream: Buffer<T>,
    block: BlockErrors<T>,
}

impl Model {
    /// The model of these sizes.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn new(shape: ModelShape) -> Result<Self, ShapeError> {
        shape.check()?;
        let mut table = Table::default();
        let gpt2 = shape.architecture == Architecture::Gpt2;
        let (names, norm) = if gpt2 {
            (("transformer.wte", Some("transformer.wpe")), "transformer.ln_f")
        } else {
            (("model.embed_tokens", None), "model.norm")
        };
        let (vocab, channels) = (shape.vocab, shape.channels);
        let embedding = Embedding::new(&mut table, names, [vocab, shape.context, channels], DEVIATION);
        let blocks = (0..shape.layers).map(|index| Block::new(&mut table, &shape, index)).collect();
        let norm = Norm::new(&mut table, norm, channels, gpt2);
        let head = if shape.tied {
            Linear::tied(&mut table, embedding.tokens, [vocab, channels])
        } else {
            Linear::new(&mut table, "lm_head", [vocab, channels], false, DEVIATION)
        };
        table.place();
        Ok(Self { shape, table, embedding, blocks, norm, head })
    }

    /// Its sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Its parameters.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The tables of its embedding.
    pub fn embedding_tables(&self) -> impl Iterator<Item = TensorId> {
        [Some(self.embedding.tokens), self.embedding.positions].into_iter().flatten()
    }

    /// Memory for passes of up to `rows` rows (B T).
    ///
    /// # Errors
    /// No memory for them.
    pub fn activations<T: Float>(
        &self,
        rows: usize,
        allocator: &mut Allocator<'_>,
    ) -> Result<Activations<T>, TrainError> {
        let ModelShape { channels, vocab, .. } = self.shape;
        let stream = (0..=self.blocks.len())
            .map(|_| allocator.zeros(Class::Activations, rows * channels))
            .collect::<Result<_, _>>()?;
        let blocks =
            self.blocks.iter().map(|block| block.activations(rows, allocator)).collect::<Result<_, TrainError>>()?;
        Ok(Activations {
            stream,
            blocks,
            norm: self.norm.rows(rows, allocator)?,
            normed: allocator.zeros(Class::Activations, rows * channels)?,
            logits: allocator.zeros(Class::Activations, rows * vocab)?,
            losses: allocator.zeros(Class::Activations, rows)?,
            lse: allocator.zeros(Class::Activations, rows)?,
        })
    }

    /// Memory for backward passes of up to `rows` rows.
    ///
    /// # Errors
    /// No memory for them.
    pub fn errors<T: Float>(&self, rows: usize, allocator: &mut Allocator<'_>) -> Result<Errors<T>, TrainError> {
        Ok(Errors {
            stream: allocator.zeros(Class::Errors, rows * self.shape.channels)?,
            // All blocks have the same sizes, and a checked shape has at least one.
            block: self.blocks[0].errors(rows, allocator)?,
        })
    }

    /// Goes forward to the logits.
    ///
    /// # Errors
    /// A token outside the vocabulary; a pass larger than the activations were made for.
    pub fn forward<T: Float>(&self, pass: &Pass<'_, T>, kept: &mut Activations<T>) -> Result<(), TrainError> {
        let ModelShape { channels, vocab, .. } = self.shape;
        let embedded = pass.of_mut(&mut kept.stream[0], channels)?;
        pass.timed(|| "forward embedding".into(), || self.embedding.forward(pass, embedded))?;
        for (index, block) in self.blocks.iter().enumerate() {
            let (before, after) = kept.stream.split_at_mut(index + 1);
            let (x, y) = (pass.of(&before[index], channels)?, pass.of_mut(&mut after[0], channels)?);
            let kept = &mut kept.blocks[index];
            pass.timed(|| format!("forward block {index}").into(), || block.forward(pass, x, kept, y))?;
        }
        let x = pass.of(&kept.stream[self.blocks.len()], channels)?;
        pass.timed(
            || "forward head".into(),
            || {
                self.norm.forward(pass, x, &mut kept.norm, pass.of_mut(&mut kept.normed, channels)?)?;
                let normed = pass.of(&kept.normed, channels)?;
                self.head.forward(pass, normed, None, None, pass.of_mut(&mut kept.logits, vocab)?)
            },
        )
    }

    /// The loss of every row against its target, summed in f64, and the number of targets; rows whose target is
    /// `ignore` have none. The logits are those of the last [`forward`](Self::forward).
    ///
    /// # Errors
    /// A target outside the vocabulary.
    pub fn loss<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        targets: View<'_, u32>,
        kept: &mut Activations<T>,
    ) -> Result<cross_entropy::Sum, TrainError> {
        let shape = cross_entropy::Shape { rows: pass.rows(), vocab: self.shape.vocab };
        let logits = pass.of(&kept.logits, self.shape.vocab)?;
        let (losses, lse) = (pass.of_mut(&mut kept.losses, 1)?, pass.of_mut(&mut kept.lse, 1)?);
        Ok(cross_entropy::forward(pass.stream, shape, logits, targets, Some(IGNORE), losses, lse)?)
    }

    /// Goes back from the sum of the losses times `scale` and adds to the gradients of all weights.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a bucket's reduction.
    pub fn backward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        (targets, scale): (View<'_, u32>, f32),
        kept: &mut Activations<T>,
        errors: &mut Errors<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let channels = self.shape.channels;
        pass.timed(|| "backward head".into(), || self.backward_head(pass, (targets, scale), kept, errors, gradients))?;
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let (x, dx) = (pass.of(&kept.stream[index], channels)?, pass.of_mut(&mut errors.stream, channels)?);
            let (kept, errors) = (&kept.blocks[index], &mut errors.block);
            pass.timed(
                || format!("backward block {index}").into(),
                || block.backward(pass, x, kept, errors, dx, gradients),
            )?;
        }
        let dx = pass.of(&errors.stream, channels)?;
        pass.timed(|| "backward embedding".into(), || self.embedding.backward_weight(pass, dx, gradients))
    }

    /// From the losses to the error of the residual stream after the last block.
    fn backward_head<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        (targets, scale): (View<'_, u32>, f32),
        kept: &mut Activations<T>,
        errors: &mut Errors<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let ModelShape { channels, vocab, .. } = self.shape;
        let shape = cross_entropy::Shape { rows: pass.rows(), vocab };
        let (lse, logits) = (pass.of(&kept.lse, 1)?, pass.of_mut(&mut kept.logits, vocab)?);
        cross_entropy::backward(pass.stream, shape, logits, targets, Some(IGNORE), lse, scale)?;
        let dlogits = pass.of(&kept.logits, vocab)?;
        let dnormed = pass.of_mut(&mut errors.block.branch, channels)?;
        self.head.backward_input(pass, dlogits, Write::Set, dnormed)?;
        self.head.backward_weight(pass, pass.of(&kept.normed, channels)?, dlogits, gradients)?;
        let x = pass.of(&kept.stream[self.blocks.len()], channels)?;
        let dnormed = pass.of(&errors.block.branch, channels)?;
        let dx = pass.of_mut(&mut errors.stream, channels)?;
        self.norm.backward_input(pass, dnormed, x, &kept.norm, Write::Set, dx)?;
        self.norm.backward_weight(pass, dnormed, x, &kept.norm, gradients)
    }
}

impl<T: Float> Activations<T> {
    /// The logits of the last forward pass, `[M, V]` and whatever larger passes left behind them.
    pub fn logits(&self) -> View<'_, T> {
        self.logits.as_view()
    }
}

/// A target that counts for nothing.
pub const IGNORE: u32 = u32::MAX;
