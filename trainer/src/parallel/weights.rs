//! The weights that a rank holds, by unit, and their initial values.
//!
//! A unit is whole in memory all the time, or at ZeRO's third stage only from [`Weights::need`] to [`Weights::done`] and
//! otherwise shared out. After an update a whole unit is put together again from the ranks' parts; that goes on, on the
//! communicator's progress thread, until the next pass needs it.

use std::ops::Range;

use warpweft_comm::Pending;
use warpweft_device::{Buffer, Float, Stream, View, ViewMut};
use warpweft_kernels::philox::Philox4x32;

use crate::TrainError;
use crate::memory::{Account, Allocator, Class};
use crate::model::{Biases, Init, Parameter, Table, TensorId, UnitId};
use crate::parallel::gradients::Transfer;
use crate::parallel::zero::{Sharding, Shards, buffers_by_size};

/// The weights that a rank holds, in the type that the passes read.
pub struct Weights<T> {
    /// By unit; none of what lies on other stages.
    units: Vec<Option<Unit<T>>>,
    places: Vec<(UnitId, Range<usize>)>,
    /// Buffers for gathered units that are in no use.
    free: Vec<Buffer<T>>,
    /// When units were on their way.
    transfers: Vec<Transfer>,
    /// Whether units are on their way while passes and updates go on; else each is waited for at once.
    pub(crate) overlap: bool,
    /// Where buffers that are made later are entered.
    account: Account,
    /// What no gradient moves: the biases of all routers.
    pub(crate) biases: Biases,
}

struct Unit<T> {
    whole: Whole<T>,
    /// This rank's part, where that is all it holds between uses.
    part: Option<Buffer<T>>,
    shards: Shards,
    elements: usize,
}

enum Whole<T> {
    Here(Buffer<T>),
    Coming(Pending<Buffer<T>>),
    /// Not gathered; or lost in a failed gather, which ends the training.
    Away,
}

impl<T: Float> Weights<T> {
    /// Memory for what this rank holds of `table`, zeros.
    ///
    /// # Errors
    /// No memory for them.
    pub fn zeros(table: &Table, sharding: &Sharding, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let apart = sharding.zero().stage == 3;
        let mut units = Vec::with_capacity(table.units().len());
        for (index, unit) in table.units().iter().enumerate() {
            if !unit.here {
                units.push(None);
                continue;
            }
            let (elements, shards) = (unit.elements, sharding.of(UnitId(index))?.clone());
            let (whole, part) = match apart {
                true => (Whole::Away, Some(allocator.zeros(Class::Parameters, shards.mine.len())?)),
                false => (Whole::Here(allocator.zeros(Class::Parameters, elements)?), None),
            };
            units.push(Some(Unit { whole, part, shards, elements }));
        }
        let mut free = Vec::new();
        if apart {
            for (elements, buffers) in buffers_by_size(table) {
                for _ in 0..buffers {
                    free.push(allocator.zeros(Class::Buffers, elements)?);
                }
            }
        }
        let places = table.parameters().iter().map(|parameter| (parameter.unit, parameter.range())).collect();
        let (account, biases) = (allocator.account.clone(), Biases::none(allocator)?);
        Ok(Self { units, places, free, transfers: Vec::new(), overlap: true, account, biases })
    }

    /// The biases of all routers.
    pub fn biases(&self) -> &Biases {
        &self.biases
    }

    /// One weight.
    ///
    /// # Errors
    /// A weight that this rank does not hold, or not whole at the moment.
    pub fn view(&self, id: TensorId) -> Result<View<'_, T>, TrainError> {
        self.span(id, id)
    }

    /// The weights from `first` to `last`, which were entered one after the other, as one.
    ///
    /// # Errors
    /// Weights that this rank does not hold, or not whole at the moment.
    pub fn span(&self, first: TensorId, last: TensorId) -> Result<View<'_, T>, TrainError> {
        let ((unit, from), (_, to)) = (&self.places[first.0], &self.places[last.0]);
        Ok(self.unit(*unit)?.slice(from.start..to.end)?)
    }

    /// One weight, to write.
    ///
    /// # Errors
    /// A weight that this rank does not hold, or not whole at the moment.
    pub fn view_mut(&mut self, id: TensorId) -> Result<ViewMut<'_, T>, TrainError> {
        let (unit, range) = self.places[id.0].clone();
        Ok(self.unit_mut(unit)?.slice(range)?)
    }

    fn held(&self, unit: UnitId) -> Result<&Unit<T>, TrainError> {
        self.units[unit.0].as_ref().ok_or(TrainError::NotHere { unit: unit.0 })
    }

    fn held_mut(&mut self, unit: UnitId) -> Result<&mut Unit<T>, TrainError> {
        self.units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })
    }

    /// All weights of a unit.
    ///
    /// # Errors
    /// A unit that this rank does not hold, or not whole at the moment.
    pub fn unit(&self, unit: UnitId) -> Result<View<'_, T>, TrainError> {
        match &self.held(unit)?.whole {
            Whole::Here(buffer) => Ok(buffer.as_view()),
            Whole::Coming(_) | Whole::Away => Err(TrainError::NotGathered { unit: unit.0 }),
        }
    }

    /// All weights of a unit, to write.
    ///
    /// # Errors
    /// A unit that this rank does not hold, or not whole at the moment.
    pub fn unit_mut(&mut self, unit: UnitId) -> Result<ViewMut<'_, T>, TrainError> {
        match &mut self.held_mut(unit)?.whole {
            Whole::Here(buffer) => Ok(buffer.as_view_mut()),
            Whole::Coming(_) | Whole::Away => Err(TrainError::NotGathered { unit: unit.0 }),
        }
    }

    /// This rank's part of a unit, which it updates and saves: all of it where nothing is shared out.
    ///
    /// # Errors
    /// A unit that this rank does not hold, or that is being gathered.
    pub fn part(&self, unit: UnitId) -> Result<View<'_, T>, TrainError> {
        let held = self.held(unit)?;
        match &held.part {
            Some(part) => Ok(part.as_view()),
            None => Ok(self.unit(unit)?.slice(held.shards.mine.clone())?),
        }
    }

    /// The same to write; [`updated`](Self::updated) makes the whole unit of it again.
    ///
    /// # Errors
    /// A unit that this rank does not hold, or that is being gathered.
    pub fn part_mut(&mut self, unit: UnitId) -> Result<ViewMut<'_, T>, TrainError> {
        let held = self.held_mut(unit)?;
        let mine = held.shards.mine.clone();
        match (&mut held.part, &mut held.whole) {
            (Some(part), _) => Ok(part.as_view_mut()),
            (None, Whole::Here(buffer)) => Ok(buffer.view_mut(mine)?),
            (None, _) => Err(TrainError::NotGathered { unit: unit.0 }),
        }
    }

    /// Says that all ranks have written their parts of a unit: puts the whole together again, or forgets an older one.
    ///
    /// # Errors
    /// A unit that this rank does not hold.
    pub fn updated(&mut self, unit: UnitId) -> Result<(), TrainError> {
        let held = self.held_mut(unit)?;
        if held.part.is_some() {
            return self.done(unit);
        }
        if held.shards.group.world() > 1
            && let Whole::Here(buffer) = std::mem::replace(&mut held.whole, Whole::Away)
        {
            let counts = held.shards.counts.clone();
            held.whole = Whole::Coming(held.shards.group.start_all_gather_v_in_place(buffer, counts));
        }
        if self.overlap { Ok(()) } else { self.arrive(unit) }
    }

    /// Starts to gather a unit that will be needed soon, if it is shared out and there is memory to gather it in.
    ///
    /// # Errors
    /// A unit that this rank does not hold.
    pub fn prefetch(&mut self, stream: &Stream, unit: UnitId) -> Result<(), TrainError> {
        if self.overlap { self.gather(stream, unit, false) } else { Ok(()) }
    }

    /// Starts to gather a unit; `now` takes more memory where none is free.
    fn gather(&mut self, stream: &Stream, unit: UnitId, now: bool) -> Result<(), TrainError> {
        let Self { units, free, account, .. } = self;
        let held = units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        let (Some(part), Whole::Away) = (&held.part, &held.whole) else { return Ok(()) };
        let mut buffer = match free.iter().position(|buffer| buffer.len() == held.elements) {
            Some(place) => free.swap_remove(place),
            // Rare: a unit that happens to be as large as others that are in use.
            None if now => Allocator { device: stream.device(), account }.zeros(Class::Buffers, held.elements)?,
            None => return Ok(()),
        };
        let Shards { group, counts, mine, .. } = &held.shards;
        buffer.view_mut(mine.clone())?.copy_from(stream, part.as_view())?;
        held.whole = match group.world() {
            1 => Whole::Here(buffer),
            _ => Whole::Coming(group.start_all_gather_v_in_place(buffer, counts.clone())),
        };
        Ok(())
    }

    /// Has a unit whole, until [`done`](Self::done). All ranks that share it out come here in the same order.
    ///
    /// # Errors
    /// A failed gather.
    pub fn need(&mut self, stream: &Stream, unit: UnitId) -> Result<(), TrainError> {
        self.gather(stream, unit, true)?;
        self.arrive(unit)?;
        match self.held(unit)?.whole {
            Whole::Here(_) => Ok(()),
            Whole::Coming(_) | Whole::Away => Err(TrainError::NotGathered { unit: unit.0 }),
        }
    }

    /// Waits for a unit, if it is on its way.
    fn arrive(&mut self, unit: UnitId) -> Result<(), TrainError> {
        let Self { units, transfers, .. } = self;
        let held = units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        held.whole = match std::mem::replace(&mut held.whole, Whole::Away) {
            Whole::Coming(pending) => {
                let done = pending.wait().map_err(|error| error.error)?;
                let (bytes, started, finished) = (done.buffer.bytes(), done.started, done.finished);
                transfers.push(Transfer { what: "all_gather", unit: Some(unit.0), bytes, started, finished });
                Whole::Here(done.buffer)
            }
            whole => whole,
        };
        Ok(())
    }

    /// When units were on their way since this was asked last.
    pub(crate) fn take_transfers(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Gives up what is gathered of what is shared out.
    ///
    /// # Errors
    /// A failed gather.
    pub(crate) fn give_up(&mut self) -> Result<(), TrainError> {
        let here: Vec<_> = (0..self.units.len()).filter(|unit| self.units[*unit].is_some()).map(UnitId).collect();
        here.into_iter().try_for_each(|unit| self.done(unit))
    }

    /// Says that a unit's use is over: what is shared out is given up.
    ///
    /// # Errors
    /// A unit that this rank does not hold; a failed gather.
    pub fn done(&mut self, unit: UnitId) -> Result<(), TrainError> {
        let Self { units, free, .. } = self;
        let held = units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        if held.part.is_none() {
            return Ok(());
        }
        match std::mem::replace(&mut held.whole, Whole::Away) {
            Whole::Here(buffer) => free.push(buffer),
            Whole::Coming(pending) => free.push(pending.wait().map_err(|error| error.error)?.buffer),
            Whole::Away => {}
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    ///
    /// # Errors
    /// A failed gather.
    pub fn settle(&mut self) -> Result<(), TrainError> {
        let here: Vec<_> = (0..self.units.len()).filter(|unit| self.units[*unit].is_some()).map(UnitId).collect();
        here.into_iter().try_for_each(|unit| self.arrive(unit))
    }

    /// Sets this rank's part of a unit, and the whole where it has it, from f32 values of the whole unit.
    pub(crate) fn set_unit(&mut self, stream: &Stream, unit: UnitId, values: &[f32]) -> Result<(), TrainError> {
        let rounded: Vec<T> = values.iter().map(|value| T::from_f32(*value)).collect();
        let held = self.held_mut(unit)?;
        if values.len() != held.elements {
            return Err(TrainError::Values { unit: unit.0, given: values.len(), elements: held.elements });
        }
        if let Some(part) = &mut held.part {
            part.as_view_mut().copy_from_host(stream, &rounded[held.shards.mine.clone()])?;
            return self.done(unit);
        }
        Ok(self.unit_mut(unit)?.copy_from_host(stream, &rounded)?)
    }
}

/// The initial values of what a rank holds of a parameter: pure functions of the seed, the parameter and the element's
/// place in the whole tensor, so that every layout of the ranks begins with the same model.
pub fn initial_values(parameter: &Parameter, seed: u64) -> Vec<f32> {
    let deviation = match parameter.entry.init {
        Init::Zeros => return vec![0.0; parameter.len()],
        Init::Ones => return vec![1.0; parameter.len()],
        Init::Normal(deviation) => deviation,
    };
    let (stream, first) = parameter.random;
    let numbers = Philox4x32::new(seed, stream);
    let mut values = Vec::with_capacity(parameter.len());
    for stretch in parameter.entry.portion.stretches(parameter.shape()) {
        let indices = first + stretch.whole as u64..first + (stretch.whole + stretch.len) as u64;
        values.extend(indices.map(|index| (deviation * numbers.normal(index)) as f32));
    }
    values
}

/// The initial values of what a rank holds of the model, by unit.
pub fn initial_units(table: &Table, seed: u64) -> Vec<(UnitId, Vec<f32>)> {
    let unit = |unit: &crate::model::Unit| unit.ids().flat_map(|id| initial_values(table.get(id), seed)).collect();
    table.units_here().map(|(id, u)| (id, unit(u))).collect()
}
