//! AdamW over the weights that a rank holds, and the schedule of its learning rate.
//!
//! Matrices decay, vectors (biases, norms) do not. A bf16 model keeps f32 master weights here: the update is done on
//! them, and the weights of the forward pass are their rounding.

use std::ops::Range;

use warpweft_device::{Buffer, Float, Stream, View, ViewMut};
use warpweft_kernels::optimizer::{self, Adam, Numbers, Place, Rounding, Rule};

use crate::TrainError;
use crate::memory::{Allocator, Class};
use crate::model::{Table, Unit, UnitId};
use crate::parallel::gradients::Gradients;
use crate::parallel::weights::Weights;
use crate::parallel::zero::{Sharding, overlap};

/// What stays the same over a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay of matrices, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
    }
}

/// The learning rate by step: a line up, then half a cosine down to a tenth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps of the way up; the first of them already has a rate above zero.
    pub warmup: u64,
    /// Steps until the lowest rate.
    pub steps: u64,
}

impl Schedule {
    /// The rate of a step, counted from 1.
    pub fn rate(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let (lowest, length) = (self.peak * 0.1, self.steps.saturating_sub(self.warmup));
        // The first step after the way up has the full rate, the last step the lowest.
        let gone = (step - self.warmup - 1) as f64 / length.saturating_sub(1).max(1) as f64;
        lowest + (self.peak - lowest) * 0.5 * (1.0 + (std::f64::consts::PI * gone.min(1.0)).cos())
    }
}

/// The state of AdamW for all weights that a rank holds, by unit.
pub struct Optimizer {
    options: AdamW,
    units: Vec<Option<State>>,
}

/// One unit's.
struct State {
    /// The part of the unit's elements that it is for.
    mine: Range<usize>,
    m: Buffer<f32>,
    v: Buffer<f32>,
    master: Option<Buffer<f32>>,
}

impl Optimizer {
    /// Zero moments for this rank's parts of `table`; with `master`, room for f32 weights too.
    ///
    /// # Errors
    /// No memory for them.
    pub fn new(
        table: &Table,
        sharding: &Sharding,
        options: AdamW,
        master: bool,
        allocator: &mut Allocator<'_>,
    ) -> Result<Self, TrainError> {
        let mut units = Vec::with_capacity(table.units().len());
        for (index, unit) in table.units().iter().enumerate() {
            if !unit.here {
                units.push(None);
                continue;
            }
            let mine = sharding.of(UnitId(index))?.mine.clone();
            let mut zeros = || allocator.zeros(Class::Optimizer, mine.len());
            let (m, v, master) = (zeros()?, zeros()?, if master { Some(zeros()?) } else { None });
            units.push(Some(State { mine, m, v, master }));
        }
        Ok(Self { options, units })
    }

    fn state(&self, unit: UnitId) -> Result<&State, TrainError> {
        self.units[unit.0].as_ref().ok_or(TrainError::NotHere { unit: unit.0 })
    }

    /// Sets the weights of a unit from f32 values of the whole of it: the master weights where there are some, the model's
    /// in any case.
    ///
    /// # Errors
    /// A length that is not the unit's.
    pub fn set_unit<T: Float>(
        &mut self,
        stream: &Stream,
        unit: UnitId,
        values: &[f32],
        weights: &mut Weights<T>,
    ) -> Result<(), TrainError> {
        weights.set_unit(stream, unit, values)?;
        let state = self.units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        if let Some(master) = &mut state.master {
            master.as_view_mut().copy_from_host(stream, &values[state.mine.clone()])?;
        }
        Ok(())
    }

    /// One update of all weights by `numbers` of the device: of this rank's parts, from which the whole units are put together
    /// again meanwhile.
    ///
    /// # Errors
    /// Gradients that are not summed.
    pub fn step<T: Float>(
        &mut self,
        stream: &Stream,
        table: &Table,
        numbers: View<'_, f64>,
        weights: &mut Weights<T>,
        gradients: &Gradients,
    ) -> Result<(), TrainError> {
        let AdamW { beta1, beta2, eps, weight_decay } = self.options;
        let rule = Rule::AdamW(Adam { beta1, beta2, eps });
        let options = optimizer::Options { rule, weight_decay, rounding: Rounding::Nearest };
        for (id, unit) in table.units_here() {
            let state = self.units[id.0].as_mut().ok_or(TrainError::NotHere { unit: id.0 })?;
            state.step(stream, (options, numbers), table, unit, weights.part_mut(id)?, gradients)?;
            weights.updated(id)?;
        }
        Ok(())
    }

    /// What this rank has of a unit's state, by kind: its part of the unit's elements, in their order.
    ///
    /// # Errors
    /// A unit of another stage.
    pub fn parts(&self, unit: UnitId) -> Result<impl Iterator<Item = (&'static str, View<'_, f32>)>, TrainError> {
        let state = self.state(unit)?;
        Ok(KINDS.into_iter().filter_map(|kind| Some((kind.name(), kind.of(state)?.as_view()))))
    }

    /// The same to write.
    ///
    /// # Errors
    /// A unit of another stage.
    pub fn parts_mut(
        &mut self,
        unit: UnitId,
    ) -> Result<impl Iterator<Item = (&'static str, ViewMut<'_, f32>)>, TrainError> {
        let state = self.units[unit.0].as_mut().ok_or(TrainError::NotHere { unit: unit.0 })?;
        let State { m, v, master, .. } = state;
        let buffers = [(Kind::First, Some(m)), (Kind::Second, Some(v)), (Kind::Master, master.as_mut())];
        Ok(buffers.into_iter().filter_map(|(kind, buffer)| Some((kind.name(), buffer?.as_view_mut()))))
    }

    /// The part of a unit's elements that this rank updates and saves.
    ///
    /// # Errors
    /// A unit of another stage.
    pub fn mine(&self, unit: UnitId) -> Result<Range<usize>, TrainError> {
        Ok(self.state(unit)?.mine.clone())
    }

    /// Whether it has this kind of state.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.units.iter().flatten().any(|state| kind.of(state).is_some())
    }
}

impl State {
    /// One update of this rank's part of a unit, which may begin and end inside a parameter.
    fn step<T: Float>(
        &mut self,
        stream: &Stream,
        (options, numbers): (optimizer::Options, View<'_, f64>),
        table: &Table,
        unit: &Unit,
        mut param: ViewMut<'_, T>,
        gradients: &Gradients,
    ) -> Result<(), TrainError> {
        let (mut m, mut v) = (self.m.as_view_mut(), self.v.as_view_mut());
        let mut masters = self.master.as_mut().map(|master| master.as_view_mut());
        let mut tensors = Vec::with_capacity(unit.parameters.len());
        for id in unit.ids() {
            let parameter = table.get(id);
            let Some((within, _)) = overlap(&self.mine, &parameter.range()) else { continue };
            let len = within.len();
            let master = match masters.take() {
                Some(rest) => {
                    let (own, rest) = rest.split_at(len)?;
                    masters = Some(rest);
                    Some(own)
                }
                None => None,
            };
            let ((own, rest), (first, m_rest), (second, v_rest)) =
                (param.split_at(len)?, m.split_at(len)?, v.split_at(len)?);
            (param, m, v) = (rest, m_rest, v_rest);
            let (grad, decay) = (gradients.summed_of(id)?, parameter.decays());
            let (m, v, place) = (Some(first), Some(second), Place::default());
            tensors.push(optimizer::Tensor { param: own, master, grad, m, v, decay, place });
        }
        Ok(optimizer::step(stream, options, Numbers::Device(numbers), &mut tensors)?)
    }
}

/// The kinds of state.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    First,
    Second,
    Master,
}

/// All of them, in the order of a checkpoint.
pub(crate) const KINDS: [Kind; 3] = [Kind::First, Kind::Second, Kind::Master];

impl Kind {
    /// Its name in a checkpoint.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::First => "m",
            Self::Second => "v",
            Self::Master => "master",
        }
    }

    fn of(self, state: &State) -> Option<&Buffer<f32>> {
        match self {
            Self::First => Some(&state.m),
            Self::Second => Some(&state.v),
            Self::Master => state.master.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_goes_up_a_line_and_down_a_cosine() {
        let schedule = Schedule { peak: 1.0, warmup: 4, steps: 105 };
        assert_eq!([1, 2, 4].map(|step| schedule.rate(step)), [0.25, 0.5, 1.0]);
        assert_eq!(schedule.rate(5), 1.0);
        assert!((schedule.rate(55) - 0.55).abs() < 1e-12, "half way: {}", schedule.rate(55));
        assert!((schedule.rate(105) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(900) - 0.1).abs() < 1e-12);
        assert_eq!(Schedule { peak: 1.0, warmup: 0, steps: 1 }.rate(1), 1.0);
    }
}
