//! ZeRO and HSDP: state that data ranks hold in parts (Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv
//! 2304.11277).
//!
//! Data ranks see tokens of their own and need the same weights, so that they can share out what only the update needs: from
//! stage 1 on the optimizer's state, from stage 2 on the gradients, at stage 3 the weights. A unit's elements are one flat
//! row, of which each rank of a group has a [`share`]; a shard may begin and end inside a parameter, and a unit with fewer
//! elements than ranks leaves the last of them none. With HSDP several such groups each hold all of the state; then sums go
//! over the shards first, and over the replicas of what is left.
//!
//! Bytes of a parameter on each of N ranks, bf16 weights and f32 gradients: 6 + 12/N, 2 + 16/N, 18/N; all f32: 8 + 8/N,
//! 4 + 12/N, 16/N. An uneven unit adds less than one element of state to the first ranks. Besides, in the class of buffers:
//! from stage 2 on a gradient of each size of unit (two where several units have it: one that fills and one on its way), at
//! stage 3 as many gathered units.
//!
//! Elements sent, summed over the ranks, P parameters, m micro-batches: 2 (N - 1) P at stages 0 and 1, (m + 1)(N - 1) P at
//! stage 2. At stage 3 each unit is gathered for the forward pass and for the backward pass of every micro-batch and its
//! gradient scattered once, 3 m (N - 1) P; what a backward pass does not read (an embedding's table) or finds still
//! gathered (the head, whose backward pass follows) is gathered once less: `traffic::predict` counts them.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use warpweft_comm::Communicator;

use crate::TrainError;
use crate::model::{Table, UnitId};
use crate::parallel::layout::{Axes, Axis, Layout, Placement};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::share;

/// What data ranks share out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Zero {
    /// 0: nothing; 1: the optimizer's state; 2: gradients too; 3: weights too.
    pub stage: u8,
    /// Neighbours among the data ranks that hold all of it together; all of them unless said.
    pub shards: Option<usize>,
}

impl Zero {
    /// Nothing is shared out.
    pub const NONE: Self = Self { stage: 0, shards: None };

    /// A stage over all data ranks.
    pub const fn stage(stage: u8) -> Self {
        Self { stage, shards: None }
    }

    /// The layout of the summed gradient and the optimizer's state of a parameter that lies so.
    pub fn state(self, parameter: Layout) -> Layout {
        let same = parameter.axes(|placement| placement == Placement::Replicated);
        let shared_out = if self.stage == 0 { Axes::NONE } else { same.and(Axes::SHARDS) };
        parameter.with(shared_out, Placement::Sharded(0))
    }
}

/// How one unit is shared out, as one rank sees it.
#[derive(Clone)]
pub struct Shards {
    /// The ranks that hold the parts; one rank where the unit is not shared out.
    pub group: Arc<Communicator>,
    /// The ranks that hold the same part.
    pub replicas: Arc<Communicator>,
    /// The other end of the pipeline, where it holds the unit too.
    pub end: Arc<Communicator>,
    /// Elements of each part.
    pub counts: Vec<usize>,
    /// This rank's part of the unit's elements.
    pub mine: Range<usize>,
}

/// How all units of a stage are shared out; none of what lies on other stages.
#[derive(Clone)]
pub struct Sharding {
    zero: Zero,
    units: Vec<Option<Shards>>,
}

impl Sharding {
    /// What the layouts of a plan come to on this rank.
    ///
    /// # Errors
    /// A reduction that no group of the mesh can do.
    pub fn new(table: &Table, mesh: &Mesh, plan: &Plan, zero: Zero) -> Result<Self, TrainError> {
        let group = |axes| {
            let found = mesh.groups(axes)?.first().map(|group| Arc::clone(group));
            Ok::<_, TrainError>(found.unwrap_or_else(|| Arc::new(Communicator::alone())))
        };
        let unit = |unit: &crate::model::Unit| {
            let (mut scattered, mut summed) = (Axes::NONE, Axes::NONE);
            // All parameters of a unit lie alike over these axes.
            if let Some(first) = unit.ids().next() {
                let reduction = &plan.parameters[first.0];
                (scattered, summed) = (reduction.by[1].axes(), reduction.by[0].axes());
            }
            let group_of_shards = group(scattered)?;
            let part = |rank| share(unit.elements, group_of_shards.world(), rank);
            Ok(Shards {
                counts: (0..group_of_shards.world()).map(|rank| part(rank).len()).collect(),
                mine: part(group_of_shards.rank()),
                replicas: group(summed.and(Axes::TOKENS))?,
                end: group(summed.and(Axes::of(&[Axis::Pp])))?,
                group: group_of_shards,
            })
        };
        let units = table.units().iter().map(|u| if u.here { unit(u).map(Some) } else { Ok(None) });
        Ok(Self { zero, units: units.collect::<Result<_, TrainError>>()? })
    }

    /// What is shared out.
    pub fn zero(&self) -> Zero {
        self.zero
    }

    /// How a unit is.
    ///
    /// # Errors
    /// A unit that lies on another stage of the pipeline.
    pub fn of(&self, unit: UnitId) -> Result<&Shards, TrainError> {
        self.units[unit.0].as_ref().ok_or(TrainError::NotHere { unit: unit.0 })
    }
}

/// How many buffers a rank needs for units of each size, in the order of the table: two where several have it, so that one
/// can be on its way while another one is in use.
pub(crate) fn buffers_by_size(table: &Table) -> Vec<(usize, usize)> {
    let mut sizes: Vec<(usize, usize)> = Vec::new();
    for (_, unit) in table.units_here() {
        match sizes.iter_mut().find(|(elements, _)| *elements == unit.elements) {
            Some((_, buffers)) => *buffers = 2,
            None => sizes.push((unit.elements, 1)),
        }
    }
    sizes
}

/// The part of `inner` that lies in `outer`, relative to the start of each; `None` where they have nothing in common.
pub(crate) fn overlap(inner: &Range<usize>, outer: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (start, end) = (inner.start.max(outer.start), inner.end.min(outer.end));
    (start < end).then(|| (start - inner.start..end - inner.start, start - outer.start..end - outer.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_meets_the_parameters_that_it_cuts() {
        assert_eq!(overlap(&(3..9), &(5..20)), Some((2..6, 0..4)));
        assert_eq!(overlap(&(3..9), &(0..4)), Some((0..1, 3..4)));
        assert_eq!(overlap(&(3..9), &(9..12)), None);
        assert_eq!(overlap(&(3..3), &(0..12)), None);
    }
}
