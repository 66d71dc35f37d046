//! The checks: observers of the executor that find what a kernel does wrong, and say it once, completely.
//!
//! [`Checks`] is one observer that hands each event to the checks that are on. They share [`findings::Findings`], which
//! counts a finding that comes again instead of reporting it again.

mod copies;
mod deadlock;
mod findings;
mod init;
mod matrix;
mod memory;
mod nan;
mod race;
mod slots;
mod synchronisation;

use std::fmt;
use std::sync::Arc;

pub use findings::{Finding, Findings, Site};

use copies::Copies;
use init::InitCheck;
use nan::NanCheck;
use race::Race;
use slots::Slots;
use synchronisation::Barriers;

use crate::memory::AddressSpace;
use crate::observe::{At, Halt, MemoryAccess, Observer, Sync};
use crate::program::{Action, Function, Program};
use crate::registers::Registers;
use crate::report::{Check, Report, Severity};
use crate::types::Space;

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
    /// The device's memory, to name allocations.
    memory: Option<Arc<AddressSpace>>,
    slots: Slots,
    /// Threads of a block.
    threads: u32,
    race: Option<Box<Race>>,
    /// Asynccheck, and what racecheck must know of asynchronous copies.
    copies: Option<Box<Copies>>,
    barriers: Option<Box<Barriers>>,
    init: Option<Box<InitCheck>>,
    nan: Option<Box<NanCheck>>,
}

impl Checks {
    /// Every check.
    pub const ALL: Selection = Selection::ALL;
    /// None: only what stops a kernel is reported.
    pub const NONE: Selection = Selection::NONE;

    /// The checks of `selection`, for one launch. `replay` is the command, or the settings, that give the same run
    /// again: each report carries it.
    pub fn new(selection: Selection, replay: impl Into<String>) -> Checks {
        let copies = selection.has(Check::Asynccheck) || selection.has(Check::Racecheck);
        Checks {
            selection,
            findings: Findings::new(replay.into()),
            memory: None,
            slots: Slots::default(),
            threads: 0,
            race: selection.has(Check::Racecheck).then(|| Box::new(Race::new())),
            copies: copies.then(|| Box::new(Copies::new(selection.has(Check::Asynccheck)))),
            barriers: selection.has(Check::Synccheck).then(Box::default),
            init: selection.has(Check::Initcheck).then(|| Box::new(InitCheck::new(None))),
            nan: selection.has(Check::Nancheck).then(Box::default),
        }
    }

    /// Lets initcheck ask `memory` which bytes of global memory have a value; without it all of them count as written.
    /// Reports name its allocations.
    pub fn watching(mut self, memory: Arc<AddressSpace>) -> Checks {
        self.memory = Some(Arc::clone(&memory));
        self.init = self.init.map(|_| Box::new(InitCheck::new(Some(memory))));
        self
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
        self.threads = block.iter().product();
        self.findings.launch(program, function, grid);
    }

    fn block_begins(&mut self, _block: [u32; 3], block_index: u64, shared_bytes: u32) {
        let slot = self.slots.take(block_index);
        if let Some(race) = &mut self.race {
            race.begin(slot, block_index, self.threads);
        }
        if let Some(copies) = &mut self.copies {
            copies.begin(slot, block_index, self.threads, shared_bytes);
        }
        if let Some(barriers) = &mut self.barriers {
            barriers.begin(slot, self.threads);
        }
        if let Some(init) = &mut self.init {
            init.block_begins(block_index, shared_bytes);
        }
    }

    fn block_ends(&mut self, block_index: u64) {
        let slot = self.slots.free(block_index);
        if let Some(barriers) = &mut self.barriers {
            barriers.end(slot, &mut self.findings);
        }
        if let Some(race) = &mut self.race {
            race.end(slot);
        }
        if let Some(copies) = &mut self.copies {
            copies.end(slot);
        }
        if let Some(init) = &mut self.init {
            init.block_ends(block_index);
        }
        if let Some(nan) = &mut self.nan {
            nan.block_ends(block_index);
        }
    }

    fn before(&mut self, at: &At<'_>, registers: &Registers) {
        if let (Some(barriers), Action::Barrier(barrier)) = (&self.barriers, &at.instruction.action) {
            barriers.before(at, barrier, registers, &mut self.findings);
        }
        if let Some(init) = &mut self.init {
            init.before(at, registers, &mut self.findings);
        }
        if let Some(nan) = &mut self.nan {
            nan.before(at, registers, &mut self.findings);
        }
    }

    fn after(&mut self, at: &At<'_>, registers: &Registers) {
        if let Some(nan) = &mut self.nan {
            nan.after(at, registers, &mut self.findings);
        }
    }

    fn guarded(&mut self, at: &At<'_>, registers: &Registers) {
        if let Some(init) = &mut self.init {
            init.guarded(at, registers, &mut self.findings);
        }
    }

    fn enter(&mut self, at: &At<'_>, callee: &Function, registers: &Registers) {
        if let Some(init) = &mut self.init {
            init.enter(at, callee, registers);
        }
        if let Some(nan) = &mut self.nan {
            nan.enter(at, callee, registers);
        }
    }

    fn access(&mut self, at: &At<'_>, access: &MemoryAccess<'_>) {
        if let Some(init) = &mut self.init {
            init.access(at, access, &mut self.findings);
        }
        if let Some(nan) = &mut self.nan {
            nan.access(at, access, &mut self.findings);
        }
        if !matches!(access.space, Space::Shared | Space::Global) {
            return;
        }
        let slot = self.slots.of(at.block_index);
        if let Some(copies) = &mut self.copies {
            copies.access(slot, at, access, &mut self.findings);
        }
        if let Some(race) = &mut self.race {
            let actor = race::actor(slot, self.findings.site(at), at);
            race.access(actor, access);
            race.report(at, access, &mut self.findings);
        }
    }

    fn sync(&mut self, at: &At<'_>, sync: &Sync<'_>) {
        let slot = self.slots.of(at.block_index);
        if let Some(copies) = &mut self.copies {
            match *sync {
                Sync::CommitGroup => copies.commit(slot, at),
                Sync::WaitGroup(left) => copies.wait(slot, at, left, |lane, copy| {
                    if let Some(race) = &mut self.race {
                        race.landed(slot, at.warp, lane, copy.offset, copy.bytes);
                    }
                }),
                Sync::Exit => copies.exit(slot, at, &mut self.findings),
                _ => {}
            }
        }
        if let Some(race) = &mut self.race {
            race.sync(slot, at, sync);
        }
        if let Some(barriers) = &mut self.barriers {
            barriers.sync(slot, at, sync, &mut self.findings);
        }
        if let Some(init) = &mut self.init {
            init.sync(at, sync);
        }
    }

    fn misuse(&mut self, at: &At<'_>, kind: &'static str, message: &str) {
        if self.selection.has(Check::Synccheck) {
            synchronisation::tell(at, kind, message, &mut self.findings);
        }
    }

    fn halt(&mut self, at: Option<&At<'_>>, halt: &Halt<'_>) {
        match halt {
            Halt::Trap => self.stopped(at, "trap", "the kernel executed `trap`".to_owned()),
            Halt::Assert(text) => self.stopped(at, "assert", (*text).to_owned()),
            Halt::Limit(limit) => {
                self.stopped(at, "limit", format!("the kernel was stopped at the limit of {limit} warp instructions"));
            }
            Halt::Fault(fault) if self.selection.has(Check::Memcheck) => memory::fault(at, fault, &mut self.findings),
            Halt::Fault(fault) => self.stopped(at, fault.kind.word(), memory::sentence(fault)),
            Halt::Sync { kind, message } => match at {
                Some(at) if self.selection.has(Check::Synccheck) => {
                    synchronisation::tell(at, kind, message, &mut self.findings);
                }
                _ => self.stopped(at, kind, (*message).to_owned()),
            },
            Halt::Deadlock(waiting) if self.selection.has(Check::Deadlock) => {
                deadlock::tell(waiting, &mut self.findings);
            }
            Halt::Deadlock(waiting) => {
                let message = format!("nothing can run any more: {} fragments of warps wait", waiting.len());
                self.stopped(at, "deadlock", message);
            }
        }
    }

    fn finish(&mut self) {
        if let Some(message) = self.race.as_ref().and_then(|race| race.limits()) {
            self.findings.add(Check::Racecheck, "racecheck-limit", (Site::NONE, Site::NONE), || Finding {
                severity: Severity::Note,
                message: message.to_owned(),
                ..Finding::default()
            });
        }
    }

    fn take_reports(&mut self) -> Vec<Report> {
        let mut reports = self.findings.take();
        for report in &mut reports {
            if let (Some(memory), Some(address), None) = (&self.memory, report.address, &report.allocation) {
                report.allocation = Some(memory.nearest(address, 1));
            }
        }
        reports
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
