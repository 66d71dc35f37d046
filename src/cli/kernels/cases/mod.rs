//! The cases of every op, one file an op.

mod attention;
mod cast;
mod cross_entropy;
mod embedding;
mod fills;
mod flat;
mod matmul;
mod moe;
mod norms;
mod softmax;

use super::case::{Case, Size};

/// All cases, or those of one op.
pub(crate) fn cases(size: Size, op: Option<&str>) -> Vec<Case> {
    let all = [
        attention::cases,
        cast::cases,
        cross_entropy::cases,
        embedding::cases,
        fills::cases,
        flat::cases,
        matmul::cases,
        moe::cases,
        norms::cases,
        softmax::cases,
    ];
    all.into_iter().flat_map(|cases| cases(size)).filter(|case| op.is_none_or(|op| op == case.op)).collect()
}
