//! Why there is no such schedule.

use thiserror::Error;

use crate::{Fault, Name};

/// What was asked for cannot be made.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ScheduleError {
    /// No schedule has this name.
    #[error("there is no schedule `{name}`; use gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe or auto")]
    Unknown {
        /// The word.
        name: String,
    },
    /// A count that is not at least 1.
    #[error("{what} is 0 ({flag}); use 1 or more")]
    Zero {
        /// What is counted.
        what: &'static str,
        /// Where it is set.
        flag: &'static str,
    },
    /// A schedule has its own number of chunks.
    #[error("{name} has {wanted} on a rank, and v {v} was asked for (--v, --chunks); {fix}")]
    Chunks {
        /// The schedule.
        name: Name,
        /// What it has.
        wanted: &'static str,
        /// What was asked for.
        v: usize,
        /// What to do.
        fix: &'static str,
    },
    /// DualPipe pairs ranks.
    #[error("dualpipe pairs rank r with rank p-1-r and needs an even p, not {p} (--p, --pp); use {} or {}", p - 1, p + 1)]
    Odd {
        /// Ranks.
        p: usize,
    },
    /// A time that is none.
    #[error("{what} takes {value} (--f, --b, --w, --comm); a time is wanted {wanted}")]
    Time {
        /// Which one.
        what: &'static str,
        /// As given.
        value: f64,
        /// The range.
        wanted: &'static str,
    },
    /// It does not fit the limit.
    #[error(
        "{name} holds {needed} on some rank and the limit is {limit} (--memory), in micro-batches of one stage; {fix}"
    )]
    Memory {
        /// The schedule.
        name: Name,
        /// The least that it holds.
        needed: String,
        /// The limit.
        limit: usize,
        /// What to do.
        fix: String,
    },
    /// Too large to be drawn up.
    #[error(
        "p {p} x v {v} x m {m} are {operations} operations, and a schedule has at most {most}; take fewer micro-batches"
    )]
    Large {
        /// Ranks.
        p: usize,
        /// Chunks a rank.
        v: usize,
        /// Micro-batches.
        m: usize,
        /// Three for each chunk and micro-batch.
        operations: u128,
        /// The limit.
        most: usize,
    },
    /// The checker refused it.
    #[error("not a schedule: {0}")]
    Fault(#[from] Fault),
}
