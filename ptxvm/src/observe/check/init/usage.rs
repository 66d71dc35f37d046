//! Uses of undefined bytes that are errors.

use super::global::Global;
use super::propagate::sources;
use super::registers::Registers as Shadow;
use super::window::Bytes;
use super::{Findings, Site, lanes};
use crate::observe::check::Finding;
use crate::observe::{At, MemoryAccess};
use crate::program::{Action, Address, AddressBase, Bank, Members};
use crate::report::Check;

/// A use: the finding's stable word, and what is undefined, in words.
type Use = (&'static str, &'static str);

const ADDRESS: Use = ("undefined-address", "the address");
const GUARD: Use = ("undefined-guard", "the predicate that guards it");
const BRANCH: Use = ("undefined-branch", "the predicate that decides the branch");

/// Reports a register that is undefined in lanes that use it. It then counts as defined, so that one mistake is one
/// report.
#[inline(always)]
fn used(at: &At<'_>, (bank, slot): (Bank, u16), mask: u32, what: Use, shadow: &mut Shadow, findings: &mut Findings) {
    let undefined = shadow.undefined(bank, slot) & mask;
    if undefined != 0 {
        report(at, undefined, what, shadow.origin(bank, slot), findings);
        shadow.define(bank, slot, undefined);
    }
}

#[cold]
fn report(at: &At<'_>, undefined: u32, (kind, what): Use, origin: Site, findings: &mut Findings) {
    let site = findings.site(at);
    if findings.again(Check::Initcheck, kind, (site, origin)) {
        return;
    }
    let (place, related) = (findings.place(at, undefined), loads(at, origin, findings));
    let from = source(origin);
    let message = format!("{what} is undefined in {}: {from}", in_lanes(undefined));
    findings.add(Check::Initcheck, kind, (site, origin), || Finding { message, place, related, ..Finding::default() });
}

fn in_lanes(mask: u32) -> String {
    match mask.count_ones() {
        1 => format!("lane {}", mask.trailing_zeros()),
        count => format!("{count} lanes"),
    }
}

fn source(origin: Site) -> &'static str {
    match origin {
        Site::NONE => "a register was never written",
        _ => "it comes from memory that was never written",
    }
}

fn loads(at: &At<'_>, origin: Site, findings: &Findings) -> Vec<(String, crate::report::Place)> {
    match origin {
        Site::NONE => Vec::new(),
        _ => vec![("the undefined bytes were loaded here".to_owned(), findings.place_of(origin, at.block, at.warp, 0))],
    }
}

/// The guard of an instruction, in all lanes that come to it.
pub(super) fn guard(at: &At<'_>, shadow: &mut Shadow, findings: &mut Findings) {
    if let Some((slot, _)) = at.instruction.guard {
        let branch = matches!(at.instruction.action, Action::Branch(_));
        let what = if branch { BRANCH } else { GUARD };
        used(at, (Bank::Predicate, slot), at.mask, what, shadow, findings);
    }
}

/// The member mask of an exchange.
pub(super) fn members(at: &At<'_>, shadow: &mut Shadow, findings: &mut Findings) {
    if let Action::Collective { members: Members::Mask(slot), .. } = at.instruction.action {
        let what = ("undefined-mask", "the member mask");
        used(at, (Bank::Narrow, slot), at.mask, what, shadow, findings);
    }
}

/// Everything that decides where an access goes, which way a branch goes, and what a barrier or an atomic does.
#[inline]
pub(super) fn operands(at: &At<'_>, shadow: &mut Shadow, findings: &mut Findings) {
    let all = |what: Use, shadow: &mut Shadow, findings: &mut Findings| {
        for (bank, slot, _) in sources(at) {
            used(at, (bank, slot), at.mask, what, shadow, findings);
        }
    };
    match &at.instruction.action {
        Action::Load(access) | Action::Store(access) => address(at, &access.address, at.mask, shadow, findings),
        Action::Atomic(atomic) => {
            address(at, &atomic.address, at.mask, shadow, findings);
            all(("undefined-atomic", "an operand of the atomic"), shadow, findings);
        }
        Action::LoadMatrix { address: of, count, .. } => {
            let givers = u32::MAX.checked_shr(32 - 8 * u32::from(*count).min(4)).unwrap_or(0);
            address(at, of, at.mask & givers, shadow, findings);
        }
        Action::CopyAsync { to, from, .. } => {
            address(at, to, at.mask, shadow, findings);
            address(at, from, at.mask, shadow, findings);
            all(("undefined-copy", "the size of the copy"), shadow, findings);
        }
        Action::BranchIndexed { .. } => all(("undefined-branch", "the index of the branch"), shadow, findings),
        Action::Barrier(_) => {
            all(("undefined-barrier", "an operand of the barrier"), shadow, findings);
            super::propagate::written(at, shadow);
        }
        Action::WarpBarrier { mask } => {
            used(at, (Bank::Narrow, *mask), at.mask, ("undefined-mask", "the member mask"), shadow, findings);
        }
        _ => {}
    }
}

fn address(at: &At<'_>, address: &Address, mask: u32, shadow: &mut Shadow, findings: &mut Findings) {
    let register = match address.base {
        AddressBase::Wide(slot) => (Bank::Wide, slot),
        AddressBase::Narrow(slot) => (Bank::Narrow, slot),
        _ => return,
    };
    used(at, register, mask, ADDRESS, shadow, findings);
}

/// Undefined bytes are stored to global memory.
pub(super) fn stored(
    at: &At<'_>,
    access: &MemoryAccess<'_>,
    undefined: &Bytes,
    shadow: &mut Shadow,
    global: &mut Global,
    findings: &mut Findings,
) {
    let wrong = lanes(access.mask).filter(|&lane| undefined[lane] != 0).fold(0, |mask, lane| mask | 1 << lane);
    let unknown = |(bank, slot, _): &(Bank, u16, u8)| shadow.undefined(*bank, *slot) & wrong != 0;
    let found = sources(at).find(unknown);
    let origin = found.map_or(Site::NONE, |(bank, slot, _)| shadow.origin(bank, slot));
    let what = format!("stores bytes without a value to global memory in {}: {}", in_lanes(wrong), source(origin));
    in_memory(at, access, (wrong, undefined), ("undefined-store", what, origin), global, findings);
}

/// An atomic meets undefined bytes in memory.
pub(super) fn atomic(
    at: &At<'_>,
    access: &MemoryAccess<'_>,
    undefined: &Bytes,
    global: &mut Global,
    findings: &mut Findings,
) {
    let wrong = lanes(access.mask).filter(|&lane| undefined[lane] != 0).fold(0, |mask, lane| mask | 1 << lane);
    let what = format!("works on memory that was never written in {}", in_lanes(wrong));
    in_memory(at, access, (wrong, undefined), ("undefined-atomic", what, Site::NONE), global, findings);
}

fn in_memory(
    at: &At<'_>,
    access: &MemoryAccess<'_>,
    (wrong, undefined): (u32, &Bytes),
    (kind, what, origin): (&'static str, String, Site),
    global: &mut Global,
    findings: &mut Findings,
) {
    let site = findings.site(at);
    if findings.again(Check::Initcheck, kind, (site, origin)) {
        return;
    }
    let lane = wrong.trailing_zeros() as usize % 32;
    let address = access.addresses[lane] + u64::from(undefined[lane].trailing_zeros());
    let global_memory = matches!(access.space, crate::types::Space::Global | crate::types::Space::Generic);
    let allocation = if global_memory { global.describe(address) } else { None };
    let (place, related) = (findings.place(at, wrong), loads(at, origin, findings));
    let message = format!("{} {what}", at.instruction.form.name);
    let address = Some(address);
    findings.add(Check::Initcheck, kind, (site, origin), || Finding {
        message,
        place,
        related,
        address,
        allocation,
        ..Finding::default()
    });
}
