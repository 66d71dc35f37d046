//! Checkpoints: written in the background by all ranks, complete or not there at all, and checked byte by byte when read, by
//! ranks of any other layout.
//!
//! A run's folder holds
//! ```text
//! checkpoints/latest                       the newest one: its name and the SHA-256 of its manifest
//! checkpoints/step-000200/weights.safetensors
//!                                          all weights as whole tensors with Hugging Face's names
//!                        /optimizer-00001-of-00004.safetensors
//!                                          the optimizer's state as rank 1 of 4 has it; the key `warpweft.pieces` of its
//!                                          metadata says which elements of which tensor those are
//!                        /config.toml      the configuration; --resume starts from it
//!                        /manifest.json    step, seed, and a seal (length, SHA-256, block CRCs) of each file above
//!                        /manifest.check   the manifest's own seal
//! ```
//! Of ranks that hold the same elements, the first writes them, under a temporary folder name. When all ranks have told that
//! theirs are on the disk, rank 0 puts the weights together, tensor by tensor, seals and renames the folder, and only then
//! lets `latest` name it, which is itself replaced by a rename: whatever happens in between, `latest` names a complete
//! checkpoint. (One exception: a step that is written again, by a run that was resumed from an earlier one, replaces its
//! folder in two renames.) The ranks need one folder that all of them see.

mod error;
mod folder;
mod foreign;
mod held;
mod load;
mod manifest;
mod piece;
mod saver;
mod seal;
mod tensors;
mod whole;
mod write;

pub use error::CheckpointError;
pub use folder::{locate, read_config, run_folder};
pub use foreign::Foreign;
pub use held::Held;
pub use load::Checkpoint;
pub use piece::{Piece, Pieces};
pub use saver::Saver;
pub use tensors::Tensors;
pub use whole::{Rows, Whole};

// What dumps share with checkpoints.
pub(crate) use folder::{step_folder, step_name, step_of, steps_of};
pub(crate) use manifest::io_error;
pub(crate) use saver::exchange;
pub(crate) use whole::of_shards;
pub(crate) use write::write_unsealed;

/// The stored configuration.
pub const CONFIG_FILE: &str = "config.toml";
/// The weights.
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// What the others hold.
pub const MANIFEST_FILE: &str = "manifest.json";
const CHECK_FILE: &str = "manifest.check";
const MARKER_FILE: &str = "latest";
const FOLDER: &str = "checkpoints";

/// The file of the optimizer's state that a rank writes.
pub fn optimizer_file(rank: usize, world: usize) -> String {
    format!("optimizer-{rank:05}-of-{world:05}.safetensors")
}

/// What one rank has of all that a run needs to go on, as it was after `step` steps; owned, so that training need not wait for
/// the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Steps done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// Tokens of the data, so that a resumed run notices other data.
    pub data_tokens: u64,
    /// The configuration, by [`Config::to_toml`](crate::config::Config::to_toml).
    pub config: String,
    /// The tensors of the weights' file, the same on all ranks.
    pub wholes: Vec<Whole>,
    /// The weights that this rank writes, by parameter.
    pub weights: Vec<Piece>,
    /// The optimizer's state that it writes: moments, master weights, by kind and parameter.
    pub optimizer: Vec<Piece>,
}

impl Snapshot {
    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().chain(&self.optimizer).map(|piece| piece.bytes.len() as u64).sum()
    }
}
