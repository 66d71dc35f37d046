//! Safetensors files, of which only what is asked for is read, and checked against a seal as far as it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};

use super::error::CheckpointError;
use super::manifest::{self, io_error};
use super::seal::{BLOCK, Seal};

/// The longest header that is read, as safetensors' own limit.
const LONGEST_HEADER: u64 = 100_000_000;
/// The key of a file's index of pieces, in its metadata.
pub(super) const INDEX: &str = "warpweft.pieces";

/// A file and what is known of its bytes.
struct Sealed {
    path: PathBuf,
    file: File,
    length: u64,
    /// The seal, and the file that it stands in.
    seal: Option<(Seal, PathBuf)>,
}

impl Sealed {
    fn open(path: &Path, seal: Option<(Seal, PathBuf)>) -> Result<Self, CheckpointError> {
        let file = File::open(path).map_err(|e| io_error(path, "read", e))?;
        let length = file.metadata().map_err(|e| io_error(path, "read", e))?.len();
        let sealed = Self { path: path.into(), file, length, seal };
        if sealed.seal.as_ref().is_some_and(|(seal, _)| seal.bytes != length) {
            sealed.verify()?;
        }
        Ok(sealed)
    }

    /// Reads bytes that are there.
    fn raw(&self, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|e| io_error(&self.path, "read", e))?;
        Ok(bytes)
    }

    /// Reads bytes of `0..length`, with the blocks around them, each of which must have its checksum.
    fn read(&self, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        let Some((seal, _)) = &self.seal else { return self.raw(range) };
        let block = BLOCK as u64;
        let first = range.start / block;
        let mut bytes = self.raw(first * block..range.end.next_multiple_of(block).min(self.length))?;
        for (index, bytes) in bytes.chunks(BLOCK).enumerate() {
            if seal.crc32c.get(first as usize + index) != Some(&crc32c::crc32c(bytes)) {
                self.verify()?;
                // The file changed between two looks.
                let start = (first + index as u64) * block;
                let (last, field) = (start + bytes.len() as u64 - 1, "read twice, two contents".into());
                return Err(CheckpointError::Damaged { path: self.path.clone(), first: start, last, field });
            }
        }
        bytes.truncate((range.end - first * block) as usize);
        Ok(bytes.split_off((range.start - first * block) as usize))
    }

    /// Compares the whole file with its seal, to the byte.
    fn verify(&self) -> Result<(), CheckpointError> {
        let Some((seal, sealed_in)) = &self.seal else { return Ok(()) };
        let bytes = std::fs::read(&self.path).map_err(|e| io_error(&self.path, "read", e))?;
        manifest::verify(seal, &bytes, &self.path, sealed_in, &field_at)
    }
}

struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<u64>,
}

/// The tensors of one safetensors file, by name.
pub struct Tensors {
    file: Sealed,
    entries: BTreeMap<String, Entry>,
    index: Option<String>,
}

impl Tensors {
    /// Opens a file of a checkpoint with its seal, which stands in `sealed_in`.
    pub(super) fn sealed(path: &Path, seal: &Seal, sealed_in: PathBuf) -> Result<Self, CheckpointError> {
        Self::parse(Sealed::open(path, Some((seal.clone(), sealed_in)))?)
    }

    /// Opens a safetensors file that stands alone, with no seal: weights from elsewhere.
    ///
    /// # Errors
    /// What cannot be read, or is not of safetensors' form.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::parse(Sealed::open(path, None)?)
    }

    fn parse(file: Sealed) -> Result<Self, CheckpointError> {
        let form =
            |what: String| Err(CheckpointError::Form { path: file.path.clone(), at: 0, field: "header".into(), what });
        if file.length < 8 {
            return form("no room for the length of a header".into());
        }
        let length = file.read(0..8)?;
        let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if length > LONGEST_HEADER || length + 8 > file.length {
            return form(format!("{length} bytes of header in a file of {}", file.length));
        }
        let header = file.read(8..8 + length)?;
        // Reading checks that the tensors lie one after the other, each with the bytes of its shape and type.
        let metadata: Metadata = match serde_json::from_slice(&header) {
            Ok(metadata) => metadata,
            Err(e) => return form(e.to_string()),
        };
        let ends = (metadata.data_len() as u64).checked_add(8 + length);
        if ends != Some(file.length) {
            return form(format!("its tensors end at byte {ends:?} of {}", file.length));
        }
        let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
            let (start, end) = info.data_offsets;
            let bytes = 8 + length + start as u64..8 + length + end as u64;
            (name, Entry { dtype: info.dtype, shape: info.shape.clone(), bytes })
        };
        let entries = metadata.tensors().into_iter().map(entry).collect();
        let index = metadata.metadata().as_ref().and_then(|metadata| metadata.get(INDEX)).cloned();
        Ok(Self { file, entries, index })
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The index of its pieces, if it has one.
    pub(super) fn index(&self) -> Option<&str> {
        self.index.as_deref()
    }

    fn entry(&self, name: &str) -> Result<&Entry, CheckpointError> {
        let missing = || CheckpointError::Missing { path: self.file.path.clone(), tensor: name.into() };
        self.entries.get(name).ok_or_else(missing)
    }

    /// A tensor's type and sizes.
    pub(super) fn info(&self, name: &str) -> Result<(Dtype, &[usize]), CheckpointError> {
        self.entry(name).map(|entry| (entry.dtype, entry.shape.as_slice()))
    }

    /// A tensor's bytes, how many.
    pub(super) fn size(&self, name: &str) -> Result<usize, CheckpointError> {
        self.entry(name).map(|entry| (entry.bytes.end - entry.bytes.start) as usize)
    }

    /// Some bytes of a tensor.
    pub(super) fn bytes(&self, name: &str, range: Range<usize>) -> Result<Vec<u8>, CheckpointError> {
        let entry = self.entry(name)?;
        let at = |byte: usize| (entry.bytes.start + byte as u64).min(entry.bytes.end);
        self.file.read(at(range.start)..at(range.end))
    }

    /// Checks every byte of the file.
    pub(super) fn verify(&self) -> Result<(), CheckpointError> {
        self.file.verify()
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
