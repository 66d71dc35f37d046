//! The layers with weights: linear, norm, embedding. Each has `forward`, `backward_input` (the error to pass on) and
//! `backward_weight` (which needs what went in) as calls of their own: what overlap and later schedules are made of.
//!
//! M is the rows of the pass (B T), K a layer's inputs, N its outputs.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::matmul::{self, Activation, Epilogue};
use warpweft_kernels::{Write, embedding, layernorm, rmsnorm};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::pass::Pass;
use crate::model::table::{Init, Table, TensorId};
use crate::parallel::data::Gradients;

/// The epsilon under the root of every norm.
const EPS: f32 = 1e-5;

/// `y = activation(x Wᵀ + b) + residual`, W being `[N, K]`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: TensorId,
    bias: Option<TensorId>,
    inputs: usize,
    outputs: usize,
    activation: Activation,
}

impl Linear {
    /// A layer that enters `name.weight`, and `name.bias` where asked for, in the table.
    pub fn new(table: &mut Table, name: &str, [outputs, inputs]: [usize; 2], bias: bool, deviation: f64) -> Self {
        let weight = (format!("{name}.weight"), vec![outputs, inputs], Init::Normal(deviation));
        let (weight, bias) = if bias {
            let [weight, bias] = table.group([weight, (format!("{name}.bias"), vec![outputs], Init::Zeros)]);
            (weight, Some(bias))
        } else {
            let [weight] = table.group([weight]);
            (weight, None)
        };
        Self { weight, bias, inputs, outputs, activation: Activation::None }
    }

    /// A layer without bias on a weight `[outputs, inputs]` that another layer has entered.
    pub fn tied(table: &mut Table, weight: TensorId, [outputs, inputs]: [usize; 2]) -> Self {
        table.use_again(weight);
        Self { weight, bias: None, inputs, outputs, activation: Activation::None }
    }

    /// The same layer with an activation after it.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
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
        let bias = self.bias.map(|bias| pass.parameters.view(bias)).transpose()?;
        let epilogue = Epilogue { bias, activation: self.activation, pre, residual };
        let weight = pass.parameters.view(self.weight)?;
        Ok(matmul::forward(pass.stream, self.shape(pass), x, weight, epilogue, y)?)
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
        let weight = pass.parameters.view(self.weight)?;
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
        matmul::backward_weight(pass.stream, shape, x, dy, gradients.view(self.weight)?)?;
        gradients.done(self.weight)?;
        if let Some(bias) = self.bias {
            matmul::backward_bias(pass.stream, shape, dy, gradients.view(bias)?)?;
            gradients.done(bias)?;
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
    pub fn new(table: &mut Table, name: &str, channels: usize, bias: bool) -> Self {
        let weight = (format!("{name}.weight"), vec![channels], Init::Ones);
        if bias {
            let [weight, bias] = table.group([weight, (format!("{name}.bias"), vec![channels], Init::Zeros)]);
            Self { weight, bias: Some(bias), channels }
        } else {
            let [weight] = table.group([weight]);
            Self { weight, bias: None, channels }
        }
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

    /// `y` from `x`, both `[M, C]`.
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
        let (rows, channels) = (pass.rows(), self.channels);
        let weight = pass.parameters.view(self.weight)?;
        let rstd = kept.rstd.view_mut(..rows)?;
        match self.bias {
            Some(bias) => {
                let (bias, mean) = (pass.parameters.view(bias)?, kept.mean.view_mut(..rows)?);
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
        let (rows, channels) = (pass.rows(), self.channels);
        let weight = pass.parameters.view(self.weight)?;
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
        let (rows, channels) = (pass.rows(), self.channels);
        let rstd = kept.rstd.view(..rows)?;
        match self.bias {
            Some(bias) => {
                let shape = layernorm::Shape { rows, channels };
                let (dweight, dbias) = gradients.pair(self.weight, bias)?;
                layernorm::backward_weight(pass.stream, shape, dy, x, kept.mean.view(..rows)?, rstd, dweight, dbias)?;
                gradients.done(self.weight)?;
                gradients.done(bias)
            }
            None => {
                let shape = rmsnorm::Shape { rows, channels };
                rmsnorm::backward_weight(pass.stream, shape, dy, x, rstd, gradients.view(self.weight)?)?;
                gradients.done(self.weight)
            }
        }
    }
}

/// Token embedding, plus learned positions where there are some.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The table of the tokens `[V, C]`.
    pub tokens: TensorId,
    /// The table of the positions `[context, C]`.
    pub positions: Option<TensorId>,
    vocab: usize,
    context: usize,
    channels: usize,
}

impl Embedding {
    /// An embedding that enters its table, and that of the positions where it is named, in the parameter table.
    pub fn new(
        table: &mut Table,
        names: (&str, Option<&str>),
        [vocab, context, channels]: [usize; 3],
        deviation: f64,
    ) -> Self {
        let entry = |name: &str, rows| (format!("{name}.weight"), vec![rows, channels], Init::Normal(deviation));
        let (tokens, positions) = match names {
            (tokens, Some(positions)) => {
                let [tokens, positions] = table.group([entry(tokens, vocab), entry(positions, context)]);
                (tokens, Some(positions))
            }
            (tokens, None) => {
                let [tokens] = table.group([entry(tokens, vocab)]);
                (tokens, None)
            }
        };
        Self { tokens, positions, vocab, context, channels }
    }

    fn shape<T>(&self, pass: &Pass<'_, T>) -> embedding::Shape {
        let positions = if self.positions.is_some() { self.context } else { 0 };
        let (channels, vocab) = (self.channels, self.vocab);
        embedding::Shape { batch: pass.batch, tokens: pass.tokens, channels, vocab, positions }
    }

    /// `y` `[M, C]` from the tokens `[B, T]`.
    ///
    /// # Errors
    /// A token outside the vocabulary; regions that do not have the layer's shape.
    pub fn forward<T: Float>(&self, pass: &Pass<'_, T>, y: ViewMut<'_, T>) -> Result<(), TrainError> {
        let table = pass.parameters.view(self.tokens)?;
        let positions = self.positions.map(|positions| pass.parameters.view(positions)).transpose()?;
        Ok(embedding::forward(pass.stream, self.shape(pass), pass.ids, table, positions, y)?)
    }

    /// Adds to the gradients of the tables.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a failed start of a bucket's reduction.
    pub fn backward_weight<T: Float>(
        &self,
        pass: &Pass<'_, T>,
        dy: View<'_, T>,
        gradients: &mut Gradients,
    ) -> Result<(), TrainError> {
        let shape = self.shape(pass);
        match self.positions {
            Some(positions) => {
                let (dtable, dpositions) = gradients.pair(self.tokens, positions)?;
                embedding::backward(pass.stream, shape, pass.ids, dy, dtable, Some(dpositions))?;
                gradients.done(self.tokens)?;
                gradients.done(positions)
            }
            None => {
                embedding::backward(pass.stream, shape, pass.ids, dy, gradients.view(self.tokens)?, None)?;
                gradients.done(self.tokens)
            }
        }
    }
}
