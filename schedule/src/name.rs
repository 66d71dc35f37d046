//! The names of the schedules.

use std::fmt;
use std::str::FromStr;

use crate::ScheduleError;

/// A schedule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// All forwards, then all backwards.
    GPipe,
    /// One forward, one backward.
    OneForwardOneBackward,
    /// 1F1B over `v` chunks a rank, in Megatron's order.
    Interleaved,
    /// Zero bubble with the memory of 1F1B.
    ZbH1,
    /// Zero bubble with about twice that memory.
    ZbH2,
    /// Zero bubble over two chunks a rank in a V, with the memory of 1F1B.
    ZbV,
    /// Two copies of the model, fed from both ends.
    DualPipe,
    /// The best that a search finds within a limit of memory.
    Auto,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 8] = [
        Name::GPipe,
        Name::OneForwardOneBackward,
        Name::Interleaved,
        Name::ZbH1,
        Name::ZbH2,
        Name::ZbV,
        Name::DualPipe,
        Name::Auto,
    ];

    /// As it is written in flags and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Name::GPipe => "gpipe",
            Name::OneForwardOneBackward => "1f1b",
            Name::Interleaved => "interleaved",
            Name::ZbH1 => "zb-h1",
            Name::ZbH2 => "zb-h2",
            Name::ZbV => "zb-v",
            Name::DualPipe => "dualpipe",
            Name::Auto => "auto",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Name {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let found = Name::ALL.into_iter().find(|name| name.as_str() == text);
        found.ok_or_else(|| ScheduleError::Unknown { name: text.to_owned() })
    }
}
