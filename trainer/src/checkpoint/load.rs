//! Reading a checkpoint: each rank opens all of its files and reads what it needs of them, and no byte is believed before it
//! is checked against its seal.

use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::manifest::{self, Manifest};
use super::piece::Pieces;
use super::tensors::Tensors;
use super::whole::{self, Whole};
use super::{MANIFEST_FILE, WEIGHTS_FILE, folder};

/// A checkpoint, open to be read.
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// Tokens of the data it was trained on.
    pub data_tokens: u64,
    /// The configuration, as TOML.
    pub config: String,
    folder: PathBuf,
    weights: Tensors,
    shards: Vec<Tensors>,
}

impl Checkpoint {
    /// Opens what [`locate`](super::locate) finds in `folder`.
    ///
    /// # Errors
    /// A file that is missing, cut off, or whose header is not byte for byte what was written: named with the byte and the
    /// field.
    pub fn load(folder: &Path) -> Result<Self, CheckpointError> {
        let folder = folder::locate(folder)?;
        let manifest = manifest::read(&folder)?;
        let config = folder::read_config(&folder)?;
        let sealed_in = folder.join(MANIFEST_FILE);
        let open = |name: &str| {
            let seal = manifest.files.get(name).ok_or_else(|| manifest::lacks(&sealed_in, name))?;
            Tensors::sealed(&folder.join(name), seal, sealed_in.clone())
        };
        let weights = open(WEIGHTS_FILE)?;
        let shards = manifest.shards().map(open).collect::<Result<_, _>>()?;
        let Manifest { step, seed, data_tokens, .. } = manifest;
        Ok(Self { step, seed, data_tokens, config, folder, weights, shards })
    }

    /// The parameters in the weights' file, which has these tensors.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, or none of these.
    pub fn weights(&self, wholes: &[Whole]) -> Result<Pieces<'_>, CheckpointError> {
        whole::in_checkpoint(wholes, &self.weights)
    }

    /// The optimizer's state, by kind and parameter.
    ///
    /// # Errors
    /// A shard whose index contradicts itself.
    pub fn optimizer(&self) -> Result<Pieces<'_>, CheckpointError> {
        whole::of_shards(&self.folder, &self.shards)
    }

    /// Checks every byte of every file, also of what this rank does not need.
    ///
    /// # Errors
    /// The first file that is not byte for byte what was written.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.shards.iter().chain([&self.weights]).try_for_each(Tensors::verify)
    }
}
