//! The checkpoints of one step: weights and the optimizer's state.

use std::path::Path;

use serde::Serialize;

use super::distance::{compare, is_idle, of_updates};
use super::{DiffError, Parting, Tolerance};
use crate::checkpoint::{Checkpoint, Held, Pieces, step_folder, steps_of};
use crate::config::{Config, Inputs};
use crate::model::{Model, Parameter, Spread, wholes};
use crate::optimizer::KINDS;

/// A step of which both runs have checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StateStep {
    /// The step.
    pub step: u64,
    /// Of weights and of each kind of state, the largest distance of an element, and the parameter.
    pub worst: Vec<(String, f64, String)>,
    /// Tensors compared.
    pub tensors: usize,
}

/// The checkpoints of a step of two runs.
pub(super) struct Pair {
    a: Checkpoint,
    b: Checkpoint,
    config: Config,
    model: Model,
    exact: bool,
}

/// The steps of which a run has checkpoints.
pub(super) fn steps(run: &Path) -> Vec<u64> {
    steps_of(run)
}

/// The configuration of a checkpoint, ranks and folders aside.
fn config(run: &Path, step: u64) -> Result<Config, DiffError> {
    let file = step_folder(run, step).join(crate::checkpoint::CONFIG_FILE);
    Ok(Config::resolve(&Inputs { file: Some(&file), flags: &[], launched: None })?)
}

impl Pair {
    /// Opens both.
    pub(super) fn open(a: &Path, b: &Path, step: u64) -> Result<Self, DiffError> {
        let (ours, theirs) = (config(a, step)?, config(b, step)?);
        let shapes = [&ours, &theirs].map(Config::shape);
        if shapes[0] != shapes[1] {
            let [a, b] = shapes.map(|shape| serde_json::to_string(&shape).unwrap_or_default());
            return Err(DiffError::Models { what: "the shape".into(), a, b });
        }
        let model = Model::new(shapes[0], Spread::alone(&shapes[0])).map_err(|error| DiffError::Models {
            what: "the shape".into(),
            a: error.to_string(),
            b: "the same".into(),
        })?;
        let [first, second] = [a, b].map(|run| Checkpoint::load(&step_folder(run, step)));
        let exact = ours.exact && theirs.exact;
        Ok(Self { a: first?, b: second?, config: ours, model, exact })
    }

    /// What the grade of both tolerates.
    pub(super) fn usual(&self) -> Tolerance {
        let bf16 = self.config.dtype == warpweft_device::DType::BF16;
        Tolerance::usual(self.exact, bf16, self.config.moe.is_some())
    }

    pub(super) fn compare(&self, tolerance: Tolerance) -> Result<(StateStep, Option<Parting>), DiffError> {
        let wholes = wholes(&self.model);
        let weights = [self.a.weights(&wholes)?, self.b.weights(&wholes)?];
        let state = [self.a.optimizer()?, self.b.optimizer()?];
        let (mut worst, mut parting, mut tensors) = (Vec::<(String, f64, String)>::new(), None, 0);
        let kinds =
            std::iter::once(("weights", "", &weights)).chain(KINDS.into_iter().map(|kind| (kind.name(), ".", &state)));
        let units = self.model.table().units();
        for (kind, dot, both) in kinds {
            for parameter in self.model.table().parameters() {
                let name =
                    if dot.is_empty() { parameter.name().to_owned() } else { format!("{kind}.{}", parameter.name()) };
                // Master weights are there with bf16 only, and nothing of a shared expert of no width.
                if parameter.elements() == 0 || both.iter().any(|pieces| pieces.shape(&name).is_err()) {
                    continue;
                }
                let [a, b] = [read(&both[0], &name, parameter.shape())?, read(&both[1], &name, parameter.shape())?];
                let noise = if dot.is_empty() { self.noise(&state, parameter, tolerance.state)? } else { Vec::new() };
                let (may, shape) = (tolerance.state, parameter.shape());
                let distance = compare((&a, &b), shape, may, |at| match may > 0.0 && is_idle(&name, shape, at) {
                    true => f64::INFINITY,
                    false => noise.get(at).copied().unwrap_or(0.0),
                });
                tensors += 1;
                match worst.iter_mut().find(|(of, ..)| of == kind) {
                    Some(entry) if entry.1 >= distance.relative => {}
                    Some(entry) => (entry.1, entry.2) = (distance.relative, parameter.name().to_owned()),
                    None => worst.push((kind.to_owned(), distance.relative, parameter.name().to_owned())),
                }
                if distance.beyond > 0 && parting.is_none() {
                    let layer = crate::dump::layer_of(&units[parameter.unit.0].name);
                    let (tensor, shape) = (format!("{kind}.{}", parameter.name()), shape.to_vec());
                    let (step, tolerance, found_in) = (self.a.step, may, "checkpoints");
                    parting = Some(Parting { step, layer, tensor, shape, distance, tolerance, found_in });
                }
            }
        }
        Ok((StateStep { step: self.a.step, worst, tensors }, parting))
    }

    /// By how much weights may be apart for the rounding of small gradients: their sizes are the second moment's.
    fn noise(&self, state: &[Pieces<'_>; 2], of: &Parameter, tolerance: f64) -> Result<Vec<f64>, DiffError> {
        let name = format!("{}.{}", KINDS[1].name(), of.name());
        if tolerance == 0.0 || state.iter().any(|pieces| pieces.shape(&name).is_err()) {
            return Ok(Vec::new());
        }
        let [a, b] = [read(&state[0], &name, of.shape())?, read(&state[1], &name, of.shape())?];
        let sizes: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a.min(*b).max(0.0).sqrt()).collect();
        Ok(of_updates(&sizes, (self.config.lr, self.a.step), self.a.step, tolerance))
    }
}

fn read(pieces: &Pieces<'_>, name: &str, shape: &[usize]) -> Result<Vec<f64>, DiffError> {
    let held = Held::whole(shape);
    let mut values = vec![0.0f32; held.len()];
    pieces.read_f32(name, &held, &mut values)?;
    Ok(values.into_iter().map(f64::from).collect())
}
