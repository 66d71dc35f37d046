//! The weights of a model in flat memory, and their initial values.

use warpweft_device::{Buffer, Float, View, ViewMut};
use warpweft_kernels::philox::Philox4x32;

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::table::{Init, Table, TensorId};

/// The weights of a model, flat, in the order of the [`Table`].
pub struct Parameters<T> {
    flat: Buffer<T>,
    ranges: Vec<std::ops::Range<usize>>,
}

impl<T: Float> Parameters<T> {
    /// Memory for the weights of `table`, zeros.
    ///
    /// # Errors
    /// No memory for them.
    pub fn zeros(table: &Table, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let flat = allocator.zeros(Class::Parameters, table.elements())?;
        Ok(Self { flat, ranges: table.parameters().iter().map(|parameter| parameter.range()).collect() })
    }

    /// One weight.
    ///
    /// # Errors
    /// None for an id of the table that this was made from.
    pub fn view(&self, id: TensorId) -> Result<View<'_, T>, TrainError> {
        Ok(self.flat.view(self.ranges[id.0].clone())?)
    }

    /// One weight, to write.
    ///
    /// # Errors
    /// None for an id of the table that this was made from.
    pub fn view_mut(&mut self, id: TensorId) -> Result<ViewMut<'_, T>, TrainError> {
        Ok(self.flat.view_mut(self.ranges[id.0].clone())?)
    }

    /// All weights, flat.
    pub fn flat(&self) -> View<'_, T> {
        self.flat.as_view()
    }

    /// All weights, flat, to write.
    pub fn flat_mut(&mut self) -> ViewMut<'_, T> {
        self.flat.as_view_mut()
    }
}

/// The initial value of all weights, flat and f32: pure functions of the seed, the parameter's id and the element's
/// index, so that any layout of the ranks can form the part that it holds.
pub fn initial_values(table: &Table, seed: u64) -> Vec<f32> {
    let mut flat = vec![0.0f32; table.elements()];
    for (id, parameter) in table.iter() {
        let values = &mut flat[parameter.range()];
        match parameter.init {
            Init::Zeros => {}
            Init::Ones => values.fill(1.0),
            Init::Normal(deviation) => {
                let numbers = Philox4x32::new(seed, id.0 as u64);
                for (index, value) in values.iter_mut().enumerate() {
                    *value = (deviation * numbers.normal(index as u64)) as f32;
                }
            }
        }
    }
    flat
}
