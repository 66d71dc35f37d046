//! Tokens by position, wherever they lie: in the program, in one file, in a folder of files.
//!
//! Files are read by position (`pread`), not mapped: a mapped file that shrinks kills the process with SIGBUS, and
//! mapping needs unsafe code; the page cache makes both equally fast for windows of a few hundred bytes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::DataError;

/// Files of a folder that are kept open; beyond, each read opens its own.
const OPEN_FILES: usize = 64;
/// Files that a folder may hold, so that a mistaken `/` ends soon.
const MAX_FILES: usize = 100_000;
/// Folders within folders.
const MAX_DEPTH: usize = 32;
/// llm.c's token files start with this, then a version and the count, in a header of 256 32-bit words.
const LLMC_MAGIC: u32 = 20_240_520;
/// The same with 32-bit tokens.
const LLMC_WIDE_MAGIC: u32 = 20_240_801;
const LLMC_HEADER_BYTES: u64 = 1024;

/// How a token lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// One byte, which is the token.
    Byte,
    /// Two bytes, little-endian.
    U16,
}

impl Format {
    fn bytes(self) -> u64 {
        if self == Format::Byte { 1 } else { 2 }
    }
}

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
}

impl Source {
    /// Bytes of the program itself.
    pub(super) fn embedded(text: &'static [u8]) -> Self {
        let tokens = text.len() as u64;
        Source { format: Format::Byte, pieces: Vec::new(), embedded: text, tokens, path: "the built-in text".into() }
    }

    /// A file, or all files of a folder one after the other in the order of their paths.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let meta = fs::metadata(path).map_err(|e| io_error(path, "open", e))?;
        let mut source =
            Source { format: Format::Byte, pieces: Vec::new(), embedded: &[], tokens: 0, path: path.into() };
        if meta.is_dir() {
            let mut files = Vec::new();
            list(path, 0, &mut files)?;
            files.sort();
            for file in &files {
                source.add(file, files.len() <= OPEN_FILES)?;
            }
        } else {
            if is_bin(path) {
                source.format = Format::U16;
            }
            source.add(path, true)?;
        }
        if source.tokens == 0 {
            return Err(DataError::Empty { path: path.into() });
        }
        Ok(source)
    }

    fn add(&mut self, path: &Path, keep_open: bool) -> Result<(), DataError> {
        // Before it is opened: opening a pipe waits for somebody who writes into it.
        if !fs::metadata(path).map_err(|e| io_error(path, "open", e))?.is_file() {
            let what = "this is neither a file nor a folder".into();
            return Err(DataError::Unsupported { path: path.into(), what, fix: "give a file that can be read twice" });
        }
        let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
        let bytes = file.metadata().map_err(|e| io_error(path, "read the length of", e))?.len();
        let header = if self.format == Format::U16 { bin_header(&file, path, bytes)? } else { 0 };
        let tokens = (bytes - header) / self.format.bytes();
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
        if self.is_bytes() { u32::from(u8::MAX) } else { u32::from(u16::MAX) }
    }

    /// Copies the tokens from position `start` on, which must be there, and checks each against the vocabulary.
    pub(super) fn read(&self, start: u64, vocab: usize, into: &mut [u32]) -> Result<(), DataError> {
        debug_assert!(start + into.len() as u64 <= self.tokens);
        if !self.embedded.is_empty() {
            let bytes = &self.embedded[start as usize..start as usize + into.len()];
            return decode(Format::Byte, bytes, vocab, into, Path::new("the built-in text"), start);
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
            decode(self.format, &bytes, vocab, &mut into[done..done + count], &here.path, offset)?;
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

fn io_error(path: &Path, operation: &'static str, source: io::Error) -> DataError {
    DataError::Io { path: path.into(), operation, source }
}

fn is_bin(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("bin"))
}

/// Bytes before the first token of a `.bin`: none (nanoGPT) or llm.c's header, which is checked against the length.
fn bin_header(file: &File, path: &Path, bytes: u64) -> Result<u64, DataError> {
    if !bytes.is_multiple_of(2) {
        return Err(DataError::OddLength { path: path.into(), bytes });
    }
    if bytes < LLMC_HEADER_BYTES {
        return Ok(0);
    }
    let mut header = [0_u8; 12];
    file.read_exact_at(&mut header, 0).map_err(|e| io_error(path, "read", e))?;
    let word = |i: usize| u32::from_le_bytes([header[4 * i], header[4 * i + 1], header[4 * i + 2], header[4 * i + 3]]);
    let tokens = (bytes - LLMC_HEADER_BYTES) / 2;
    let (what, fix) = match (word(0), word(1), word(2)) {
        (LLMC_MAGIC, 1, said) if u64::from(said) == tokens => return Ok(LLMC_HEADER_BYTES),
        (LLMC_MAGIC, 1, said) => {
            (format!("its header says {said} tokens, and there are {tokens}"), "fetch or write the file again")
        }
        (LLMC_MAGIC, version, _) => (format!("this is version {version} of llm.c's token file"), "give version 1"),
        (LLMC_WIDE_MAGIC, ..) => ("this holds 32-bit tokens (llm.c)".into(), "give 16-bit tokens"),
        _ => return Ok(0),
    };
    Err(DataError::Unsupported { path: path.into(), what, fix })
}

/// Tokens from their bytes, the first of which is byte `offset` of the file.
fn decode(
    format: Format,
    bytes: &[u8],
    vocab: usize,
    into: &mut [u32],
    path: &Path,
    offset: u64,
) -> Result<(), DataError> {
    match format {
        Format::Byte => into.iter_mut().zip(bytes).for_each(|(token, byte)| *token = u32::from(*byte)),
        Format::U16 => into
            .iter_mut()
            .zip(bytes.chunks_exact(2))
            .for_each(|(token, pair)| *token = u32::from(u16::from_le_bytes([pair[0], pair[1]]))),
    }
    match into.iter().position(|token| *token as usize >= vocab) {
        None => Ok(()),
        Some(i) => Err(DataError::OutsideVocabulary {
            path: path.into(),
            offset: offset + i as u64 * format.bytes(),
            token: into[i],
            vocab,
        }),
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
            if is_bin(&path) {
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
