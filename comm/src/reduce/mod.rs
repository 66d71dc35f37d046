//! Element-wise combination of what ranks contribute, for every element type.
//!
//! Narrow floats are widened to f32, combined there, and rounded to nearest even once per call: [`fold`] thus rounds
//! once however many parts it combines, and a chain of [`combine`]s once per link. Integers wrap around. `Min` and
//! `Max` give NaN where either side is NaN, and order -0 below +0. All operations commute bit for bit (but for the
//! payload of a NaN), so that partners which combine the same two values get the same bits.

mod kernels;
mod number;

use std::fmt;

use warpweft_device::{DType, bf16, f16};

use crate::CommError;

/// How elements of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Their sum. Integers wrap around.
    Sum,
    /// Their product. Integers wrap around.
    Prod,
    /// The smallest; NaN if one is NaN; -0 is below +0.
    Min,
    /// The largest; NaN if one is NaN.
    Max,
    /// Their sum divided by the number of ranks. Floats: the sum is divided, once, with the last contribution and before
    /// it is rounded; so the sum itself must not overflow (in f16 under ring and recursive doubling: none of the
    /// partial sums, which travel as f16). Integers: the sum wraps around as in `Sum`, and the division drops the
    /// fraction (towards zero).
    Avg,
}

impl Op {
    /// Every operation, in the order of the enum.
    pub const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg];

    /// The name that a flag uses, as nccl-tests spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Prod => "prod",
            Op::Min => "min",
            Op::Max => "max",
            Op::Avg => "avg",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Op {
    type Err = CommError;

    fn from_str(name: &str) -> Result<Self, CommError> {
        Self::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| CommError::Config {
            what: format!("`{name}` is no reduction"),
            fix: "use sum, prod, min, max or avg".into(),
        })
    }
}

/// What a reduction does to bytes: the element type, the operation, and the ranks by which an average divides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) world: usize,
}

/// The parts of all ranks: the own one, and the others one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Contributions<'a> {
    /// `None`: it is what the result's memory holds.
    pub(crate) own: Option<&'a [u8]>,
    /// The own part's place in the order.
    pub(crate) position: usize,
    pub(crate) others: &'a [u8],
}

/// Runs `$body` with `$number` standing for the element type.
macro_rules! for_type {
    ($dtype:expr, $number:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $number = f64;
                $body
            }
            DType::F32 => {
                type $number = f32;
                $body
            }
            DType::F16 => {
                type $number = f16;
                $body
            }
            DType::BF16 => {
                type $number = bf16;
                $body
            }
            DType::I8 => {
                type $number = i8;
                $body
            }
            DType::I16 => {
                type $number = i16;
                $body
            }
            DType::I32 => {
                type $number = i32;
                $body
            }
            DType::I64 => {
                type $number = i64;
                $body
            }
            DType::U8 => {
                type $number = u8;
                $body
            }
            DType::U16 => {
                type $number = u16;
                $body
            }
            DType::U32 => {
                type $number = u32;
                $body
            }
            DType::U64 => {
                type $number = u64;
                $body
            }
            _ => unreachable!("every element type is listed"),
        }
    };
}

/// `out` = `own` (or what `out` holds) combined with `incoming`; `finish` says that no contribution is missing now.
/// All of one length, whole elements, aligned for them.
pub(crate) fn combine(reduction: Reduction, out: &mut [u8], own: Option<&[u8]>, incoming: &[u8], finish: bool) {
    let divide = (reduction.op == Op::Avg && finish).then_some(reduction.world);
    for_type!(reduction.dtype, N => kernels::combine::<N>(
        reduction.op,
        divide,
        bytemuck::cast_slice_mut(out),
        own.map(bytemuck::cast_slice),
        bytemuck::cast_slice(incoming),
    ));
}

/// `out` = the parts of all ranks, combined in rank order in the wide type, and rounded once.
pub(crate) fn fold(reduction: Reduction, out: &mut [u8], parts: Contributions<'_>) {
    let divide = (reduction.op == Op::Avg).then_some(reduction.world);
    for_type!(reduction.dtype, N => kernels::fold::<N>(
        reduction.op,
        divide,
        bytemuck::cast_slice_mut(out),
        parts.own.map(bytemuck::cast_slice),
        parts.position,
        bytemuck::cast_slice(parts.others),
    ));
}

#[cfg(test)]
mod tests;
