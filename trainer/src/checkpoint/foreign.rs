//! Weights from elsewhere: safetensors files with Hugging Face's names, and what its `config.json` says beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::CheckpointError;
use super::manifest::io_error;
use super::piece::Pieces;
use super::tensors::Tensors;
use super::whole::{self, Whole};
use super::{WEIGHTS_FILE, folder};

/// One model in one file.
const MODEL_FILE: &str = "model.safetensors";
/// Which of several files has which tensor.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// What no tensor says: heads, the base of rotary positions.
const CONFIG_FILE: &str = "config.json";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Weights from elsewhere, open to be read.
pub struct Foreign {
    path: PathBuf,
    files: Vec<Tensors>,
    config: Option<(PathBuf, serde_json::Value)>,
}

impl Foreign {
    /// Opens a safetensors file, or a folder with one or several as Hugging Face's models have them, or the weights of a
    /// checkpoint or of a run's latest.
    ///
    /// # Errors
    /// What cannot be read, or is not of safetensors' form; a folder without any of these.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (files, beside) = match path.is_dir() {
            true => (in_folder(path)?, path),
            false => (vec![path.to_path_buf()], path.parent().unwrap_or(path)),
        };
        let files = files.iter().map(|file| Tensors::open(file)).collect::<Result<_, _>>()?;
        let config = beside.join(CONFIG_FILE);
        let config = match fs::read(&config) {
            Ok(text) => Some((config.clone(), parse(&config, &text)?)),
            Err(_) => None,
        };
        Ok(Self { path: path.into(), files, config })
    }

    /// The names of its tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flat_map(Tensors::names)
    }

    /// The parameters in it, and what a user should know of how they were found: rows past the vocabulary or the longest
    /// sequence left out, an output projection that is the embedding once more.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, or none of these.
    pub fn weights(&self, wholes: &[Whole]) -> Result<(Pieces<'_>, Vec<String>), CheckpointError> {
        whole::from_elsewhere(wholes, &self.path, &self.files)
    }

    /// Checks what the configuration beside the weights says, where there is one and it says anything of it: of each setting
    /// the names that it has there, and the model's number.
    ///
    /// # Errors
    /// The first that is another.
    pub fn expect(&self, settings: &[(&[&str], f64)]) -> Result<(), CheckpointError> {
        let Some((path, config)) = &self.config else { return Ok(()) };
        for (names, wants) in settings {
            let found = names.iter().find_map(|name| Some((*name, config.get(name)?.as_f64()?)));
            if let Some((name, has)) = found.filter(|(_, has)| (has - wants).abs() > 1e-6 * wants.abs()) {
                let (path, setting, wants) = (path.clone(), name.to_owned(), *wants);
                return Err(CheckpointError::Setting { path, setting, has, wants });
            }
        }
        Ok(())
    }
}

/// The files of a model in a folder.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    for name in [MODEL_FILE, WEIGHTS_FILE] {
        if folder.join(name).is_file() {
            return Ok(vec![folder.join(name)]);
        }
    }
    let index = folder.join(INDEX_FILE);
    match fs::read(&index) {
        Ok(text) => {
            let Index { weight_map } = parse(&index, &text)?;
            let names: BTreeSet<String> = weight_map.into_values().collect();
            if let Some(name) = names.iter().find(|name| name.contains(['/', '\\']) || name.starts_with("..")) {
                let what = format!("`{}` is no name of a file in this folder", name.escape_debug());
                return Err(CheckpointError::Form { path: index, at: 0, field: "weight_map".into(), what });
            }
            Ok(names.iter().map(|name| folder.join(name)).collect())
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error(&index, "read", e)),
        Err(_) => match folder::locate(folder) {
            Ok(checkpoint) => Ok(vec![checkpoint.join(WEIGHTS_FILE)]),
            Err(CheckpointError::None { .. }) => Err(CheckpointError::NoWeights { folder: folder.into() }),
            Err(error) => Err(error),
        },
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, CheckpointError> {
    let form = |e: serde_json::Error| CheckpointError::Form {
        path: path.into(),
        at: 0,
        field: format!("line {}", e.line()),
        what: e.to_string(),
    };
    serde_json::from_slice(text).map_err(form)
}
