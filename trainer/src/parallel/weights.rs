//! The weights that a rank holds, by unit, and their initial values.

use std::ops::Range;

use warpweft_device::{Buffer, Float, Stream, View, ViewMut};
use warpweft_kernels::philox::Philox4x32;

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::{Init, Parameter, Table, TensorId, UnitId};

/// The weights that a rank holds, in the type that the passes read.
pub struct Weights<T> {
    /// By unit; none of what lies on other stages.
    units: Vec<Option<Buffer<T>>>,
    places: Vec<(UnitId, Range<usize>)>,
}

impl<T: Float> Weights<T> {
    /// Memory for what this rank holds of `table`, zeros.
    ///
    /// # Errors
    /// No memory for them.
    pub fn zeros(table: &Table, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let mut unit = |here, elements| {
            let buffer = if here { Some(allocator.zeros(Class::Parameters, elements)?) } else { None };
            Ok::<_, TrainError>(buffer)
        };
        let units = table.units().iter().map(|u| unit(u.here, u.elements)).collect::<Result<_, _>>()?;
        let places = table.parameters().iter().map(|parameter| (parameter.unit, parameter.range())).collect();
        Ok(Self { units, places })
    }

    /// One weight.
    ///
    /// # Errors
    /// A weight that this rank does not hold.
    pub fn view(&self, id: TensorId) -> Result<View<'_, T>, TrainError> {
        self.span(id, id)
    }

    /// The weights from `first` to `last`, which were entered one after the other, as one.
    ///
    /// # Errors
    /// Weights that this rank does not hold.
    pub fn span(&self, first: TensorId, last: TensorId) -> Result<View<'_, T>, TrainError> {
        let ((unit, from), (_, to)) = (&self.places[first.0], &self.places[last.0]);
        Ok(self.unit(*unit)?.slice(from.start..to.end)?)
    }

    /// One weight, to write.
    ///
    /// # Errors
    /// A weight that this rank does not hold.
    pub fn view_mut(&mut self, id: TensorId) -> Result<ViewMut<'_, T>, TrainError> {
        let (unit, range) = self.places[id.0].clone();
        Ok(self.unit_mut(unit)?.slice(range)?)
    }

    /// All weights of a unit.
    ///
    /// # Errors
    /// A unit that this rank does not hold.
    pub fn unit(&self, unit: UnitId) -> Result<View<'_, T>, TrainError> {
        self.units[unit.0].as_ref().map(Buffer::as_view).ok_or(TrainError::NotHere { unit: unit.0 })
    }

    /// All weights of a unit, to write.
    ///
    /// # Errors
    /// A unit that this rank does not hold.
    pub fn unit_mut(&mut self, unit: UnitId) -> Result<ViewMut<'_, T>, TrainError> {
        self.units[unit.0].as_mut().map(Buffer::as_view_mut).ok_or(TrainError::NotHere { unit: unit.0 })
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

/// Rounds f32 values to the type of the weights.
pub(crate) fn set_unit<T: Float>(stream: &Stream, values: &[f32], unit: ViewMut<'_, T>) -> Result<(), TrainError> {
    let rounded: Vec<T> = values.iter().map(|value| T::from_f32(*value)).collect();
    Ok(unit.copy_from_host(stream, &rounded)?)
}
