//! What can end a training, as one type, with the exit status that a command gives for it.

use warpweft_comm::CommError;
use warpweft_device::DeviceError;
use warpweft_kernels::KernelError;

use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::data::DataError;
use crate::model::ShapeError;
use crate::parallel::check::PlanError;
use crate::parallel::context::ContextError;
use crate::parallel::layout::{Axes, LayoutError};
use crate::parallel::mesh::MeshError;
use crate::report::ReportError;

/// An error of the trainer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A configuration that cannot be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Data that cannot be read, or is none for this model.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint that cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An output that cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Sizes of a model that do not fit together.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A kernel refused its arguments: a token outside the vocabulary, among others.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A device's memory or threads.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A peer, a deadline or an abort.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A reduction that no layout asks for.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Heads that context-parallel ranks cannot share.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Ranks that cannot be a mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A plan that would give wrong numbers.
    #[error(transparent)]
    Plan(#[from] Box<PlanError>),
    /// A tensor was to be communicated over axes that have no group of their own.
    #[error("no group of ranks is along {axes} together: no layout of this trainer needs one")]
    NoGroup {
        /// The axes.
        axes: Axes,
    },
    /// A message between stages that no schedule of this run sends.
    #[error("stage {from} sends nothing to stage {to} in this schedule")]
    NoLink {
        /// The sender's stage.
        from: usize,
        /// The receiver's.
        to: usize,
    },
    /// A schedule that asks for what is not there yet.
    #[error("{operation}: what it needs is not there, or there is no memory left for it; the schedule is out of order")]
    OutOfOrder {
        /// The operation.
        operation: warpweft_schedule::Operation,
    },
    /// A pipeline that cannot be scheduled so.
    #[error(transparent)]
    Schedule(#[from] Box<warpweft_schedule::ScheduleError>),
    /// Weights used on a rank of another stage.
    #[error("unit {unit} of the parameters lies on another stage of the pipeline")]
    NotHere {
        /// The unit's number.
        unit: usize,
    },
    /// Sums that are not the same bits at every layout were asked to be.
    #[error(
        "--exact holds over dp, pp and ZeRO; with {axis} {ranks}, sums over {axis} depend on its size: set {axis} 1, or leave --exact out"
    )]
    NotExact {
        /// The axis.
        axis: &'static str,
        /// Its ranks.
        ranks: usize,
    },
    /// A tensor of which the ranks hold some elements never, or several times as theirs.
    #[error("the ranks' parts of {parameter} are not the whole of it, each element once")]
    NotWhole {
        /// Its name.
        parameter: String,
    },
    /// Weights used before they were gathered from the ranks that share them out.
    #[error("unit {unit} of the parameters is not gathered, or is on its way")]
    NotGathered {
        /// The unit's number.
        unit: usize,
    },
    /// A backward pass over a block whose activations are neither kept nor can be computed again.
    #[error("a block has no memory for its activations: no pass went forward, or more wait than the schedule holds")]
    NoRoom,
    /// As many values as a unit does not have.
    #[error("{given} values for unit {unit} of the parameters, which has {elements} elements on this rank")]
    Values {
        /// The unit's number.
        unit: usize,
        /// Values given.
        given: usize,
        /// Elements that the rank holds.
        elements: usize,
    },
    /// A gradient bucket used while it was not this rank's to use.
    #[error("gradient bucket {bucket} is being summed, is not summed yet, or was lost in a failed reduction")]
    Bucket {
        /// The bucket's number.
        bucket: usize,
    },
    /// A loss was scaled by a count of targets that the ranks did not find.
    #[error("the batch was said to have {told} targets that count; the ranks found {found}")]
    Valid {
        /// What the loss was scaled by.
        told: u64,
        /// What the ranks counted.
        found: u64,
    },
    /// Tokens and targets that do not belong together.
    #[error("{inputs} tokens and {targets} targets are not sequences of {tokens} with a target each")]
    Sequences {
        /// Tokens given.
        inputs: usize,
        /// Targets given.
        targets: usize,
        /// Tokens of a sequence.
        tokens: usize,
    },
    /// Documents that are not those of the sequences.
    #[error("documents of {documents} sequences are given for {sequences}, or do not fill their {tokens} tokens")]
    Documents {
        /// Sequences whose documents are given.
        documents: usize,
        /// Sequences given.
        sequences: usize,
        /// Tokens of a sequence.
        tokens: usize,
    },
    /// The training has run away, and no update could bring it back.
    #[error(
        "step {step}: the loss is {loss} and the norm of its gradient {grad_norm}; lower --lr, or lengthen --warmup"
    )]
    NotFinite {
        /// The step, whose update was not done.
        step: u64,
        /// Its loss.
        loss: f64,
        /// The norm of its gradient.
        grad_norm: f64,
    },
    /// The run resumed from another data set than it was trained on.
    #[error("the checkpoint was trained on {then} tokens of data, and {now} are there now; give the data it had")]
    OtherData {
        /// Tokens that the checkpoint knows of.
        then: u64,
        /// Tokens found.
        now: u64,
    },
}

impl TrainError {
    /// The exit status that a command gives for it: 2 for what was given (settings, sizes, data, files, places to write to), 1
    /// for what happened.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Data(_) | Self::Checkpoint(_) | Self::Report(_) | Self::Shape(_) => 2,
            Self::NotExact { .. } => 2,
            Self::Mesh(_) | Self::Schedule(_) | Self::Context(_) => 2,
            Self::OtherData { .. } | Self::Comm(CommError::Config { .. }) => 2,
            Self::Kernel(KernelError::OutOfVocabulary { .. }) => 2,
            Self::Device(
                DeviceError::BadThreads { .. } | DeviceError::OutOfMemory { .. } | DeviceError::NoSuchDevice { .. },
            ) => 2,
            _ => 1,
        }
    }
}
