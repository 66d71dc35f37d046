//! Causal self-attention over packed rows of queries, keys and values: the layer between two linear ones, without
//! weights of its own. A tensor-parallel rank has some of the heads, a context-parallel one some of the tokens.

use warpweft_device::{Float, View, ViewMut};
use warpweft_kernels::{attention, rope};

use crate::TrainError;
use crate::model::pass::Pass;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::spread::Spread;
use crate::parallel::context;

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
        let row_stride = (heads + self.kv_heads) * self.head_size;
        rope::Shape { batch: pass.batch, tokens: pass.tokens, heads, head_size: self.head_size, row_stride }
    }

    fn options() -> attention::Options {
        attention::Options::CAUSAL
    }

    /// This rank's sizes, where the tokens of a sequence are shared out.
    fn sizes<T>(&self, pass: &Pass<'_, T>) -> context::Sizes {
        let (heads, kv_heads, head_size) = (self.heads, self.kv_heads, self.head_size);
        context::Sizes { batch: pass.batch, heads, kv_heads, head_size, options: Self::options() }
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
        let places = pass.mesh.sequence().map(|context| context.positions().repeat(pass.batch));
        let places = places.as_ref().map(|places| View::from_host(pass.stream.device(), places)).transpose()?;
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
        y: ViewMut<'_, T>,
        lse: ViewMut<'_, f32>,
    ) -> Result<(), TrainError> {
        self.rotate(pass, false, qkv.reborrow())?;
        if let Some(context) = pass.mesh.sequence() {
            return context.forward(pass.stream, &self.sizes(pass), qkv.as_view(), y, lse);
        }
        let (shape, options) = (self.shape(pass), Self::options());
        Ok(attention::forward_packed(pass.stream, shape, options, qkv.as_view(), y, lse)?)
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
            let (shape, options) = (self.shape(pass), Self::options());
            attention::backward_packed(pass.stream, shape, options, qkv, y, lse, dy, dqkv.reborrow())?;
        }
        self.rotate(pass, true, dqkv)
    }
}
