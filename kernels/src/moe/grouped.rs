//! The products of a linear layer whose rows belong to experts, each with a weight of its own: rows in the order of
//! experts, `counts[e]` for expert e, weights `[E, N, K]`. Each is a product of [`matmul`], so a row's bits do not depend on
//! the other rows of its expert.

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
    mut pre: Option<ViewMut<'_, T>>,
    mut y: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::forward";
    let (rows, experts, outputs) = (shape.rows(OP)?, shape.counts.len(), activation.outputs(shape.n));
    matmul::check_epilogue(OP, matmul::Shape { m: rows, n: shape.n, k: shape.k }, activation, pre.is_some())?;
    check::region(stream, OP, "x", x, &[rows, shape.k])?;
    check::region(stream, OP, "w", w, &[experts, shape.n, shape.k])?;
    check::region_mut(stream, OP, "y", y.reborrow(), &[rows, outputs])?;
    if let Some(pre) = &mut pre {
        check::region_mut(stream, OP, "pre", pre.reborrow(), &[rows, shape.n])?;
    }
    if stream.device().cpu_pool().is_err() {
        let epilogue = Epilogue { activation, pre, ..Epilogue::default() };
        return gpu::forward(stream, OP, shape.grouped(), x, w, epilogue, y);
    }
    for (expert, row, product) in shape.each() {
        let matmul::Shape { m, n, k } = product;
        let pre = pre.as_mut().map(|pre| pre.reborrow().slice(row * n..(row + m) * n)).transpose()?;
        let epilogue = Epilogue { activation, pre, ..Epilogue::default() };
        let (x, w) = (x.slice(row * k..(row + m) * k)?, w.slice(expert * n * k..(expert + 1) * n * k)?);
        matmul::forward(stream, product, x, w, epilogue, y.reborrow().slice(row * outputs..(row + m) * outputs)?)?;
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
    mut dx: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "moe::grouped::backward_input";
    let (rows, experts) = (shape.rows(OP)?, shape.counts.len());
    check::region(stream, OP, "dy", dy, &[rows, shape.n])?;
    check::region(stream, OP, "w", w, &[experts, shape.n, shape.k])?;
    check::region_mut(stream, OP, "dx", dx.reborrow(), &[rows, shape.k])?;
    if stream.device().cpu_pool().is_err() {
        return gpu::backward_input(stream, OP, shape.grouped(), dy, w, Through::default(), write, dx);
    }
    for (expert, row, product) in shape.each() {
        let matmul::Shape { m, n, k } = product;
        let (dy, w) = (dy.slice(row * n..(row + m) * n)?, w.slice(expert * n * k..(expert + 1) * n * k)?);
        matmul::backward_input(stream, product, dy, w, write, dx.reborrow().slice(row * k..(row + m) * k)?)?;
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
