//! The checks: observers of the executor that find what a kernel does wrong, and say it once, completely.
//!
//! [`Checks`] is one observer that hands each event to the checks that are on. They share [`findings::Findings`], which
//! counts a finding that comes again instead of reporting it again.

mod findings;

use std::fmt;

pub use findings::{Finding, Findings, Site};

use crate::observe::{At, Halt, MemoryAccess, Observer, Sync};
use crate::program::{Function, Program};
use crate::registers::Registers;
use crate::report::{Check, Report, Severity};

/// Which checks are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection(u8);

/// The checks that can be chosen.
const CHOICE: [Check; 7] = [
    Check::Memcheck,
    Check::Initcheck,
    Check::Racecheck,
    Check::Synccheck,
    Check::Asynccheck,
    Check::Deadlock,
    Check::Nancheck,
];

impl Selection {
    /// No check: only what stops a kernel is reported.
    pub const NONE: Selection = Selection(0);
    /// Every check.
    pub const ALL: Selection = Selection((1 << CHOICE.len()) - 1);

    /// This one check.
    pub fn only(check: Check) -> Selection {
        Selection::NONE.with(check)
    }

    /// This check too.
    pub fn with(self, check: Check) -> Selection {
        Selection(self.0 | Self::bit(check))
    }

    /// All of these but this check.
    pub fn without(self, check: Check) -> Selection {
        Selection(self.0 & !Self::bit(check))
    }

    /// Whether the check is on.
    pub fn has(self, check: Check) -> bool {
        self.0 & Self::bit(check) != 0
    }

    /// The checks that are on.
    pub fn checks(self) -> impl Iterator<Item = Check> {
        CHOICE.into_iter().filter(move |&check| self.has(check))
    }

    /// The check of that name, as reports spell it.
    pub fn named(name: &str) -> Option<Selection> {
        match name {
            "all" => Some(Selection::ALL),
            "none" => Some(Selection::NONE),
            _ => CHOICE.into_iter().find(|check| check.to_string() == name).map(Selection::only),
        }
    }

    fn bit(check: Check) -> u8 {
        CHOICE.iter().position(|&known| known == check).map_or(0, |at| 1 << at)
    }
}

impl std::ops::BitOr for Selection {
    type Output = Selection;
    fn bitor(self, other: Selection) -> Selection {
        Selection(self.0 | other.0)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Selection::NONE || *self == Selection::ALL {
            return out.write_str(if *self == Selection::ALL { "all" } else { "none" });
        }
        for (at, check) in self.checks().enumerate() {
            write!(out, "{}{check}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The observer: every check that is on.
#[derive(Debug)]
pub struct Checks {
    selection: Selection,
    findings: Findings,
}

impl Checks {
    /// Every check.
    pub const ALL: Selection = Selection::ALL;
    /// None: only what stops a kernel is reported.
    pub const NONE: Selection = Selection::NONE;

    /// The checks of `selection`, for one launch. `replay` is the command, or the settings, that give the same run
    /// again: each report carries it.
    pub fn new(selection: Selection, replay: impl Into<String>) -> Checks {
        Checks { selection, findings: Findings::new(replay.into()) }
    }

    /// Which checks are on.
    pub fn selection(&self) -> Selection {
        self.selection
    }

    /// What stops a kernel with or without checks.
    fn stopped(&mut self, at: Option<&At<'_>>, kind: &'static str, message: String) {
        let site = self.findings.site_at(at);
        let place = at.map(|at| self.findings.place(at, at.mask)).unwrap_or_default();
        self.findings.add(Check::Execution, kind, (site, site), || Finding {
            severity: Severity::Error,
            message,
            place,
            ..Finding::default()
        });
    }
}

impl Observer for Checks {
    fn launch(&mut self, program: &Program, function: &Function, grid: [u32; 3], block: [u32; 3]) {
        self.findings.launch(program, function, grid, block);
    }

    fn block_begins(&mut self, _block: [u32; 3], _block_index: u64, _shared_bytes: u32) {}

    fn block_ends(&mut self, _block_index: u64) {}

    fn before(&mut self, _at: &At<'_>, _registers: &Registers) {}

    fn access(&mut self, _at: &At<'_>, _access: &MemoryAccess<'_>) {}

    fn sync(&mut self, _at: &At<'_>, _sync: &Sync<'_>) {}

    fn halt(&mut self, at: Option<&At<'_>>, halt: &Halt<'_>) {
        match halt {
            Halt::Trap => self.stopped(at, "trap", "the kernel executed `trap`".to_owned()),
            Halt::Assert(text) => self.stopped(at, "assert", (*text).to_owned()),
            Halt::Limit(limit) => {
                self.stopped(at, "limit", format!("the kernel was stopped at the limit of {limit} warp instructions"));
            }
            Halt::Fault(fault) => {
                let message = format!("{} access at {:#x}: {:?}", fault.bytes, fault.address, fault.kind);
                self.stopped(at, fault.kind.word(), message);
            }
            Halt::Sync { kind, message } => self.stopped(at, kind, (*message).to_owned()),
            Halt::Deadlock(_) => self.stopped(at, "deadlock", "nothing can run any more".to_owned()),
        }
    }

    fn take_reports(&mut self) -> Vec<Report> {
        self.findings.take()
    }

    fn errors(&self) -> u64 {
        self.findings.errors()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_spelled_as_it_is_read() {
        for check in CHOICE {
            assert_eq!(Selection::named(&check.to_string()), Some(Selection::only(check)));
            assert!(!Selection::ALL.without(check).has(check));
            assert!(Selection::NONE.with(check).has(check));
        }
        assert_eq!(Selection::named("all"), Some(Selection::ALL));
        assert_eq!(Selection::named("racechecks"), None);
        let two = Selection::only(Check::Memcheck) | Selection::only(Check::Racecheck);
        assert_eq!(two.to_string(), "memcheck,racecheck");
        assert_eq!(Selection::NONE.to_string(), "none");
        assert_eq!(two.with(Check::Execution), two);
    }
}
