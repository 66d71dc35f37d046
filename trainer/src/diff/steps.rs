//! The dumps of one step, tensor by tensor.

use std::path::Path;

use serde::Serialize;

use super::distance::{Distance, compare, is_idle, of_updates};
use super::{DiffError, Parting, Tolerance};
use crate::checkpoint::Pieces;
use crate::dump::{Dump, Kind, Manifest, Tensor, values};

/// A step of which both runs have dumps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpStep {
    /// The step.
    pub step: u64,
    /// The losses.
    pub loss: [Option<f64>; 2],
    /// The norms of the gradient.
    pub grad_norm: [Option<f64>; 2],
    /// Of each kind of tensor that both have, the largest distance of an element, and the tensor.
    pub worst: Vec<(Kind, f64, String)>,
    /// Tensors compared.
    pub tensors: usize,
}

/// The dumps of a step of two runs.
pub(super) struct Pair {
    a: Dump,
    b: Dump,
}

impl Pair {
    /// Opens both.
    pub(super) fn open(a: &Path, b: &Path, step: u64) -> Result<Self, DiffError> {
        let pair = Self { a: Dump::open(a, step)?, b: Dump::open(b, step)? };
        same_model(&pair.a.manifest, &pair.b.manifest)?;
        Ok(pair)
    }

    /// What the grade of both tolerates.
    pub(super) fn usual(&self) -> Tolerance {
        let (a, b) = (&self.a.manifest, &self.b.manifest);
        Tolerance::usual(a.exact && b.exact, a.dtype == "bf16" || b.dtype == "bf16", a.model.moe.is_some())
    }

    pub(super) fn layouts(&self) -> [String; 2] {
        [&self.a, &self.b].map(|dump| dump.manifest.layout.clone())
    }

    /// Goes through the tensors that both have. A difference before the step counts only where it is `fresh`: else the dump of
    /// the step before has it.
    pub(super) fn compare(&self, tolerance: Tolerance, fresh: bool) -> Result<(DumpStep, Option<Parting>), DiffError> {
        let (a, b) = (&self.a.manifest, &self.b.manifest);
        let both = [self.a.pieces()?, self.b.pieces()?];
        let mut worst: Vec<(Kind, f64, String)> = Vec::new();
        let (mut parting, mut tensors, mut begun_apart) = (None, 0, a.step > 1);
        if a.tensors.iter().any(|tensor| tensor.kind == Kind::Before) {
            begun_apart = false;
        }
        for tensor in &a.tensors {
            let Some(other) = b.tensors.iter().find(|other| other.name == tensor.name) else { continue };
            if tensor.shape != other.shape {
                let [a, b] = [tensor, other].map(|tensor| format!("{:?}", tensor.shape));
                return Err(DiffError::Models { what: tensor.name.clone(), a, b });
            }
            let may = match tensor.kind {
                Kind::Input => 0.0,
                Kind::Before if a.step > 1 => tolerance.state,
                _ if begun_apart => tolerance.state,
                _ => tolerance.element,
            };
            let distance = self.distance(tensor, &both, may)?;
            tensors += 1;
            begun_apart |= tensor.kind == Kind::Before && distance.relative > 0.0;
            match worst.iter_mut().find(|(kind, ..)| *kind == tensor.kind) {
                Some(entry) if entry.1 >= distance.relative => {}
                Some(entry) => *entry = (tensor.kind, distance.relative, tensor.name.clone()),
                None => worst.push((tensor.kind, distance.relative, tensor.name.clone())),
            }
            if distance.beyond > 0 && parting.is_none() && (fresh || tensor.kind != Kind::Before) {
                let Tensor { name: tensor, layer, shape, .. } = tensor.clone();
                let (step, tolerance, found_in) = (a.step, may, "dumps");
                parting = Some(Parting { step, layer, tensor, shape, distance, tolerance, found_in });
            }
        }
        let (loss, grad_norm) = ([a.loss, b.loss], [a.grad_norm, b.grad_norm]);
        Ok((DumpStep { step: a.step, loss, grad_norm, worst, tensors }, parting))
    }

    fn distance(&self, tensor: &Tensor, both: &[Pieces<'_>; 2], tolerance: f64) -> Result<Distance, DiffError> {
        let [a, b] = [values(&both[0], tensor)?, values(&both[1], tensor)?];
        let Tensor { name, shape, kind, .. } = tensor;
        if tolerance == 0.0 {
            return Ok(compare((&a, &b), shape, tolerance, |_| 0.0));
        }
        let noise = if *kind == Kind::After { self.noise(tensor, both, tolerance)? } else { Vec::new() };
        Ok(compare((&a, &b), shape, tolerance, |at| match is_idle(name, shape, at) {
            true => f64::INFINITY,
            false => noise.get(at).copied().unwrap_or(0.0),
        }))
    }

    /// By how much the weights after an update may be apart besides: by what they were apart before, and by what AdamW makes of
    /// gradients that are apart by the tolerance.
    fn noise(&self, after: &Tensor, both: &[Pieces<'_>; 2], tolerance: f64) -> Result<Vec<f64>, DiffError> {
        let named = |kind: Kind| {
            let name = after.name.replacen(Kind::After.name(), kind.name(), 1);
            let there = |dump: &Dump| dump.manifest.tensors.iter().any(|tensor| tensor.name == name);
            (there(&self.a) && there(&self.b)).then(|| Tensor { name, kind, ..after.clone() })
        };
        let of = |kind: Kind| -> Result<Option<[Vec<f64>; 2]>, DiffError> {
            let Some(tensor) = named(kind) else { return Ok(None) };
            Ok(Some([values(&both[0], &tensor)?, values(&both[1], &tensor)?]))
        };
        let mut more = vec![0.0; after.shape.iter().product()];
        if let Some([a, b]) = of(Kind::Before)? {
            more.iter_mut().zip(a.iter().zip(&b)).for_each(|(more, (a, b))| *more += (a - b).abs());
        }
        if let Some([a, b]) = of(Kind::Gradient)? {
            let sizes: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a.abs().min(b.abs())).collect();
            let manifest = &self.a.manifest;
            let noise = of_updates(&sizes, (manifest.lr, 1), manifest.step, tolerance);
            more.iter_mut().zip(noise).for_each(|(more, noise)| *more += noise);
        }
        Ok(more)
    }
}

/// That both dumps are of one model, so that their tensors can be compared.
fn same_model(a: &Manifest, b: &Manifest) -> Result<(), DiffError> {
    let [ours, theirs] = [a, b].map(|manifest| serde_json::to_value(manifest.model).unwrap_or_default());
    let (Some(ours), Some(theirs)) = (ours.as_object(), theirs.as_object()) else { return Ok(()) };
    let keys = ours.keys().chain(theirs.keys());
    let other = keys.map(|key| (key, ours.get(key), theirs.get(key))).find(|(_, ours, theirs)| ours != theirs);
    let text = |value: Option<&serde_json::Value>| value.map_or("not there".into(), ToString::to_string);
    match other {
        Some((what, ours, theirs)) => {
            Err(DiffError::Models { what: what.replace('_', "-"), a: text(ours), b: text(theirs) })
        }
        None => Ok(()),
    }
}
