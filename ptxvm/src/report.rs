//! What a check says, complete enough to act on and to replay.

use std::fmt;

use serde::Serialize;

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Check {
    Memcheck,
    Initcheck,
    Racecheck,
    Synccheck,
    Asynccheck,
    Deadlock,
    Nancheck,
    /// `trap`, a failed assert, an instruction limit: what stops a kernel without any check.
    Execution,
}

/// How much a report weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Severity {
    Note,
    Warning,
    Error,
}

/// A place in a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// The instruction, as the text spells it.
    pub instruction: String,
    /// File and line by `.loc`.
    pub source: Option<(String, u32)>,
    /// Block coordinates.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: u32,
    /// Lanes concerned, ascending.
    pub lanes: Vec<u32>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Who found it.
    pub check: Check,
    /// Only errors set the exit status.
    pub severity: Severity,
    /// The kind of finding within the check, as a stable word: `out-of-bounds`, `write-write-race`...
    pub kind: &'static str,
    /// One sentence with the numbers.
    pub message: String,
    /// The kernel.
    pub kernel: String,
    /// Where.
    pub place: Place,
    /// The other access, the instruction that made the NaN...
    pub related: Vec<(String, Place)>,
    /// The address concerned.
    pub address: Option<u64>,
    /// The allocation it is in or next to.
    pub allocation: Option<String>,
    /// How often the same finding (check, kind, line) came; later ones are counted only.
    pub count: u64,
    /// The command or settings that give the same run again.
    pub replay: String,
}

impl fmt::Display for Check {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Check::Memcheck => "memcheck",
            Check::Initcheck => "initcheck",
            Check::Racecheck => "racecheck",
            Check::Synccheck => "synccheck",
            Check::Asynccheck => "asynccheck",
            Check::Deadlock => "deadlock",
            Check::Nancheck => "nancheck",
            Check::Execution => "execution",
        })
    }
}
