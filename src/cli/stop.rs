//! Why the command ends early: what it prints, and its exit status.

use std::io::{self, Write};
use std::process::ExitCode;

use warpweft::comm::{Cause, CommError};

/// The status of a rank that ended because another one did, for the process that started both.
pub(crate) const ENDED_BY_PEER: u8 = 3;

/// The end of a command that did not do what was asked.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The input was wrong and nothing was done: status 2.
    Usage(String),
    /// It went wrong on the way: status 1.
    Failed(String),
    /// Another rank of the job ended or aborted: status 1.
    Peer(String),
    /// The sentence stands on the terminal already.
    Reported(u8),
}

impl Stop {
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Stop::Usage(sentence.into())
    }

    pub(crate) fn failed(sentence: impl Into<String>) -> Self {
        Stop::Failed(sentence.into())
    }

    /// For a rank whose parent watches all ranks and says itself which one ended first. What the rank knows is kept by the
    /// parent for the case that it knows less; rank 0, which has the terminal, keeps it to itself.
    pub(crate) fn seen_by_parent(self, rank: usize) -> Self {
        let Stop::Peer(sentence) = &self else { return self };
        if rank > 0 {
            Self::note(sentence);
        }
        Stop::Reported(ENDED_BY_PEER)
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Stop::Usage(_) => 2,
            Stop::Failed(_) | Stop::Peer(_) => 1,
            Stop::Reported(status) => *status,
        }
    }

    /// Says why on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Stop::Usage(sentence) | Stop::Failed(sentence) | Stop::Peer(sentence) => Self::note(sentence),
            Stop::Reported(_) => {}
        }
        ExitCode::from(self.status())
    }

    /// One line on standard error. Where that is closed there is nobody to tell.
    pub(crate) fn note(sentence: &str) {
        let _ = writeln!(io::stderr(), "warpweft: {sentence}");
    }
}

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        match &error {
            CommError::Config { .. } | CommError::Argument { .. } => Stop::Usage(error.to_string()),
            CommError::Failed(failure) => match failure.cause {
                Cause::Died { .. } | Cause::Aborted { .. } | Cause::Link { .. } => Stop::Peer(error.to_string()),
                _ => Stop::Failed(error.to_string()),
            },
            _ => Stop::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(format!("cannot write the results: {error}"))
    }
}
