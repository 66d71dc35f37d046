//! nancheck: a NaN that a kernel makes from numbers, and that reaches global memory or decides a branch.
//!
//! Instructions that compute with floats are looked at when they are done: a NaN in a lane whose sources held none is a
//! making. From there it is followed through registers, shared and local memory. A NaN that came from outside is not the
//! kernel's; one that a select, a `min` or a `max` throws away never mattered; nor does asking whether a value is one.
//! An infinity made from finite numbers is a note.

mod flow;
mod formats;
mod tracks;

use std::collections::HashMap;

use tracks::{Id, Made, Makings, Stored, Tracks};

use super::{Finding, Findings};
use crate::observe::{AccessKind, At, MemoryAccess};
use crate::program::{Action, Bank, Function};
use crate::registers::Registers;
use crate::report::{Check, Severity};
use crate::table::Role;
use crate::types::Space;

/// The check.
#[derive(Debug, Default)]
pub(super) struct NanCheck {
    makings: Makings,
    blocks: HashMap<u64, Block>,
    /// The block that the last event was about, taken out of `blocks`.
    current: Block,
}

/// What is known of a block that runs.
#[derive(Debug, Default)]
struct Block {
    index: Option<u64>,
    warps: Vec<Warp>,
    shared: Stored,
}

#[derive(Debug, Default)]
struct Warp {
    tracks: Tracks,
    local: Stored,
    /// Specials among the sources of the instruction that runs, where it overwrites one of them.
    before: Option<formats::Special>,
}

/// The lanes of a mask, ascending.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

impl NanCheck {
    pub(super) fn block_ends(&mut self, index: u64) {
        if self.current.index == Some(index) {
            self.current = Block::default();
        }
        self.blocks.remove(&index);
    }

    /// Turns to the block and warp of an event.
    #[inline(always)]
    fn turn(&mut self, at: &At<'_>) {
        if self.current.index != Some(at.block_index) {
            self.change_block(at.block_index);
        }
        let warp = at.warp as usize;
        if self.current.warps.len() <= warp {
            self.current.warps.resize_with(warp + 1, Warp::default);
        }
    }

    fn change_block(&mut self, index: u64) {
        let next = self.blocks.remove(&index).unwrap_or_else(|| Block { index: Some(index), ..Block::default() });
        let last = std::mem::replace(&mut self.current, next);
        if let Some(index) = last.index {
            self.blocks.insert(index, last);
        }
    }

    /// A function begins.
    pub(super) fn enter(&mut self, at: &At<'_>, callee: &Function, registers: &Registers) {
        self.turn(at);
        self.current.warps[at.warp as usize].tracks.enter(registers.base(), callee, at.mask);
    }

    /// An instruction begins.
    #[inline]
    pub(super) fn before(&mut self, at: &At<'_>, registers: &Registers, findings: &mut Findings) {
        self.turn(at);
        let warp = &mut self.current.warps[at.warp as usize];
        warp.tracks.turn(registers.base());
        match &at.instruction.action {
            Action::Lanes(_) | Action::Collective { .. } => {
                warp.before = flow::overwritten(at).then(|| flow::sources(at, registers));
            }
            Action::Branch(_) => {
                let Some((slot, _)) = at.instruction.guard else { return };
                let reached = warp.tracks.mask(Bank::Predicate, slot) & at.mask;
                if reached != 0 {
                    let ids = warp.tracks.ids(Bank::Predicate, slot);
                    let users = lanes(reached).map(|lane| (lane, ids[lane])).collect();
                    warp.tracks.clear(Bank::Predicate, slot, reached);
                    self.reaches(at, users, ("nan-branch", "decides a branch"), findings);
                }
            }
            _ => {
                for (index, shape) in at.instruction.layout.iter().enumerate() {
                    if shape.role == Role::Destination {
                        warp.tracks.clear(shape.bank, at.instruction.operands[index], at.mask);
                    }
                }
            }
        }
    }

    /// An instruction is done.
    #[inline]
    pub(super) fn after(&mut self, at: &At<'_>, registers: &Registers, findings: &mut Findings) {
        self.turn(at);
        let warp = &mut self.current.warps[at.warp as usize];
        warp.tracks.turn(registers.base());
        let before = warp.before.take();
        match &at.instruction.action {
            Action::Lanes(_) | Action::Collective { .. } => {
                flow::done(at, registers, before, &mut warp.tracks, &mut self.makings, findings);
            }
            Action::Load(_) => flow::confirm(at, registers, &mut warp.tracks, &self.makings),
            _ => {}
        }
    }

    /// An access to memory.
    #[inline]
    pub(super) fn access(&mut self, at: &At<'_>, access: &MemoryAccess<'_>, findings: &mut Findings) {
        self.turn(at);
        match access.kind {
            AccessKind::Read => self.loads(at, access),
            AccessKind::Write => self.stores(at, access, findings),
            AccessKind::Atomic if access.space == Space::Global => self.stores(at, access, findings),
            AccessKind::AsyncWrite if !self.current.shared.is_empty() => {
                for lane in lanes(access.mask) {
                    self.current.shared.write(0, access.addresses[lane], access.bytes, None);
                }
            }
            _ => {}
        }
    }

    /// A load from shared or local memory may bring back what was stored there.
    fn loads(&mut self, at: &At<'_>, access: &MemoryAccess<'_>) {
        let (Action::Load(load), Some(warp)) = (&at.instruction.action, self.current.warps.get_mut(at.warp as usize))
        else {
            return;
        };
        let (stored, own) = match access.space {
            Space::Shared => (&self.current.shared, false),
            Space::Local => (&warp.local, true),
            _ => return,
        };
        if stored.is_empty() {
            return;
        }
        let size = load.ty.bytes();
        for (element, (index, shape)) in destinations(at).take(usize::from(load.count)).enumerate() {
            let mut ids = [0; 32];
            let mut found = 0;
            for lane in lanes(access.mask) {
                let address = access.addresses[lane] + u64::from(size) * element as u64;
                if let Some(id) = stored.read(if own { lane as u8 } else { 0 }, address, size) {
                    (ids[lane], found) = (id, found | 1 << lane);
                }
            }
            warp.tracks.set(shape.bank, at.instruction.operands[index], found, &ids);
        }
    }

    /// A store to global memory is where a NaN must not come; elsewhere it is followed.
    fn stores(&mut self, at: &At<'_>, access: &MemoryAccess<'_>, findings: &mut Findings) {
        let (size, count) = match &at.instruction.action {
            Action::Store(store) => (store.ty.bytes(), usize::from(store.count)),
            Action::Atomic(atomic) => (atomic.ty.bytes(), 2),
            _ => return,
        };
        let Some(warp) = self.current.warps.get_mut(at.warp as usize) else { return };
        let mut users = Vec::new();
        let data = at.instruction.layout.iter().enumerate().filter(|(_, shape)| shape.role == Role::Source).take(count);
        for (element, (index, shape)) in data.enumerate() {
            let slot = at.instruction.operands[index];
            let tracked = warp.tracks.mask(shape.bank, slot) & access.mask;
            let (stored, own) = match access.space {
                Space::Shared => (&mut self.current.shared, false),
                Space::Local => (&mut warp.local, true),
                _ if tracked == 0 => continue,
                _ => {
                    let ids = warp.tracks.ids(shape.bank, slot);
                    users.extend(lanes(tracked).map(|lane| (lane, ids[lane])));
                    continue;
                }
            };
            if tracked == 0 && stored.is_empty() {
                continue;
            }
            let ids = warp.tracks.ids(shape.bank, slot);
            for lane in lanes(access.mask) {
                let address = access.addresses[lane] + u64::from(size) * element as u64;
                let id = (tracked >> lane & 1 == 1).then_some(ids[lane]);
                stored.write(if own { lane as u8 } else { 0 }, address, size, id);
            }
        }
        if !users.is_empty() {
            self.reaches(at, users, ("nan-stored", "is stored to global memory"), findings);
        }
    }

    /// Reports NaNs that have reached a use: (lane that uses it, its making).
    fn reaches(
        &self,
        at: &At<'_>,
        mut users: Vec<(usize, Id)>,
        (kind, what): (&'static str, &str),
        findings: &mut Findings,
    ) {
        users.sort_by_key(|&(_, id)| id);
        for same in users.chunk_by(|(_, a), (_, b)| a == b) {
            let mask = same.iter().fold(0, |mask, (lane, _)| mask | 1 << lane);
            if let Some(made) = self.makings.get(same[0].1) {
                report(at, made, mask, (kind, what), findings);
            }
        }
    }
}

/// The slots that an instruction writes.
fn destinations<'a>(at: &At<'a>) -> impl Iterator<Item = (usize, &'a crate::program::OperandSlot)> {
    at.instruction.layout.iter().enumerate().filter(|(_, shape)| shape.role == Role::Destination)
}

#[cold]
fn report(at: &At<'_>, made: &Made, users: u32, (kind, what): (&'static str, &str), findings: &mut Findings) {
    let sites = (made.site, findings.site(at));
    if findings.again(Check::Nancheck, kind, sites) {
        return;
    }
    let place = findings.place_of(made.site, made.block, made.warp, made.lanes);
    let related = vec![(format!("it {what} here"), findings.place(at, users))];
    let message = format!("makes a NaN from numbers that are none, and it {what} at line {}", at.instruction.site.line);
    findings.add(Check::Nancheck, kind, sites, || Finding { message, place, related, ..Finding::default() });
}

/// An infinity was made: worth a note, for `lg2(0)` and an exponential that overflows are ordinary.
#[cold]
fn note_infinity(at: &At<'_>, lanes: u32, findings: &mut Findings) {
    let site = findings.site(at);
    if findings.again(Check::Nancheck, "infinity", (site, site)) {
        return;
    }
    let place = findings.place(at, lanes);
    findings.add(Check::Nancheck, "infinity", (site, site), || Finding {
        severity: Severity::Note,
        message: "makes an infinity from finite numbers".to_owned(),
        place,
        ..Finding::default()
    });
}
