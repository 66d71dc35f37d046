//! The gradients of the weights that a rank holds, by unit, summed over the ranks while the backward pass goes on.
//!
//! Layers add to their gradients through [`Gradients::view`] and say [`Gradients::done`]; when the last gradient of a unit is
//! done in the last micro-batch of the step, its sum over the ranks with other tokens starts on the communicator's progress
//! thread, which owns the unit's gradients until [`Gradients::finish`]. All ranks go through the same micro-batches, one
//! that has no sequence in them too (its summand is zero), so that all start the same units in the same order.
//!
//! What is reduced is f32 whatever the weights are, so that the sum over ranks rounds as the sum over micro-batches does.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use warpweft_comm::{Communicator, Op, Pending};
use warpweft_device::{Buffer, Stream, View, ViewMut};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::{Table, TensorId, UnitId};
use crate::parallel::layout::{Axes, Axis, Move};
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;

/// The gradients of one rank.
pub struct Gradients {
    /// By unit; none of what lies on other stages.
    units: Vec<Option<Unit>>,
    places: Vec<(UnitId, Range<usize>)>,
}

struct Unit {
    state: State,
    /// The ranks with other tokens and the same weights; `None` where there are none.
    copies: Option<Arc<Communicator>>,
    /// Sums over tensor-parallel ranks, of some parameters: the group, and where in the unit they are.
    tensor: Vec<(Arc<Communicator>, Vec<Range<usize>>)>,
    /// The other end of the pipeline, which holds the unit too.
    end: Option<Arc<Communicator>>,
    /// Additions that one backward pass makes to it.
    uses: usize,
    /// Additions that have yet to be made in this step.
    left: usize,
    summed: bool,
}

enum State {
    Here(Buffer<f32>),
    Reducing(Pending<Buffer<f32>>),
    /// Only after a failed reduction, which ends the training.
    Lost,
}

/// When something was on its way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The unit's number; `None` for the sum of the losses.
    pub unit: Option<usize>,
    /// Its bytes.
    pub bytes: usize,
    /// When its reduction started.
    pub started: Instant,
    /// When it was complete on this rank.
    pub finished: Instant,
}

impl Gradients {
    /// Zeroed gradients for what this rank holds of `table`.
    ///
    /// # Errors
    /// No memory for them; a reduction that no group of the mesh can do.
    pub fn new(table: &Table, mesh: &Mesh, plan: &Plan, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let places = table.parameters().iter().map(|parameter| (parameter.unit, parameter.range())).collect();
        let mut units = Vec::with_capacity(table.units().len());
        for unit in table.units() {
            if !unit.here {
                units.push(None);
                continue;
            }
            let mut by_axes: Vec<(Axes, Vec<Range<usize>>)> = Vec::new();
            let (mut copies, mut end, mut uses) = (Axes::NONE, Axes::NONE, 0);
            for id in unit.ids() {
                let parameter = table.get(id);
                let (Move::AllReduce(over) | Move::ReduceScatter(over)) = plan.parameters[id.0].by else { continue };
                uses += parameter.uses;
                copies = over.and(Axes::TOKENS);
                end = over.and(Axes::of(&[Axis::Pp]));
                let tensor = over.and(Axes::TENSOR);
                match by_axes.iter_mut().find(|(axes, _)| *axes == tensor) {
                    Some((_, ranges)) => ranges.push(parameter.range()),
                    None => by_axes.push((tensor, vec![parameter.range()])),
                }
            }
            let group = |axes| Ok::<_, TrainError>(mesh.groups(axes)?.first().map(|group| Arc::clone(group)));
            let mut tensor = Vec::new();
            for (axes, ranges) in by_axes {
                if let Some(group) = group(axes)? {
                    tensor.push((group, ranges));
                }
            }
            let state = State::Here(allocator.zeros(Class::Gradients, unit.elements)?);
            let (copies, end) = (group(copies)?, group(end)?);
            units.push(Some(Unit { state, copies, tensor, end, uses, left: 0, summed: false }));
        }
        Ok(Self { units, places })
    }

    /// Sets all gradients to zero for a new step of `micro_batches` backward passes.
    ///
    /// # Errors
    /// A unit that is still under way, or was lost.
    pub fn begin_step(&mut self, stream: &Stream, micro_batches: usize) -> Result<(), TrainError> {
        for (index, unit) in self.units.iter_mut().enumerate() {
            let Some(unit) = unit else { continue };
            unit.left = unit.uses * micro_batches;
            unit.summed = false;
            here_mut(index, &mut unit.state)?.as_view_mut().fill(stream, 0.0)?;
        }
        Ok(())
    }

    /// The gradient of a parameter, to add to.
    ///
    /// # Errors
    /// A unit that is being reduced, or is none of this rank's.
    pub fn view(&mut self, id: TensorId) -> Result<ViewMut<'_, f32>, TrainError> {
        self.span(id, id)
    }

    /// The gradients of the parameters from `first` to `last`, which were entered one after the other, as one.
    ///
    /// # Errors
    /// A unit that is being reduced, or is none of this rank's.
    pub fn span(&mut self, first: TensorId, last: TensorId) -> Result<ViewMut<'_, f32>, TrainError> {
        let ((unit, from), (_, to)) = (&self.places[first.0], &self.places[last.0]);
        let held = self.units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        Ok(here_mut(unit.0, &mut held.state)?.view_mut(from.start..to.end)?)
    }

    /// Says that a layer has added its part to the gradients from `first` to `last`; may start the sum of their unit.
    ///
    /// # Errors
    /// A reduction that failed, or could not start.
    pub fn done(&mut self, first: TensorId, last: TensorId) -> Result<(), TrainError> {
        let index = self.places[first.0].0.0;
        let unit = self.units[index].as_mut().ok_or(TrainError::NotHere { unit: index })?;
        debug_assert!(unit.left > last.0 - first.0, "more additions to a unit than its parameters have uses");
        unit.left -= last.0 + 1 - first.0;
        if unit.left == 0 { unit.start(index) } else { Ok(()) }
    }

    /// Waits until all units are summed. Gives when each was on its way.
    ///
    /// # Errors
    /// The first reduction that failed; a unit that the micro-batches have not completed.
    pub fn finish(&mut self) -> Result<Vec<Transfer>, TrainError> {
        let mut transfers = Vec::new();
        for (index, unit) in self.units.iter_mut().enumerate() {
            let Some(unit) = unit else { continue };
            if unit.left > 0 {
                return Err(TrainError::Bucket { bucket: index });
            }
            match std::mem::replace(&mut unit.state, State::Lost) {
                State::Reducing(pending) => {
                    let done = pending.wait().map_err(|error| error.error)?;
                    let (bytes, started, finished) = (done.buffer.bytes(), done.started, done.finished);
                    unit.state = State::Here(done.buffer);
                    transfers.push(Transfer { unit: Some(index), bytes, started, finished });
                }
                state => unit.state = state,
            }
            if let Some(end) = &unit.end {
                end.all_reduce(here_mut(index, &mut unit.state)?, Op::Sum)?;
            }
            unit.summed = true;
        }
        Ok(transfers)
    }

    /// The summed gradients of a unit.
    ///
    /// # Errors
    /// A unit that is not summed, or is none of this rank's.
    pub fn summed(&self, unit: UnitId) -> Result<View<'_, f32>, TrainError> {
        match &self.units[unit.0] {
            Some(Unit { state: State::Here(buffer), summed: true, .. }) => Ok(buffer.as_view()),
            Some(_) => Err(TrainError::Bucket { bucket: unit.0 }),
            None => Err(TrainError::NotHere { unit: unit.0 }),
        }
    }

    /// The summed gradient of one parameter.
    ///
    /// # Errors
    /// A unit that is not summed, or is none of this rank's.
    pub fn summed_of(&self, id: TensorId) -> Result<View<'_, f32>, TrainError> {
        let (unit, range) = self.places[id.0].clone();
        Ok(self.summed(unit)?.slice(range)?)
    }
}

impl Unit {
    /// Sums over tensor-parallel ranks at once, and starts the sum over the ranks with other tokens.
    fn start(&mut self, index: usize) -> Result<(), TrainError> {
        let buffer = here_mut(index, &mut self.state)?;
        for (group, ranges) in &self.tensor {
            // Small ones, of which there may be many: they travel as one.
            let mut packed = Vec::with_capacity(ranges.iter().map(Range::len).sum());
            let values = buffer.as_view_mut().host()?;
            ranges.iter().for_each(|range| packed.extend_from_slice(&values[range.clone()]));
            group.all_reduce(&mut packed[..], Op::Sum)?;
            let mut rest = &packed[..];
            for range in ranges {
                let (sum, after) = rest.split_at(range.len());
                values[range.clone()].copy_from_slice(sum);
                rest = after;
            }
        }
        if let Some(copies) = &self.copies
            && let State::Here(buffer) = std::mem::replace(&mut self.state, State::Lost)
        {
            self.state = State::Reducing(copies.start_all_reduce(buffer, Op::Sum));
        }
        Ok(())
    }
}

fn here_mut(index: usize, state: &mut State) -> Result<&mut Buffer<f32>, TrainError> {
    match state {
        State::Here(buffer) => Ok(buffer),
        State::Reducing(_) | State::Lost => Err(TrainError::Bucket { bucket: index }),
    }
}
