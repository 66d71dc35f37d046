//! The cases of every op, one file an op.

mod attention;
mod attention_options;
mod cast;
mod cross_entropy;
mod embedding;
mod epilogues;
mod fills;
mod flat;
mod grouped;
mod matmul;
mod moe;
mod norms;
mod softmax;

use super::case::{Case, Size};

/// All cases, or those of one op.
pub(crate) fn cases(size: Size, op: Option<&str>) -> Vec<Case> {
    let all = [
        attention::cases,
        attention_options::cases,
        cast::cases,
        cross_entropy::cases,
        embedding::cases,
        epilogues::cases,
        fills::cases,
        flat::cases,
        grouped::cases,
        matmul::cases,
        moe::cases,
        norms::cases,
        softmax::cases,
    ];
    all.into_iter().flat_map(|cases| cases(size)).filter(|case| op.is_none_or(|op| op == case.op)).collect()
}
