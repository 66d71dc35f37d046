//! What a step computed, tensor by tensor, written down so that two runs can be compared where they part.
//!
//! A run's folder holds, for each step that was asked for,
//! ```text
//! dumps/step-000003/manifest.json                       step, loss, norm, the model, and every tensor in order of computation
//!                  /tensors-00001-of-00004.safetensors  what rank 1 of 4 has of them, with its places in the whole tensors
//! ```
//! Every rank writes its own part of the whole tensors, of which [`Dump`] puts any together again, whatever the layout was:
//! rows of activations by their sample in the step's batch and their place in the sequence, elements of parameters by their index.
//! The folder has its name when it is complete.

mod read;
mod record;
mod step;
mod wanted;
mod write;

use serde::{Deserialize, Serialize};

use crate::model::{Model, ModelShape};
use crate::parallel::mesh::Sizes;

pub use read::{Dump, steps, values};
pub(crate) use record::Recorder;
pub use step::Came;
pub use wanted::{Steps, Wanted, What};
pub(crate) use write::{clear, write};

/// The folder of all dumps of a run.
const FOLDER: &str = "dumps";
/// What a dump holds.
const MANIFEST: &str = "manifest.json";
/// The format's version.
const FORMAT: u32 = 1;

/// What a tensor is, in the order in which a step comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The tokens that go in, and those that are to come out.
    Input,
    /// Weights before the step.
    Before,
    /// The residual stream that a layer hands on.
    Forward,
    /// The loss of each token.
    Loss,
    /// The error of the residual stream that a layer hands back.
    Error,
    /// The gradient of a parameter, of the whole batch.
    Gradient,
    /// Weights after the step.
    After,
}

impl Kind {
    /// All, in order.
    pub const ALL: [Self; 7] =
        [Self::Input, Self::Before, Self::Forward, Self::Loss, Self::Error, Self::Gradient, Self::After];

    /// What tensors of this kind are called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Before => "before",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Error => "error",
            Self::Gradient => "gradient",
            Self::After => "after",
        }
    }

    /// The name of one of them.
    pub(crate) fn of(self, which: &str) -> String {
        format!("{}.{which}", self.name())
    }
}

/// A tensor of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name in the files.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The layer that computed it, or whose parameter it is.
    pub layer: String,
    /// Sizes of the whole tensor: sample, place and channel, or those of the parameter.
    pub shape: Vec<usize>,
}

/// What a dump is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub format: u32,
    /// The step, from 1.
    pub step: u64,
    /// Its loss; nothing where it is no finite number.
    pub loss: Option<f64>,
    /// The norm of its gradient before clipping; nothing where it is no finite number.
    pub grad_norm: Option<f64>,
    /// The learning rate of its update.
    pub lr: f64,
    /// Whether sums were the same bits at every layout of `--exact`.
    pub exact: bool,
    /// The type of weights and activations.
    pub dtype: String,
    /// The model.
    pub model: ModelShape,
    /// The layout, in words.
    pub layout: String,
    /// Every tensor, in the order in which the step comes to them.
    pub tensors: Vec<Tensor>,
    /// The ranks' files.
    pub files: Vec<String>,
}

/// A layout in words, axes of one rank left out.
pub(crate) fn layout_text(Sizes { pp, dp, cp, tp, ep }: Sizes) -> String {
    let axes = [("pp", pp), ("dp", dp), ("cp", cp), ("tp", tp), ("ep", ep)];
    let given: Vec<_> = axes.iter().filter(|(_, n)| *n > 1).map(|(name, n)| format!("{name} {n}")).collect();
    if given.is_empty() { "1 rank".into() } else { given.join(" ") }
}

/// The layer of a unit: that of a block has the block's name, whatever unit of it.
pub(crate) fn layer_of(unit: &str) -> String {
    match unit.rsplit_once(' ') {
        Some((_, index)) if index.parse::<usize>().is_ok() => format!("block {index}"),
        _ if unit == "head" => "head".into(),
        _ => "embedding".into(),
    }
}

/// The tensors of a step over `batch` sequences of `tokens` tokens, in the order in which the step comes to them.
pub(crate) fn tensors(model: &Model, (batch, tokens): (usize, usize), what: What) -> Vec<Tensor> {
    let layers = model.shape().layers;
    let rows = [batch, tokens];
    let stream = [batch, tokens, model.shape().channels];
    let tensor = |kind: Kind, which: &str, layer: &str, shape: &[usize]| Tensor {
        name: kind.of(which),
        kind,
        layer: layer.to_owned(),
        shape: shape.to_vec(),
    };
    let parameter = |kind: Kind| {
        let units = model.table().units();
        let of = move |p: &crate::model::Parameter| {
            let layer = layer_of(&units[p.unit.0].name);
            Tensor { name: kind.of(p.name()), kind, layer, shape: p.shape().to_vec() }
        };
        model.table().parameters().iter().map(of).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| what.has(*kind)) {
        match kind {
            Kind::Input => all.extend(["tokens", "targets"].map(|which| tensor(kind, which, "data", &rows))),
            Kind::Before | Kind::After => all.extend(parameter(kind)),
            Kind::Gradient => all.extend(parameter(kind).into_iter().rev()),
            Kind::Loss => all.push(tensor(kind, "token", "head", &rows)),
            Kind::Forward => {
                all.push(tensor(kind, "embedding", "embedding", &stream));
                all.extend((0..layers).map(|i| tensor(kind, &format!("block.{i}"), &format!("block {i}"), &stream)));
            }
            Kind::Error => {
                all.push(tensor(kind, "head", "head", &stream));
                let blocks = (0..layers).rev();
                all.extend(blocks.map(|i| tensor(kind, &format!("block.{i}"), &format!("block {i}"), &stream)));
            }
        }
    }
    // A shared expert of no width is none.
    all.retain(|tensor| !tensor.shape.contains(&0));
    all
}
