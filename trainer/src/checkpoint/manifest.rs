//! The manifest: what a checkpoint is of, and the seals of its files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::seal::{Difference, Seal};
use super::{CHECK_FILE, CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE};

/// The format's version. The one before it had all of the optimizer's state in one file, which is a shard like another.
pub(super) const FORMAT: u32 = 2;
const BEFORE: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) seed: u64,
    pub(super) data_tokens: u64,
    pub(super) files: BTreeMap<String, Seal>,
}

/// The files that every manifest seals.
const SEALED: [&str; 2] = [CONFIG_FILE, WEIGHTS_FILE];

impl Manifest {
    /// The files with the optimizer's state.
    pub(super) fn shards(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str).filter(|name| !SEALED.contains(name))
    }
}

/// The error for a manifest without this file.
pub(super) fn lacks(path: &Path, file: &str) -> CheckpointError {
    let at = std::fs::read(path).map_or(0, |text| find(&text, "files")) as u64;
    CheckpointError::Form { path: path.into(), at, field: "files".into(), what: format!("{file} is missing") }
}

pub(crate) fn io_error(path: &Path, operation: &'static str, source: std::io::Error) -> CheckpointError {
    CheckpointError::Io { path: path.into(), operation, source }
}

/// Reads and checks the manifest of a checkpoint's folder.
pub(super) fn read(folder: &Path) -> Result<Manifest, CheckpointError> {
    let (path, check_path) = (folder.join(MANIFEST_FILE), folder.join(CHECK_FILE));
    let bytes = std::fs::read(&path).map_err(|e| io_error(&path, "read", e))?;
    let check = std::fs::read(&check_path).map_err(|e| io_error(&check_path, "read", e))?;
    let seal: Seal = parse(&check, &check_path)?;
    let canonical = seal_text(&seal);
    if let Some(at) = first_difference(&check, canonical.as_bytes()) {
        let what = "this is not as it was written".into();
        return Err(CheckpointError::Form { path: check_path, at: at as u64, field: "the seal's text".into(), what });
    }
    verify(&seal, &bytes, &path, &check_path, &line_at)?;
    let manifest: Manifest = parse(&bytes, &path)?;
    let form = |field: &str, what: String| {
        let at = find(&bytes, field) as u64;
        Err(CheckpointError::Form { path: path.clone(), at, field: field.into(), what })
    };
    if ![BEFORE, FORMAT].contains(&manifest.format) {
        let what = format!("version {} was written by another program; this one reads {FORMAT}", manifest.format);
        return form("format", format!("{what} and {BEFORE}"));
    }
    if let Some(file) = SEALED.iter().find(|file| !manifest.files.contains_key(**file)) {
        return Err(lacks(&path, file));
    }
    if let Some(name) = manifest.files.keys().find(|name| name.contains(['/', '\\']) || name.starts_with("..")) {
        return form("files", format!("`{}` is no name of a file in this folder", name.escape_debug()));
    }
    Ok(manifest)
}

/// The text of a seal's file.
pub(super) fn seal_text(seal: &Seal) -> String {
    // A seal is numbers and text, which always serialise.
    serde_json::to_string(seal).unwrap_or_default() + "\n"
}

/// Checks `bytes`, the content of `path`, against its seal, which stands in `sealed_in`; `field_of` says what a byte
/// belongs to.
pub(super) fn verify(
    seal: &Seal,
    bytes: &[u8],
    path: &Path,
    sealed_in: &Path,
    field_of: &dyn Fn(&[u8], u64) -> String,
) -> Result<(), CheckpointError> {
    seal.check(bytes).map_err(|difference| match difference {
        Difference::Length { at } => {
            CheckpointError::Length { path: path.into(), at, wants: seal.bytes, field: field_of(bytes, at) }
        }
        Difference::Bytes { first, last } => {
            CheckpointError::Damaged { path: path.into(), first, last, field: field_of(bytes, first) }
        }
        Difference::Seal { field } => {
            let text = std::fs::read(sealed_in).unwrap_or_default();
            let at = find(&text, field) as u64;
            let what = format!("it contradicts the rest of the seal of {}, which is whole", path.display());
            CheckpointError::Form { path: sealed_in.into(), at, field: field.into(), what }
        }
    })
}

/// The line of a text file that a byte is in.
pub(super) fn line_at(bytes: &[u8], at: u64) -> String {
    let before = &bytes[..(at as usize).min(bytes.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let text = bytes.split(|byte| *byte == b'\n').nth(line - 1).unwrap_or_default();
    let text: String = String::from_utf8_lossy(text).trim().chars().take(60).collect();
    format!("line {line}, `{text}`")
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<T, CheckpointError> {
    serde_json::from_slice(bytes).map_err(|e| {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let line_start: usize = lines.take(e.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = (line_start + e.column().saturating_sub(1)).min(bytes.len()) as u64;
        CheckpointError::Form { path: path.into(), at, field: line_at(bytes, at), what: e.to_string() }
    })
}

/// Where a field's name stands in a JSON text; 0 where it does not.
fn find(text: &[u8], field: &str) -> usize {
    let quoted = format!("\"{field}\"");
    text.windows(quoted.len()).position(|window| window == quoted.as_bytes()).unwrap_or(0)
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let shared = a.iter().zip(b).position(|(a, b)| a != b);
    shared.or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}
