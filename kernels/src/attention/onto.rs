//! Attention over keys that come in parts: each call joins some more to what the calls before have found.
//!
//! What lies between two calls is f32 whatever the storage is: rows of weighted means and the LSE that they stand for, and
//! in backward the gradients so far. The running maximum and sum go on from there as from tile to tile of one call, so no
//! difference of the parts' LSEs overflows, and -inf is nothing that would have to be told apart. Ring attention is made of
//! these calls (Liu 2023, arXiv 2310.01889).

use warpweft_device::{Float, Stream, View, ViewMut};

use super::call::{Call, Gradients, Heads, Saved};
use super::options::{Options, Shape, Window};
use crate::{KernelError, Write};

/// What asks for places among all keys has none here: queries and keys are those of a part.
fn call<'a>(
    op: &'static str,
    stream: &'a Stream,
    shape: Shape,
    options: Options,
    seen: Option<View<'a, u32>>,
) -> Result<Call<'a>, KernelError> {
    if options.dropout.is_some() {
        let rule = "counts keys of the whole, and is not for keys in parts";
        return Err(KernelError::Combination { op, argument: "dropout", rule });
    }
    if seen.is_some() && (options.causal || options.window != Window::default()) {
        let argument = if options.causal { "causal" } else { "window" };
        return Err(KernelError::Combination { op, argument, rule: "says what `seen` says already; give one" });
    }
    Ok(Call { seen, write: Write::Add, ..Call::new(op, stream, shape, options) })
}

/// Joins keys and values to what out `[B, Tq, H, D]` and lse `[B, H, Tq]` stand for. Where a row's lse is -inf, it stands
/// for nothing and its out is not read: begin with that.
///
/// With `seen` `[Tq]`, query i of every sequence sees the first `seen[i]` of these keys, numbers that do not fall; without,
/// what `options` say.
///
/// # Errors
/// As [`forward`](super::forward()); rows too short for their heads, `seen` that falls or exceeds the keys (on a GPU an
/// error of the next synchronisation), `seen` with causal or a window; dropout. (Slopes and starts, which count keys of the
/// whole too, cannot be given.)
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn forward_onto<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    seen: Option<View<'_, u32>>,
    inputs: [Heads<'_, T>; 3],
    out: ViewMut<'_, f32>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    call("attention::forward_onto", stream, shape, options, seen)?.forward(inputs, out, lse)
}

/// Adds the gradients that these keys and values give and get: dq `[B, Tq, H, D]`, dk and dv `[B, Tk, G, D]`. `out` and
/// `lse` are those of all keys together, `out` rounded to the storage type.
///
/// # Errors
/// As [`forward_onto`].
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn backward_onto<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    seen: Option<View<'_, u32>>,
    inputs: [Heads<'_, T>; 3],
    (out, lse, dout): (View<'_, T>, View<'_, f32>, View<'_, T>),
    dq: ViewMut<'_, f32>,
    dk: ViewMut<'_, f32>,
    dv: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    let gradients = Gradients::Apart([dq, dk, dv]);
    call("attention::backward_onto", stream, shape, options, seen)?.backward(
        inputs,
        Saved { out, lse, dout },
        gradients,
    )
}
