//! A trainer that takes its next step down.

use std::path::{Path, PathBuf};

use warpweft_device::Float;

use super::{FORMAT, Kind, Manifest, Recorder, What, layout_text, tensors, write};
use crate::TrainError;
use crate::step::{Sequences, Trainer};

/// What a step came to.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// The step.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// The norm of its gradient before clipping.
    pub grad_norm: f64,
}

impl<T: Float> Trainer<T> {
    /// Has the next step taken down, in host memory until [`write_dump`](Self::write_dump). On all ranks or none.
    pub fn dump_next(&mut self, what: What) {
        let (batch, tokens) = (self.recipe.batch, self.recipe.tokens);
        let mine = self.recipe.share(&self.mesh, batch);
        self.recorder = Some(Recorder::new(what, (batch, tokens), mine, &self.mesh));
    }

    /// Takes down what a step begins with.
    pub(crate) fn dump_before(&mut self, sequences: Sequences<'_>) -> Result<(), TrainError> {
        if let Some(recorder) = &self.recorder {
            recorder.sequences(&self.mesh, sequences.inputs, sequences.targets);
        }
        self.dump_weights(Kind::Before)
    }

    /// Takes down the summed gradients.
    pub(crate) fn dump_gradients(&self) -> Result<(), TrainError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        let of = (self.model.table(), &self.plan, &self.optimizer);
        recorder.parameters(Kind::Gradient, of, |unit| self.gradients.summed(unit))
    }

    /// Takes down the weights.
    pub(crate) fn dump_weights(&mut self, kind: Kind) -> Result<(), TrainError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        self.weights.settle()?;
        let of = (self.model.table(), &self.plan, &self.optimizer);
        recorder.parameters(kind, of, |unit| self.weights.part(unit))
    }

    /// Writes down the step that was taken down last, if one was, into the folder of a run that all ranks see. Collective
    /// over all ranks.
    ///
    /// # Errors
    /// What went wrong on any rank; a peer that died.
    pub fn write_dump(&mut self, run: &Path, came: Came) -> Result<Option<PathBuf>, TrainError> {
        let Some(recorder) = self.recorder.take() else { return Ok(None) };
        let finite = |number: f64| Some(number).filter(|number| number.is_finite());
        let manifest = Manifest {
            format: FORMAT,
            step: came.step,
            loss: finite(came.loss),
            grad_norm: finite(came.grad_norm),
            lr: self.recipe.schedule.rate(came.step),
            exact: self.recipe.exact,
            dtype: T::DTYPE.name().into(),
            model: *self.model.shape(),
            layout: layout_text(self.mesh.sizes()),
            tensors: tensors(&self.model, (self.recipe.batch, self.recipe.tokens), recorder.what()),
            files: Vec::new(),
        };
        write(run, self.mesh.world(), manifest, &recorder.into_pieces()).map(Some)
    }
}
