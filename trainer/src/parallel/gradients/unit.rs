//! One unit's gradients on a rank: where they are, and how its sum over the ranks starts.

use std::ops::Range;
use std::sync::Arc;

use warpweft_comm::{Communicator, Op, Pending};
use warpweft_device::{Buffer, Stream, ViewMut};

use crate::TrainError;
use crate::model::{self, Table};
use crate::parallel::layout::Axes;
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::zero::Shards;

/// A unit that this rank holds.
pub(super) struct Unit {
    pub(super) whole: Whole,
    /// This rank's part of the sum over the micro-batches so far, where it keeps no more.
    pub(super) part: Option<Buffer<f32>>,
    pub(super) shards: Shards,
    pub(super) tensor: Vec<TensorSum>,
    pub(super) elements: usize,
    /// Additions that one backward pass makes to it.
    pub(super) uses: usize,
    /// Additions that have yet to be made in this step.
    pub(super) left: usize,
    pub(super) summed: bool,
}

/// A sum over tensor-parallel ranks, of some parameters: the group, and where in the unit they are.
pub(super) type TensorSum = (Arc<Communicator>, Vec<Range<usize>>);

/// The memory of all of a unit's gradients.
pub(super) enum Whole {
    Here(Buffer<f32>),
    Reducing(Pending<Buffer<f32>>),
    /// Only where a part is kept, or after a failed reduction, which ends the training.
    Away,
}

/// The sums over tensor-parallel ranks that a unit's parameters need, by group.
pub(super) fn tensor_sums(
    table: &Table,
    mesh: &Mesh,
    plan: &Plan,
    unit: &model::Unit,
) -> Result<Vec<TensorSum>, TrainError> {
    let mut by_axes: Vec<(Axes, Vec<Range<usize>>)> = Vec::new();
    for id in unit.ids() {
        let over = plan.parameters[id.0].by[0].axes().and(Axes::TENSOR);
        match by_axes.iter_mut().find(|(axes, _)| *axes == over) {
            Some((_, ranges)) => ranges.push(table.get(id).range()),
            None => by_axes.push((over, vec![table.get(id).range()])),
        }
    }
    let mut sums = Vec::new();
    for (axes, ranges) in by_axes {
        if let Some(group) = mesh.groups(axes)?.first() {
            sums.push((Arc::clone(group), ranges));
        }
    }
    Ok(sums)
}

impl Unit {
    pub(super) fn here_mut(&mut self, index: usize) -> Result<&mut Buffer<f32>, TrainError> {
        match &mut self.whole {
            Whole::Here(buffer) => Ok(buffer),
            Whole::Reducing(_) | Whole::Away => Err(TrainError::Bucket { bucket: index }),
        }
    }

    /// This rank's part of the sum.
    pub(super) fn mine_mut(&mut self, index: usize) -> Result<ViewMut<'_, f32>, TrainError> {
        match (&mut self.part, &mut self.whole) {
            (Some(part), _) => Ok(part.as_view_mut()),
            (None, Whole::Here(buffer)) => Ok(buffer.view_mut(self.shards.mine.clone())?),
            (None, Whole::Reducing(_) | Whole::Away) => Err(TrainError::Bucket { bucket: index }),
        }
    }

    /// Sums over tensor-parallel ranks at once, and starts the sum over the ranks with other tokens.
    pub(super) fn start(&mut self, index: usize, stream: &Stream) -> Result<(), TrainError> {
        let buffer = match &mut self.whole {
            Whole::Here(buffer) => buffer,
            Whole::Reducing(_) | Whole::Away => return Err(TrainError::Bucket { bucket: index }),
        };
        for (group, ranges) in &self.tensor {
            // Small ones, of which there may be many: they travel as one.
            let mut packed = Vec::with_capacity(ranges.iter().map(Range::len).sum());
            for range in ranges {
                packed.extend_from_slice(&buffer.view(range.clone())?.to_host()?);
            }
            group.all_reduce(&mut packed[..], Op::Sum)?;
            let mut rest = &packed[..];
            for range in ranges {
                let (sum, after) = rest.split_at(range.len());
                buffer.view_mut(range.clone())?.copy_from_host(stream, sum)?;
                rest = after;
            }
        }
        let Shards { group, replicas, counts, .. } = &self.shards;
        if group.world() * replicas.world() == 1 && self.part.is_none() {
            return Ok(());
        }
        let Whole::Here(buffer) = std::mem::replace(&mut self.whole, Whole::Away) else { return Ok(()) };
        self.whole = Whole::Reducing(match group.world() {
            // Alone with all of the state; what is left is the sum over the replicas.
            1 if self.part.is_none() => replicas.start_all_reduce(buffer, Op::Sum),
            _ => group.start_reduce_scatter_v_in_place(buffer, counts.clone(), Op::Sum),
        });
        Ok(())
    }
}
