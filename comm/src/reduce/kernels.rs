//! The loops: two parts into one, and many parts into one. Plain loops over slices, which the compiler vectorises.

use super::Op;
use super::number::Number;

/// Elements combined at a time in [`fold`]: a block of accumulators that stays in the first-level cache.
const BLOCK: usize = 256;

/// Turns an [`Op`] into a function that the loops are compiled for.
macro_rules! with_op {
    ($number:ident, $op:expr, $function:ident => $body:expr) => {
        match $op {
            Op::Sum | Op::Avg => {
                let $function = $number::sum;
                $body
            }
            Op::Prod => {
                let $function = $number::prod;
                $body
            }
            Op::Min => {
                let $function = $number::min;
                $body
            }
            Op::Max => {
                let $function = $number::max;
                $body
            }
        }
    };
}

pub(super) fn combine<N: Number>(op: Op, divide: Option<usize>, out: &mut [N], own: Option<&[N]>, incoming: &[N]) {
    if N::BLOCKWISE {
        // A fold of two is the same sum, rounded the same once.
        return fold(op, divide, out, own, 0, incoming);
    }
    match divide {
        None => with_op!(N, op, f => pairs(out, own, incoming, f)),
        Some(ranks) => with_op!(N, op, f => pairs(out, own, incoming, |a, b| N::divide(f(a, b), ranks))),
    }
}

#[inline(always)]
fn pairs<N: Number>(out: &mut [N], own: Option<&[N]>, incoming: &[N], f: impl Fn(N::Wide, N::Wide) -> N::Wide) {
    match own {
        Some(own) => {
            for ((out, own), incoming) in out.iter_mut().zip(own).zip(incoming) {
                *out = N::narrow(f(own.widen(), incoming.widen()));
            }
        }
        None => {
            for (out, incoming) in out.iter_mut().zip(incoming) {
                *out = N::narrow(f(out.widen(), incoming.widen()));
            }
        }
    }
}

/// `others` holds parts as long as `out`, one after the other, in the order of their ranks.
pub(super) fn fold<N: Number>(
    op: Op,
    divide: Option<usize>,
    out: &mut [N],
    own: Option<&[N]>,
    position: usize,
    others: &[N],
) {
    let len = out.len();
    if len == 0 {
        return;
    }
    let parts = 1 + others.len() / len;
    let mut sums = [N::Wide::default(); BLOCK];
    let mut next = [N::Wide::default(); BLOCK];
    for start in (0..len).step_by(BLOCK) {
        let range = start..(start + BLOCK).min(len);
        let sums = &mut sums[..range.len()];
        for part in 0..parts {
            let from = if part == position {
                own.map_or(&out[range.clone()], |own| &own[range.clone()])
            } else {
                let at = (part - usize::from(part > position)) * len;
                &others[at + range.start..at + range.end]
            };
            if part == 0 {
                N::widen_block(from, sums);
            } else if N::BLOCKWISE {
                let next = &mut next[..range.len()];
                N::widen_block(from, next);
                with_op!(N, op, f => accumulate(sums, next, |x| x, f));
            } else {
                with_op!(N, op, f => accumulate(sums, from, N::widen, f));
            }
        }
        if let Some(ranks) = divide {
            sums.iter_mut().for_each(|sum| *sum = N::divide(*sum, ranks));
        }
        N::narrow_block(sums, &mut out[range]);
    }
}

#[inline(always)]
fn accumulate<W: Copy, X: Copy>(sums: &mut [W], next: &[X], widen: impl Fn(X) -> W, f: impl Fn(W, W) -> W) {
    for (sum, next) in sums.iter_mut().zip(next) {
        *sum = f(*sum, widen(*next));
    }
}
