//! What can be wrong with training data.

use std::io;
use std::path::{Path, PathBuf};

/// Data that cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Nothing to train on.
    #[error("{} holds no data; give a text file, a folder of text files, or token ids (.bin of nanoGPT or llm.c, .bin and .idx of Megatron)", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// Less than one sequence and its last target.
    #[error(
        "{} holds {tokens} tokens, and context {context} needs at least {}; use a context of at most {}, or more data",
        path.display(), context + 1, tokens.saturating_sub(1)
    )]
    TooShort {
        /// The file or folder.
        path: PathBuf,
        /// Tokens that are there.
        tokens: u64,
        /// Tokens of a sequence.
        context: usize,
    },
    /// A file of 16-bit tokens with half a token at its end.
    #[error("{} is {bytes} bytes long, and its tokens take 2 bytes each; it is cut off, or no file of u16 tokens", path.display())]
    OddLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A header or an index that contradicts itself, its file, or what is read.
    #[error("{}, byte {offset}: {what}; fetch or write the file again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The byte at which it is wrong.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A token below zero.
    #[error("{}: token {token} at byte {offset} is below zero; leave it out, or write the file again", path.display())]
    Negative {
        /// The file.
        path: PathBuf,
        /// Byte of the file that the token starts at.
        offset: u64,
        /// The token.
        token: i32,
    },
    /// A token with no entry in the vocabulary.
    #[error(
        "{}: token {token} at byte {offset} is outside the vocabulary of {vocab}; give --vocab of at least {}",
        path.display(), u64::from(*token) + 1
    )]
    OutsideVocabulary {
        /// The file.
        path: PathBuf,
        /// Byte of the file that the token starts at.
        offset: u64,
        /// The token.
        token: u32,
        /// Entries of the vocabulary.
        vocab: usize,
    },
    /// A file that is shorter than when training began.
    #[error("{} got shorter while it was read: {was} bytes at the start, {now} now; put it back and resume", path.display())]
    Shrank {
        /// The file.
        path: PathBuf,
        /// Bytes when it was opened.
        was: u64,
        /// Bytes now.
        now: u64,
    },
    /// Documents asked for of a source that is one long text.
    #[error(
        "packing documents: {} does not say where its documents end; give --end-token, Megatron's .bin and .idx, or a folder",
        path.display()
    )]
    NoDocuments {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder of a shape that is not read.
    #[error("{}: {what}; {fix}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What to give instead.
        fix: &'static str,
    },
}

/// The operating system's refusal of `operation` on `path`.
pub(super) fn io_error(path: &Path, operation: &'static str, source: io::Error) -> DataError {
    DataError::Io { path: path.into(), operation, source }
}
