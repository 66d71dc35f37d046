//! Checkpoints: written in the background, complete or not there at all, and checked byte by byte when read.
//!
//! A run's folder holds
//! ```text
//! checkpoints/latest                       the newest one: its name and the SHA-256 of its manifest
//! checkpoints/step-000200/weights.safetensors
//!                        /optimizer.safetensors
//!                        /config.toml      the configuration; --resume starts from it
//!                        /manifest.json    step, seed, and a seal (length, SHA-256, block CRCs) of each file above
//!                        /manifest.check   the manifest's own seal
//! ```
//! A checkpoint is written under a temporary name, flushed to the disk, renamed, and only then named by `latest`, which
//! is itself replaced by a rename: whatever happens in between, `latest` names a complete checkpoint. (One exception: a
//! step that is written again, by a run that was resumed from an earlier one, replaces its folder in two renames.)

mod error;
mod folder;
mod load;
mod manifest;
mod saver;
mod seal;
mod write;

use warpweft_device::{DType, Element};

pub use error::CheckpointError;
pub use folder::{locate, read_config, run_folder};
pub use load::{Checkpoint, Tensors};
pub use saver::Saver;

/// The stored configuration.
pub const CONFIG_FILE: &str = "config.toml";
/// The weights.
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// The optimizer's state.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// What the others hold.
pub const MANIFEST_FILE: &str = "manifest.json";
const CHECK_FILE: &str = "manifest.check";
const MARKER_FILE: &str = "latest";
const FOLDER: &str = "checkpoints";

/// One tensor, copied out of the running model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Its element type: `F32`, `BF16`, `F16`, `F64` or an integer.
    pub dtype: DType,
    /// Its shape; its product times the element's size is the length of `bytes`.
    pub shape: Vec<usize>,
    /// Its elements in the machine's (little-endian) order.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A copy of `elements`.
    pub fn new<T: Element>(name: impl Into<String>, shape: &[usize], elements: &[T]) -> Self {
        let bytes = bytemuck::cast_slice(elements).to_vec();
        Self { name: name.into(), dtype: T::DTYPE, shape: shape.to_vec(), bytes }
    }
}

/// All that a run needs to go on, as it was after `step` steps; owned, so that training need not wait for the disk.
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
    /// The weights.
    pub weights: Vec<Tensor>,
    /// The optimizer's state: moments, master weights.
    pub optimizer: Vec<Tensor>,
}
