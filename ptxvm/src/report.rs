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

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// Line, instruction, block, warp and lanes, as far as they are known.
impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return out.write_str("at no single instruction");
        }
        write!(out, "line {}: `{}`", self.line, self.instruction)?;
        if let Some((file, line)) = &self.source {
            write!(out, " ({file}:{line})")?;
        }
        let [x, y, z] = self.block;
        write!(out, ", block ({x}, {y}, {z}), warp {}", self.warp)?;
        match self.lanes.len() {
            0 => Ok(()),
            1 => write!(out, ", lane {}", self.lanes[0]),
            _ => write!(out, ", lanes {}", Runs(&self.lanes)),
        }
    }
}

/// Numbers with runs drawn together: `0-3, 7`.
struct Runs<'a>(&'a [u32]);

impl fmt::Display for Runs<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.0.chunk_by(|a, b| a.checked_add(1) == Some(*b)).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match run {
                [first, .., last] => write!(out, "{comma}{first}-{last}")?,
                _ => write!(out, "{comma}{}", run[0])?,
            }
        }
        Ok(())
    }
}

/// All of it, a line for each fact.
impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {} [{}]", self.severity, self.check, self.message, self.kind)?;
        write!(out, "\n    kernel `{}`, {}", self.kernel, self.place)?;
        // Many messages name the allocation themselves.
        let allocation = self.allocation.as_deref().filter(|words| !self.message.contains(words));
        match (self.address, allocation) {
            (Some(address), Some(words)) => write!(out, "\n    address {address:#x}, {words}")?,
            (Some(address), None) => write!(out, "\n    address {address:#x}")?,
            (None, Some(words)) => write!(out, "\n    {words}")?,
            (None, None) => {}
        }
        for (what, place) in &self.related {
            write!(out, "\n    {what}: {place}")?;
        }
        if self.count > 1 {
            write!(out, "\n    seen {} times", self.count)?;
        }
        if !self.replay.is_empty() {
            write!(out, "\n    again: {}", self.replay)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_lanes_are_drawn_together() {
        for (lanes, words) in [(vec![3], "3"), (vec![0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), (vec![], "")] {
            assert_eq!(Runs(&lanes).to_string(), words);
        }
        assert_eq!(Runs(&[u32::MAX, 0]).to_string(), "4294967295, 0");
    }
}
