//! One transformer block: `x += proj(attention(qkv(norm1 x)))`, then `x += down(activation(up(norm2 x)))`.
//!
//! GPT-2 and Llama differ in the parts (norms, biases, RoPE, activation), not in how they are put together. Attention and
//! MLP are a tensor-parallel region each: qkv and up have columns of their own there, projection and down rows.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::matmul::Activation;
use warpweft_kernels::{Write, residual};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::attention::Attention;
use crate::model::chunk::{Room, Work};
use crate::model::layers::{Columns, Linear, Norm, NormRows};
use crate::model::moe::{Moe, MoeErrors, MoeKept};
use crate::model::pass::Pass;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::spread::Spread;
use crate::model::table::Table;
use crate::parallel::gradients::Gradients;
use crate::parallel::layout::{Axes, Axis};
use crate::parallel::plan::Border;
use crate::parallel::tensor;

/// The layers of a block, this rank's part of each.
#[derive(Clone, Debug)]
pub struct Block {
    norm1: Norm,
    qkv: Linear,
    attention: Attention,
    projection: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
    moe: Option<Moe>,
    channels: usize,
}

/// What a block keeps from its forward pass for its backward pass, besides its input.
pub struct BlockKept<T> {
    norm1: NormRows,
    qkv: Buffer<T>,
    attended: Buffer<T>,
    lse: Buffer<f32>,
    middle: Buffer<T>,
    norm2: NormRows,
    pre: Buffer<T>,
    moe: Option<MoeKept<T>>,
    cheap: Cheap<T>,
}

/// What of it takes no product to have again, and only the pass to the weights needs.
pub(super) struct Cheap<T> {
    normed1: Buffer<T>,
    normed2: Buffer<T>,
    activated: Buffer<T>,
}

/// What the backward pass to a block's input leaves for the one to its weights.
pub struct BlockErrors<T> {
    /// Of the block's output, all rows.
    out: Buffer<T>,
    pre: Buffer<T>,
    normed2: Buffer<T>,
    /// Of what attention added to the residual stream, all rows.
    middle: Buffer<T>,
    qkv: Buffer<T>,
    normed1: Buffer<T>,
    moe: Option<MoeErrors<T>>,
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
    pub fn new(table: &mut Table, model: &ModelShape, spread: &Spread, index: usize) -> Self {
        let gpt2 = model.architecture == Architecture::Gpt2;
        let (names, activation) = if gpt2 { (GPT2, Activation::GeluTanh) } else { (LLAMA, Activation::SwiGlu) };
        let name = |layer: &str| format!("{}.{index}.{layer}", names.block);
        let (channels, hidden, size) = (model.channels, model.hidden, model.head_size());
        // What is added to the residual stream 2L times starts smaller by the root of that (Radford et al. 2019).
        let (plain, small) = (super::DEVIATION, super::DEVIATION / (2.0 * model.layers as f64).sqrt());
        let (apart, units) = (spread.sequence_parallel, spread.tp.share(hidden));
        table.begin_unit(format!("block {index}"), spread.has_block(index), Axes::TOKENS);
        let norm1 = Norm::new(table, &name(names.norm1), channels, gpt2, apart);
        let queries = spread.tp.share(model.heads);
        let qkv = Linear::of_columns(table, &name(names.qkv), packed(model, spread), channels, gpt2, plain);
        let inputs = queries.start * size..queries.end * size;
        let projection = Linear::of_rows(table, &name(names.projection), [channels, channels], inputs, gpt2, small);
        let norm2 = Norm::new(table, &name(names.norm2), channels, gpt2, apart);
        let mut columns = vec![units.clone()];
        if !gpt2 {
            columns.push(hidden + units.start..hidden + units.end);
        }
        let columns = [Columns::shared_out(model.expanded(), columns)];
        let up = Linear::of_columns(table, &name(names.up), columns, channels, gpt2, plain);
        let down = Linear::of_rows(table, &name(names.down), [channels, hidden], units, gpt2, small);
        let up = up.with_activation(activation);
        let moe = model
            .moe
            .map(|of| Moe::new(table, (model, of), spread, (index, &name("mlp")), (activation, [plain, small])));
        Self { norm1, qkv, attention: Attention::new(model, spread), projection, norm2, up, down, moe, channels }
    }

    /// Elements of a row of the widest buffer that lies between its layers.
    pub(super) fn widest_inside(&self) -> usize {
        self.down.inputs().max(self.projection.inputs()).max(self.channels)
    }

    /// Memory for what a forward pass of up to `room` keeps, and for what of it is cheap.
    ///
    /// # Errors
    /// No memory for it.
    pub(super) fn kept<T: Float>(
        &self,
        room: Room,
        cheap: Room,
        allocator: &mut Allocator<'_>,
    ) -> Result<BlockKept<T>, TrainError> {
        let Room { rows, stream_rows } = room;
        let mut of = |rows, width| allocator.zeros(Class::Activations, rows * width);
        let middle = of(stream_rows, self.channels)?;
        let (qkv, attended) = (of(rows, self.qkv.outputs())?, of(rows, self.projection.inputs())?);
        let pre = of(rows, self.up.outputs())?;
        Ok(BlockKept {
            norm1: self.norm1.rows(stream_rows, allocator)?,
            qkv,
            attended,
            lse: allocator.zeros(Class::Activations, rows * self.attention.heads())?,
            middle,
            norm2: self.norm2.rows(stream_rows, allocator)?,
            pre,
            moe: None,
            cheap: self.cheap(cheap, allocator)?,
        })
    }

    /// Memory for what is cheap to have again.
    ///
    /// # Errors
    /// No memory for it.
    pub(super) fn cheap<T: Float>(
        &self,
        Room { rows, stream_rows }: Room,
        allocator: &mut Allocator<'_>,
    ) -> Result<Cheap<T>, TrainError> {
        let mut of = |rows, width| allocator.zeros(Class::Activations, rows * width);
        let (normed1, normed2) = (of(stream_rows, self.channels)?, of(stream_rows, self.channels)?);
        Ok(Cheap { normed1, normed2, activated: of(rows, self.down.inputs())? })
    }

    /// Memory for what a backward pass of up to `room` to the input leaves.
    ///
    /// # Errors
    /// No memory for it.
    pub fn errors<T: Float>(&self, room: Room, allocator: &mut Allocator<'_>) -> Result<BlockErrors<T>, TrainError> {
        let Room { rows, stream_rows } = room;
        let mut of = |rows, width| allocator.zeros(Class::Errors, rows * width);
        Ok(BlockErrors {
            out: of(rows, self.channels)?,
            pre: of(rows, self.up.outputs())?,
            normed2: of(stream_rows, self.channels)?,
            middle: of(rows, self.channels)?,
            qkv: of(rows, self.qkv.outputs())?,
            normed1: of(stream_rows, self.channels)?,
            moe: None,
        })
    }

    /// `y` from `x`, both rows of the residual stream. Without a `y` only what is kept is computed: for a second time.
    ///
    /// # Errors
    /// A pass larger than the memory was made for; a failed operation among the ranks.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &mut BlockKept<T>,
        work: &mut Work<T>,
        y: Option<&mut Buffer<T>>,
    ) -> Result<(), TrainError> {
        let (channels, Work { whole, summand, .. }) = (self.channels, work);
        let (attention, mlp) = (pass.plan.attention.forward, pass.plan.mlp.forward);
        self.norm1.forward(pass, x, &mut kept.norm1, pass.stream_of_mut(&mut kept.cheap.normed1, channels)?)?;
        let normed = pass.stream_of(&kept.cheap.normed1, channels)?;
        let normed = tensor::enter(pass, attention.enter, normed, channels, whole)?;
        self.qkv.forward(pass, normed, None, None, pass.of_mut(&mut kept.qkv, self.qkv.outputs())?)?;
        let attended = pass.of_mut(&mut kept.attended, self.projection.inputs())?;
        let lse = kept.lse.view_mut(..self.attention.lse_len(pass))?;
        self.attention.forward(pass, pass.of_mut(&mut kept.qkv, self.qkv.outputs())?, attended, lse)?;
        let attended = pass.of(&kept.attended, self.projection.inputs())?;
        let nothing = |_: ViewMut<'_, T>| Ok(());
        leave(pass, attention, &self.projection, attended, x, nothing, summand, &mut kept.middle)?;

        let middle = pass.stream_of(&kept.middle, channels)?;
        self.norm2.forward(pass, middle, &mut kept.norm2, pass.stream_of_mut(&mut kept.cheap.normed2, channels)?)?;
        let normed = pass.stream_of(&kept.cheap.normed2, channels)?;
        let normed = tensor::enter(pass, mlp.enter, normed, channels, whole)?;
        let pre = pass.of_mut(&mut kept.pre, self.up.outputs())?;
        let activated = pass.of_mut(&mut kept.cheap.activated, self.down.inputs())?;
        self.up.forward_keeping(pass, normed, pre, activated)?;
        let activated = pass.of(&kept.cheap.activated, self.down.inputs())?;
        let mut experts = |sum: ViewMut<'_, T>| {
            kept.moe = self.moe.as_ref().map(|moe| moe.forward(pass, normed, sum)).transpose()?;
            Ok(())
        };
        match y {
            Some(y) => leave(pass, mlp, &self.down, activated, middle, experts, summand, y),
            None => experts(pass.of_mut(summand, channels)?),
        }
    }

    /// Computes again what is cheap, from the block's input and what is kept.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(super) fn forward_cheap<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &mut BlockKept<T>,
    ) -> Result<(), TrainError> {
        let (channels, Cheap { normed1, normed2, activated }) = (self.channels, &mut kept.cheap);
        self.norm1.forward(pass, x, &mut kept.norm1, pass.stream_of_mut(normed1, channels)?)?;
        let middle = pass.stream_of(&kept.middle, channels)?;
        self.norm2.forward(pass, middle, &mut kept.norm2, pass.stream_of_mut(normed2, channels)?)?;
        let pre = pass.of(&kept.pre, self.up.outputs())?;
        self.up.activate(pass, pre, pass.of_mut(activated, self.down.inputs())?)
    }

    /// Turns the error of the block's output in `dx` into the error of its input, a token's loss being scaled by `scale`.
    ///
    /// # Errors
    /// A pass larger than the memory was made for; a failed operation among the ranks.
    #[allow(clippy::too_many_arguments)] // the parts of one pass
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        scale: f32,
        x: View<'_, T>,
        kept: &BlockKept<T>,
        errors: &mut BlockErrors<T>,
        work: &mut Work<T>,
        dx: &mut Buffer<T>,
    ) -> Result<(), TrainError> {
        let channels = self.channels;
        let (attention, mlp) = (pass.plan.attention.backward, pass.plan.mlp.backward);
        take(pass, mlp, dx, &mut errors.out, &mut work.whole, channels)?;
        let hidden = self.down.inputs();
        let dout = pass.of(&errors.out, channels)?;
        self.down.backward_input(pass, dout, Write::Set, pass.of_mut(&mut work.inner, hidden)?)?;
        let (pre, width) = (pass.of(&kept.pre, self.up.outputs())?, self.up.outputs());
        let dactivated = pass.of(&work.inner, hidden)?;
        self.up.backward_activation(pass, pre, dactivated, pass.of_mut(&mut errors.pre, width)?)?;
        let dpre = pass.of(&errors.pre, width)?;
        self.up.backward_input(pass, dpre, Write::Set, pass.of_mut(&mut work.summand, channels)?)?;
        if let (Some(moe), Some(kept)) = (&self.moe, &kept.moe) {
            let sum = pass.of_mut(&mut work.summand, channels)?;
            errors.moe = Some(moe.backward_input(pass, kept, (dout, scale), sum)?);
            moe.tell(pass, kept, &mut work.routed)?;
        }
        let dnormed = tensor::leave(pass, mlp.leave, &mut work.summand, channels)?;
        pass.stream_of_mut(&mut errors.normed2, channels)?.copy_from(pass.stream, dnormed)?;
        let (dnormed, middle) = (pass.stream_of(&errors.normed2, channels)?, pass.stream_of(&kept.middle, channels)?);
        let add = pass.stream_of_mut(dx, channels)?;
        self.norm2.backward_input(pass, dnormed, middle, &kept.norm2, Write::Add, add)?;

        take(pass, attention, dx, &mut errors.middle, &mut work.whole, channels)?;
        let dmiddle = pass.of(&errors.middle, channels)?;
        let width = self.projection.inputs();
        self.projection.backward_input(pass, dmiddle, Write::Set, pass.of_mut(&mut work.inner, width)?)?;
        let (qkv, attended) = (pass.of(&kept.qkv, self.qkv.outputs())?, pass.of(&kept.attended, width)?);
        let results = (qkv, attended, kept.lse.view(..self.attention.lse_len(pass))?);
        let dqkv = pass.of_mut(&mut errors.qkv, self.qkv.outputs())?;
        self.attention.backward_input(pass, results, pass.of(&work.inner, width)?, dqkv)?;
        let dqkv = pass.of(&errors.qkv, self.qkv.outputs())?;
        self.qkv.backward_input(pass, dqkv, Write::Set, pass.of_mut(&mut work.summand, channels)?)?;
        let dnormed = tensor::leave(pass, attention.leave, &mut work.summand, channels)?;
        pass.stream_of_mut(&mut errors.normed1, channels)?.copy_from(pass.stream, dnormed)?;
        let dnormed = pass.stream_of(&errors.normed1, channels)?;
        self.norm1.backward_input(pass, dnormed, x, &kept.norm1, Write::Add, pass.stream_of_mut(dx, channels)?)
    }

    /// Adds to the gradients of the weights, from what the passes before left.
    ///
    /// # Errors
    /// A failed operation among the ranks, or start of one.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &BlockKept<T>,
        errors: &BlockErrors<T>,
        work: &mut Work<T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let channels = self.channels;
        let (attention, mlp) = (pass.plan.attention.forward, pass.plan.mlp.forward);
        let activated = pass.of(&kept.cheap.activated, self.down.inputs())?;
        self.down.backward_weight(pass, activated, pass.of(&errors.out, channels)?, gradients)?;
        let normed = pass.stream_of(&kept.cheap.normed2, channels)?;
        let normed = tensor::enter(pass, mlp.enter, normed, channels, &mut work.whole)?;
        self.up.backward_weight(pass, normed, pass.of(&errors.pre, self.up.outputs())?, gradients)?;
        if let (Some(moe), Some(kept), Some(errors)) = (&self.moe, &kept.moe, &errors.moe) {
            moe.backward_weight(pass, normed, kept, errors, gradients)?;
        }
        let (dnormed, middle) = (pass.stream_of(&errors.normed2, channels)?, pass.stream_of(&kept.middle, channels)?);
        self.norm2.backward_weight(pass, dnormed, middle, &kept.norm2, gradients)?;

        let attended = pass.of(&kept.attended, self.projection.inputs())?;
        self.projection.backward_weight(pass, attended, pass.of(&errors.middle, channels)?, gradients)?;
        let normed = pass.stream_of(&kept.cheap.normed1, channels)?;
        let normed = tensor::enter(pass, attention.enter, normed, channels, &mut work.whole)?;
        self.qkv.backward_weight(pass, normed, pass.of(&errors.qkv, self.qkv.outputs())?, gradients)?;
        let dnormed = pass.stream_of(&errors.normed1, channels)?;
        self.norm1.backward_weight(pass, dnormed, x, &kept.norm1, gradients)
    }
}

impl<T> BlockKept<T> {
    /// What of it is cheap to have again.
    pub(super) fn cheap_mut(&mut self) -> &mut Cheap<T> {
        &mut self.cheap
    }

    /// Gives up what a forward pass made anew.
    pub(super) fn forget(&mut self) {
        self.moe = None;
    }
}

/// The rows of queries, and those of keys and values, which several ranks may share.
fn packed(model: &ModelShape, spread: &Spread) -> [Columns; 2] {
    let (size, queries, heads) = (model.head_size(), spread.tp.share(model.heads), spread.kv_heads(model));
    let values = model.kv_heads * size;
    let held = |from: usize| from + heads.start * size..from + heads.end * size;
    let over = if spread.kv > 1 { Axes::of(&[Axis::Tp]) } else { Axes::TENSOR };
    [
        Columns {
            name: ".q",
            whole: model.heads * size,
            held: vec![queries.start * size..queries.end * size],
            over: Axes::TENSOR,
        },
        Columns { name: ".kv", whole: 2 * values, held: vec![held(0), held(values)], over },
    ]
}

/// `y = x + (sum over the ranks of inputs Wᵀ and of what `also` adds to it) + b`: the end of a region.
#[allow(clippy::too_many_arguments)] // the parts of one sum
fn leave<T: Float>(
    pass: &Pass<'_, T>,
    border: Border,
    layer: &Linear,
    inputs: View<'_, T>,
    x: View<'_, T>,
    also: impl FnOnce(ViewMut<'_, T>) -> Result<(), TrainError>,
    summand: &mut Buffer<T>,
    y: &mut Buffer<T>,
) -> Result<(), TrainError> {
    let channels = layer.outputs();
    if pass.mesh.sizes().tp == 1 {
        layer.forward(pass, inputs, None, Some(x), pass.stream_of_mut(y, channels)?)?;
        return also(pass.stream_of_mut(y, channels)?);
    }
    layer.product(pass, inputs, pass.of_mut(summand, channels)?)?;
    also(pass.of_mut(summand, channels)?)?;
    let sum = tensor::leave(pass, border.leave, summand, channels)?;
    let shape = residual::Shape { rows: pass.stream_rows().len(), channels };
    Ok(residual::forward(pass.stream, shape, x, sum, layer.bias(pass)?, pass.stream_of_mut(y, channels)?)?)
}

/// Takes the error of the residual stream into a region: all rows of it, in `errors`.
fn take<T: Float>(
    pass: &Pass<'_, T>,
    border: Border,
    dx: &Buffer<T>,
    errors: &mut Buffer<T>,
    whole: &mut Buffer<T>,
    channels: usize,
) -> Result<(), TrainError> {
    let dx = tensor::enter(pass, border.enter, pass.stream_of(dx, channels)?, channels, whole)?;
    Ok(pass.of_mut(errors, channels)?.copy_from(pass.stream, dx)?)
}
