//! The numbers of an update, which the device has: the norm of the gradients, the factor that clips them, learning rate and step.
//! Between the norm and the update nothing waits for the host.

use warpweft_device::{Buffer, Device, Stream, View};
use warpweft_kernels::norm;
use warpweft_kernels::optimizer::{Control, Step};

use crate::TrainError;
use crate::model::Table;
use crate::parallel::gradients::Gradients;
use crate::parallel::plan::Plan;

/// One update's after another.
pub(crate) struct Numbers {
    /// The sum of the squares of all gradients.
    squares: Buffer<f64>,
    /// As [`Control`] lays them out.
    control: Buffer<f64>,
}

impl Numbers {
    pub(crate) fn new(device: &Device) -> Result<Self, TrainError> {
        Ok(Self { squares: device.upload(&[0.0])?, control: device.upload(&Control::default().to_array())? })
    }

    /// Takes the squares of what this rank counts of the gradients.
    pub(crate) fn square(
        &mut self,
        stream: &Stream,
        gradients: &Gradients,
        (table, plan): (&Table, &Plan),
    ) -> Result<(), TrainError> {
        gradients.sum_of_squares_into(stream, table, plan, self.squares.as_view_mut())
    }

    /// The squares, for ranks whose sums meet on the host.
    pub(crate) fn squares(&self, stream: &Stream) -> Result<f64, TrainError> {
        Ok(self.squares.download(stream)?[0])
    }

    /// The squares of all ranks.
    pub(crate) fn set_squares(&mut self, stream: &Stream, all: f64) -> Result<(), TrainError> {
        Ok(self.squares.as_view_mut().copy_from_host(stream, &[all])?)
    }

    /// The numbers of a step whose gradients have a norm of at most `clip`; with a norm that is not finite it is not taken.
    pub(crate) fn begin(
        &mut self,
        stream: &Stream,
        step: Step,
        clip: Option<f64>,
    ) -> Result<View<'_, f64>, TrainError> {
        Control::begin(stream, step, self.control.as_view_mut())?;
        norm::clip(stream, self.squares.as_view(), clip.unwrap_or(f64::INFINITY), self.control.as_view_mut())?;
        Ok(self.control.as_view())
    }

    /// The norm before clipping, once the device is there.
    pub(crate) fn norm(&self, stream: &Stream) -> Result<f64, TrainError> {
        Ok(Control::from_slice(&self.control.download(stream)?).norm)
    }
}
