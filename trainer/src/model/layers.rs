//! The layers with weights: linear and norm. Each has `forward`, `backward_input` (the error to pass on) and
//! `backward_weight` (which needs what went in) as calls of their own: what overlap and later schedules are made of.
//!
//! M is the rows of the pass (B T), K a layer's inputs, N its outputs.

use std::ops::Range;

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::matmul::{self, Activation, Epilogue};
use warpweft_kernels::{Write, layernorm, rmsnorm};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::pass::Pass;
use crate::model::portion::Portion;
use crate::model::table::{Entry, Init, Table, TensorId};
use crate::parallel::gradients::Gradients;
use crate::parallel::layout::{Axes, Layout, Placement};

/// The epsilon under the root of every norm.
pub(super) const EPS: f32 = 1e-5;

/// Tensors that lie side by side: the first and the last of them.
type Span = (TensorId, TensorId);

/// `y = activation(x Wᵀ + b) + residual`, W being `[N, K]`. A tensor-parallel rank has some of the outputs, or some of the
/// inputs: then its product is a summand of y, and bias and residual are added to the sum.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Span,
    bias: Option<Span>,
    inputs: usize,
    outputs: usize,
    activation: Activation,
}

/// Outputs of a layer that a rank holds some of.
pub(crate) struct Columns {
    /// What the tensor is called, besides the layer's name.
    pub(crate) name: &'static str,
    /// How many outputs there are.
    pub(crate) whole: usize,
    /// Those that this rank has.
    pub(crate) held: Vec<Range<usize>>,
    /// The axes over which they are shared out.
    pub(crate) over: Axes,
}

impl Columns {
    /// Outputs of which each tensor-parallel rank has its own.
    pub(crate) fn shared_out(whole: usize, held: Vec<Range<usize>>) -> Self {
        Self { name: "", whole, held, over: Axes::TENSOR }
    }
}

impl Linear {
    /// A layer that this rank has whole, in a unit of its own, without bias, its weight zeros: for small examples.
    pub fn whole(table: &mut Table, name: &str, [outputs, inputs]: [usize; 2]) -> Self {
        table.begin_unit(name, true, Axes::TOKENS);
        let columns = [Columns::shared_out(outputs, vec![0..outputs])];
        Self::of_columns(table, name, columns, inputs, false, 0.0)
    }

    /// A layer of which this rank has some outputs; enters `name.weight`, and `name.bias` where asked for, in the table.
    pub(crate) fn of_columns<const N: usize>(
        table: &mut Table,
        name: &str,
        columns: [Columns; N],
        inputs: usize,
        bias: bool,
        deviation: f64,
    ) -> Self {
        let entry = |index: usize, columns: &Columns, weight: bool| {
            let shape = if weight { vec![columns.whole, inputs] } else { vec![columns.whole] };
            let kind = if weight { "weight" } else { "bias" };
            Entry {
                name: format!("{name}{}.{kind}", columns.name),
                init: if weight { Init::Normal(deviation) } else { Init::Zeros },
                portion: Portion::whole(&shape).only(0, columns.held.clone()),
                layout: Layout::REPLICATED.with(columns.over, Placement::Sharded(0)),
                // What ranks share, each applies for its own heads.
                seen_in_part: Axes::TENSOR.without(columns.over),
                continues: index > 0,
                shape,
            }
        };
        let entries = |weight| std::array::from_fn::<_, N, _>(|index| entry(index, &columns[index], weight));
        let span = |ids: [TensorId; N]| (ids[0], ids[N - 1]);
        let weight = span(table.group(entries(true)));
        let bias = bias.then(|| span(table.group(entries(false))));
        let outputs = columns.iter().flat_map(|columns| &columns.held).map(Range::len).sum();
        Self { weight, bias, inputs, outputs, activation: Activation::None }
    }

    /// A layer of which this rank has the inputs `held`; enters its parameters in the table.
    pub(crate) fn of_rows(
        table: &mut Table,
        name: &str,
        [outputs, inputs]: [usize; 2],
        held: Range<usize>,
        bias: bool,
        deviation: f64,
    ) -> Self {
        let shape = vec![outputs, inputs];
        let [weight] = table.group([Entry {
            portion: Portion::whole(&shape).only(1, vec![held.clone()]),
            layout: Layout::REPLICATED.with(Axes::TENSOR, Placement::Sharded(1)),
            ..Entry::replicated(format!("{name}.weight"), shape, Init::Normal(deviation))
        }]);
        let bias = bias.then(|| {
            let [bias] = table.group([Entry::replicated(format!("{name}.bias"), vec![outputs], Init::Zeros)]);
            (bias, bias)
        });
        Self { weight: (weight, weight), bias, inputs: held.len(), outputs, activation: Activation::None }
    }

    /// A layer without bias on a weight that another layer has entered, of which this rank has `outputs` rows.
    pub(crate) fn on(weight: TensorId, [outputs, inputs]: [usize; 2]) -> Self {
        Self { weight: (weight, weight), bias: None, inputs, outputs, activation: Activation::None }
    }

    /// The same layer with an activation after it.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Outputs that this rank has, before an activation that halves them.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs that this rank has.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    fn shape<T>(&self, pass: &Pass<'_, T>) -> matmul::Shape {
        matmul::Shape { m: pass.rows(), n: self.outputs, k: self.inputs }
    }

    /// `y` from `x` `[M, K]`; `pre` `[M, N]` takes what went into the activation, `residual` is added at the end.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        pre: Option<ViewMut<'_, T>>,
        residual: Option<View<'_, T>>,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        self.forward_with(pass, self.activation, x, pre, residual, y)
    }

    fn forward_with<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        activation: Activation,
        x: View<'_, T>,
        pre: Option<ViewMut<'_, T>>,
        residual: Option<View<'_, T>>,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let epilogue = Epilogue { bias: self.bias(pass)?, activation, pre, residual, ..Epilogue::default() };
        let weight = pass.weights.span(self.weight.0, self.weight.1)?;
        Ok(matmul::forward(pass.stream, self.shape(pass), x, weight, epilogue, y)?)
    }

    /// `y` from `x` `[M, K]`, and `pre` `[M, N]`, from which [`activate`](Self::activate) gives the same bits again: in a
    /// type narrower than f32, `y` is that of the rounded `pre`.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn forward_keeping<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        mut pre: ViewMut<'_, T>,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        if size_of::<T>() == size_of::<f32>() {
            return self.forward(pass, x, Some(pre), None, y);
        }
        self.forward_with(pass, Activation::None, x, None, None, pre.reborrow())?;
        self.activate(pass, pre.as_view(), y)
    }

    /// The activation of `pre` `[M, N]`.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn activate<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        pre: View<'_, T>,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        Ok(matmul::activate(pass.stream, self.shape(pass), self.activation, pre, y)?)
    }

    /// The product alone, without bias: this rank's summand, where it has some of the inputs.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn product<T: Float>(&self, pass: &Pass<'_, T>, x: View<'_, T>, y: ViewMut<'_, T>) -> Result<(), TrainError> {
        let weight = pass.weights.span(self.weight.0, self.weight.1)?;
        Ok(matmul::forward(pass.stream, self.shape(pass), x, weight, Epilogue::default(), y)?)
    }

    /// The bias, if there is one.
    ///
    /// # Errors
    /// A layer that this rank does not hold.
    pub fn bias<'a, T: Float>(&self, pass: &Pass<'a, T>) -> Result<Option<View<'a, T>>, TrainError> {
        let weights = pass.weights;
        self.bias.map(|(first, last)| weights.span(first, last)).transpose()
    }

    /// The error before the activation `[M, N]` from the one after it.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn backward_activation<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        pre: View<'_, T>,
        dy: View<'_, T>,
        dpre: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        Ok(matmul::backward_activation(pass.stream, self.shape(pass), self.activation, pre, dy, dpre)?)
    }

    /// The error of the input `[M, K]` from the one before the activation, `dy` `[M, N]`.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        dy: View<'_, T>,
        write: Write,
        dx: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let weight = pass.weights.span(self.weight.0, self.weight.1)?;
        Ok(matmul::backward_input(pass.stream, self.shape(pass), dy, weight, write, dx)?)
    }

    /// Adds to the gradients of weight and bias, from the input `x` `[M, K]` and the error before the activation.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape; a failed start of a bucket's reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        dy: View<'_, T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let shape = self.shape(pass);
        let (first, last) = self.weight;
        matmul::backward_weight(pass.stream, shape, x, dy, gradients.span(first, last)?)?;
        gradients.done(first, last)?;
        if let Some((first, last)) = self.bias {
            matmul::backward_bias(pass.stream, shape, dy, gradients.span(first, last)?)?;
            gradients.done(first, last)?;
        }
        Ok(())
    }
}

/// LayerNorm (with bias) or RMSNorm (without) over the channels.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: TensorId,
    bias: Option<TensorId>,
    channels: usize,
}

/// What a norm keeps of each row for its backward pass; `mean` is empty for RMSNorm.
pub struct NormRows {
    mean: Buffer<f32>,
    rstd: Buffer<f32>,
}

impl Norm {
    /// A norm that enters `name.weight`, and `name.bias` for a LayerNorm, in the table.
    pub fn new(table: &mut Table, name: &str, channels: usize, bias: bool, rows_apart: bool) -> Self {
        let entry = |kind: &str, init| Entry {
            seen_in_part: seen_by_rows(rows_apart),
            ..Entry::replicated(format!("{name}.{kind}"), vec![channels], init)
        };
        let [weight] = table.group([entry("weight", Init::Ones)]);
        let bias = bias.then(|| {
            let [bias] = table.group([entry("bias", Init::Zeros)]);
            bias
        });
        Self { weight, bias, channels }
    }

    /// Memory for what a forward pass of up to `rows` rows keeps.
    ///
    /// # Errors
    /// No memory for it.
    pub fn rows(&self, rows: usize, allocator: &mut Allocator<'_>) -> Result<NormRows, TrainError> {
        let means = if self.bias.is_some() { rows } else { 0 };
        Ok(NormRows {
            mean: allocator.zeros(Class::Activations, means)?,
            rstd: allocator.zeros(Class::Activations, rows)?,
        })
    }

    /// `y` from `x`, both rows of the residual stream.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn forward<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        x: View<'_, T>,
        kept: &mut NormRows,
        y: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let (rows, channels) = (pass.stream_rows().len(), self.channels);
        let weight = pass.weights.view(self.weight)?;
        let rstd = kept.rstd.view_mut(..rows)?;
        match self.bias {
            Some(bias) => {
                let (bias, mean) = (pass.weights.view(bias)?, kept.mean.view_mut(..rows)?);
                let shape = layernorm::Shape { rows, channels };
                layernorm::forward(pass.stream, shape, EPS, x, weight, bias, y, mean, rstd)?;
            }
            None => rmsnorm::forward(pass.stream, rmsnorm::Shape { rows, channels }, EPS, x, weight, y, rstd)?,
        }
        Ok(())
    }

    /// The error of the input from the one of the output.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape.
    pub fn backward_input<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        dy: View<'_, T>,
        x: View<'_, T>,
        kept: &NormRows,
        write: Write,
        dx: ViewMut<'_, T>,
    ) -> Result<(), TrainError> {
        let (rows, channels) = (pass.stream_rows().len(), self.channels);
        let weight = pass.weights.view(self.weight)?;
        let rstd = kept.rstd.view(..rows)?;
        if self.bias.is_some() {
            let shape = layernorm::Shape { rows, channels };
            layernorm::backward_input(pass.stream, shape, dy, x, weight, kept.mean.view(..rows)?, rstd, write, dx)?;
        } else {
            let shape = rmsnorm::Shape { rows, channels };
            rmsnorm::backward_input(pass.stream, shape, dy, x, weight, rstd, write, dx)?;
        }
        Ok(())
    }

    /// Adds to the gradients of weight and bias.
    ///
    /// # Errors
    /// Regions that do not have the layer's shape; a failed start of a bucket's reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        dy: View<'_, T>,
        x: View<'_, T>,
        kept: &NormRows,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let (rows, channels) = (pass.stream_rows().len(), self.channels);
        let rstd = pass.stream_of(&kept.rstd, 1)?;
        match self.bias {
            Some(bias) => {
                let shape = layernorm::Shape { rows, channels };
                let (dweight, dbias) = gradients.span(self.weight, bias)?.split_at(channels)?;
                layernorm::backward_weight(
                    pass.stream,
                    shape,
                    dy,
                    x,
                    pass.stream_of(&kept.mean, 1)?,
                    rstd,
                    dweight,
                    dbias,
                )?;
                gradients.done(self.weight, bias)
            }
            None => {
                let shape = rmsnorm::Shape { rows, channels };
                rmsnorm::backward_weight(pass.stream, shape, dy, x, rstd, gradients.view(self.weight)?)?;
                gradients.done(self.weight, self.weight)
            }
        }
    }
}

/// The axes over which a parameter is applied to some rows only, where the rows of the residual stream are shared out.
pub(super) fn seen_by_rows(rows_apart: bool) -> Axes {
    if rows_apart { Axes::TENSOR } else { Axes::NONE }
}
