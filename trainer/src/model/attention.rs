//! Causal self-attention over packed rows of queries, keys and values: the layer between two linear ones, without
//! weights of its own. A tensor-parallel rank has some of the heads, a context-parallel one some of the tokens.

use warpweft_device::{Float, View, ViewMut};
use warpweft_kernels::{attention, rope};

use crate::TrainError;
use crate::model::pass::Pass;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::spread::Spread;
use crate::parallel::context::{self, Call};

/// Causal attention with `heads` query heads over `kv_heads` key/value heads, after RoPE where the model has it.
#[derive(Clone, Debug)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    rotates: bool,
}

impl Attention {
    /// A rank's part of the attention of a model.
    pub fn new(model: &ModelShape, spread: &Spread) -> Self {
        let rotates = model.architecture == Architecture::Llama;
        let (heads, kv_heads) = (spread.tp.share(model.heads).len(), spread.kv_heads(model).len());
        Self { heads, kv_heads, head_size: model.head_size(), rotates }
    }

    /// Query heads that this rank has.
    pub fn heads(&self) -> usize {
        self.heads
    }

    fn shape<T>(&self, pass: &Pass<'_, T>) -> attention::Shape {
        let (heads, kv_heads, head_size) = (self.heads, self.kv_heads, self.head_size);
        attention::Shape { batch: pass.batch, queries: pass.tokens, keys: pass.tokens, heads, kv_heads, head_size }
    }

    /// The queries and keys of packed rows; the values behind them stay as they are.
    fn rotated<T>(&self, pass: &Pass<'_, T>) -> rope::Shape {
        let heads = self.heads + self.kv_heads;
        let (head_size, row_stride) = (self.head_size, self.row());
        rope::Shape { batch: pass.batch, tokens: pass.tokens, heads, head_size, row_stride }
    }

    /// Elements of a packed row.
    fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }

    fn options() -> attention::Options {
        attention::Options::CAUSAL
    }

    /// This rank's sizes, where the tokens of a sequence are shared out.
    fn sizes<'a, T>(&self, pass: &Pass<'a, T>) -> context::Sizes<'a> {
        let (heads, kv_heads, head_size) = (self.heads, self.kv_heads, self.head_size);
        let (options, documents) = (Self::options(), pass.documents);
        context::Sizes { batch: pass.batch, heads, kv_heads, head_size, options, documents }
    }

    /// Elements of the LSE of a pass.
    pub fn lse_len<T>(&self, pass: &Pass<'_, T>) -> usize {
        match pass.mesh.sequence() {
            Some(context) => context.lse_len(pass.batch, self.heads),
            None => pass.rows() * self.heads,
        }
    }

    /// Turns queries and keys by their tokens' positions, or back.
    fn rotate<T: Float>(&self, pass: &Pass<'_, T>, back: bool, rows: ViewMut<'_, T>) -> Result<(), TrainError> {
        if !self.rotates {
            return Ok(());
        }
        let places = pass.positions.map(|places| pass.of(places, 1)).transpose()?;
        let turn = if back { rope::backward } else { rope::forward };
        Ok(turn(pass.stream, self.rotated(pass), rope::Options::default(), places, rows)?)
    }

    /// `y` `[M, H D]` from the packed rows `[M, (H + 2G) D]`, which are rotated in place and must be kept so; `lse` has
    /// [`lse_len`](Self::lse_len) elements.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape; a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        mut qkv: ViewMut<'_, T>,
        mut y: ViewMut<'_, T>,
        mut lse: ViewMut<'_, f32>,
    ) -> Result<(), TrainError> {
        self.rotate(pass, false, qkv.reborrow())?;
        if let Some(context) = pass.mesh.sequence() {
            return context.forward(pass.stream, &self.sizes(pass), qkv.as_view(), y, lse);
        }
        for call in Call::whole(self.shape(pass), pass.documents) {
            let rows = call.queries(qkv.as_view(), self.row())?;
            let y = call.queries_mut(y.reborrow(), self.heads * self.head_size)?;
            let lse = call.queries_mut(lse.reborrow(), self.heads)?;
            attention::forward_packed(pass.stream, call.shape, Self::options(), rows, y, lse)?;
        }
        Ok(())
    }

    /// The error of the packed rows, from the rows and results that `forward` left and the error of its result.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        (qkv, y, lse): (View<'_, T>, View<'_, T>, View<'_, f32>),
        dy: View<'_, T>,
        mut dqkv: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        if let Some(context) = pass.mesh.sequence() {
            context.backward(pass.stream, &self.sizes(pass), (qkv, y, lse), dy, dqkv.reborrow())?;
        } else {
            let width = self.heads * self.head_size;
            for call in Call::whole(self.shape(pass), pass.documents) {
                let (rows, y) = (call.queries(qkv, self.row())?, call.queries(y, width)?);
                let (lse, dy) = (call.queries(lse, self.heads)?, call.queries(dy, width)?);
                let drows = call.queries_mut(dqkv.reborrow(), self.row())?;
                attention::backward_packed(pass.stream, call.shape, Self::options(), rows, y, lse, dy, drows)?;
            }
        }
        self.rotate(pass, true, dqkv)
    }
}
