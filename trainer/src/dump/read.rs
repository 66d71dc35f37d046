//! Reading a dump: whole tensors, from the parts of all ranks.

use std::fs;
use std::path::{Path, PathBuf};

use super::{FOLDER, FORMAT, Kind, MANIFEST, Manifest, Tensor};
use crate::checkpoint::{CheckpointError, Held, Pieces, Tensors, io_error, of_shards, step_name, step_of};

/// The steps of which a run has dumps, ascending.
pub fn steps(run: &Path) -> Vec<u64> {
    let entries = fs::read_dir(run.join(FOLDER)).into_iter().flatten().flatten();
    let mut steps: Vec<u64> = entries.filter_map(|entry| step_of(entry.file_name().to_str()?)).collect();
    steps.sort_unstable();
    steps
}

/// A dump, open to be read.
pub struct Dump {
    /// What it is of.
    pub manifest: Manifest,
    folder: PathBuf,
    files: Vec<Tensors>,
}

impl Dump {
    /// Opens the dump of a step of a run.
    ///
    /// # Errors
    /// A file that is missing or not of its form.
    pub fn open(run: &Path, step: u64) -> Result<Self, CheckpointError> {
        let folder = run.join(FOLDER).join(step_name(step));
        let path = folder.join(MANIFEST);
        let text = fs::read(&path).map_err(|e| io_error(&path, "read", e))?;
        let form = |what: String| CheckpointError::Form { path: path.clone(), at: 0, field: "manifest".into(), what };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| form(e.to_string()))?;
        if manifest.format != FORMAT {
            let what = format!("version {} was written by another program; this one reads {FORMAT}", manifest.format);
            return Err(form(what));
        }
        if let Some(name) = manifest.files.iter().find(|name| name.contains(['/', '\\']) || name.starts_with("..")) {
            return Err(form(format!("`{}` is no name of a file in this folder", name.escape_debug())));
        }
        let files = manifest.files.iter().map(|name| Tensors::open(&folder.join(name))).collect::<Result<_, _>>()?;
        Ok(Self { manifest, folder, files })
    }

    /// Its tensors.
    ///
    /// # Errors
    /// A file whose index contradicts itself.
    pub fn pieces(&self) -> Result<Pieces<'_>, CheckpointError> {
        of_shards(&self.folder, &self.files)
    }
}

/// All elements of a tensor, whose numbers f64 holds exactly.
///
/// # Errors
/// Elements that no file has.
pub fn values(pieces: &Pieces<'_>, tensor: &Tensor) -> Result<Vec<f64>, CheckpointError> {
    let held = Held::whole(&tensor.shape);
    if tensor.kind == Kind::Input {
        let mut values = vec![0u32; held.len()];
        pieces.read(&tensor.name, &held, &mut values)?;
        return Ok(values.into_iter().map(f64::from).collect());
    }
    let mut values = vec![0.0f32; held.len()];
    pieces.read_f32(&tensor.name, &held, &mut values)?;
    Ok(values.into_iter().map(f64::from).collect())
}
