//! What a race is told as.

use super::Race;
use super::clock::Stamp;
use super::shadow::{Mark, Strength};
use crate::observe::check::{Finding, Findings, Site};
use crate::observe::{At, MemoryAccess};
use crate::report::{Check, Severity};
use crate::types::Space;

/// The classes of races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(in super::super) enum Hazard {
    WriteAfterWrite,
    ReadAfterWrite,
    WriteAfterRead,
    /// Two lanes wrote different values to one place in one instruction: which one stays is not defined.
    OneInstruction,
    /// Nothing orders the two, but the bytes are the same either way.
    SameValue,
    /// `ld.global.nc` of what this kernel has written: the read-only path may hold the old bytes whatever orders them.
    NonCoherent,
}

impl Hazard {
    fn kind(self) -> &'static str {
        match self {
            Hazard::WriteAfterWrite => "write-after-write",
            Hazard::ReadAfterWrite => "read-after-write",
            Hazard::WriteAfterRead => "write-after-read",
            Hazard::OneInstruction => "one-instruction-writes",
            Hazard::SameValue => "same-value-write",
            Hazard::NonCoherent => "non-coherent-read",
        }
    }
}

/// An access that nothing orders after an earlier one.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Conflict {
    pub(super) hazard: Hazard,
    /// Lanes of the access.
    pub(super) lanes: u32,
    /// The place of the first of them.
    pub(super) address: u64,
    /// The earlier access.
    pub(super) before: Stamp,
    /// Its lanes; none where they were not kept.
    pub(super) before_lanes: u32,
    pub(super) mark: Mark,
    /// Of the access.
    pub(super) strength: Strength,
}

impl Race {
    /// Tells what the last access ran into.
    pub(in super::super) fn report(&self, at: &At<'_>, access: &MemoryAccess<'_>, to: &mut Findings) {
        for &conflict in &self.conflicts {
            let sites = (to.site(at), Site(conflict.mark.site()));
            let kind = conflict.hazard.kind();
            if to.again(Check::Racecheck, kind, sites) {
                continue;
            }
            let block = to.coordinates(self.block_index(conflict.before.serial()));
            let earlier = to.place_of(sites.1, block, conflict.before.warp(), conflict.before_lanes);
            let place = to.place(at, conflict.lanes);
            let shared = access.space == Space::Shared;
            to.add(Check::Racecheck, kind, sites, || Finding {
                severity: if conflict.hazard == Hazard::SameValue { Severity::Note } else { Severity::Error },
                message: message(conflict, at, block == at.block, if shared { "shared" } else { "global" }),
                place,
                related: vec![("the earlier access".to_owned(), earlier)],
                address: Some(conflict.address),
                allocation: shared.then(|| "shared memory of the block".to_owned()),
            });
        }
    }
}

fn message(conflict: Conflict, at: &At<'_>, same_block: bool, space: &str) -> String {
    let address = conflict.address;
    let who = match (same_block, conflict.before.warp() == at.warp) {
        (true, true) => "another lane of the warp",
        (true, false) => "another warp of the block",
        (false, _) => "another block",
    };
    let missing = match (same_block, conflict.before.warp() == at.warp) {
        (true, true) => "no `bar.warp.sync` or barrier of both lanes",
        (true, false) => "no barrier of both warps, nor a release and acquire through memory",
        (false, _) => "no release and acquire of `.gpu` scope",
    };
    let strong = match (conflict.strength, conflict.mark.strength()) {
        (Strength::Weak, Strength::Weak) => "",
        (Strength::Weak, _) => " (the earlier access is strong, this one is weak)",
        (_, Strength::Weak) => " (this access is strong, the earlier one is weak)",
        _ => " (both are strong, but a scope does not include the other's thread)",
    };
    match conflict.hazard {
        Hazard::WriteAfterWrite => {
            format!("writes {space} {address:#x}, which {who} has written: {missing} stands between{strong}")
        }
        Hazard::ReadAfterWrite => {
            format!("reads {space} {address:#x}, which {who} has written: {missing} stands between{strong}")
        }
        Hazard::WriteAfterRead => {
            format!("writes {space} {address:#x}, which {who} has read: {missing} stands between{strong}")
        }
        Hazard::OneInstruction => {
            format!(
                "several lanes write different values to {space} {address:#x} in one instruction: any of them may stay"
            )
        }
        Hazard::SameValue => {
            format!("writes {space} {address:#x} unordered with {who}, but the same value: {missing} stands between")
        }
        Hazard::NonCoherent => format!(
            "`ld.global.nc` reads {space} {address:#x}, which this kernel has written: its path may hold the old bytes"
        ),
    }
}
