//! What can go wrong with a run's outputs.

use std::io;
use std::path::PathBuf;

/// An output that cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
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
    /// The place for the progress lines refused one.
    #[error("cannot write the progress: {source}")]
    Progress {
        /// The reason.
        source: io::Error,
    },
    /// A log that a resumed run cannot go on with.
    #[error("{}, line {line}: {source}; move the file away, or resume another run", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Spans of another rank that are none.
    #[error("rank {rank} sent spans for the trace that cannot be read: {source}")]
    Spans {
        /// The rank.
        rank: usize,
        /// What is wrong with them.
        source: serde_json::Error,
    },
}
