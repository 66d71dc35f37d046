//! Tensor and sequence parallelism: what happens at the borders of a region in which each rank has columns or heads of its
//! own (Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198).
//!
//! Bytes, payload only, M rows of C elements of s bytes, t ranks, summed over the ranks: an all-reduce moves 2 (t - 1) M C s;
//! an all-gather or reduce-scatter half of it. A block does two of the former forward and two backward; with sequence
//! parallelism it does two of each kind forward, and backward two all-gathers more, which spare keeping the gathered rows.

use std::ops::Range;
use std::sync::Arc;

use warpweft_comm::{Communicator, Op};
use warpweft_device::{Buffer, Float, View};

use crate::TrainError;
use crate::model::Pass;
use crate::parallel::layout::{Axes, Move};

/// The rows that go into a region: `x`, or all ranks' rows gathered into `whole`.
///
/// # Errors
/// A failed operation among the ranks.
pub(crate) fn enter<'a, T: Float>(
    pass: &Pass<'_, T>,
    by: Move,
    x: View<'a, T>,
    width: usize,
    whole: &'a mut Buffer<T>,
) -> Result<View<'a, T>, TrainError> {
    let Some((group, Move::AllGather(_))) = group(pass, by)? else { return Ok(x) };
    group.all_gather_v(x, pass.of_mut(whole, width)?, &counts(pass, width))?;
    pass.of(whole, width)
}

/// The rows of the residual stream that come out of a region, from each rank's summand of all rows.
///
/// # Errors
/// A failed operation among the ranks.
pub(crate) fn leave<'a, T: Float>(
    pass: &Pass<'_, T>,
    by: Move,
    summand: &'a mut Buffer<T>,
    width: usize,
) -> Result<View<'a, T>, TrainError> {
    match group(pass, by)? {
        Some((group, Move::AllReduce(_))) => {
            group.all_reduce(pass.of_mut(summand, width)?, Op::Sum)?;
            pass.of(summand, width)
        }
        Some((group, Move::ReduceScatter(_))) => {
            group.reduce_scatter_v_in_place(pass.of_mut(summand, width)?, &counts(pass, width), Op::Sum)?;
            let Range { start, end } = pass.stream_rows();
            Ok(summand.view(start * width..end * width)?)
        }
        _ => pass.of(summand, width),
    }
}

/// What the tensor-parallel ranks hold of each row, one after the other, in `all`.
///
/// # Errors
/// A failed operation among the ranks.
pub(crate) fn gather<T: Float, E: warpweft_device::Element>(
    pass: &Pass<'_, T>,
    own: View<'_, E>,
    all: &mut Buffer<E>,
) -> Result<(), TrainError> {
    let len = own.len();
    match group(pass, Move::AllGather(Axes::TENSOR))? {
        Some((group, _)) => Ok(group.all_gather(own, all.view_mut(..len * group.world())?)?),
        None => Ok(all.view_mut(..len)?.copy_from(pass.stream, own)?),
    }
}

/// The one group that a move goes over, unless it is of one rank.
fn group<'a, T>(pass: &Pass<'a, T>, by: Move) -> Result<Option<(&'a Arc<Communicator>, Move)>, TrainError> {
    Ok(pass.mesh.groups(by.axes())?.first().map(|group| (*group, by)))
}

/// Elements of the residual stream that each tensor-parallel rank has.
fn counts<T>(pass: &Pass<'_, T>, width: usize) -> Vec<usize> {
    (0..pass.mesh.sizes().tp).map(|tp| pass.rows_of(tp).len() * width).collect()
}
