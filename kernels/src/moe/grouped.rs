//! The products of a linear layer whose rows belong to experts, each with a weight of its own: rows in the order of
//! experts, `counts[e]` for expert e, weights `[E, N, K]`. Each is a product of [`matmul`] with what it takes besides, so a
//! row's bits do not depend on the other rows of its expert. On a GPU a launch has up to 256 experts.

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::matmul::{self, Activation, Epilogue, Through, gpu};
use crate::{KernelError, Write, check};

/// Sizes: x is `[the sum of counts, k]`, w is `[experts, n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// Rows of each expert.
    pub counts: &'a [usize],
    /// Outputs of the layer, before an activation that halves them.
    pub n: usize,
    /// Inputs of the layer.
    pub k: usize,
}

impl<'a> Shape<'a> {
    fn grouped(&self) -> gpu::Grouped<'a> {
        gpu::Grouped { counts: self.counts, n: self.n, k: self.k }
    }

    /// All rows.
    fn rows(&self, op: &'static str) -> Result<usize, KernelError> {
        let rows = self.counts.iter().try_fold(0usize, |rows, count| rows.checked_add(*count));
        rows.ok_or_else(|| {
            let allowed = "counts whose sum memory can address".to_owned();
            KernelError::Size { op, argument: "counts", given: self.counts.len(), allowed }
        })
    }

    /// For each expert its product and the first of its rows.
    fn each(&self) -> impl Iterator<Item = (usize, usize, matmul::Shape)> {
        let (mut first, n, k) = (0, self.n, self.k);
        self.counts.iter().enumerate().map(move |(expert, &m)| {
            let row = first;
            first += m;
            (expert, row, matmul::Shape { m, n, k })
        })
    }
}

/// y = activation(x wᵀ) by expert; `pre` `[rows, N]` takes the activation's argument.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device, an odd N with SwiGLU, `pre` without an activation.
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    x: View<'_, T>,
    w: View<'_, T>,
    activation: Activation,
    pre: Option<ViewMut<'_, T>>,
    y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    forward_with(stream, shape, x, w, Epilogue { activation, pre, ..Epilogue::default() }, y)
}

/// y = activation(scale x wᵀ + bias) + residual by expert: as [`matmul::forward`], with a bias for each expert, `[E, N]`, and the
/// other arrays by rows.
///
/// # Errors
/// As [`forward`], and a scale that is not finite.
pub fn forward_with<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    x: View<'_, T>,
    w: View<'_, T>,
    epilogue: Epilogue<'_, T>,
    mut y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::forward";
    let Epilogue { scale, bias, activation, mut pre, residual } = epilogue;
    let (rows, experts, outputs) = (shape.rows(OP)?, shape.counts.len(), activation.outputs(shape.n));
    matmul::check_epilogue(OP, matmul::Shape { m: rows, n: shape.n, k: shape.k }, activation, pre.is_some())?;
    check::finite(OP, "scale", scale)?;
    check::region(stream, OP, "x", x, &[rows, shape.k])?;
    check::region(stream, OP, "w", w, &[experts, shape.n, shape.k])?;
    check::region_mut(stream, OP, "y", y.reborrow(), &[rows, outputs])?;
    bias.map(|bias| check::region(stream, OP, "bias", bias, &[experts, shape.n])).transpose()?;
    residual.map(|residual| check::region(stream, OP, "residual", residual, &[rows, outputs])).transpose()?;
    if let Some(pre) = &mut pre {
        check::region_mut(stream, OP, "pre", pre.reborrow(), &[rows, shape.n])?;
    }
    if stream.device().cpu_pool().is_err() {
        let epilogue = Epilogue { scale, bias, activation, pre, residual };
        return gpu::forward(stream, OP, shape.grouped(), x, w, epilogue, y);
    }
    for (expert, row, product) in shape.each() {
        let matmul::Shape { m, n, k } = product;
        let written = row * outputs..(row + m) * outputs;
        let epilogue = Epilogue {
            scale,
            bias: bias.map(|bias| bias.slice(expert * n..(expert + 1) * n)).transpose()?,
            activation,
            pre: pre.as_mut().map(|pre| pre.reborrow().slice(row * n..(row + m) * n)).transpose()?,
            residual: residual.map(|residual| residual.slice(written.clone())).transpose()?,
        };
        let (x, w) = (x.slice(row * k..(row + m) * k)?, w.slice(expert * n * k..(expert + 1) * n * k)?);
        matmul::forward(stream, product, x, w, epilogue, y.reborrow().slice(written)?)?;
    }
    Ok(())
}

/// dx = dy w by expert, or added to what is there.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device.
pub fn backward_input<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    dy: View<'_, T>,
    w: View<'_, T>,
    write: Write,
    dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    backward_input_through(stream, shape, dy, w, Through::default(), write, dx)
}

/// dx = scale (dy w) · activation'(pre) by expert, or added to dx: as [`matmul::backward_input_through`], with the rows of `pre` and
/// dx by expert. `db`, `[E, K]` or `[E, 2K]` with SwiGLU, gets the sums of dx's rows by [`backward_bias`], one expert after another.
///
/// # Errors
/// As [`backward_input`]; an activation without `pre`, `pre` without an activation, a scale that is not finite, `db` with
/// [`Write::Add`].
pub fn backward_input_through<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    dy: View<'_, T>,
    w: View<'_, T>,
    through: Through<'_, T>,
    write: Write,
    mut dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::backward_input";
    matmul::check_through(OP, &through, write)?;
    let Through { scale, activation, pre, mut db } = through;
    let (rows, experts, columns) = (shape.rows(OP)?, shape.counts.len(), activation.inputs(shape.k));
    check::region(stream, OP, "dy", dy, &[rows, shape.n])?;
    check::region(stream, OP, "w", w, &[experts, shape.n, shape.k])?;
    check::region_mut(stream, OP, "dx", dx.reborrow(), &[rows, columns])?;
    pre.map(|pre| check::region(stream, OP, "pre", pre, &[rows, columns])).transpose()?;
    if let Some(db) = &mut db {
        check::region_mut(stream, OP, "db", db.reborrow(), &[experts, columns])?;
    }
    if stream.device().cpu_pool().is_err() {
        let through = Through { scale, activation, pre, db: None };
        gpu::backward_input(stream, OP, shape.grouped(), dy, w, through, write, dx.reborrow())?;
    } else {
        for (expert, row, product) in shape.each() {
            let matmul::Shape { m, n, k } = product;
            let (dy, w) = (dy.slice(row * n..(row + m) * n)?, w.slice(expert * n * k..(expert + 1) * n * k)?);
            let written = row * columns..(row + m) * columns;
            let pre = pre.map(|pre| pre.slice(written.clone())).transpose()?;
            let through = Through { scale, activation, pre, db: None };
            let dx = dx.reborrow().slice(written)?;
            matmul::backward_input_through(stream, product, dy, w, through, write, dx)?;
        }
    }
    match db {
        Some(db) => backward_bias(stream, Shape { n: columns, ..shape }, dx.as_view(), db),
        None => Ok(()),
    }
}

/// db += the sums of dy's rows by expert; dy `[rows, N]`, db `[E, N]`, in f32. `shape.k` is not used.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device.
pub fn backward_bias<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    dy: View<'_, T>,
    mut db: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::backward_bias";
    let (rows, experts) = (shape.rows(OP)?, shape.counts.len());
    check::region(stream, OP, "dy", dy, &[rows, shape.n])?;
    check::region_mut(stream, OP, "db", db.reborrow(), &[experts, shape.n])?;
    for (expert, row, product) in shape.each().filter(|(_, _, product)| product.m > 0) {
        let matmul::Shape { m, n, .. } = product;
        let db = db.reborrow().slice(expert * n..(expert + 1) * n)?;
        matmul::backward_bias(stream, product, dy.slice(row * n..(row + m) * n)?, db)?;
    }
    Ok(())
}

/// dw += dyᵀ x by expert, in f32; an expert without rows gets nothing.
///
/// # Errors
/// A length that contradicts the shape, an argument of another device.
pub fn backward_weight<T: Float>(
    stream: &Stream,
    shape: Shape<'_>,
    x: View<'_, T>,
    dy: View<'_, T>,
    mut dw: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::backward_weight";
    let (rows, experts) = (shape.rows(OP)?, shape.counts.len());
    check::region(stream, OP, "x", x, &[rows, shape.k])?;
    check::region(stream, OP, "dy", dy, &[rows, shape.n])?;
    check::region_mut(stream, OP, "dw", dw.reborrow(), &[experts, shape.n, shape.k])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::backward_weight(stream, OP, shape.grouped(), x, dy, dw);
    }
    for (expert, row, product) in shape.each() {
        let matmul::Shape { m, n, k } = product;
        let (x, dy) = (x.slice(row * k..(row + m) * k)?, dy.slice(row * n..(row + m) * n)?);
        let dw = dw.reborrow().slice(expert * n * k..(expert + 1) * n * k)?;
        matmul::backward_weight(stream, product, x, dy, dw)?;
    }
    Ok(())
}
