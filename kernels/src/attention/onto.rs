//! Attention over keys that come in parts: each call joins some more to what the calls before have found.
//!
//! What lies between two calls is f32 whatever the storage is: rows of weighted means and the LSE that they stand for, and
//! in backward the gradients so far. The running maximum and sum go on from there as from tile to tile of one call, so no
//! difference of the parts' LSEs overflows, and -inf is nothing that would have to be told apart. Ring attention is made of
//! these calls (Liu 2023, arXiv 2310.01889).

use ndarray::{ArrayView4, ShapeBuilder};
use warpweft_device::{Float, Stream, View, ViewMut};

use super::cpu::Mask;
use super::{Options, Shape, array, array_mut, backward, check_shape, forward, saved};
use crate::{KernelError, Write, check};

/// Heads that lie side by side in longer rows, as q, k and v do in packed ones: `[B, T, row]`, of which the elements from
/// `first` on are read.
#[derive(Clone, Copy)]
pub struct Heads<'a, T> {
    /// All rows.
    pub rows: View<'a, T>,
    /// Elements of a row.
    pub row: usize,
    /// The first element of a row that is read.
    pub first: usize,
}

impl<'a, T: Float> Heads<'a, T> {
    /// The heads of an argument named `argument`, of which `dims` are read.
    fn array(
        self,
        stream: &Stream,
        op: &'static str,
        argument: &'static str,
        dims: [usize; 4],
    ) -> Result<ArrayView4<'a, T>, KernelError> {
        let [batch, tokens, heads, head_size] = dims;
        let rows = check::view(stream, op, argument, self.rows, &[batch, tokens, self.row])?;
        let wanted = check::elements(op, argument, &[heads, head_size])?;
        let end = self.first.checked_add(wanted).filter(|end| *end <= self.row);
        if end.is_none() {
            let allowed =
                format!("at least {}, where the {heads} heads of `{argument}` end", self.first.saturating_add(wanted));
            return Err(KernelError::Size { op, argument: "row", given: self.row, allowed });
        }
        if dims.contains(&0) {
            return Ok(array(&[], dims));
        }
        let (rows, strides) = (&rows[self.first..], (tokens * self.row, self.row, head_size, 1));
        let view = ArrayView4::from_shape((batch, tokens, heads, head_size).strides(strides), rows);
        Ok(view.expect("the rows were checked against the shape"))
    }
}

/// What each query sees: `[Tq]` numbers of keys that do not fall and are no more than there are.
fn mask<'a>(
    op: &'static str,
    stream: &Stream,
    shape: Shape,
    options: Options,
    seen: Option<View<'a, u32>>,
) -> Result<Mask<'a>, KernelError> {
    let Some(seen) = seen else { return Ok(Mask::Aligned(shape, options)) };
    if options.causal {
        return Err(KernelError::Combination {
            op,
            argument: "causal",
            rule: "says what `seen` says already; give one",
        });
    }
    let seen = check::view(stream, op, "seen", seen, &[shape.queries])?;
    let fall = seen.windows(2).find(|pair| pair[0] > pair[1]).map(|pair| pair[1]);
    if let Some(given) = fall {
        let allowed = "no less than the entry before it".to_owned();
        return Err(KernelError::Size { op, argument: "seen", given: given as usize, allowed });
    }
    match seen.last() {
        Some(&last) if last as usize > shape.keys => {
            let allowed = format!("at most {}, the keys there are", shape.keys);
            Err(KernelError::Size { op, argument: "seen", given: last as usize, allowed })
        }
        _ => Ok(Mask::Seen(seen)),
    }
}

/// Joins keys and values to what out `[B, Tq, H, D]` and lse `[B, H, Tq]` stand for. Where a row's lse is -inf, it stands
/// for nothing and its out is not read: begin with that.
///
/// With `seen` `[Tq]`, query i of every sequence sees the first `seen[i]` of these keys; without, what `options` say.
///
/// # Errors
/// As [`forward`](super::forward()); rows too short for their heads, `seen` that falls or exceeds the keys, `seen` with causal.
#[allow(clippy::too_many_arguments)] // the op's own arguments
pub fn forward_onto<T: Float>(
    stream: &Stream,
    shape: Shape,
    options: Options,
    seen: Option<View<'_, u32>>,
    [q, k, v]: [Heads<'_, T>; 3],
    out: ViewMut<'_, f32>,
    lse: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::forward_onto";
    check_shape(OP, shape, options)?;
    let mask = mask(OP, stream, shape, options, seen)?;
    let inputs = [
        q.array(stream, OP, "q", shape.q())?,
        k.array(stream, OP, "k", shape.kv())?,
        v.array(stream, OP, "v", shape.kv())?,
    ];
    let out = check::view_mut(stream, OP, "out", out, &shape.q())?;
    let lse = check::view_mut(stream, OP, "lse", lse, &[shape.batch, shape.heads, shape.queries])?;
    let how = (shape, mask, options.scale(shape.head_size));
    forward::run(stream.device().cpu_pool()?, how, inputs, Write::Add, array_mut(out, shape.q()), lse);
    Ok(())
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
    [q, k, v]: [Heads<'_, T>; 3],
    (out, lse, dout): (View<'_, T>, View<'_, f32>, View<'_, T>),
    dq: ViewMut<'_, f32>,
    dk: ViewMut<'_, f32>,
    dv: ViewMut<'_, f32>,
) -> Result<(), KernelError> {
    const OP: &str = "attention::backward_onto";
    check_shape(OP, shape, options)?;
    let mask = mask(OP, stream, shape, options, seen)?;
    let inputs = [
        q.array(stream, OP, "q", shape.q())?,
        k.array(stream, OP, "k", shape.kv())?,
        v.array(stream, OP, "v", shape.kv())?,
    ];
    let saved = saved(OP, stream, shape, out, lse, dout)?;
    let dq = check::view_mut(stream, OP, "dq", dq, &shape.q())?;
    let dk = check::view_mut(stream, OP, "dk", dk, &shape.kv())?;
    let dv = check::view_mut(stream, OP, "dv", dv, &shape.kv())?;
    let gradients = [array_mut(dq, shape.q()), array_mut(dk, shape.kv()), array_mut(dv, shape.kv())];
    let how = (shape, mask, options.scale(shape.head_size));
    backward::run(stream.device().cpu_pool()?, how, inputs, saved, Write::Add, gradients);
    Ok(())
}
