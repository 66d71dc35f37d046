//! One transformer block: `x += proj(attention(qkv(norm1 x)))`, then `x += down(activation(up(norm2 x)))`.
//!
//! GPT-2 and Llama differ in the parts (norms, biases, RoPE, activation), not in how they are put together.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::Activation;

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::attention::Attention;
use crate::model::layers::{Linear, Norm, NormRows};
use crate::model::pass::Pass;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::table::Table;
use crate::parallel::data::Gradients;

/// The layers of a block.
#[derive(Clone, Debug)]
pub struct Block {
    norm1: Norm,
    qkv: Linear,
    attention: Attention,
    projection: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
    widths: Widths,
}

/// Elements a row of what lies between the layers.
#[derive(Clone, Copy, Debug)]
struct Widths {
    channels: usize,
    qkv: usize,
    expanded: usize,
    hidden: usize,
    heads: usize,
}

/// What a block keeps from its forward pass for its backward pass, besides its input.
pub struct BlockActivations<T> {
    norm1: NormRows,
    normed1: Buffer<T>,
    qkv: Buffer<T>,
    attended: Buffer<T>,
    lse: Buffer<f32>,
    middle: Buffer<T>,
    norm2: NormRows,
    normed2: Buffer<T>,
    pre: Buffer<T>,
    activated: Buffer<T>,
}

/// Errors inside a block, used again by every block.
pub struct BlockErrors<T> {
    pub(super) branch: Buffer<T>,
    qkv: Buffer<T>,
    pre: Buffer<T>,
    activated: Buffer<T>,
}

/// Names of a block's layers in the parameter table.
struct Names {
    block: &'static str,
    norm1: &'static str,
    qkv: &'static str,
    projection: &'static str,
    norm2: &'static str,
    up: &'static str,
    down: &'static str,
}

const GPT2: Names = Names {
    block: "transformer.h",
    norm1: "ln_1",
    qkv: "attn.c_attn",
    projection: "attn.c_proj",
    norm2: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
};

const LLAMA: Names = Names {
    block: "model.layers",
    norm1: "input_layernorm",
    qkv: "self_attn.qkv_proj",
    projection: "self_attn.o_proj",
    norm2: "post_attention_layernorm",
    up: "mlp.gate_up_proj",
    down: "mlp.down_proj",
};

impl Block {
    /// Block `index` of a model; enters its parameters in the table.
    pub fn new(table: &mut Table, model: &ModelShape, index: usize) -> Self {
        let gpt2 = model.architecture == Architecture::Gpt2;
        let (names, activation) = if gpt2 { (GPT2, Activation::GeluTanh) } else { (LLAMA, Activation::SwiGlu) };
        let name = |layer: &str| format!("{}.{index}.{layer}", names.block);
        let widths = Widths {
            channels: model.channels,
            qkv: model.qkv_width(),
            expanded: model.expanded(),
            hidden: model.hidden,
            heads: model.heads,
        };
        let Widths { channels, qkv, expanded, hidden, .. } = widths;
        // What is added to the residual stream 2L times starts smaller by the root of that (Radford et al. 2019).
        let (plain, residual) = (super::DEVIATION, super::DEVIATION / (2.0 * model.layers as f64).sqrt());
        Self {
            norm1: Norm::new(table, &name(names.norm1), channels, gpt2),
            qkv: Linear::new(table, &name(names.qkv), [qkv, channels], gpt2, plain),
            attention: Attention::new(model),
            projection: Linear::new(table, &name(names.projection), [channels, channels], gpt2, residual),
            norm2: Norm::new(table, &name(names.norm2), channels, gpt2),
            up: Linear::new(table, &name(names.up), [expanded, channels], gpt2, plain).with_activation(activation),
            down: Linear::new(table, &name(names.down), [channels, hidden], gpt2, residual),
            widths,
        }
    }

    /// Memory for the activations of up to `rows` rows.
    ///
    /// # Errors
    /// No memory for them.
    pub fn activations<T: Float>(
        &self,
        rows: usize,
        allocator: &mut Allocator<'_>,
    ) -> Result<BlockActivations<T>, TrainError> {
        let Widths { channels, qkv, expanded, hidden, heads } = self.widths;
        Ok(BlockActivations {
            norm1: self.norm1.rows(rows, allocator)?,
            normed1: allocator.zeros(Class::Activations, rows * channels)?,
            qkv: allocator.zeros(Class::Activations, rows * qkv)?,
            attended: allocator.zeros(Class::Activations, rows * channels)?,
            lse: allocator.zeros(Class::Activations, rows * heads)?,
            middle: allocator.zeros(Class::Activations, rows * channels)?,
            norm2: self.norm2.rows(rows, allocator)?,
            normed2: allocator.zeros(Class::Activations, rows * channels)?,
            pre: allocator.zeros(Class::Activations, rows * expanded)?,
            activated: allocator.zeros(Class::Activations, rows * hidden)?,
        })
    }

    /// Memory for the errors of up to `rows` rows.
    ///
    /// # Errors
    /// No memory for them.
    pub fn errors<T: Float>(&self, rows: usize, allocator: &mut Allocator<'_>) -> Result<BlockErrors<T>, TrainError> {
        let Widths { channels, qkv, expanded, hidden, .. } = self.widths;
        Ok(BlockErrors {
            branch: allocator.zeros(Class::Errors, rows * channels)?,
            qkv: allocator.zeros(Class::Errors, rows * qkv)?,
            pre: allocator.zeros(Class::Errors, rows * expanded)?,
            activated: allocator.zeros(Class::Errors, rows * hidden)?,
        })
    }

    /// `y` `[M, C]` from `x` `[M, C]`.
    ///
    /// # Errors
    /// A pass larger than the activations were made for.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &mut BlockActivations<T>,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let Widths { channels, qkv, expanded, hidden, heads } = self.widths;
        self.norm1.forward(pass, x, &mut kept.norm1, pass.of_mut(&mut kept.normed1, channels)?)?;
        let normed = pass.of(&kept.normed1, channels)?;
        self.qkv.forward(pass, normed, None, None, pass.of_mut(&mut kept.qkv, qkv)?)?;
        let (attended, lse) = (pass.of_mut(&mut kept.attended, channels)?, pass.of_mut(&mut kept.lse, heads)?);
        self.attention.forward(pass, pass.of_mut(&mut kept.qkv, qkv)?, attended, lse)?;
        let attended = pass.of(&kept.attended, channels)?;
        self.projection.forward(pass, attended, None, Some(x), pass.of_mut(&mut kept.middle, channels)?)?;

        let middle = pass.of(&kept.middle, channels)?;
        self.norm2.forward(pass, middle, &mut kept.norm2, pass.of_mut(&mut kept.normed2, channels)?)?;
        let normed = pass.of(&kept.normed2, channels)?;
        let (pre, activated) = (pass.of_mut(&mut kept.pre, expanded)?, pass.of_mut(&mut kept.activated, hidden)?);
        self.up.forward(pass, normed, Some(pre), None, activated)?;
        self.down.forward(pass, pass.of(&kept.activated, hidden)?, None, Some(middle), y)
    }

    /// Turns the error of `y` in `dx` into the error of `x`, and adds to the gradients of the weights.
    ///
    /// # Errors
    /// A pass larger than the errors were made for; a failed start of a bucket's reduction.
    pub fn backward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &BlockActivations<T>,
        errors: &mut BlockErrors<T>,
        dx: ViewMut<'_, T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let mut dx = dx;
        self.backward_mlp(pass, kept, errors, dx.reborrow(), gradients)?;
        self.backward_attention(pass, x, kept, errors, dx, gradients)
    }

    fn backward_mlp<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        kept: &BlockActivations<T>,
        errors: &mut BlockErrors<T>,
        mut dx: ViewMut<'_, T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let Widths { channels, expanded, hidden, .. } = self.widths;
        let dactivated = pass.of_mut(&mut errors.activated, hidden)?;
        self.down.backward_input(pass, dx.as_view(), Write::Set, dactivated)?;
        self.down.backward_weight(pass, pass.of(&kept.activated, hidden)?, dx.as_view(), gradients)?;

        let (pre, dpre) = (pass.of(&kept.pre, expanded)?, pass.of_mut(&mut errors.pre, expanded)?);
        self.up.backward_activation(pass, pre, pass.of(&errors.activated, hidden)?, dpre)?;
        let dpre = pass.of(&errors.pre, expanded)?;
        self.up.backward_input(pass, dpre, Write::Set, pass.of_mut(&mut errors.branch, channels)?)?;
        self.up.backward_weight(pass, pass.of(&kept.normed2, channels)?, dpre, gradients)?;

        let (dnormed, middle) = (pass.of(&errors.branch, channels)?, pass.of(&kept.middle, channels)?);
        self.norm2.backward_input(pass, dnormed, middle, &kept.norm2, Write::Add, dx.reborrow())?;
        self.norm2.backward_weight(pass, dnormed, middle, &kept.norm2, gradients)
    }

    fn backward_attention<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &BlockActivations<T>,
        errors: &mut BlockErrors<T>,
        mut dx: ViewMut<'_, T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let Widths { channels, qkv, heads, .. } = self.widths;
        let attended = pass.of(&kept.attended, channels)?;
        let dattended = pass.of_mut(&mut errors.branch, channels)?;
        self.projection.backward_input(pass, dx.as_view(), Write::Set, dattended)?;
        self.projection.backward_weight(pass, attended, dx.as_view(), gradients)?;

        let results = (pass.of(&kept.qkv, qkv)?, attended, pass.of(&kept.lse, heads)?);
        let (dattended, dqkv) = (pass.of(&errors.branch, channels)?, pass.of_mut(&mut errors.qkv, qkv)?);
        self.attention.backward_input(pass, results, dattended, dqkv)?;
        let dqkv = pass.of(&errors.qkv, qkv)?;
        self.qkv.backward_input(pass, dqkv, Write::Set, pass.of_mut(&mut errors.branch, channels)?)?;
        self.qkv.backward_weight(pass, pass.of(&kept.normed1, channels)?, dqkv, gradients)?;

        let dnormed = pass.of(&errors.branch, channels)?;
        self.norm1.backward_input(pass, dnormed, x, &kept.norm1, Write::Add, dx.reborrow())?;
        self.norm1.backward_weight(pass, dnormed, x, &kept.norm1, gradients)
    }
}
