//! The gradients of the weights that a rank holds, by unit, summed over the ranks while the backward pass goes on.
//!
//! Layers add to their gradients through [`Gradients::view`] and say [`Gradients::done`]. When the last addition to a unit is
//! made, its sum over the ranks with other tokens starts on the communicator's progress thread, which owns the memory
//! meanwhile: after the last micro-batch of the step, or from ZeRO's second stage on after each, so that a rank keeps no more
//! than its part of the sum. All ranks go through the same micro-batches, one that has no sequence in them too (its summand
//! is zero), so that all start the same units in the same order.
//!
//! What is reduced is f32 whatever the weights are, so that the sum over ranks rounds as the sum over micro-batches does.

mod unit;

use std::ops::Range;
use std::time::Instant;

use warpweft_comm::Op;
use warpweft_device::{Buffer, Stream, View, ViewMut};
use warpweft_kernels::norm;

use crate::TrainError;
use crate::memory::{Account, Allocator, Class};
use crate::model::{Layer, MicroBatch, Pass, Table, TensorId, UnitId};
use crate::parallel::exact::SampleSums;
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;
use crate::parallel::zero::{Sharding, buffers_by_size, overlap};

use unit::{Unit, Whole, tensor_sums};

/// The gradients of one rank.
pub struct Gradients {
    /// By unit; none of what lies on other stages.
    units: Vec<Option<Unit>>,
    places: Vec<(UnitId, Range<usize>)>,
    /// Zeroed buffers for units whose sums are shared out, in no use.
    free: Vec<Buffer<f32>>,
    transfers: Vec<Transfer>,
    /// Whether sums are under way while passes go on; else each starts when the passes are over, or is waited for at once.
    pub(crate) overlap: bool,
    /// Where buffers that are made later are entered.
    account: Account,
    /// The order of the work.
    stream: Stream,
    /// Where sums are the same bits at every layout.
    exact: Option<SampleSums>,
}

/// When something was on its way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// What was done.
    pub what: &'static str,
    /// The unit's number; `None` for the sum of the losses.
    pub unit: Option<usize>,
    /// Its bytes.
    pub bytes: usize,
    /// When it started.
    pub started: Instant,
    /// When it was complete on this rank.
    pub finished: Instant,
}

impl Gradients {
    /// Zeroed gradients for what this rank holds of `table`.
    ///
    /// # Errors
    /// No memory for them; a reduction that no group of the mesh can do.
    pub fn new(
        table: &Table,
        mesh: &Mesh,
        plan: &Plan,
        sharding: &Sharding,
        allocator: &mut Allocator<'_>,
    ) -> Result<Self, TrainError> {
        let places = table.parameters().iter().map(|parameter| (parameter.unit, parameter.range())).collect();
        let apart = sharding.zero().stage >= 2 && !plan.exact;
        let mut units = Vec::with_capacity(table.units().len());
        for (index, unit) in table.units().iter().enumerate() {
            if !unit.here {
                units.push(None);
                continue;
            }
            let (elements, shards) = (unit.elements, sharding.of(UnitId(index))?.clone());
            let (whole, part) = match apart {
                true => (Whole::Away, Some(allocator.zeros(Class::Gradients, shards.mine.len())?)),
                false => (Whole::Here(allocator.zeros(Class::Gradients, elements)?), None),
            };
            let uses = unit.ids().map(|id| table.get(id).uses).sum();
            let tensor = tensor_sums(table, mesh, plan, unit)?;
            units.push(Some(Unit { whole, part, shards, tensor, elements, uses, left: 0, summed: false }));
        }
        let mut free = Vec::new();
        if apart {
            for (elements, buffers) in buffers_by_size(table) {
                for _ in 0..buffers {
                    free.push(allocator.zeros(Class::Buffers, elements)?);
                }
            }
        }
        let (transfers, stream, exact) = (Vec::new(), allocator.device.stream(), None);
        let account = allocator.account.clone();
        Ok(Self { units, places, free, transfers, overlap: true, account, stream, exact })
    }

    /// The same, summed sample by sample over `samples` sequences a step; the plan is an exact one.
    ///
    /// # Errors
    /// [`TrainError::NotExact`] for a mesh over which that is not done.
    pub(crate) fn by_sample(self, table: &Table, mesh: &Mesh, samples: usize) -> Result<Self, TrainError> {
        Ok(Self { exact: Some(SampleSums::new(table, mesh, samples)?), ..self })
    }

    /// Sets all gradients to zero for a new step, in which each unit has a part in so many backward passes.
    ///
    /// # Errors
    /// A unit that is still under way, or was lost.
    pub fn begin_step(&mut self, stream: &Stream, passes: &[usize]) -> Result<(), TrainError> {
        self.stream = stream.clone();
        self.exact.iter_mut().for_each(SampleSums::clear);
        for (index, unit) in self.units.iter_mut().enumerate() {
            let Some(unit) = unit else { continue };
            unit.left = unit.uses * passes[index];
            unit.summed = false;
            match &mut unit.part {
                Some(part) => part.as_view_mut().fill(stream, 0.0)?,
                None => unit.here_mut(index)?.as_view_mut().fill(stream, 0.0)?,
            }
        }
        Ok(())
    }

    /// Has `add` add the gradients of one layer's weights: those of all sequences of a micro-batch at once, or where sums are
    /// exact each alone.
    ///
    /// # Errors
    /// What `add` says.
    pub(crate) fn of_sequences<T>(
        &mut self,
        micro: &MicroBatch<'_>,
        pass: &Pass<'_, T>,
        layer: Layer,
        mut add: impl FnMut(&Pass<'_, T>, &mut Self) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        if self.exact.is_none() {
            return add(pass, self);
        }
        for sequence in 0..pass.batch {
            add(&pass.of_sequence(sequence), self)?;
            let Self { units, exact: Some(exact), stream, .. } = &mut *self else { continue };
            for index in std::mem::take(&mut exact.touched) {
                let Some(unit) = &mut units[index] else { continue };
                let (buffer, sample) = (unit.here_mut(index)?, micro.first_sample + sequence as u64);
                exact.insert(index, layer, sample, &buffer.as_view().to_host()?);
                buffer.as_view_mut().fill(stream, 0.0)?;
            }
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
        let ((UnitId(unit), from), (_, to)) = (self.places[first.0].clone(), self.places[last.0].clone());
        self.ready(unit)?;
        let held = self.units[unit].as_mut().ok_or(TrainError::NotHere { unit })?;
        Ok(held.here_mut(unit)?.view_mut(from.start..to.end)?)
    }

    /// Finds memory for a unit's gradient of one micro-batch, where only the parts of sums are kept.
    fn ready(&mut self, unit: usize) -> Result<(), TrainError> {
        let held = self.units[unit].as_ref().ok_or(TrainError::NotHere { unit })?;
        let elements = held.elements;
        if held.part.is_none() || matches!(held.whole, Whole::Here(_)) {
            return Ok(());
        }
        // Started first, finished first: all ranks wait for the same.
        while !self.free.iter().any(|buffer| buffer.len() == elements) {
            let on_its_way = |unit: &Unit| unit.elements == elements && matches!(unit.whole, Whole::Reducing(_));
            match (0..self.units.len()).rev().find(|index| self.units[*index].as_ref().is_some_and(on_its_way)) {
                Some(index) => self.settle(index)?,
                None => {
                    let mut allocator = Allocator { device: self.stream.device(), account: &self.account };
                    self.free.push(allocator.zeros(Class::Buffers, elements)?);
                }
            }
        }
        self.settle(unit)?;
        if let Some(place) = self.free.iter().position(|buffer| buffer.len() == elements)
            && let Some(held) = &mut self.units[unit]
        {
            held.whole = Whole::Here(self.free.swap_remove(place));
        }
        Ok(())
    }

    /// Waits for a unit's reduction, if there is one under way, and takes its result.
    fn settle(&mut self, index: usize) -> Result<(), TrainError> {
        let Self { units, free, transfers, stream, .. } = self;
        let Some(unit) = &mut units[index] else { return Ok(()) };
        let mut buffer = match std::mem::replace(&mut unit.whole, Whole::Away) {
            Whole::Reducing(pending) => {
                let done = pending.wait().map_err(|error| error.error)?;
                let (bytes, started, finished) = (done.buffer.bytes(), done.started, done.finished);
                let what = if unit.shards.group.world() > 1 { "reduce_scatter" } else { "all_reduce" };
                transfers.push(Transfer { what, unit: Some(index), bytes, started, finished });
                done.buffer
            }
            whole => {
                unit.whole = whole;
                return Ok(());
            }
        };
        match &mut unit.part {
            Some(part) => {
                let summands = buffer.view(unit.shards.mine.clone())?.to_host()?;
                part.as_view_mut().on_host(|sums| {
                    sums.iter_mut().zip(&*summands).for_each(|(sum, summand)| *sum += summand);
                    Ok::<_, TrainError>(())
                })?;
                buffer.as_view_mut().fill(stream, 0.0)?;
                free.push(buffer);
            }
            None => unit.whole = Whole::Here(buffer),
        }
        Ok(())
    }

    /// Says that a layer has added its part to the gradients from `first` to `last`; may start the sum of their unit.
    ///
    /// # Errors
    /// A reduction that failed, or could not start.
    pub fn done(&mut self, first: TensorId, last: TensorId) -> Result<(), TrainError> {
        let index = self.places[first.0].0.0;
        let unit = self.units[index].as_mut().ok_or(TrainError::NotHere { unit: index })?;
        if let Some(exact) = &mut self.exact {
            if !exact.touched.contains(&index) {
                exact.touched.push(index);
            }
            return Ok(());
        }
        debug_assert!(unit.left > last.0 - first.0, "more additions to a unit than its parameters have uses");
        unit.left -= last.0 + 1 - first.0;
        let complete = unit.left == 0 || unit.part.is_some() && unit.left.is_multiple_of(unit.uses);
        if !complete {
            return Ok(());
        }
        match (self.overlap, unit.part.is_some()) {
            (true, _) => unit.start(index, &self.stream),
            (false, true) => {
                unit.start(index, &self.stream)?;
                self.settle(index)
            }
            (false, false) => Ok(()),
        }
    }

    /// Waits until all units are summed. Gives when each was on its way.
    ///
    /// # Errors
    /// The first reduction that failed; a unit that the micro-batches have not completed.
    pub fn finish(&mut self) -> Result<Vec<Transfer>, TrainError> {
        // In the order in which they started, more or less: the backward pass begins with the last unit.
        for index in (0..self.units.len()).rev() {
            if let (false, None, Some(unit)) = (self.overlap, &self.exact, &mut self.units[index])
                && unit.part.is_none()
            {
                unit.start(index, &self.stream)?;
            }
            self.settle(index)?;
            let Some(unit) = &mut self.units[index] else { continue };
            if let Some(exact) = &mut self.exact {
                let end = unit.shards.end.clone();
                unit.here_mut(index)?.as_view_mut().on_host(|sum| exact.sum(index, &end, sum))?;
                unit.summed = true;
                continue;
            }
            if unit.left > 0 {
                return Err(TrainError::Bucket { bucket: index });
            }
            let (replicas, end) = (unit.shards.replicas.clone(), unit.shards.end.clone());
            // Replicas of what is not shared out have been summed on the progress thread.
            if (unit.part.is_some() || unit.shards.group.world() > 1) && replicas.world() > 1 {
                replicas.all_reduce(unit.mine_mut(index)?, Op::Sum)?;
            }
            if end.world() > 1 {
                end.all_reduce(unit.mine_mut(index)?, Op::Sum)?;
            }
            unit.summed = true;
        }
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.sort_by_key(|transfer| transfer.started);
        Ok(transfers)
    }

    /// This rank's part of the summed gradients of a unit: all of them where nothing is shared out.
    ///
    /// # Errors
    /// A unit that is not summed, or is none of this rank's.
    pub fn summed(&self, unit: UnitId) -> Result<View<'_, f32>, TrainError> {
        match &self.units[unit.0] {
            Some(Unit { part: Some(part), summed: true, .. }) => Ok(part.as_view()),
            Some(Unit { whole: Whole::Here(buffer), shards, summed: true, .. }) => {
                Ok(buffer.view(shards.mine.clone())?)
            }
            Some(_) => Err(TrainError::Bucket { bucket: unit.0 }),
            None => Err(TrainError::NotHere { unit: unit.0 }),
        }
    }

    /// What this rank has of the summed gradient of one parameter.
    ///
    /// # Errors
    /// A unit that is not summed, or is none of this rank's.
    pub fn summed_of(&self, id: TensorId) -> Result<View<'_, f32>, TrainError> {
        let (unit, range) = self.places[id.0].clone();
        let held = self.units[unit.0].as_ref().ok_or(TrainError::NotHere { unit: unit.0 })?;
        let within = overlap(&held.shards.mine, &range).map_or(0..0, |(within, _)| within);
        Ok(self.summed(unit)?.slice(within)?)
    }

    /// What of the summed gradients this rank counts in the global norm: over all ranks, each element is counted once.
    ///
    /// # Errors
    /// A unit that is not summed.
    pub fn counted(&self, table: &Table, plan: &Plan) -> Result<Vec<View<'_, f32>>, TrainError> {
        let counted = table.iter_here().filter(|(id, _)| plan.parameters[id.0].counted);
        counted.map(|(id, _)| self.summed_of(id)).collect()
    }

    /// The sum of the squares of those, into `sum` `[1]` without waiting for it; where sums are exact all ranks' on the first rank, and
    /// zero on the others.
    ///
    /// # Errors
    /// A unit that is not summed; a failed operation among the ranks.
    pub fn sum_of_squares_into(
        &self,
        stream: &Stream,
        table: &Table,
        plan: &Plan,
        sum: ViewMut<'_, f64>,
    ) -> Result<(), TrainError> {
        let counted = self.counted(table, plan)?;
        match &self.exact {
            Some(exact) => Ok(sum.copy_from_host(stream, &[exact.sum_of_squares(&counted)?])?),
            None => Ok(norm::sum_of_squares_into(stream, &counted, sum)?),
        }
    }
}
