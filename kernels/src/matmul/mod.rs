//! Matrix products of a linear layer, with epilogues: y = activation(scale x wᵀ + b) + residual, and its gradients.
//!
//! Weights are `[N outputs, K inputs]`, row-major, as in PyTorch's `nn.Linear`.
//!
//! # What does not change a result
//! Every element of y is a sum over K that is cut into blocks of a constant size and never spread over threads; on a GPU
//! neither over blocks, and the tile, the alignment and the order of the operands in memory change no bit either. So the
//! bits of a row of y (and of dx) depend on that row of x, on w and on the epilogue, and not on M, on the row's place
//! or on the number of threads. Training that must be exact whatever the split of a batch rests on this. In
//! [`backward_weight`] the sum runs over the M rows, so there the rows given in one call do matter, and nothing else.
//!
//! # Activations
//! - GELU, tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))), computed as x times the logistic function of twice
//!   the tanh's argument, which is the same number without the cancellation for negative x (Hendrycks 2016).
//! - GELU, erf form: x/2 (1 + erf(x / sqrt 2)).
//! - ReLU: max(x, 0), with derivative 0 at 0; a NaN stays one.
//! - SwiGLU: silu(gate) · up (Shazeer 2020): w holds the gate's F rows, then up's, so N = 2F and y is `[M, F]`.

mod activation;
mod cpu;
pub(crate) mod gpu;
mod gradients;
mod input;
pub mod reference;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, Write, check};

/// Elements below which handing a row to another thread costs more than it saves.
const LEAST_ELEMENTS: usize = 4096;

/// Sizes of a product: x is `[m, k]`, w is `[n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows: tokens.
    pub m: usize,
    /// Outputs of the layer, before an activation that halves them.
    pub n: usize,
    /// Inputs of the layer.
    pub k: usize,
}

/// What is done to x wᵀ + b.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU in its erf form.
    GeluErf,
    /// The positive part.
    Relu,
    /// silu of the first N/2 outputs times the last N/2.
    SwiGlu,
}

impl Activation {
    /// Columns that come out for `n` that go in.
    pub fn outputs(self, n: usize) -> usize {
        if self == Self::SwiGlu { n / 2 } else { n }
    }

    /// Columns of the argument of which `k` columns come.
    pub fn inputs(self, k: usize) -> usize {
        if self == Self::SwiGlu { k.saturating_mul(2) } else { k }
    }
}

/// What follows the product, while it is hot in the cache.
pub struct Epilogue<'a, T> {
    /// The factor on x wᵀ: 1 unless set.
    pub scale: f32,
    /// Added to every row of x wᵀ: `[N]`.
    pub bias: Option<View<'a, T>>,
    /// Applied to the sum.
    pub activation: Activation,
    /// Where to keep the activation's argument for [`backward_activation`]: `[M, N]`. Only with an activation.
    pub pre: Option<ViewMut<'a, T>>,
    /// Added to what comes out: `[M, N]`, or `[M, N/2]` with SwiGLU.
    pub residual: Option<View<'a, T>>,
}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self { scale: 1.0, bias: None, activation: Activation::None, pre: None, residual: None }
    }
}

fn check_shape(op: &'static str, shape: Shape, activation: Activation) -> Result<(), KernelError> {
    if activation == Activation::SwiGlu && !shape.n.is_multiple_of(2) {
        let allowed = "even with SwiGLU: the gate's rows and as many of up's".to_owned();
        return Err(KernelError::Size { op, argument: "n", given: shape.n, allowed });
    }
    Ok(())
}

/// What an epilogue may be, whichever op it is of.
pub(crate) fn check_epilogue(
    op: &'static str,
    shape: Shape,
    activation: Activation,
    pre: bool,
) -> Result<(), KernelError> {
    check_shape(op, shape, activation)?;
    if activation == Activation::None && pre {
        let rule = "is the activation's argument: give an activation or leave it out";
        return Err(KernelError::Combination { op, argument: "pre", rule });
    }
    Ok(())
}

/// What of a backward epilogue may be together, whichever op it is of.
pub(crate) fn check_through<T>(op: &'static str, through: &Through<'_, T>, write: Write) -> Result<(), KernelError> {
    check::finite(op, "scale", through.scale)?;
    if through.db.is_some() && write == Write::Add {
        let rule = "is the sum of dx's rows: let dx be set, or call backward_bias";
        return Err(KernelError::Combination { op, argument: "db", rule });
    }
    if through.pre.is_some() != (through.activation != Activation::None) {
        let rule = "is the activation's argument: give both or neither";
        return Err(KernelError::Combination { op, argument: "pre", rule });
    }
    Ok(())
}

/// y = activation(scale x wᵀ + bias) + residual; x `[M, K]`, w `[N, K]`, y `[M, N]` or, with SwiGLU, `[M, N/2]`.
///
/// Storage of `T`, sums in f32, rounded once to y and once to `pre` (y is not computed from the rounded `pre`). An
/// f32 element is within (K + 4) 2^-24 (Σ|scale x w| + |bias| + |residual|) of the exact one before the activation; a GPU's
/// tensor cores, which bf16 and f16 go through, are within (11 ⌈K/8⌉ + 48) 2^-24 of it before the rounding to `T`.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device, an odd N with SwiGLU, `pre` without an
/// activation. Nothing is written then.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    w: View<'_, T>,
    epilogue: Epilogue<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::forward";
    let Shape { m, n, k } = shape;
    let Epilogue { scale, bias, activation, pre, residual } = epilogue;
    check_epilogue(OP, shape, activation, pre.is_some())?;
    check::finite(OP, "scale", scale)?;
    let outputs = activation.outputs(n);
    let x = check::region(stream, OP, "x", x, &[m, k])?;
    let w = check::region(stream, OP, "w", w, &[n, k])?;
    let bias = bias.map(|bias| check::region(stream, OP, "bias", bias, &[n])).transpose()?;
    let residual =
        residual.map(|residual| check::region(stream, OP, "residual", residual, &[m, outputs])).transpose()?;
    let pre = pre.map(|pre| check::region_mut(stream, OP, "pre", pre, &[m, n])).transpose()?;
    let y = check::region_mut(stream, OP, "y", y, &[m, outputs])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let (bias, residual) = (bias.map(View::host).transpose()?, residual.map(View::host).transpose()?);
            let epilogue = cpu::Epilogue { scale, bias, activation, residual };
            cpu::forward(pool, shape, x.host()?, w.host()?, epilogue, pre.map(ViewMut::host).transpose()?, y.host()?);
        }
        Err(_) => {
            let epilogue = Epilogue { scale, bias, activation, pre, residual };
            gpu::forward(stream, OP, gpu::Grouped { counts: &[m], n, k }, x, w, epilogue, y)?;
        }
    }
    Ok(())
}

/// y = activation(pre): what [`forward`] makes of the argument that it keeps; pre `[M, N]`, y `[M, N]` or, with SwiGLU,
/// `[M, N/2]`. `shape.k` is not used.
///
/// In f32 these are the bits of [`forward`]. In a narrower type they need not be: it starts from the sum before that is
/// rounded to `pre`.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device, an odd N with SwiGLU. Nothing is written then.
pub fn activate<T: Float>(
    stream: &Stream,
    shape: Shape,
    activation: Activation,
    pre: View<'_, T>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::activate";
    let Shape { m, n, .. } = shape;
    check_shape(OP, shape, activation)?;
    let pre = check::region(stream, OP, "pre", pre, &[m, n])?;
    let y = check::region_mut(stream, OP, "y", y, &[m, activation.outputs(n)])?;
    match stream.device().cpu_pool() {
        Ok(pool) => activation::forward(pool, shape, activation, pre.host()?, y.host()?),
        Err(_) => gpu::activate(stream, OP, shape, activation, pre, y)?,
    }
    Ok(())
}

/// What is made of dy w in the same pass: the factor of a scaled product, the derivative of the activation that the layer's
/// input came out of, and the gradient of the bias before that.
pub struct Through<'a, T> {
    /// The factor on dy w: 1 unless set.
    pub scale: f32,
    /// The activation whose result x was.
    pub activation: Activation,
    /// Its argument: `[M, K]`, or `[M, 2K]` with SwiGLU. Only with an activation, which needs it.
    pub pre: Option<View<'a, T>>,
    /// Given, the sums of dx's rows are added to it, as by [`backward_bias`] of the layer before: `[K]`, or `[2K]` with SwiGLU.
    /// Only where dx is set, not added to.
    pub db: Option<ViewMut<'a, f32>>,
}

impl<T> Default for Through<'_, T> {
    fn default() -> Self {
        Self { scale: 1.0, activation: Activation::None, pre: None, db: None }
    }
}

/// dx = dy w, or dx += dy w; dy `[M, N]` (the gradient of x wᵀ + b), w `[N, K]`, dx `[M, K]`.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device. Nothing is written then.
pub fn backward_input<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    w: View<'_, T>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    backward_input_through(stream, shape, dy, w, Through::default(), write, dx)
}

/// dx = scale (dy w) · activation'(pre), or added to dx: [`backward_input`] and then [`backward_activation`] of the layer
/// before, and with `db` its [`backward_bias`], in one pass. dx is `[M, K]`, or `[M, 2K]` with SwiGLU, as `pre` is. It is
/// rounded once; in f32 these are the bits of the calls one by one. The sums of `db` are those of dx as it is stored; on a GPU
/// each 64 rows are summed in f32, and those sums in f64, within 17 2^-24 Σ|dx| + 2^-24 |db|, where the order does not depend
/// on the GPU.
///
/// # Errors
/// As for [`backward_input`]; an activation without `pre`, `pre` without an activation, a scale that is not finite, `db` with
/// [`Write::Add`].
pub fn backward_input_through<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    w: View<'_, T>,
    through: Through<'_, T>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::backward_input";
    let Shape { m, n, k } = shape;
    check_through(OP, &through, write)?;
    let Through { scale, activation, pre, db } = through;
    let columns = activation.inputs(k);
    let pre = pre.map(|pre| check::region(stream, OP, "pre", pre, &[m, columns])).transpose()?;
    let db = db.map(|db| check::region_mut(stream, OP, "db", db, &[columns])).transpose()?;
    let dy = check::region(stream, OP, "dy", dy, &[m, n])?;
    let w = check::region(stream, OP, "w", w, &[n, k])?;
    let dx = check::region_mut(stream, OP, "dx", dx, &[m, columns])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            let through = input::Through { scale, activation, pre: pre.map(View::host).transpose()? };
            let dx = dx.host()?;
            input::backward(pool, shape, dy.host()?, w.host()?, through, write, dx);
            if let Some(db) = db {
                gradients::backward_bias(pool, Shape { n: columns, ..shape }, dx, db.host()?);
            }
        }
        Err(_) => {
            let through = Through { scale, activation, pre, db };
            gpu::backward_input(stream, OP, gpu::Grouped { counts: &[m], n, k }, dy, w, through, write, dx)?;
        }
    }
    Ok(())
}

/// dw += dyᵀ x; x `[M, K]`, dy `[M, N]`, dw `[N, K]` in f32 whatever `T` is.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device. Nothing is written then.
pub fn backward_weight<T: Float>(
    stream: &Stream,
    shape: Shape,
    x: View<'_, T>,
    dy: View<'_, T>,
    dw: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::backward_weight";
    let Shape { m, n, k } = shape;
    let x = check::region(stream, OP, "x", x, &[m, k])?;
    let dy = check::region(stream, OP, "dy", dy, &[m, n])?;
    let dw = check::region_mut(stream, OP, "dw", dw, &[n, k])?;
    match stream.device().cpu_pool() {
        Ok(pool) => gradients::backward_weight(pool, shape, x.host()?, dy.host()?, dw.host()?),
        Err(_) => gpu::backward_weight(stream, OP, gpu::Grouped { counts: &[m], n, k }, x, dy, dw)?,
    }
    Ok(())
}

/// db += the sum of dy's rows; dy `[M, N]`, db `[N]` in f32. `shape.k` is not used.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device; on a GPU more than 2,097,120 columns. Nothing is written then.
pub fn backward_bias<T: Float>(
    stream: &Stream,
    shape: Shape,
    dy: View<'_, T>,
    db: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::backward_bias";
    let dy = check::region(stream, OP, "dy", dy, &[shape.m, shape.n])?;
    let db = check::region_mut(stream, OP, "db", db, &[shape.n])?;
    match stream.device().cpu_pool() {
        Ok(pool) => gradients::backward_bias(pool, shape, dy.host()?, db.host()?),
        Err(_) => gpu::backward_bias(stream, OP, shape, dy, db)?,
    }
    Ok(())
}

/// The gradient through the activation: dpre = dy · activation'(pre); pre and dpre `[M, N]`, dy `[M, N]` or, with
/// SwiGLU, `[M, N/2]`. `shape.k` is not used.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device, an odd N with SwiGLU. Nothing is written then.
pub fn backward_activation<T: Float>(
    stream: &Stream,
    shape: Shape,
    activation: Activation,
    pre: View<'_, T>,
    dy: View<'_, T>,
    dpre: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "matmul::backward_activation";
    let Shape { m, n, .. } = shape;
    check_shape(OP, shape, activation)?;
    let pre = check::region(stream, OP, "pre", pre, &[m, n])?;
    let dy = check::region(stream, OP, "dy", dy, &[m, activation.outputs(n)])?;
    let dpre = check::region_mut(stream, OP, "dpre", dpre, &[m, n])?;
    match stream.device().cpu_pool() {
        Ok(pool) => {
            gradients::backward_activation(pool, shape, activation, pre.host()?, dy.host()?, dpre.host()?);
        }
        Err(_) => gpu::backward_activation(stream, OP, shape, activation, pre, dy, dpre)?,
    }
    Ok(())
}
