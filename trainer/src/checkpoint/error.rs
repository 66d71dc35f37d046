//! What can be wrong with a checkpoint. Each message names the file, the byte, the field, and what to do.

use std::io;
use std::path::PathBuf;

use warpweft_device::DType;

/// A checkpoint that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A checkpoint could not be written; the one before it is untouched.
    #[error("the checkpoint of step {step} was not written: {reason}; {}", kept(.previous))]
    NotWritten {
        /// The step.
        step: u64,
        /// Why.
        reason: Box<CheckpointError>,
        /// The newest checkpoint that can be resumed from.
        previous: Option<PathBuf>,
    },
    /// What went wrong on one of the ranks that write a checkpoint together.
    #[error("rank {rank}: {what}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// Its error.
        what: String,
    },
    /// A tensor that no file has in all its elements.
    #[error("{}: no file has element {at} of tensor `{tensor}`; the ranks that wrote it need one folder that all of them see", path.display())]
    Incomplete {
        /// The folder or file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its first element, counted flat, that is nowhere.
        at: usize,
    },
    /// No checkpoint where one was looked for.
    #[error("there is no checkpoint in {}: looked for checkpoints/latest, latest and manifest.json; give the --out folder of a run, or one of its checkpoints/step-...", folder.display())]
    None {
        /// The folder.
        folder: PathBuf,
    },
    /// Bytes that are not those that were written.
    #[error("{}: {} damaged ({field}); resume from another checkpoint", path.display(), bytes(*first, *last))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First byte that may be wrong.
        first: u64,
        /// Last byte that may be wrong; the same where it is known exactly.
        last: u64,
        /// What those bytes hold: a tensor, a line, the header.
        field: String,
    },
    /// A file of another length than the one that was written.
    #[error("{}: {} at byte {at} of {wants} ({field}); resume from another checkpoint", path.display(), if at < wants { "ends" } else { "goes on" })]
    Length {
        /// The file.
        path: PathBuf,
        /// Where the file ends, or where the surplus starts.
        at: u64,
        /// Bytes that were written.
        wants: u64,
        /// What is cut off or comes after.
        field: String,
    },
    /// A file whose text is not of its form.
    #[error("{}: byte {at}: {field}: {what}; resume from another checkpoint", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The byte.
        at: u64,
        /// The field there.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// The marker names a checkpoint that is not there.
    #[error("{} names {named}, which is not there ({}); resume from one that is there, by its folder", marker.display(), if there.is_empty() { "nothing is".into() } else { there.join(", ") })]
    Dangling {
        /// The marker.
        marker: PathBuf,
        /// The folder it names.
        named: String,
        /// The checkpoints that are there.
        there: Vec<String>,
    },
    /// A tensor that the model has and the file has not.
    #[error("{}: tensor `{tensor}` is missing; the checkpoint is of another model", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the file has and the model has not.
    #[error("{}: tensor `{tensor}` is not one of this model's; the checkpoint is of another model", path.display())]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("{}: tensor `{tensor}` has shape {has:?}, and the model's is {wants:?}; the checkpoint is of another model", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        has: Vec<usize>,
        /// Its shape in the model.
        wants: Vec<usize>,
    },
    /// A tensor of another element type.
    #[error("{}: tensor `{tensor}` is {has}, and the model's is {wants}; resume with the dtype it was written with", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type in the file.
        has: String,
        /// Its type in the model.
        wants: DType,
    },
    /// No weights where some were looked for.
    #[error("there are no weights in {}: looked for model.safetensors, weights.safetensors, model.safetensors.index.json and checkpoints/latest; give a safetensors file, or the folder of a model or a run", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A setting of another model than this one.
    #[error("{}: {setting} is {has}, and the model's is {wants}; the weights are of another model", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// Its name there.
        setting: String,
        /// The number there.
        has: f64,
        /// The model's.
        wants: f64,
    },
    /// A snapshot that cannot be stored.
    #[error("tensor `{tensor}` of the snapshot: {what}")]
    Snapshot {
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
}

fn bytes(first: u64, last: u64) -> String {
    if first == last { format!("byte {first} is") } else { format!("one of the bytes {first} to {last} is") }
}

fn kept(previous: &Option<PathBuf>) -> String {
    match previous {
        Some(path) => format!("{} is untouched, and --resume takes it", path.display()),
        None => "there is none before it".into(),
    }
}
