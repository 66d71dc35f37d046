//! Writing a checkpoint so that it is complete or not there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use warpweft_device::DType;

use super::error::CheckpointError;
use super::folder::{list, marker_text, step_name};
use super::manifest::{FORMAT, Manifest, io_error, seal_text};
use super::seal::{Seal, Sealer};
use super::{CHECK_FILE, CONFIG_FILE, MANIFEST_FILE, MARKER_FILE, OPTIMIZER_FILE, Snapshot, Tensor, WEIGHTS_FILE};

/// Checkpoints that stay: the newest and the one before it.
const KEEP: usize = 2;

/// safetensors' name of an element type.
pub(super) fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        _ => Dtype::F32,
    }
}

/// A file on its way to the disk; each error names it, and its seal is made as the bytes pass.
struct Output {
    path: PathBuf,
    file: io::BufWriter<File>,
    sealer: Sealer,
}

impl Output {
    fn create(path: PathBuf) -> Result<Self, CheckpointError> {
        let file = File::create(&path).map_err(|e| io_error(&path, "create", e))?;
        Ok(Self { path, file: io::BufWriter::with_capacity(1 << 20, file), sealer: Sealer::default() })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.sealer.update(bytes);
        self.file.write_all(bytes).map_err(|e| io_error(&self.path, "write", e))
    }

    /// Ends the file on the disk itself and returns its seal.
    fn end(mut self) -> Result<Seal, CheckpointError> {
        self.file.flush().map_err(|e| io_error(&self.path, "write", e))?;
        self.file.get_ref().sync_all().map_err(|e| io_error(&self.path, "flush to the disk", e))?;
        Ok(self.sealer.finish())
    }
}

fn write_file(path: PathBuf, bytes: &[u8]) -> Result<Seal, CheckpointError> {
    let mut output = Output::create(path)?;
    output.put(bytes)?;
    output.end()
}

/// Makes a folder's entries (names, not contents) last.
fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| io_error(folder, "flush to the disk", e))
}

/// Writes tensors as a safetensors file: the header's length, the header as JSON padded to 8 bytes, the elements.
fn write_tensors(path: PathBuf, tensors: &[Tensor]) -> Result<Seal, CheckpointError> {
    // The format wants the widest elements first, so that all are aligned; names break ties, so that bytes repeat.
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by(|a, b| b.dtype.bytes().cmp(&a.dtype.bytes()).then_with(|| a.name.cmp(&b.name)));
    let mut offset = 0;
    let infos = order.iter().map(|tensor| {
        let start = offset;
        offset += tensor.bytes.len();
        let info =
            TensorInfo { dtype: dtype(tensor.dtype), shape: tensor.shape.clone(), data_offsets: (start, offset) };
        (tensor.name.clone(), info)
    });
    let refused = |e: &dyn std::fmt::Display| CheckpointError::Snapshot {
        tensor: path.file_name().map_or(String::new(), |name| name.to_string_lossy().into()),
        what: e.to_string(),
    };
    let metadata = Metadata::new(None, infos.collect()).map_err(|e| refused(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| refused(&e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut output = Output::create(path)?;
    output.put(&(header.len() as u64).to_le_bytes())?;
    output.put(&header)?;
    for tensor in order {
        output.put(&tensor.bytes)?;
    }
    output.end()
}

fn check(snapshot: &Snapshot) -> Result<(), CheckpointError> {
    for tensors in [&snapshot.weights, &snapshot.optimizer] {
        let mut names = std::collections::BTreeSet::new();
        for tensor in tensors {
            let refuse = |what: String| Err(CheckpointError::Snapshot { tensor: tensor.name.clone(), what });
            let elements = tensor.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
            if elements.and_then(|n| n.checked_mul(tensor.dtype.bytes())) != Some(tensor.bytes.len()) {
                let (shape, dtype, bytes) = (&tensor.shape, tensor.dtype, tensor.bytes.len());
                return refuse(format!("{bytes} bytes are not those of {dtype} {shape:?}"));
            }
            if !names.insert(&tensor.name) {
                return refuse("it is there twice".into());
            }
        }
    }
    Ok(())
}

/// Writes the files of a checkpoint into `folder` and returns the manifest's text.
fn fill(folder: &Path, snapshot: &Snapshot) -> Result<String, CheckpointError> {
    let seals = [
        (WEIGHTS_FILE, write_tensors(folder.join(WEIGHTS_FILE), &snapshot.weights)?),
        (OPTIMIZER_FILE, write_tensors(folder.join(OPTIMIZER_FILE), &snapshot.optimizer)?),
        (CONFIG_FILE, write_file(folder.join(CONFIG_FILE), snapshot.config.as_bytes())?),
    ];
    let files = seals.map(|(name, seal)| (name.to_string(), seal)).into();
    let Snapshot { step, seed, data_tokens, .. } = *snapshot;
    let manifest = Manifest { format: FORMAT, step, seed, data_tokens, files };
    // Numbers and text always serialise.
    let text = serde_json::to_string_pretty(&manifest).unwrap_or_default() + "\n";
    let seal = write_file(folder.join(MANIFEST_FILE), text.as_bytes())?;
    write_file(folder.join(CHECK_FILE), seal_text(&seal).as_bytes())?;
    sync_folder(folder)?;
    Ok(text)
}

/// Writes one checkpoint into the folder `checkpoints`, names it in the marker, and removes all but it and the one
/// before it. Returns its folder.
pub(super) fn write(checkpoints: &Path, snapshot: &Snapshot) -> Result<PathBuf, CheckpointError> {
    check(snapshot)?;
    fs::create_dir_all(checkpoints).map_err(|e| io_error(checkpoints, "create", e))?;
    clear_leftovers(checkpoints)?;
    let name = step_name(snapshot.step);
    let (partial, whole) = (checkpoints.join(format!(".{name}.partial")), checkpoints.join(&name));
    let before = marked(checkpoints);
    fs::create_dir(&partial).map_err(|e| io_error(&partial, "create", e))?;
    let manifest = match fill(&partial, snapshot) {
        Ok(manifest) => manifest,
        Err(error) => {
            // Gives the space back; what is wrong has been said already.
            let _ = fs::remove_dir_all(&partial);
            return Err(error);
        }
    };
    if whole.exists() {
        let old = checkpoints.join(format!(".{name}.old"));
        fs::rename(&whole, &old).map_err(|e| io_error(&whole, "move the old checkpoint from", e))?;
    }
    fs::rename(&partial, &whole).map_err(|e| io_error(&whole, "rename the finished checkpoint to", e))?;
    sync_folder(checkpoints)?;
    mark(checkpoints, &marker_text(&name, manifest.as_bytes()))?;
    prune(checkpoints, &name, before.as_deref())?;
    clear_leftovers(checkpoints)?;
    Ok(whole)
}

/// Removes what is under a temporary name: left by a run that was killed, or replaced.
fn clear_leftovers(checkpoints: &Path) -> Result<(), CheckpointError> {
    let entries = fs::read_dir(checkpoints).map_err(|e| io_error(checkpoints, "list", e))?;
    for entry in entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".step-")) {
        clear(&entry.path())?;
    }
    Ok(())
}

/// Replaces the marker: by a rename, so that it is the old one or the new one at every moment.
fn mark(checkpoints: &Path, text: &str) -> Result<(), CheckpointError> {
    let (partial, marker) = (checkpoints.join(".latest.partial"), checkpoints.join(MARKER_FILE));
    write_file(partial.clone(), text.as_bytes())?;
    fs::rename(&partial, &marker).map_err(|e| io_error(&marker, "replace", e))?;
    sync_folder(checkpoints)
}

/// The name that the marker gives, if there is a marker.
pub(super) fn marked(checkpoints: &Path) -> Option<String> {
    let text = fs::read_to_string(checkpoints.join(MARKER_FILE)).ok()?;
    Some(text.split(' ').next()?.to_string())
}

/// Removes all checkpoints but the newest written ones, which need not have the highest steps.
fn prune(checkpoints: &Path, now: &str, before: Option<&str>) -> Result<(), CheckpointError> {
    let mut keep = vec![now];
    keep.extend(before.filter(|before| *before != now));
    let names = list(checkpoints);
    // Written again, the marker's own step leaves a place: the next older one fills it.
    keep.extend(names.iter().rev().map(String::as_str).filter(|name| *name < now).take(KEEP - keep.len()));
    for name in names.iter().filter(|name| !keep.contains(&name.as_str())) {
        clear(&checkpoints.join(name))?;
    }
    Ok(())
}

fn clear(folder: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error(folder, "remove", e)),
        _ => Ok(()),
    }
}
