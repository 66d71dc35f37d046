//! Names and places: from a folder that the user gives to the checkpoint meant.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::manifest::{self, io_error, line_at};
use super::seal::hex;
use super::{CONFIG_FILE, FOLDER, MANIFEST_FILE, MARKER_FILE};
use sha2::{Digest, Sha256};

/// The folder's name of a step.
pub(crate) fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The step of such a name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The checkpoints that are there, by step.
pub(super) fn list(checkpoints: &Path) -> Vec<String> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|name| step_of(name).is_some());
    names.sort_by_key(|name| step_of(name));
    names
}

/// The steps of which a run has checkpoints, ascending.
pub(crate) fn steps_of(run: &Path) -> Vec<u64> {
    list(&run.join(FOLDER)).iter().filter_map(|name| step_of(name)).collect()
}

/// The folder of a run's checkpoint.
pub(crate) fn step_folder(run: &Path, step: u64) -> PathBuf {
    run.join(FOLDER).join(step_name(step))
}

/// The text of the marker for a checkpoint with this manifest.
pub(super) fn marker_text(name: &str, manifest: &[u8]) -> String {
    format!("{name} {}\n", hex(&Sha256::digest(manifest)))
}

/// The checkpoint meant by `folder`: a run's folder, its `checkpoints`, or one checkpoint.
///
/// # Errors
/// No checkpoint there, or a marker that is damaged or names one that is not there.
pub fn locate(folder: &Path) -> Result<PathBuf, CheckpointError> {
    fs::metadata(folder).map_err(|e| io_error(folder, "open", e))?;
    if folder.join(MANIFEST_FILE).exists() {
        return std::path::absolute(folder).map_err(|e| io_error(folder, "find", e));
    }
    for checkpoints in [folder.join(FOLDER), folder.to_path_buf()] {
        let marker = checkpoints.join(MARKER_FILE);
        match fs::read(&marker) {
            Ok(text) => {
                let found = follow(&checkpoints, &marker, &text)?;
                return std::path::absolute(&found).map_err(|e| io_error(&found, "find", e));
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {}
            Err(e) => return Err(io_error(&marker, "read", e)),
        }
    }
    Err(CheckpointError::None { folder: folder.into() })
}

/// Follows the marker, whose text is `NAME SHA256\n`.
fn follow(checkpoints: &Path, marker: &Path, text: &[u8]) -> Result<PathBuf, CheckpointError> {
    let form = |at: usize, field: &str, what: String| {
        Err(CheckpointError::Form { path: marker.into(), at: at as u64, field: field.into(), what })
    };
    let Some(line) = std::str::from_utf8(text).ok().and_then(|text| text.strip_suffix('\n')) else {
        return form(text.len(), "end of the line", "the marker is cut off or no text".into());
    };
    let (name, sha256) = line.split_once(' ').unwrap_or((line, ""));
    if step_of(name).is_none() {
        return form(0, "name", format!("`{}` is no name of a checkpoint", name.escape_debug()));
    }
    if !checkpoints.join(name).exists() {
        let there = list(checkpoints);
        return Err(CheckpointError::Dangling { marker: marker.into(), named: name.into(), there });
    }
    let path = checkpoints.join(name).join(MANIFEST_FILE);
    let manifest = fs::read(&path).map_err(|e| io_error(&path, "read", e))?;
    let wants = marker_text(name, &manifest);
    if wants.as_bytes() == text {
        return Ok(checkpoints.join(name));
    }
    // One of the two is damaged: the manifest, which its own seal then shows, or the marker.
    manifest::read(&checkpoints.join(name))?;
    let at = text.iter().zip(wants.as_bytes()).position(|(a, b)| a != b).unwrap_or(text.len().min(wants.len()));
    form(at, "sha256", format!("`{}` is not the hash of {}", sha256.escape_debug(), path.display()))
}

/// The folder of the run that a checkpoint's folder belongs to.
pub fn run_folder(checkpoint: &Path) -> PathBuf {
    let parent = checkpoint.parent().unwrap_or(checkpoint);
    match parent.file_name().is_some_and(|name| name == FOLDER) {
        true => parent.parent().unwrap_or(parent).into(),
        false => parent.into(),
    }
}

/// The stored configuration of a checkpoint, checked.
///
/// # Errors
/// What cannot be read or is not as it was written.
pub fn read_config(checkpoint: &Path) -> Result<String, CheckpointError> {
    let manifest = manifest::read(checkpoint)?;
    let path = checkpoint.join(CONFIG_FILE);
    let bytes = fs::read(&path).map_err(|e| io_error(&path, "read", e))?;
    if let Some(seal) = manifest.files.get(CONFIG_FILE) {
        manifest::verify(seal, &bytes, &path, &checkpoint.join(MANIFEST_FILE), &line_at)?;
    }
    String::from_utf8(bytes).map_err(|e| CheckpointError::Form {
        path,
        at: e.utf8_error().valid_up_to() as u64,
        field: "text".into(),
        what: "it is not UTF-8".into(),
    })
}
