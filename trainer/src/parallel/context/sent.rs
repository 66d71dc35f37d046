//! What attention over parts of sequences sends.

use super::{Method, Sizes, ulysses};

/// Bytes that `cp` ranks together send for one forward pass over sequences of `tokens` tokens, and for one backward pass;
/// elements of `element` bytes.
///
/// Ring: forward (cp - 1) · B T · 2 G D elements, each rank's keys and values passing all others; backward the same, and their
/// gradients in f32 on cp hops, the last one home. Ulysses, with H' = H / cp and G' = max(G / cp, 1) heads of a rank: forward
/// (cp - 1) · B T · (H' + 2 G') D on the way there, (cp - 1) · B T · H' D back; backward packed rows, outputs and their errors
/// there again, and the gradients of packed rows back in f32.
pub(crate) fn sent_bytes(method: Method, cp: usize, tokens: usize, sizes: &Sizes<'_>, element: usize) -> [u64; 2] {
    if cp == 1 {
        return [0; 2];
    }
    let (all, others) = (sizes.batch * tokens, cp - 1);
    let bytes = match method {
        Method::Ring => {
            let keys = all * 2 * sizes.keys();
            [keys * others * element, keys * (others * element + cp * size_of::<f32>())]
        }
        Method::Ulysses => {
            let part = ulysses::Part::of(sizes, cp);
            let back = (part.row() + 2 * part.queries()) * element + part.row() * size_of::<f32>();
            [all * others * (part.row() + part.queries()) * element, all * others * back]
        }
    };
    bytes.map(|bytes| bytes as u64)
}
