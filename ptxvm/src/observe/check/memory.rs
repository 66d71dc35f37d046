//! memcheck: accesses that cannot be done. The executor finds them; this says them.

use super::{Finding, Findings};
use crate::memory::{Fault, FaultKind};
use crate::observe::At;
use crate::report::Check;
use crate::types::Space;

/// Reports an access that cannot be done.
pub(super) fn fault(at: Option<&At<'_>>, fault: &Fault, findings: &mut Findings) {
    let site = findings.site_at(at);
    let place = at.map(|at| findings.place(at, fault.lanes)).unwrap_or_default();
    findings.add(Check::Memcheck, fault.kind.word(), (site, site), || Finding {
        message: sentence(fault),
        place,
        address: Some(fault.address),
        allocation: fault.allocation.clone(),
        ..Finding::default()
    });
}

fn space(space: Space) -> &'static str {
    match space {
        Space::Generic | Space::Global => "global",
        Space::Shared => "shared",
        Space::Local => "local",
        Space::Const => "constant",
        Space::Param => "parameter",
    }
}

/// What is wrong, in words.
pub(super) fn sentence(fault: &Fault) -> String {
    let what = if fault.write { "write" } else { "read" };
    let unit = if fault.bytes == 1 { "byte" } else { "bytes" };
    let (bytes, address, of) = (fault.bytes, fault.address, space(fault.space));
    let wrong = match fault.kind {
        FaultKind::OutOfBounds => "is outside of every allocation",
        FaultKind::UseAfterFree => "is in memory that was freed",
        FaultKind::Misaligned => "is not at a multiple of its size",
        FaultKind::ReadOnly => "is to memory that kernels may only read",
        FaultKind::WrongSpace => "is in another space than the instruction names",
        FaultKind::NoPeerAccess => "is in the memory of another device, to which this one has no peer access",
    };
    let wrong = match (fault.kind, fault.space) {
        (FaultKind::OutOfBounds, Space::Shared) => "is beyond the block's shared memory",
        (FaultKind::OutOfBounds, Space::Local) => "is beyond the thread's local memory",
        (FaultKind::OutOfBounds, Space::Param) => "is beyond the kernel's parameters",
        _ => wrong,
    };
    let near = fault.allocation.as_ref().map_or_else(String::new, |near| format!(": {near}"));
    format!("a {what} of {bytes} {unit} of {of} memory at {address:#x} {wrong}{near}")
}
