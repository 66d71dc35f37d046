//! Attention: out = softmax(scale q kᵀ) v, head by head, without a queries-by-keys matrix in memory.
//!
//! FlashAttention-2's scheme (Dao 2023, arXiv 2307.08691): tiles of keys pass by a block of queries that keeps a running
//! maximum and sum (online softmax); backward recomputes the weights from the logarithm of that sum (LSE).
//!
//! - Query head h reads key/value head h / (H / G): G = H is multi-head, G = 1 multi-query attention.
//! - Causal is aligned bottom right: query i sees key j where j <= i + Tk - Tq, so that the last query sees every key.
//!   (PyTorch's `is_causal` is aligned top left; both agree where Tq = Tk.) A window is aligned likewise.
//! - A score is scale q·k, then c tanh(score / c) with softcap, then less slope |i + Tk - Tq - j| with ALiBi; what a mask
//!   hides has none. Dropout comes last, after the softmax: the LSE is that of all weights.
//! - A row that sees no key, or whose every score is -inf: out 0, LSE -inf, no gradient. Sequences of length zero are
//!   ordinary: keys that no query sees get zero gradients.
//! - What a mask hides is never read into a sum: a NaN in a later token leaves earlier rows as they are. (On a GPU this
//!   holds for what lies beyond a sequence's end; see `docs/numerics.md` for what masks hide within it.)
//! - Sequences and heads do not influence each other's bits, nor does the number of threads. Gradients of a key/value
//!   head sum over its query heads, then over queries, in a fixed order.
//!
//! On the CPU, work is spread over sequences, heads and blocks of 256 queries in forward, over sequences and key/value heads
//! in backward. On a GPU q, k, v, out, dout and the gradients begin at multiples of 16 bytes in every type (gradients in f32
//! at multiples of 8), and all rows are multiples of 8 elements.

mod backward;
mod call;
mod cpu;
mod forward;
mod gpu;
mod onto;
mod options;
pub mod reference;
mod scoring;

use warpweft_device::{Float, Stream, View, ViewMut};

use call::{Call, Gradients};
pub use call::{Heads, Saved};
pub use onto::{backward_onto, forward_onto};
pub use options::{Dropout, Extra, Options, Shape, Starts, Window};

use crate::{KernelError, check};

/// q, k and v as they are, without other rows between.
fn whole<'a, T: Float>(shape: Shape, [q, k, v]: [View<'a, T>; 3]) -> [Heads<'a, T>; 3] {
    let Shape { heads, kv_heads, head_size, .. } = shape;
    let kv = |rows| Heads::whole(rows, kv_heads, head_size);
    [Heads::whole(q, heads, head_size), kv(k), kv(v)]
}

/// The sizes of packed rows: q's heads, then k's, then v's.
fn check_packed(op: &'static str, shape: Shape) -> Result<[usize; 4], KernelError> {
    shape.check(op)?;
    if shape.queries != shape.keys {
        let allowed = format!("{} as `queries`: a packed row holds both", shape.queries);
        return Err(KernelError::Size { op, argument: "keys", given: shape.keys, allowed });
    }
    let rows = shape.kv_heads.saturating_mul(2).saturating_add(shape.heads);
    Ok([shape.batch, shape.queries, rows, shape.head_size])
}

/// q, k and v of packed rows.
fn unpack<T: Float>(qkv: View<'_, T>, shape: Shape) -> [Heads<'_, T>; 3] {
    let Shape { heads, kv_heads, head_size, .. } = shape;
    let row = (heads + 2 * kv_heads) * head_size;
    [0, heads, heads + kv_heads].map(|before| Heads { rows: qkv, row, first: before * head_size })
}

/// out `[B, Tq, H, D]` and lse `[B, H, Tq]` (the natural logarithm of the sum of e^score over the visible keys).
///
/// Sums are in f32; out is rounded once. On a GPU the products of bf16 and f16 are those of tensor cores, and weights are
/// rounded to the storage type before they meet v.
///
/// # Errors
/// A head size of 0 (on a GPU, any that is no multiple of 8 or above 256), key/value heads that do not divide the heads,
/// options out of range, a length that contradicts the shape, an argument of another device. Nothing is written then.
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
    Call::new("attention::forward", stream, shape, options).forward(whole(shape, [q, k, v]), out, lse)
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
    let qkv = check::region(stream, OP, "qkv", qkv, &check_packed(OP, shape)?)?;
    Call::new(OP, stream, shape, options).forward(unpack(qkv, shape), out, lse)
}

/// [`forward`] with arrays beside q, k and v, each of which may lie in longer rows.
///
/// # Errors
/// As [`forward`]; rows too short for their heads; starts that fall, lie outside the rows or are further apart than the
/// shape's lengths (on a GPU an error of the next synchronisation, and nothing is written for that sequence).
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn forward_with<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    extra: Extra<'_>,
    inputs: [Heads<'_, T>; 3],
    out: ViewMut<'_, T>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    Call { extra, ..Call::new("attention::forward_with", stream, shape, options) }.forward(inputs, out, lse)
}

/// The gradients of q, k and v, overwritten, from dout and what [`forward`] was given and gave.
///
/// With P = e^(score - lse): dv = Pᵀ dout; dS = P (dout vᵀ - Σ dout out); dq = scale dS k; dk = scale dSᵀ q. With dropout
/// the P of dv and the dout vᵀ are those after it; softcap multiplies dS by 1 - tanh². Slopes get no gradient.
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
    let call = Call::new("attention::backward", stream, shape, options);
    call.backward(whole(shape, [q, k, v]), Saved { out, lse, dout }, Gradients::Apart([dq, dk, dv]))
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
    let packed = check_packed(OP, shape)?;
    let qkv = check::region(stream, OP, "qkv", qkv, &packed)?;
    let dqkv = check::region_mut(stream, OP, "dqkv", dqkv, &packed)?;
    let call = Call::new(OP, stream, shape, options);
    call.backward(unpack(qkv, shape), Saved { out, lse, dout }, Gradients::Packed(dqkv))
}

/// [`backward`] of [`forward_with`]: dq, dk and dv are as long as q, k and v, without other rows between.
///
/// # Errors
/// As [`forward_with`].
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward_with<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    extra: Extra<'_>,
    inputs: [Heads<'_, T>; 3],
    saved: Saved<'_, T>,
    gradients: [ViewMut<'_, T>; 3],
) -> Result<(), KernelError> {
    let call = Call { extra, ..Call::new("attention::backward_with", stream, shape, options) };
    call.backward(inputs, saved, Gradients::Apart(gradients))
}
