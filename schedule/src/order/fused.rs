//! GPipe and 1F1B: one chunk a rank, the backward in one piece.

use super::{Order, Orders};
use crate::Kind;

/// All forwards, then all backwards (Huang et al. 2019).
pub(super) fn gpipe(p: usize, m: usize) -> Orders {
    warmed(p, m, |_| m)
}

/// As many forwards as there are stages behind, then one forward, one backward (Narayanan et al. 2019, PipeDream-Flush).
pub(super) fn one_forward_one_backward(p: usize, m: usize) -> Orders {
    warmed(p, m, |stage| p - stage - 1)
}

/// On each stage so many forwards, then one forward, one backward, then backwards.
pub(super) fn warmed(p: usize, m: usize, warm: impl Fn(usize) -> usize) -> Orders {
    let order = |stage: usize| {
        let warm = warm(stage).min(m);
        let mut order = Order::default();
        (0..warm).for_each(|micro| order.push(Kind::F, stage, micro));
        for micro in 0..m {
            if warm + micro < m {
                order.push(Kind::F, stage, warm + micro);
            }
            order.push(Kind::BW, stage, micro);
        }
        order.0
    };
    (0..p).map(order).collect()
}
