//! How bytes move between two ranks. Each folder here has the same shape, whatever carries the bytes.

mod setup;
mod shm;
mod tcp;
mod thread;

use std::fmt;
use std::time::Duration;

use setup::{Facts, random_token};
pub use setup::{Setup, connect};

use crate::CommError;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportKind {
    /// The fastest that all ranks share: `Thread` in one process, `Shm` on one host, `Tcp` else.
    #[default]
    Auto,
    /// Ranks are threads of one process.
    Thread,
    /// Ranks are processes of one host and share memory.
    Shm,
    /// Anything with an address.
    Tcp,
}

impl TransportKind {
    /// Every kind with its name, as a flag spells it.
    pub const NAMES: [(&'static str, TransportKind); 4] = [
        ("auto", TransportKind::Auto),
        ("thread", TransportKind::Thread),
        ("shm", TransportKind::Shm),
        ("tcp", TransportKind::Tcp),
    ];
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kind)| kind == self).map_or("?", |(name, _)| name);
        f.write_str(name)
    }
}

impl std::str::FromStr for TransportKind {
    type Err = CommError;

    fn from_str(name: &str) -> Result<Self, CommError> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| CommError::Config {
            what: format!("`{name}` is no transport"),
            fix: "use auto, thread, shm or tcp".into(),
        })
    }
}

/// A link that failed; the caller adds who, where and in which operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The peer closed it, which in the middle of an operation means that it ended. If it did not leave in order, the
    /// job's health says within a second how it ended, better than this can.
    Closed {
        /// The peer.
        peer: usize,
    },
    /// The operating system's reason.
    Broken {
        /// The peer.
        peer: usize,
        /// The reason.
        reason: String,
    },
}

/// A link that a parked rank waits for, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The peer.
    pub peer: usize,
    /// `true`: room to send; `false`: bytes to receive.
    pub send: bool,
}

/// One rank's links to all ranks of its group: to each peer a reliable, ordered stream of bytes both ways, with a
/// bounded buffer. Nothing here blocks but [`park`](Self::park), so that one thread can drive many links at once.
///
/// A peer equal to the own rank is a caller's mistake.
pub trait Transport: Send {
    /// What it is; never `Auto`.
    fn kind(&self) -> TransportKind;

    /// Where a peer is reached, for messages: `127.0.0.1:4455`, `shared memory, process 4711`.
    fn address(&self, peer: usize) -> String;

    /// Bytes of this process's memory for what is on its way to the peers; none where the operating system holds it.
    fn buffer_bytes(&self) -> usize {
        0
    }

    /// Takes as many of `bytes` as there is room for now and returns how many; 0 when there is no room.
    ///
    /// # Errors
    /// A link that will never take more.
    fn try_send(&mut self, peer: usize, bytes: &[u8]) -> Result<usize, LinkError>;

    /// Copies received bytes into `into` and returns how many; 0 when none is there now.
    ///
    /// # Errors
    /// A link that will never bring more, once all that it brought has been taken.
    fn try_recv(&mut self, peer: usize, into: &mut [u8]) -> Result<usize, LinkError>;

    /// Sleeps until one of the wanted links may have moved, or `timeout` has passed; may return early.
    fn park(&mut self, wanted: &[Want], timeout: Duration);
}

/// An all-gather of small byte strings over some channel that already works: what a transport is set up with.
pub trait Exchange {
    /// Every rank's bytes, in rank order.
    ///
    /// # Errors
    /// As the channel fails.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError>;

    /// Sets the deadline of each following call; without it the channel's own holds.
    fn set_timeout(&mut self, _timeout: Duration) {}
}
