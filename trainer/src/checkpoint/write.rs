//! Writing a checkpoint so that it is complete or not there.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use warpweft_device::DType;

use super::error::CheckpointError;
use super::folder::{list, marker_text, step_name};
use super::manifest::{FORMAT, Manifest, io_error, seal_text};
use super::piece::{Piece, Pieces, index_text};
use super::seal::{Seal, Sealer};
use super::tensors::{INDEX, Tensors};
use super::whole::{self, Whole};
use super::{CHECK_FILE, CONFIG_FILE, MANIFEST_FILE, MARKER_FILE, Snapshot, WEIGHTS_FILE, optimizer_file};

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

/// Writes a safetensors file: the header's length, the header as JSON padded to 8 bytes, the elements, which `next` gives
/// tensor by tensor. The tensors come in the order of `infos`.
fn write_tensors<'a>(
    path: PathBuf,
    infos: Vec<(String, Dtype, Vec<usize>)>,
    index: Option<String>,
    mut next: impl FnMut(usize) -> Result<Cow<'a, [u8]>, CheckpointError>,
) -> Result<Seal, CheckpointError> {
    let mut offset = 0;
    let count = infos.len();
    let infos = infos.into_iter().map(|(name, dtype, shape)| {
        let start = offset;
        offset += shape.iter().product::<usize>() * (dtype.bitsize() / 8);
        (name, TensorInfo { dtype, shape, data_offsets: (start, offset) })
    });
    let refused = |e: &dyn std::fmt::Display| CheckpointError::Snapshot {
        tensor: path.file_name().map_or(String::new(), |name| name.to_string_lossy().into()),
        what: e.to_string(),
    };
    let index = index.map(|text| HashMap::from([(INDEX.to_owned(), text)]));
    let metadata = Metadata::new(index, infos.collect()).map_err(|e| refused(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| refused(&e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut output = Output::create(path)?;
    output.put(&(header.len() as u64).to_le_bytes())?;
    output.put(&header)?;
    for tensor in 0..count {
        output.put(&next(tensor)?)?;
    }
    output.end()
}

/// The order of a file: the widest elements first, as the format wants it, so that all are aligned; names break ties, so that
/// bytes repeat.
fn in_order<X>(items: &mut [X], key: impl Fn(&X) -> (usize, String)) {
    items.sort_by_cached_key(|item| {
        let (bits, name) = key(item);
        (std::cmp::Reverse(bits), name)
    });
}

/// Writes a rank's pieces. Several of one tensor have names of their own, and the index says of which they are.
fn write_pieces(path: PathBuf, pieces: &[Piece]) -> Result<Seal, CheckpointError> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let keyed = pieces.iter().map(|piece| {
        let count = counts.entry(&piece.name).or_default();
        *count += 1;
        let key = if *count == 1 { piece.name.clone() } else { format!("{}#{count}", piece.name) };
        (key, piece)
    });
    let mut order: Vec<(String, &Piece)> = keyed.collect();
    in_order(&mut order, |(key, piece)| (dtype(piece.dtype).bitsize(), key.clone()));
    let infos = order.iter().map(|(key, piece)| (key.clone(), dtype(piece.dtype), piece.stored_shape())).collect();
    let index = Some(index_text(&order)).filter(|text| text != "{}");
    write_tensors(path, infos, index, |tensor| Ok(Cow::Borrowed(&order[tensor].1.bytes)))
}

/// Writes pieces where nobody seals them.
pub(crate) fn write_unsealed(path: PathBuf, pieces: &[Piece]) -> Result<(), CheckpointError> {
    write_pieces(path, pieces).map(|_| ())
}

/// Puts the weights together, tensor by tensor.
fn write_weights(path: PathBuf, wholes: &[Whole], pieces: &Pieces<'_>) -> Result<Seal, CheckpointError> {
    let mut order = Vec::with_capacity(wholes.len());
    for whole in wholes {
        if let Some(part) = whole.parts.first() {
            order.push((whole, pieces.dtype(&part.parameter)?));
        }
    }
    in_order(&mut order, |(whole, dtype)| (dtype.bitsize(), whole.name.clone()));
    let infos = order.iter().map(|(whole, dtype)| (whole.name.clone(), *dtype, whole.shape.clone())).collect();
    write_tensors(path, infos, None, |tensor| order[tensor].0.assemble(pieces).map(Cow::Owned))
}

fn check(snapshot: &Snapshot) -> Result<(), CheckpointError> {
    for pieces in [&snapshot.weights, &snapshot.optimizer] {
        let mut names = std::collections::BTreeSet::new();
        for piece in pieces {
            let refuse = |what: String| Err(CheckpointError::Snapshot { tensor: piece.name.clone(), what });
            if piece.held.len().checked_mul(piece.dtype.bytes()) != Some(piece.bytes.len()) {
                let (shape, dtype, bytes) = (piece.stored_shape(), piece.dtype, piece.bytes.len());
                return refuse(format!("{bytes} bytes are not those of {dtype} {shape:?}"));
            }
            if !names.insert(&piece.name) {
                return refuse("it is there twice".into());
            }
        }
    }
    Ok(())
}

/// A checkpoint's folder while it is being written.
pub(super) fn partial(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!(".{}.partial", step_name(step)))
}

/// The file of weights that a rank other than 0 writes, for rank 0 to put together.
fn part_file(rank: usize, world: usize) -> String {
    format!("weights-{rank:05}-of-{world:05}.safetensors")
}

/// Files and their seals.
pub(super) type Seals = BTreeMap<String, Seal>;

/// Writes what a rank has: its shard of the optimizer's state, and unless it is rank 0 its pieces of weights.
pub(super) fn write_shards(
    checkpoints: &Path,
    (rank, world): (usize, usize),
    snapshot: &Snapshot,
) -> Result<Seals, CheckpointError> {
    check(snapshot)?;
    let folder = partial(checkpoints, snapshot.step);
    fs::create_dir_all(&folder).map_err(|e| io_error(&folder, "create", e))?;
    let mut seals = Seals::new();
    let weights = if rank == 0 { &[] } else { &snapshot.weights[..] };
    for (name, pieces) in [(optimizer_file(rank, world), &snapshot.optimizer[..]), (part_file(rank, world), weights)] {
        // Rank 0 always has a shard, so that there is one.
        if rank == 0 && name != part_file(0, world) || !pieces.is_empty() {
            let seal = write_pieces(folder.join(&name), pieces)?;
            seals.insert(name, seal);
        }
    }
    sync_folder(&folder)?;
    Ok(seals)
}

/// Puts the weights together from rank 0's in `snapshot` and the others' in files, seals all, and returns the manifest's text.
fn fill(folder: &Path, snapshot: &Snapshot, mut files: Seals) -> Result<String, CheckpointError> {
    let is_part = |name: &String| name.starts_with("weights-");
    let parts: Seals = files.extract_if(.., |name, _| is_part(name)).collect();
    let open = |(name, seal): (&String, &Seal)| Tensors::sealed(&folder.join(name), seal, folder.join(name));
    let opened = parts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut pieces = whole::of_shards(folder, &opened)?;
    pieces.add_memory(&snapshot.weights);
    let weights = write_weights(folder.join(WEIGHTS_FILE), &snapshot.wholes, &pieces)?;
    let config = write_file(folder.join(CONFIG_FILE), snapshot.config.as_bytes())?;
    files.extend([(WEIGHTS_FILE.to_owned(), weights), (CONFIG_FILE.to_owned(), config)]);
    clear_all_but(folder, &files)?;
    let Snapshot { step, seed, data_tokens, .. } = *snapshot;
    let manifest = Manifest { format: FORMAT, step, seed, data_tokens, files };
    // Numbers and text always serialise.
    let text = serde_json::to_string_pretty(&manifest).unwrap_or_default() + "\n";
    let seal = write_file(folder.join(MANIFEST_FILE), text.as_bytes())?;
    write_file(folder.join(CHECK_FILE), seal_text(&seal).as_bytes())?;
    sync_folder(folder)?;
    Ok(text)
}

/// Removes the ranks' pieces of weights, and what a killed run left under the same name; says which of `files` rank 0 does not
/// see.
fn clear_all_but(folder: &Path, files: &Seals) -> Result<(), CheckpointError> {
    for name in files.keys() {
        let path = folder.join(name);
        fs::metadata(&path).map_err(|e| io_error(&path, "find, on rank 0, what another rank wrote:", e))?;
    }
    let entries = fs::read_dir(folder).map_err(|e| io_error(folder, "list", e))?;
    for entry in
        entries.flatten().filter(|entry| entry.file_name().to_str().is_none_or(|name| !files.contains_key(name)))
    {
        fs::remove_file(entry.path()).map_err(|e| io_error(&entry.path(), "remove", e))?;
    }
    Ok(())
}

/// Completes a checkpoint in the folder `checkpoints` of which all ranks have written their `files`, names it in the marker,
/// and removes all but it and the one before it. Returns its folder.
pub(super) fn commit(checkpoints: &Path, snapshot: &Snapshot, files: Seals) -> Result<PathBuf, CheckpointError> {
    let name = step_name(snapshot.step);
    let (partial, whole) = (partial(checkpoints, snapshot.step), checkpoints.join(&name));
    let before = marked(checkpoints);
    let manifest = fill(&partial, snapshot, files)?;
    if whole.exists() {
        let old = checkpoints.join(format!(".{name}.old"));
        clear(&old)?;
        fs::rename(&whole, &old).map_err(|e| io_error(&whole, "move the old checkpoint from", e))?;
    }
    fs::rename(&partial, &whole).map_err(|e| io_error(&whole, "rename the finished checkpoint to", e))?;
    sync_folder(checkpoints)?;
    mark(checkpoints, &marker_text(&name, manifest.as_bytes()))?;
    prune(checkpoints, &name, before.as_deref())?;
    clear_leftovers(checkpoints)?;
    Ok(whole)
}

/// Gives the space of a checkpoint back that will not be completed.
pub(super) fn give_up(checkpoints: &Path, step: u64) {
    // What is wrong has been said already.
    let _ = fs::remove_dir_all(partial(checkpoints, step));
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
