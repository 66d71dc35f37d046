//! What attention over parts of sequences holds at most, while it runs, besides what its caller gives it: bytes of buffers.

use super::{Method, Sizes, ulysses};

/// The most bytes of a forward and backward pass on rank `rank` of `cp`, and of what it keeps all the time: sequences of
/// `tokens` tokens, elements of `element` bytes.
pub(crate) fn held_bytes(
    method: Method,
    (cp, rank): (usize, usize),
    tokens: usize,
    sizes: &Sizes<'_>,
    element: usize,
) -> u64 {
    let own = method.cut().tokens(tokens, cp, rank);
    let seen = cp * own * size_of::<u32>();
    let pass = match method {
        Method::Ring => ring((cp, rank), tokens, sizes, element),
        Method::Ulysses => exchange(cp, own, tokens, sizes, element),
    };
    (seen + pass) as u64
}

/// Forward the sum so far, f32, and two ranks' keys and values. Backward too, and three ranks' gradients of them: those on
/// their way out, those on their way in, those that are being formed.
fn ring((cp, rank): (usize, usize), tokens: usize, sizes: &Sizes<'_>, element: usize) -> usize {
    let len = |step: usize| {
        let owner = (rank + cp - step % cp) % cp;
        sizes.batch * Method::Ring.cut().tokens(tokens, cp, owner) * 2 * sizes.keys()
    };
    let sum = sizes.batch * Method::Ring.cut().tokens(tokens, cp, rank) * sizes.queries() * size_of::<f32>();
    let step = |step: usize| {
        let next = if step + 1 < cp { len(step + 1) } else { 0 };
        let gradients = if step > 0 { len(step - 1) + 2 * len(step) } else { len(step) };
        (len(step) + next) * element + gradients * size_of::<f32>()
    };
    let home = (len(cp - 1) + len(0)) * size_of::<f32>();
    sum + (0..cp).map(step).max().unwrap_or(0).max(home)
}

/// At the end of the backward pass: rows, outputs and their errors of all tokens, their gradients twice, and those on their
/// way, or the sum of what came.
fn exchange(cp: usize, own: usize, tokens: usize, sizes: &Sizes<'_>, element: usize) -> usize {
    let part = ulysses::Part::of(sizes, cp);
    let (all, received) = (sizes.batch * tokens, cp * sizes.batch * own * part.row());
    let last = (all * part.row()).max(sizes.batch * own * sizes.row());
    all * (part.row() + 2 * part.queries()) * element + (2 * all * part.row() + received + last) * size_of::<f32>()
}
