//! Reading a checkpoint: every byte is checked against its seal before any of it is believed.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use warpweft_device::Element;

use super::error::CheckpointError;
use super::manifest::{self, Manifest, io_error};
use super::{MANIFEST_FILE, OPTIMIZER_FILE, WEIGHTS_FILE, folder, write};

/// A checkpoint in memory.
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// Tokens of the data it was trained on.
    pub data_tokens: u64,
    /// The configuration, as TOML.
    pub config: String,
    /// The weights.
    pub weights: Tensors,
    /// The optimizer's state.
    pub optimizer: Tensors,
}

impl Checkpoint {
    /// Loads what [`locate`](super::locate) finds in `folder`.
    ///
    /// # Errors
    /// A file that is missing, cut off, or not byte for byte what was written: named with the byte and the field.
    pub fn load(folder: &Path) -> Result<Self, CheckpointError> {
        let folder = folder::locate(folder)?;
        let manifest = manifest::read(&folder)?;
        let config = folder::read_config(&folder)?;
        let weights = Tensors::load(&folder, WEIGHTS_FILE, &manifest)?;
        let optimizer = Tensors::load(&folder, OPTIMIZER_FILE, &manifest)?;
        let Manifest { step, seed, data_tokens, .. } = manifest;
        Ok(Self { step, seed, data_tokens, config, weights, optimizer })
    }
}

struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The tensors of one safetensors file, by name.
pub struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: BTreeMap<String, Entry>,
}

impl Tensors {
    fn load(folder: &Path, file: &str, manifest: &Manifest) -> Result<Self, CheckpointError> {
        let path = folder.join(file);
        let bytes = fs::read(&path).map_err(|e| io_error(&path, "read", e))?;
        if let Some(seal) = manifest.files.get(file) {
            manifest::verify(seal, &bytes, &path, &folder.join(MANIFEST_FILE), &field_at)?;
        }
        Self::parse(path, bytes)
    }

    /// Reads a safetensors file that stands alone, with no seal: weights from elsewhere.
    ///
    /// # Errors
    /// What cannot be read, or is not of safetensors' form.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bytes = fs::read(path).map_err(|e| io_error(path, "read", e))?;
        Self::parse(path.into(), bytes)
    }

    fn parse(path: PathBuf, bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        let (header, metadata) = match SafeTensors::read_metadata(&bytes) {
            Ok(read) => read,
            Err(e) => {
                let what = e.to_string();
                return Err(CheckpointError::Form { path, at: 0, field: "header".into(), what });
            }
        };
        let data = 8 + header;
        let entries = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let (start, end) = info.data_offsets;
                (name, Entry { dtype: info.dtype, shape: info.shape.clone(), bytes: data + start..data + end })
            })
            .collect();
        Ok(Self { path, bytes, entries })
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Copies a tensor into `into`, whose type and shape it must have; the shape's product is `into`'s length.
    ///
    /// # Errors
    /// A missing tensor, another shape, another type: named, with both.
    pub fn read<T: Element>(&self, name: &str, shape: &[usize], into: &mut [T]) -> Result<(), CheckpointError> {
        let (path, tensor) = (self.path.clone(), name.to_string());
        let Some(entry) = self.entries.get(name) else {
            return Err(CheckpointError::Missing { path, tensor });
        };
        if write::dtype(T::DTYPE) != entry.dtype {
            let has = format!("{:?}", entry.dtype).to_lowercase();
            return Err(CheckpointError::Type { path, tensor, has, wants: T::DTYPE });
        }
        let into = bytemuck::cast_slice_mut::<T, u8>(into);
        if entry.shape != shape || entry.bytes.len() != into.len() {
            let (has, wants) = (entry.shape.clone(), shape.to_vec());
            return Err(CheckpointError::Shape { path, tensor, has, wants });
        }
        into.copy_from_slice(&self.bytes[entry.bytes.clone()]);
        Ok(())
    }

    /// Checks that there is no tensor beyond those of `names`.
    ///
    /// # Errors
    /// The first one that is.
    pub fn expect_only<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), CheckpointError> {
        let known: std::collections::BTreeSet<&str> = names.into_iter().collect();
        match self.entries.keys().find(|name| !known.contains(name.as_str())) {
            Some(tensor) => Err(CheckpointError::Unexpected { path: self.path.clone(), tensor: tensor.clone() }),
            None => Ok(()),
        }
    }
}

/// What a byte of a safetensors file belongs to, as far as its header can still be read.
fn field_at(bytes: &[u8], at: u64) -> String {
    let Some(length) = bytes.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return "length of the header".into();
    };
    if at < 8 {
        return "length of the header".into();
    }
    if at < length.saturating_add(8) {
        return "header".into();
    }
    let header = usize::try_from(length).ok().and_then(|length| bytes.get(8..length.checked_add(8)?));
    let index: Option<BTreeMap<String, serde_json::Value>> = header.and_then(|text| serde_json::from_slice(text).ok());
    let within = at - 8 - length;
    let found = index.into_iter().flatten().find_map(|(name, info)| {
        let offset = |i: usize| info.get("data_offsets")?.get(i)?.as_u64();
        (offset(0)? <= within && within < offset(1)?).then_some(name)
    });
    found.map_or("after the last tensor".into(), |name| format!("tensor `{name}`"))
}
