//! ZB-H1 and ZB-H2 (Qi et al. 2024): one chunk a rank, the backward in two pieces, the second of which fills the bubbles.

use super::{Order, Orders};
use crate::Kind;

/// 1F1B with its backward split; the first `s` gradients of weights of stage `s` wait, so that errors leave early.
pub(super) fn h1(p: usize, m: usize) -> Orders {
    let order = |stage: usize| {
        let warm = (p - stage - 1).min(m);
        let mut order = Order::default();
        (0..warm).for_each(|micro| order.push(Kind::F, stage, micro));
        let mut weights = 0;
        for micro in 0..m {
            if warm + micro < m {
                order.push(Kind::F, stage, warm + micro);
            }
            order.push(Kind::B, stage, micro);
            if micro >= stage || warm + micro >= m {
                order.push(Kind::W, stage, weights);
                weights += 1;
            }
        }
        (weights..m).for_each(|micro| order.push(Kind::W, stage, micro));
        order.0
    };
    (0..p).map(order).collect()
}

/// More forwards before the first backward, which fill the bubble there.
pub(super) fn h2(p: usize, m: usize) -> Orders {
    let order = |stage: usize| {
        let warm = (2 * (p - stage) - 1).min(m);
        let mut order = Order::default();
        (0..warm).for_each(|micro| order.push(Kind::F, stage, micro));
        let mut weights = 0;
        for micro in 0..m {
            order.push(Kind::B, stage, micro);
            let cool = warm + micro >= m;
            if micro >= 2 * stage || cool {
                order.push(Kind::W, stage, weights);
                weights += 1;
            }
            if !cool {
                order.push(Kind::F, stage, warm + micro);
            }
        }
        (weights..m).for_each(|micro| order.push(Kind::W, stage, micro));
        order.0
    };
    (0..p).map(order).collect()
}
