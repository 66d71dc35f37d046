//! Tokens by position, wherever they lie: in the program, in one file, in a folder of files.
//!
//! Files are read by position (`pread`), not mapped: a mapped file that shrinks kills the process with SIGBUS, and
//! mapping needs unsafe code; the page cache makes both equally fast for windows of a few hundred bytes.

use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::{DataError, io_error};
use super::format::{self, Format, Layout};
use super::megatron;

/// Files of a folder that are kept open; beyond, each read opens its own.
const OPEN_FILES: usize = 64;
/// Files that a folder may hold, so that a mistaken `/` ends soon.
const MAX_FILES: usize = 100_000;
/// Folders within folders.
const MAX_DEPTH: usize = 32;

/// One file of the sequence.
struct Piece {
    path: PathBuf,
    handle: Option<File>,
    /// Length when it was opened.
    bytes: u64,
    /// Bytes before the first token.
    header: u64,
    /// Position of its first token in the whole.
    start: u64,
    tokens: u64,
}

/// A sequence of tokens.
pub(super) struct Source {
    format: Format,
    pieces: Vec<Piece>,
    embedded: &'static [u8],
    tokens: u64,
    path: PathBuf,
    /// The tokens with which documents begin, where there are any borders: Megatron's documents, the files of a folder.
    begins: Vec<u64>,
}

impl Source {
    /// Bytes of the program itself.
    pub(super) fn embedded(text: &'static [u8]) -> Self {
        let tokens = text.len() as u64;
        let path = "the built-in text".into();
        Source { format: Format::Byte, pieces: Vec::new(), embedded: text, tokens, path, begins: Vec::new() }
    }

    /// A file, with the index that Megatron has beside it, or all files of a folder one after the other in the order of
    /// their paths.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let mut source = Self::embedded(&[]);
        source.path = path.into();
        if let Some((bin, idx)) = megatron::pair(path) {
            source.add(&bin, true, |_, bytes| megatron::read(&idx, &bin, bytes))?;
        } else if fs::metadata(path).map_err(|e| io_error(path, "open", e))?.is_dir() {
            let mut files = Vec::new();
            list(path, 0, &mut files)?;
            files.sort();
            for file in &files {
                let start = source.tokens;
                source.add(file, files.len() <= OPEN_FILES, |_, bytes| {
                    let begins = if bytes > 0 { vec![start] } else { Vec::new() };
                    Ok((Layout::text(bytes), begins))
                })?;
            }
        } else {
            source.add(path, true, |file, bytes| Ok((format::detect(file, path, bytes)?, Vec::new())))?;
        }
        if source.tokens == 0 {
            return Err(DataError::Empty { path: path.into() });
        }
        Ok(source)
    }

    /// Adds a file; `look` says how its tokens lie in it, and which of them begin documents.
    fn add(
        &mut self,
        path: &Path,
        keep_open: bool,
        look: impl FnOnce(&File, u64) -> Result<(Layout, Vec<u64>), DataError>,
    ) -> Result<(), DataError> {
        // Before it is opened: opening a pipe waits for somebody who writes into it.
        if !fs::metadata(path).map_err(|e| io_error(path, "open", e))?.is_file() {
            let what = "this is neither a file nor a folder".into();
            return Err(DataError::Unsupported { path: path.into(), what, fix: "give a file that can be read twice" });
        }
        let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
        let bytes = file.metadata().map_err(|e| io_error(path, "read the length of", e))?.len();
        let (Layout { format, header, tokens }, begins) = look(&file, bytes)?;
        self.format = format;
        self.begins.extend(begins);
        let handle = keep_open.then_some(file);
        self.pieces.push(Piece { path: path.into(), handle, bytes, header, start: self.tokens, tokens });
        self.tokens += tokens;
        Ok(())
    }

    /// Tokens in all.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What was opened, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether each token is a byte of text.
    pub(super) fn is_bytes(&self) -> bool {
        self.format == Format::Byte
    }

    /// The largest token that the format can hold.
    pub(super) fn largest(&self) -> u32 {
        self.format.largest()
    }

    /// Whether it says where documents begin.
    pub(super) fn has_documents(&self) -> bool {
        !self.begins.is_empty()
    }

    /// The tokens of a range with which documents begin.
    pub(super) fn begins(&self, range: RangeInclusive<u64>) -> &[u64] {
        let first = self.begins.partition_point(|begin| begin < range.start());
        let behind = self.begins.partition_point(|begin| begin <= range.end());
        &self.begins[first..behind]
    }

    /// Copies the tokens from position `start` on, which must be there, and checks each against the vocabulary.
    pub(super) fn read(&self, start: u64, vocab: usize, into: &mut [u32]) -> Result<(), DataError> {
        debug_assert!(start + into.len() as u64 <= self.tokens);
        if !self.embedded.is_empty() {
            let bytes = &self.embedded[start as usize..start as usize + into.len()];
            return Format::Byte.decode(bytes, vocab, into, (&self.path, start));
        }
        let mut done = 0;
        let mut piece = self.pieces.partition_point(|piece| piece.start + piece.tokens <= start);
        let mut bytes = Vec::new();
        while done < into.len() {
            let here = &self.pieces[piece];
            let within = start + done as u64 - here.start;
            let count = (into.len() - done).min((here.tokens - within) as usize);
            let width = self.format.bytes();
            let offset = here.header + within * width;
            bytes.resize(count * width as usize, 0);
            here.read_at(offset, &mut bytes)?;
            self.format.decode(&bytes, vocab, &mut into[done..done + count], (&here.path, offset))?;
            done += count;
            piece += 1;
        }
        Ok(())
    }
}

impl Piece {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let opened;
        let file = match &self.handle {
            Some(file) => file,
            None => {
                opened = File::open(&self.path).map_err(|e| io_error(&self.path, "open again", e))?;
                &opened
            }
        };
        file.read_exact_at(into, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let now = file.metadata().map_or(0, |meta| meta.len());
                DataError::Shrank { path: self.path.clone(), was: self.bytes, now }
            }
            _ => io_error(&self.path, "read", e),
        })
    }
}

/// All files under a folder; hidden ones (`.git`, `.DS_Store`) and linked folders (which may form a ring) are left out.
fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let unsupported = |what, fix| Err(DataError::Unsupported { path: folder.into(), what, fix });
    if depth > MAX_DEPTH {
        return unsupported(format!("more than {MAX_DEPTH} folders within each other"), "give a folder further down");
    }
    for entry in fs::read_dir(folder).map_err(|e| io_error(folder, "list", e))? {
        let entry = entry.map_err(|e| io_error(folder, "list", e))?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type().map_err(|e| io_error(&path, "look at", e))?;
        if kind.is_dir() {
            list(&path, depth + 1, files)?;
        } else if fs::metadata(&path).map_err(|e| io_error(&path, "look at", e))?.is_file() {
            if format::is_bin(&path) {
                let what = format!("it holds {}, and a folder is read as text", path.display());
                return unsupported(what, "give the .bin itself, or move it away");
            }
            files.push(path);
            if files.len() > MAX_FILES {
                let fix = "join them into one file, or give a folder further down";
                return unsupported(format!("more than {MAX_FILES} files"), fix);
            }
        }
    }
    Ok(())
}
