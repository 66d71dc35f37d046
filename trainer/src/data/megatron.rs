//! Megatron's `.bin` and `.idx`: tokens without a header, and beside them where sequences and documents begin.
//!
//! The index: `MMIDIDX\0\0`, version 1 (u64), the code of the token type (u8), sequences S (u64), entries D of the
//! document index (u64), S lengths in tokens (i32), S byte offsets (i64), D numbers of the sequences at which documents
//! begin, with S at the end (i64). What Megatron writes lies without gaps, and nothing else is read: so positions in the
//! `.bin` are those of the text, and the byte offsets only have to agree with the lengths.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::{DataError, io_error};
use super::format::{Format, Layout};

/// What an index begins with.
pub(super) const MAGIC: [u8; 9] = *b"MMIDIDX\0\0";
const HEADER_BYTES: u64 = 34;
/// Numpy's names of the token types, by code from 1.
const TYPES: [&str; 8] = ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"];
/// Bytes of the index that are read at once.
const CHUNK: u64 = 1 << 16;

/// The `.bin` and `.idx` that a path means: one of the two, or what they have in common, as Megatron's own flag has it.
pub(super) fn pair(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let common = match path.extension().and_then(|extension| extension.to_str()) {
        Some("bin" | "idx") => path.with_extension(""),
        _ if path.exists() => return None,
        _ => path.into(),
    };
    let with = |ending: &str| {
        let mut name = OsString::from(&common);
        name.push(ending);
        PathBuf::from(name)
    };
    let (bin, idx) = (with(".bin"), with(".idx"));
    (bin.is_file() && idx.is_file()).then_some((bin, idx))
}

/// What an index says: where the tokens lie, and the token with which each document begins.
pub(super) fn read(idx: &Path, bin: &Path, bin_bytes: u64) -> Result<(Layout, Vec<u64>), DataError> {
    let index = Index::open(idx)?;
    let (format, sequences, documents) = index.header()?;
    let offsets = HEADER_BYTES + 4 * sequences;
    let firsts = offsets + 8 * sequences;
    // Sequences at which a document begins, the end among them.
    let mut begins = Vec::with_capacity(documents as usize);
    index.each::<8>(firsts, documents, |i, bytes| {
        let number = i64::from_le_bytes(bytes);
        let before = begins.last().copied().unwrap_or(0);
        let inside = u64::try_from(number).ok().filter(|number| (before..=sequences).contains(number));
        let Some(number) = inside.filter(|number| i > 0 || *number == 0) else {
            return Err(format!(
                "document {i} begins at sequence {number}, after {before} and with {sequences} in all"
            ));
        };
        begins.push(number);
        Ok(())
    })?;
    if begins.last() != Some(&sequences) {
        let what = format!("the document index does not end with the {sequences} sequences that there are");
        return Err(index.malformed(firsts, what));
    }
    let (mut starts, mut tokens, mut next) = (Vec::new(), 0_u64, 0);
    let mut ends = Vec::new();
    index.each::<4>(HEADER_BYTES, sequences, |i, bytes| {
        let length = i32::from_le_bytes(bytes);
        let Ok(length) = u32::try_from(length) else { return Err(format!("sequence {i} has {length} tokens")) };
        while begins.get(next) == Some(&i) {
            next += 1;
            if starts.last() != Some(&tokens) {
                starts.push(tokens);
            }
        }
        tokens += u64::from(length);
        ends.push(tokens);
        match tokens * format.bytes() > bin_bytes {
            true => Err(format!("sequence {i} ends beyond the {bin_bytes} bytes of {}", bin.display())),
            false => Ok(()),
        }
    })?;
    index.each::<8>(offsets, sequences, |i, bytes| {
        let (said, start) = (i64::from_le_bytes(bytes), i.checked_sub(1).map_or(0, |before| ends[before as usize]));
        match u64::try_from(said) == Ok(start * format.bytes()) {
            true => Ok(()),
            false => Err(format!("sequence {i} is said to lie at byte {said}, not at {}", start * format.bytes())),
        }
    })?;
    if tokens * format.bytes() != bin_bytes {
        let what = format!(
            "the sequences have {tokens} tokens of {} bytes, and {} is {bin_bytes} bytes long",
            format.bytes(),
            bin.display()
        );
        return Err(index.malformed(HEADER_BYTES, what));
    }
    starts.retain(|start| *start < tokens);
    Ok((Layout { format, header: 0, tokens }, starts))
}

/// An index while it is read.
struct Index<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
}

impl<'a> Index<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
        let bytes = file.metadata().map_err(|e| io_error(path, "read the length of", e))?.len();
        Ok(Self { path, file, bytes })
    }

    fn malformed(&self, offset: u64, what: String) -> DataError {
        DataError::Malformed { path: self.path.into(), offset, what }
    }

    /// The type of a token, the sequences, and the entries of the document index, all of which the file is long enough
    /// for.
    fn header(&self) -> Result<(Format, u64, u64), DataError> {
        let mut header = [0_u8; HEADER_BYTES as usize];
        let there = &mut header[..self.bytes.min(HEADER_BYTES) as usize];
        self.file.read_exact_at(there, 0).map_err(|e| io_error(self.path, "read", e))?;
        if !there.starts_with(&MAGIC) {
            let what = "an index of Megatron begins with MMIDIDX and two zeros, and this does not".into();
            return Err(self.malformed(0, what));
        }
        if self.bytes < HEADER_BYTES {
            return Err(
                self.malformed(self.bytes, format!("the header takes {HEADER_BYTES} bytes; the file ends here"))
            );
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        if long(9) != 1 {
            return Err(self.malformed(9, format!("this is version {} of the index, and 1 is read", long(9))));
        }
        let format = match header[17] {
            4 => Format::I32,
            8 => Format::U16,
            code => {
                let name = TYPES.get(usize::from(code).wrapping_sub(1)).unwrap_or(&"unknown to Megatron");
                let what = format!("tokens are of type {name} (code {code}), and uint16 and int32 are read");
                return Err(self.malformed(17, what));
            }
        };
        let (sequences, documents) = (long(18), long(26));
        let needs = u128::from(sequences) * 12 + u128::from(documents) * 8 + u128::from(HEADER_BYTES);
        if needs != u128::from(self.bytes) {
            let what = format!(
                "{sequences} sequences and {documents} entries of documents take {needs} bytes, and the index has {}",
                self.bytes
            );
            return Err(self.malformed(18, what));
        }
        Ok((format, sequences, documents))
    }

    /// Gives `count` numbers of `N` bytes, from byte `offset` on, to `take`, which says what is wrong with one.
    fn each<const N: usize>(
        &self,
        offset: u64,
        count: u64,
        mut take: impl FnMut(u64, [u8; N]) -> Result<(), String>,
    ) -> Result<(), DataError> {
        let mut chunk = vec![0; CHUNK.min(count * N as u64) as usize];
        let mut index = 0;
        while index < count {
            let here = ((count - index) * N as u64).min(CHUNK) as usize;
            let at = offset + index * N as u64;
            self.file.read_exact_at(&mut chunk[..here], at).map_err(|e| io_error(self.path, "read", e))?;
            for bytes in chunk[..here].as_chunks::<N>().0 {
                take(index, *bytes).map_err(|what| self.malformed(offset + index * N as u64, what))?;
                index += 1;
            }
        }
        Ok(())
    }
}
