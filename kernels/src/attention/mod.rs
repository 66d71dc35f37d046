//! Attention: out = softmax(scale q kᵀ) v, head by head, without a queries-by-keys matrix in memory.
//!
//! FlashAttention-2's scheme (Dao 2023, arXiv 2307.08691): tiles of keys pass by a block of queries that keeps a running
//! maximum and sum (online softmax); backward recomputes the weights from the logarithm of that sum (LSE).
//!
//! - Query head h reads key/value head h / (H / G): G = H is multi-head, G = 1 multi-query attention.
//! - Causal is aligned bottom right: query i sees key j where j <= i + Tk - Tq, so that the last query sees every key.
//!   (PyTorch's `is_causal` is aligned top left; both agree where Tq = Tk.)
//! - A row that sees no key, or whose every score is -inf: out 0, LSE -inf, no gradient. Sequences of length zero are
//!   ordinary: keys that no query sees get zero gradients.
//! - What a mask hides is never read into a sum: a NaN in a later token leaves earlier rows as they are.
//! - Sequences and heads do not influence each other's bits, nor does the number of threads. Gradients of a key/value
//!   head sum over its query heads, then over queries, in ascending order.
//!
//! Work is spread over sequences, heads and blocks of 256 queries in forward, over sequences and key/value heads in
//! backward.

mod backward;
mod cpu;
mod forward;
mod onto;
pub mod reference;

use ndarray::{ArrayView4, ArrayViewMut4, Axis};
use warpweft_device::{Float, Stream, View, ViewMut};

pub use onto::{Heads, backward_onto, forward_onto};

use crate::{KernelError, Write, check};
use cpu::Mask;

/// Sizes: q is `[batch, queries, heads, head_size]`, k and v `[batch, keys, kv_heads, head_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence (Tq).
    pub queries: usize,
    /// Keys of a sequence (Tk).
    pub keys: usize,
    /// Query heads (H).
    pub heads: usize,
    /// Key/value heads (G), a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head (D).
    pub head_size: usize,
}

impl Shape {
    /// The keys that query `query` sees are the first so many.
    pub(crate) fn visible(&self, options: Options, query: usize) -> usize {
        if options.causal {
            (query + 1).saturating_add(self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }

    /// The first query that sees key `key`; all after it do too.
    pub(crate) fn first_query(&self, options: Options, key: usize) -> usize {
        if options.causal { key.saturating_add(self.queries).saturating_sub(self.keys) } else { 0 }
    }

    /// Query heads to a key/value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    fn q(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_size]
    }

    fn kv(&self) -> [usize; 4] {
        [self.batch, self.keys, self.kv_heads, self.head_size]
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Whether query i sees only the keys j <= i + Tk - Tq.
    pub causal: bool,
    /// The factor of the scores; `None` is 1 / sqrt(D).
    pub scale: Option<f32>,
}

impl Options {
    pub(crate) fn scale(&self, head_size: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (head_size as f32).sqrt())
    }
}

fn check_shape(op: &'static str, shape: Shape, options: Options) -> Result<(), KernelError> {
    let Shape { heads, kv_heads, head_size, .. } = shape;
    if head_size == 0 {
        let allowed = "at least 1".to_owned();
        return Err(KernelError::Size { op, argument: "head_size", given: head_size, allowed });
    }
    if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) || heads == 0 && kv_heads > 0 {
        let allowed = format!("a divisor of the {heads} query heads");
        return Err(KernelError::Size { op, argument: "kv_heads", given: kv_heads, allowed });
    }
    match options.scale {
        Some(scale) if !scale.is_finite() => {
            let allowed = "finite".to_owned();
            Err(KernelError::Number { op, argument: "scale", given: scale.into(), allowed })
        }
        _ => Ok(()),
    }
}

/// What the paths are told: sizes, what is seen, the factor of the scores.
fn how(shape: Shape, options: Options) -> (Shape, Mask<'static>, f32) {
    (shape, Mask::Aligned(shape, options), options.scale(shape.head_size))
}

/// The sizes of packed rows: q's heads, then k's, then v's.
fn check_packed(op: &'static str, shape: Shape) -> Result<[usize; 4], KernelError> {
    if shape.queries != shape.keys {
        let allowed = format!("{} as `queries`: a packed row holds both", shape.queries);
        return Err(KernelError::Size { op, argument: "keys", given: shape.keys, allowed });
    }
    let rows = shape.kv_heads.saturating_mul(2).saturating_add(shape.heads);
    Ok([shape.batch, shape.queries, rows, shape.head_size])
}

fn array<T>(data: &[T], dims: [usize; 4]) -> ArrayView4<'_, T> {
    ArrayView4::from_shape(dims, data).expect("the length was checked against the shape")
}

fn array_mut<T>(data: &mut [T], dims: [usize; 4]) -> ArrayViewMut4<'_, T> {
    ArrayViewMut4::from_shape(dims, data).expect("the length was checked against the shape")
}

/// q, k and v of packed rows.
fn unpack<T>(qkv: ArrayView4<'_, T>, shape: Shape) -> [ArrayView4<'_, T>; 3] {
    let (q, kv) = qkv.split_at(Axis(2), shape.heads);
    let (k, v) = kv.split_at(Axis(2), shape.kv_heads);
    [q, k, v]
}

fn unpack_mut<T>(qkv: ArrayViewMut4<'_, T>, shape: Shape) -> [ArrayViewMut4<'_, T>; 3] {
    let (q, kv) = qkv.split_at(Axis(2), shape.heads);
    let (k, v) = kv.split_at(Axis(2), shape.kv_heads);
    [q, k, v]
}

/// out `[B, Tq, H, D]` and lse `[B, H, Tq]` (the natural logarithm of the sum of e^score over the visible keys).
///
/// Scores are formed from q times the scale; sums are in f32; out is rounded once.
///
/// # Errors
/// A head size of 0, key/value heads that do not divide the heads, a scale that is not finite, a length that
/// contradicts the shape, an argument of another device. Nothing is written then.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn forward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    out: ViewMut<'_, T>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::forward";
    check_shape(OP, shape, options)?;
    let q = check::view(stream, OP, "q", q, &shape.q())?;
    let k = check::view(stream, OP, "k", k, &shape.kv())?;
    let v = check::view(stream, OP, "v", v, &shape.kv())?;
    let out = check::view_mut(stream, OP, "out", out, &shape.q())?;
    let lse = check::view_mut(stream, OP, "lse", lse, &[shape.batch, shape.heads, shape.queries])?;
    let inputs = [array(q, shape.q()), array(k, shape.kv()), array(v, shape.kv())];
    let how = how(shape, options);
    forward::run(stream.device().cpu_pool()?, how, inputs, Write::Set, array_mut(out, shape.q()), lse);
    Ok(())
}

/// [`forward`] on packed rows, as one product of x and the joined weights gives them: qkv `[B, T, (H + 2G) D]` holds the
/// heads of q, then of k, then of v. `shape.queries` and `shape.keys` are T.
///
/// # Errors
/// As [`forward`], and different numbers of queries and keys.
pub fn forward_packed<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    qkv: View<'_, T>,
    out: ViewMut<'_, T>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::forward_packed";
    check_shape(OP, shape, options)?;
    let packed = check_packed(OP, shape)?;
    let qkv = check::view(stream, OP, "qkv", qkv, &packed)?;
    let out = check::view_mut(stream, OP, "out", out, &shape.q())?;
    let lse = check::view_mut(stream, OP, "lse", lse, &[shape.batch, shape.heads, shape.queries])?;
    let inputs = unpack(array(qkv, packed), shape);
    let how = how(shape, options);
    forward::run(stream.device().cpu_pool()?, how, inputs, Write::Set, array_mut(out, shape.q()), lse);
    Ok(())
}

/// The gradients of q, k and v, overwritten, from dout and what [`forward`] was given and gave.
///
/// With P = e^(score - lse): dv = Pᵀ dout; dS = P (dout vᵀ - Σ dout out); dq = scale dS k; dk = scale dSᵀ q.
///
/// # Errors
/// As [`forward`].
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    out: View<'_, T>,
    lse: View<'_, f32>,
    dout: View<'_, T>,
    dq: ViewMut<'_, T>,
    dk: ViewMut<'_, T>,
    dv: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::backward";
    check_shape(OP, shape, options)?;
    let q = check::view(stream, OP, "q", q, &shape.q())?;
    let k = check::view(stream, OP, "k", k, &shape.kv())?;
    let v = check::view(stream, OP, "v", v, &shape.kv())?;
    let saved = saved(OP, stream, shape, out, lse, dout)?;
    let dq = check::view_mut(stream, OP, "dq", dq, &shape.q())?;
    let dk = check::view_mut(stream, OP, "dk", dk, &shape.kv())?;
    let dv = check::view_mut(stream, OP, "dv", dv, &shape.kv())?;
    let inputs = [array(q, shape.q()), array(k, shape.kv()), array(v, shape.kv())];
    let gradients = [array_mut(dq, shape.q()), array_mut(dk, shape.kv()), array_mut(dv, shape.kv())];
    backward::run(stream.device().cpu_pool()?, how(shape, options), inputs, saved, Write::Set, gradients);
    Ok(())
}

/// [`backward`] on packed rows: dqkv is laid out as qkv and overwritten.
///
/// # Errors
/// As [`forward_packed`].
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward_packed<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    qkv: View<'_, T>,
    out: View<'_, T>,
    lse: View<'_, f32>,
    dout: View<'_, T>,
    dqkv: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::backward_packed";
    check_shape(OP, shape, options)?;
    let packed = check_packed(OP, shape)?;
    let qkv = check::view(stream, OP, "qkv", qkv, &packed)?;
    let saved = saved(OP, stream, shape, out, lse, dout)?;
    let dqkv = check::view_mut(stream, OP, "dqkv", dqkv, &packed)?;
    let inputs = unpack(array(qkv, packed), shape);
    let gradients = unpack_mut(array_mut(dqkv, packed), shape);
    backward::run(stream.device().cpu_pool()?, how(shape, options), inputs, saved, Write::Set, gradients);
    Ok(())
}

/// What backward reads beside the inputs.
struct Saved<'a, T> {
    out: ArrayView4<'a, T>,
    lse: &'a [f32],
    dout: ArrayView4<'a, T>,
}

fn saved<'a, T: Float>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    out: View<'a, T>,
    lse: View<'a, f32>,
    dout: View<'a, T>,
) -> Result<Saved<'a, T>, KernelError> {
    let out = check::view(stream, op, "out", out, &shape.q())?;
    let lse = check::view(stream, op, "lse", lse, &[shape.batch, shape.heads, shape.queries])?;
    let dout = check::view(stream, op, "dout", dout, &shape.q())?;
    Ok(Saved { out: array(out, shape.q()), lse, dout: array(dout, shape.q()) })
}
