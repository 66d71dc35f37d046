//! The numbers of a step on a device.

use warpweft_device::{Arg, Stream, ViewMut};

use super::Step;
use crate::launch::{Extent, OPTIMIZER};
use crate::{KernelError, check};

/// What a step takes from the device: five f64 in this order. [`begin`](Control::begin) writes them for a step, and
/// [`norm::clip`](crate::norm::clip) the last three; kernels of others may write all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Control {
    /// Learning rate.
    pub lr: f64,
    /// The number of the step, from 1. 0 is noted in the device's status word, and the step is not taken; so it is where
    /// this is no whole number, and with a learning rate that is negative or not finite.
    pub step: f64,
    /// The factor on every gradient. Where it is not finite the step is not taken.
    pub grad_scale: f64,
    /// Not 0: the step is not taken.
    pub skip: f64,
    /// The norm of the gradients, before clipping: nothing that a step needs.
    pub norm: f64,
}

impl Control {
    /// How many f64 it has.
    pub const LEN: usize = 5;

    /// As it lies in memory.
    pub fn to_array(self) -> [f64; Self::LEN] {
        [self.lr, self.step, self.grad_scale, self.skip, self.norm]
    }

    /// From memory, of which what is missing is 0.
    pub fn from_slice(values: &[f64]) -> Self {
        let [lr, step, grad_scale, skip, norm] = std::array::from_fn(|at| values.get(at).copied().unwrap_or(0.0));
        Self { lr, step, grad_scale, skip, norm }
    }

    /// Writes the numbers of a step to `control` `[5]`, with neither skip nor norm: in the stream's order, without waiting.
    ///
    /// # Errors
    /// Step 0, a number out of its range, another length or device. Nothing is written then.
    pub fn begin(stream: &Stream, step: Step, control: ViewMut<'_, f64>) -> Result<(), KernelError> {
        step.check()?;
        let control = check::numbers_mut(stream, "optimizer begin", "control", control, &[Self::LEN])?;
        let now = Self { lr: step.lr, step: step.number as f64, grad_scale: step.grad_scale, skip: 0.0, norm: 0.0 };
        if stream.device().cpu_pool().is_ok() {
            control.host()?.copy_from_slice(&now.to_array());
            return Ok(());
        }
        let args = [now.lr.into(), now.step.into(), now.grad_scale.into(), Arg::try_from(control)?];
        OPTIMIZER.launch::<f32>(stream, "optimizer_begin", Extent::ONE, &args)
    }
}
