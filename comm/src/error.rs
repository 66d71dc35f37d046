//! What can go wrong in communication, as one type: who, in which operation, with whom, and what to do.

use std::fmt;
use std::time::Duration;

/// An error of the library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// An operation or the start of a job failed on account of a peer, a deadline or an abort.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The settings of the job contradict each other, or one has no meaning. Says which, with its source.
    #[error("{what}; {fix}")]
    Config {
        /// What is wrong, with the numbers and where they came from.
        what: String,
        /// What to do about it.
        fix: String,
    },
    /// A call with arguments that cannot be served; nothing was sent and nothing written.
    #[error("{operation}: {what}")]
    Argument {
        /// The operation called.
        operation: &'static str,
        /// The argument, what was given and what is allowed.
        what: String,
    },
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was asked of it.
        what: String,
        /// Its reason.
        reason: String,
    },
    /// Memory on a device could not be reached.
    #[error(transparent)]
    Device(#[from] warpweft_device::DeviceError),
}

/// One failed wait, in full. Its `Display` is one sentence.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rank that reports.
    pub rank: usize,
    /// Ranks of the communicator.
    pub world: usize,
    /// The operation, `all_reduce` or `bootstrap`.
    pub operation: &'static str,
    /// The how-manieth operation of the communicator it is, from 1; 0 before the first.
    pub sequence: u64,
    /// The peer that was waited for, or that is to blame.
    pub peer: Option<usize>,
    /// Where that peer is reached.
    pub address: Option<String>,
    /// Why.
    pub cause: Cause,
}

/// Why a wait failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The peer's process or thread has ended.
    Died {
        /// How that showed: `killed by signal 9`, `connection closed`.
        how: String,
    },
    /// The deadline passed.
    TimedOut {
        /// The time waited.
        after: Duration,
    },
    /// Ranks did not come to the start of the job, or of a group, in time.
    Missing {
        /// Their ranks.
        ranks: Vec<usize>,
        /// The time waited.
        after: Duration,
    },
    /// Somebody aborted the communicator.
    Aborted {
        /// Their reason.
        reason: String,
    },
    /// The ranks called different operations, or the same one with different arguments.
    Mismatch {
        /// The fields that differ, with the values of this rank and the peer.
        difference: String,
    },
    /// The peer sent bytes that no peer of this job sends.
    Protocol {
        /// What was expected and what came.
        what: String,
    },
    /// The link to the peer failed.
    Link {
        /// The operating system's reason.
        reason: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}: {}", self.rank, self.world, self.operation)?;
        if self.sequence > 0 {
            write!(f, " #{}", self.sequence)?;
        }
        write!(f, ": ")?;
        match self.peer {
            Some(peer) => write!(f, "rank {peer}")?,
            None => write!(f, "the job")?,
        }
        if let Some(address) = &self.address {
            write!(f, " ({address})")?;
        }
        match &self.cause {
            Cause::Died { how } => write!(f, " died: {how}; restart the job, from its last checkpoint if it has one"),
            Cause::TimedOut { after } => write!(
                f,
                " did not answer within {:.1} s; look whether it is alive and in the same operation, or raise the timeout",
                after.as_secs_f64()
            ),
            Cause::Missing { ranks, after } => {
                let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    " did not arrive within {:.1} s (missing: {}); start every rank, or look at its output for an error",
                    after.as_secs_f64(),
                    names.join(", ")
                )
            }
            Cause::Aborted { reason } => write!(f, " aborted: {reason}"),
            Cause::Mismatch { difference } => {
                write!(f, " called something else: {difference}; every rank must make the same calls in the same order")
            }
            Cause::Protocol { what } => write!(f, " broke the protocol: {what}; do all ranks run the same version?"),
            Cause::Link { reason } => write!(f, " cannot be reached: {reason}"),
        }
    }
}

impl From<Failure> for CommError {
    fn from(failure: Failure) -> Self {
        CommError::Failed(Box::new(failure))
    }
}
