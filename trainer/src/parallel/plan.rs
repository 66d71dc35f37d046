//! The communication of a training step, derived from layouts before anything runs, and looked up by the layers that do it.
//!
//! A region is a part of the model in which a tensor-parallel rank has columns or heads of its own. The residual stream
//! around it is the same on all of them, or with sequence parallelism their rows are their own (Korthikanti et al. 2022,
//! arXiv 2205.05198).

use crate::TrainError;
use crate::model::{Parameter, Table};
use crate::parallel::layout::{Axes, Axis, Layout, Move, Placement};
use crate::parallel::mesh::Mesh;
use crate::parallel::zero::Zero;

/// What happens at the two ends of a region, in the direction of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Border {
    /// To what comes in.
    pub enter: Move,
    /// To what goes out.
    pub leave: Move,
}

/// A region's communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Of activations.
    pub forward: Border,
    /// Of their gradients.
    pub backward: Border,
}

/// What becomes of a parameter's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// As a backward pass leaves it.
    pub from: Layout,
    /// What sums it: over the axes on which all ranks get the sum, and over those on which each gets a part. The sums of an
    /// element may be taken in any order, and the second is taken first where that is less to send.
    pub by: [Move; 2],
    /// As the update finds it, and as the optimizer's state lies.
    pub state: Layout,
    /// Whether this rank's elements count in the global norm: of those that hold the same, one does.
    pub counted: bool,
}

/// The communication of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The residual stream's rows.
    pub stream: Layout,
    /// The embedding; nothing enters it.
    pub embedding: Region,
    /// Every attention.
    pub attention: Region,
    /// Every MLP.
    pub mlp: Region,
    /// The output projection; what leaves it is the loss, which has a merge of its own.
    pub head: Region,
    /// By parameter.
    pub parameters: Vec<Reduction>,
    /// What data ranks share out.
    pub zero: Zero,
    /// Whether sums are the same bits at every layout. Off where derived.
    pub exact: bool,
}

impl Plan {
    /// What the layouts ask for. With `rows_apart` the residual stream's rows are shared out over tensor-parallel ranks;
    /// `zero` says what data ranks share out.
    ///
    /// # Errors
    /// A change of layout that there is no communication for.
    pub fn derive(table: &Table, mesh: &Mesh, rows_apart: bool, zero: Zero) -> Result<Self, TrainError> {
        let rows = if rows_apart { Placement::Sharded(0) } else { Placement::Replicated };
        let stream = Layout::REPLICATED.with(Axes::TENSOR, rows);
        let partial = Layout::REPLICATED.with(Axes::TENSOR, Placement::Partial);
        let enter = stream.move_to(Layout::REPLICATED)?;
        let leave = partial.move_to(stream)?;
        let (both, nothing) = (Border { enter, leave }, Move::Nothing);
        let region = Region { forward: both, backward: both };
        let embedding =
            Region { forward: Border { enter: nothing, leave }, backward: Border { enter, leave: nothing } };
        let head = Region { forward: Border { enter, leave: nothing }, backward: Border { enter: nothing, leave } };
        let parameters = table.parameters().iter().map(|parameter| {
            let (from, layout) = (parameter.local_gradient(), parameter.entry.layout);
            let state = zero.state(layout);
            let summed = from.axes(|p| p == Placement::Partial).and(state.axes(|p| p == Placement::Replicated));
            let middle = from.with(summed, Placement::Replicated);
            let by = [from.move_to(middle)?, middle.move_to(state)?];
            Ok(Reduction { from, by, state, counted: counted(parameter, state, mesh) })
        });
        let parameters = parameters.collect::<Result<_, TrainError>>()?;
        Ok(Self { stream, embedding, attention: region, mlp: region, head, parameters, zero, exact: false })
    }
}

/// Whether this rank is the first of those that hold the same elements of a parameter that lies so.
pub(super) fn counted(parameter: &Parameter, layout: Layout, mesh: &Mesh) -> bool {
    let copies = layout.axes(|placement| placement == Placement::Replicated);
    let alone = |axis| axis == Axis::Pp && !parameter.is_on_opposite_stages();
    Axis::ALL.into_iter().all(|axis| !copies.has(axis) || alone(axis) || mesh.index(axis) == 0)
}
