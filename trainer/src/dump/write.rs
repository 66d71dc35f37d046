//! Writing a dump: all ranks their parts, then rank 0 the manifest and the folder's name.

use std::fs;
use std::path::{Path, PathBuf};

use warpweft_comm::Communicator;

use super::{FOLDER, MANIFEST, Manifest};
use crate::TrainError;
use crate::checkpoint::{CheckpointError, Piece, exchange, io_error, step_name, step_of, write_unsealed};

/// The file of a rank.
fn file(rank: usize, world: usize) -> String {
    format!("tensors-{rank:05}-of-{world:05}.safetensors")
}

/// Removes the dumps of an earlier run in this folder: all, or for a run that goes on those after its step.
///
/// # Errors
/// What cannot be removed.
pub(crate) fn clear(run: &Path, resumed: Option<u64>) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(run.join(FOLDER)).into_iter().flatten().flatten() {
        let step = entry.file_name().to_str().and_then(step_of);
        if step.is_none_or(|step| resumed.is_none_or(|resumed| step > resumed)) {
            fs::remove_dir_all(entry.path()).map_err(|e| io_error(&entry.path(), "remove", e))?;
        }
    }
    Ok(())
}

/// Writes a step down, of which this rank has `pieces`. All ranks call it with the same manifest, but for its files.
///
/// # Errors
/// What went wrong on any rank, the same on all.
pub(crate) fn write(
    run: &Path,
    ranks: &Communicator,
    mut manifest: Manifest,
    pieces: &[Piece],
) -> Result<PathBuf, TrainError> {
    let (rank, world) = (ranks.rank(), ranks.world());
    let (dumps, name) = (run.join(FOLDER), step_name(manifest.step));
    let (partial, whole) = (dumps.join(format!(".{name}.partial")), dumps.join(name));
    manifest.files = (0..world).map(|rank| file(rank, world)).collect();
    let begun = if rank == 0 { begin(&partial) } else { Ok(()) };
    agree(ranks, begun)?;
    agree(ranks, write_unsealed(partial.join(file(rank, world)), pieces))?;
    let ended = if rank == 0 { end(&partial, &whole, &manifest) } else { Ok(()) };
    agree(ranks, ended)?;
    Ok(whole)
}

fn begin(partial: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(partial) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error(partial, "remove", e)),
        _ => fs::create_dir_all(partial).map_err(|e| io_error(partial, "create", e)),
    }
}

fn end(partial: &Path, whole: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    // Numbers and text always serialise.
    let text = serde_json::to_string_pretty(manifest).unwrap_or_default() + "\n";
    let path = partial.join(MANIFEST);
    fs::write(&path, text).map_err(|e| io_error(&path, "write", e))?;
    match fs::remove_dir_all(whole) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io_error(whole, "remove", e)),
        _ => {}
    }
    fs::rename(partial, whole).map_err(|e| io_error(whole, "rename the finished dump to", e))
}

/// Tells all ranks how it went here; the first error is that of all.
fn agree(ranks: &Communicator, mine: Result<(), CheckpointError>) -> Result<(), TrainError> {
    if ranks.world() == 1 {
        return Ok(mine?);
    }
    let told = exchange(ranks, &mine.err().map(|error| error.to_string()), Some)?;
    match told.into_iter().enumerate().find_map(|(rank, what)| Some((rank, what?))) {
        Some((rank, what)) => Err(CheckpointError::OnRank { rank, what }.into()),
        None => Ok(()),
    }
}
