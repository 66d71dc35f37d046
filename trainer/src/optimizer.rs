//! AdamW over flat memory, and the schedule of its learning rate.
//!
//! Matrices decay, vectors (biases, norms) do not. A bf16 model keeps f32 master weights here: the update is done on
//! them, and the weights of the forward pass are their rounding.

use warpweft_device::{Buffer, Float, Stream};
use warpweft_kernels::adamw;

use crate::TrainError;
use crate::checkpoint::{Tensor, Tensors};
use crate::memory::{Allocator, Class};
use crate::model::{Parameters, Table};
use crate::parallel::data::Gradients;

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

/// The state of AdamW for all parameters of a rank, flat as the parameters are.
pub struct Optimizer {
    options: AdamW,
    m: Buffer<f32>,
    v: Buffer<f32>,
    master: Option<Buffer<f32>>,
}

impl Optimizer {
    /// Zero moments for the parameters of `table`; with `master`, room for f32 weights too.
    ///
    /// # Errors
    /// No memory for them.
    pub fn new(table: &Table, options: AdamW, master: bool, allocator: &mut Allocator<'_>) -> Result<Self, TrainError> {
        let elements = table.elements();
        let mut zeros = || allocator.zeros(Class::Optimizer, elements);
        let (m, v) = (zeros()?, zeros()?);
        let master = if master { Some(zeros()?) } else { None };
        Ok(Self { options, m, v, master })
    }

    /// Sets the weights from f32 values, flat: the master weights where there are some, the model's in any case.
    ///
    /// # Errors
    /// A length that is not that of all parameters.
    pub fn set_weights<T: Float>(
        &mut self,
        stream: &Stream,
        values: &[f32],
        parameters: &mut Parameters<T>,
    ) -> Result<(), TrainError> {
        if let Some(master) = &mut self.master {
            master.as_view_mut().copy_from_host(stream, values)?;
        }
        let rounded: Vec<T> = values.iter().map(|value| T::from_f32(*value)).collect();
        Ok(parameters.flat_mut().copy_from_host(stream, &rounded)?)
    }

    /// One update of all weights, `step` counted from 1, with the gradients times `grad_scale`.
    ///
    /// # Errors
    /// Gradients that are not summed.
    pub fn step<T: Float>(
        &mut self,
        stream: &Stream,
        table: &Table,
        (step, lr, grad_scale): (u64, f64, f64),
        parameters: &mut Parameters<T>,
        gradients: &Gradients,
    ) -> Result<(), TrainError> {
        let mut tensors = Vec::with_capacity(table.parameters().len());
        let (mut weights, mut m, mut v) = (parameters.flat_mut(), self.m.as_view_mut(), self.v.as_view_mut());
        let mut masters = self.master.as_mut().map(|master| master.as_view_mut());
        for id in table.flat_order() {
            let parameter = table.get(id);
            let len = parameter.len();
            let master = match masters.take() {
                Some(rest) => {
                    let (own, rest) = rest.split_at(len)?;
                    masters = Some(rest);
                    Some(own)
                }
                None => None,
            };
            let ((param, w), (first, m_rest), (second, v_rest)) =
                (weights.split_at(len)?, m.split_at(len)?, v.split_at(len)?);
            (weights, m, v) = (w, m_rest, v_rest);
            let grad = gradients.summed_of(id)?;
            tensors.push(adamw::Tensor { param, master, grad, m: first, v: second, decay: parameter.decays() });
        }
        let AdamW { beta1, beta2, eps, weight_decay } = self.options;
        let options = adamw::Options { lr, beta1, beta2, eps, weight_decay, step, grad_scale };
        Ok(adamw::step(stream, options, &mut tensors)?)
    }

    /// The state as tensors of a checkpoint, by kind and parameter.
    ///
    /// # Errors
    /// State that is not in host memory.
    pub fn to_tensors(&self, table: &Table) -> Result<Vec<Tensor>, TrainError> {
        let mut tensors = Vec::new();
        for (kind, buffer) in self.kinds() {
            for parameter in table.parameters() {
                let values = buffer.view(parameter.range())?.host()?;
                tensors.push(Tensor::new(format!("{kind}.{}", parameter.name), &parameter.shape, values));
            }
        }
        Ok(tensors)
    }

    /// Sets the state from such tensors.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or none of this state's.
    pub fn read_tensors(&mut self, table: &Table, tensors: &Tensors) -> Result<(), TrainError> {
        let mut names = Vec::new();
        let kinds = [("m", Some(&mut self.m)), ("v", Some(&mut self.v)), ("master", self.master.as_mut())];
        for (kind, buffer) in kinds {
            let Some(buffer) = buffer else { continue };
            for parameter in table.parameters() {
                let name = format!("{kind}.{}", parameter.name);
                tensors.read(&name, &parameter.shape, buffer.view_mut(parameter.range())?.host()?)?;
                names.push(name);
            }
        }
        Ok(tensors.expect_only(names.iter().map(String::as_str))?)
    }

    fn kinds(&self) -> impl Iterator<Item = (&'static str, &Buffer<f32>)> {
        let kinds = [("m", Some(&self.m)), ("v", Some(&self.v)), ("master", self.master.as_ref())];
        kinds.into_iter().filter_map(|(kind, buffer)| Some((kind, buffer?)))
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
