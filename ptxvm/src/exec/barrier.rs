//! The sixteen barriers of a block (`bar`, `barrier`).
//!
//! A warp arrives as a whole, once all its lanes that have not exited have come (the ISA says so for every form), and
//! counts as 32 threads. A barrier without a thread count is complete when every warp has arrived that has not exited;
//! one with a count when so many threads have. A count that is no multiple of 32 is taken as the next one: the hardware
//! counts warps.

use super::block::BlockState;
use super::step::{Now, Step, Stepped};
use super::warp::{State, Warp};
use crate::observe::{Sync, Watcher};
use crate::program::{Action, Barrier, BarrierKind};
use crate::registers::{Base, LANES};

/// What the predicates of a reduction have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    count: u32,
    all: bool,
    any: bool,
}

const NOTHING: Reduction = Reduction { count: 0, all: true, any: false };

/// One of the sixteen.
#[derive(Debug)]
pub(super) struct NamedBarrier {
    /// Who has come since it was last complete: warp, lanes, whether they wait.
    participants: Vec<(u32, u32, bool)>,
    /// Warps that have come.
    warps: u32,
    /// Threads that have come.
    threads: u32,
    /// Threads to come: of a count, or the whole block.
    expected: u32,
    /// Somebody gave no count: it is complete when every warp has come that has not exited.
    whole: bool,
    reduces: bool,
    reduction: Reduction,
    /// Of the phase before, for those that it lets go.
    result: Reduction,
}

impl Default for NamedBarrier {
    fn default() -> Self {
        NamedBarrier {
            participants: Vec::new(),
            warps: 0,
            threads: 0,
            expected: 0,
            whole: false,
            reduces: false,
            reduction: NOTHING,
            result: NOTHING,
        }
    }
}

impl NamedBarrier {
    /// In words, who has come.
    pub(super) fn describe(&self, live_warps: u32) -> String {
        if self.whole {
            let missing: Vec<String> = super::lanes(live_warps & !self.warps).map(|warp| warp.to_string()).collect();
            return format!("warps {} have not come", missing.join(", "));
        }
        format!("{} of {} threads have come", self.threads, self.expected)
    }

    fn is_complete(&self, live_warps: u32) -> bool {
        match () {
            () if self.participants.is_empty() => false,
            () if self.whole => live_warps & !self.warps == 0,
            () => self.threads >= self.expected,
        }
    }

    fn reset(&mut self) {
        self.result = self.reduction;
        self.reduction = NOTHING;
        self.participants.clear();
        (self.warps, self.threads, self.whole) = (0, 0, false);
    }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// The warp arrives at a barrier, perhaps from several places, each with registers of its own. The barrier's number
    /// if it has to wait there.
    pub(super) fn arrive_at_barrier(&mut self, parts: &[(Now<'a>, Base)]) -> Stepped<Option<u8>> {
        let mut place = None;
        let mut mask = 0;
        let mut waits = false;
        for &(now, base) in parts {
            let Action::Barrier(barrier) = &now.instruction.action else { continue };
            self.enter_base(now, base);
            if O::ACTIVE {
                self.before(now);
            }
            let (id, threads) = self.barrier_operands(now, barrier)?;
            if place.is_some_and(|(other, _)| other != id) {
                let message = format!("lanes of one warp come to different barriers at once; {id} is one of them");
                return Err(self.sync_error(now, "divergent-barrier", &message));
            }
            place = Some((id, threads));
            let sync = Sync::BarrierArrive { id: u32::from(id), waits: barrier.kind != BarrierKind::Arrive };
            if O::ACTIVE {
                let at = self.at(now);
                self.core.observer.sync(&at, &sync);
            }
            self.enter_phase(now, barrier, id, threads)?;
            mask |= now.mask;
            waits |= barrier.kind != BarrierKind::Arrive;
        }
        let (Some((id, _)), Some(&(now, _))) = (place, parts.last()) else { return Ok(None) };
        let entry = &mut self.block.barriers[usize::from(id)];
        entry.participants.push((self.number, mask, waits));
        entry.warps |= 1 << self.number;
        entry.threads += LANES as u32;
        self.check_barrier(id, now);
        Ok(waits.then_some(id))
    }

    /// The barrier's number and thread count, checked.
    fn barrier_operands(&mut self, now: Now<'a>, barrier: &Barrier) -> Stepped<(u8, Option<u32>)> {
        let lane = now.mask.trailing_zeros() as usize;
        let ids = self.warp.registers.narrow(barrier.id);
        let id = ids[lane];
        if id > 15 || super::lanes(now.mask).any(|other| ids[other] != id) {
            let message = format!("lane {lane} names barrier {id}: the warp names one of 0 to 15");
            return Err(self.sync_error(now, "barrier-id", &message));
        }
        let Some(slot) = barrier.threads else { return Ok((id as u8, None)) };
        let threads = self.warp.registers.narrow(slot)[lane];
        let most = self.block.warps * LANES as u32;
        if threads == 0 || threads > most {
            let message = format!("barrier {id} for {threads} threads: the block has {most}, in whole warps");
            return Err(self.sync_error(now, "barrier-count", &message));
        }
        Ok((id as u8, Some(threads.next_multiple_of(LANES as u32))))
    }

    /// Begins a phase of a barrier, or sees that the instruction agrees with those of the warps that came before.
    fn enter_phase(&mut self, now: Now<'a>, barrier: &Barrier, id: u8, threads: Option<u32>) -> Stepped<()> {
        let value = |registers: &crate::registers::Registers, source: u16, negated: bool| {
            let bits = registers.predicate(source);
            now.mask & if negated { !bits } else { bits }
        };
        let bits = match barrier.kind {
            BarrierKind::Sync | BarrierKind::Arrive => None,
            BarrierKind::Popc { source, negated }
            | BarrierKind::And { source, negated }
            | BarrierKind::Or { source, negated } => Some(value(&self.warp.registers, source, negated)),
        };
        let expected = threads.unwrap_or(self.block.warps * LANES as u32);
        let entry = &mut self.block.barriers[usize::from(id)];
        let first = entry.participants.is_empty();
        if !first && (entry.expected, entry.reduces) != (expected, bits.is_some()) {
            let other = if entry.reduces { "a reduction" } else { "no reduction" };
            let message = format!(
                "barrier {id} is for {expected} threads here, and for {} ({other}) where warp {} came first",
                entry.expected, entry.participants[0].0
            );
            return Err(self.sync_error(now, "barrier-count", &message));
        }
        (entry.expected, entry.reduces) = (expected, bits.is_some());
        entry.whole |= threads.is_none();
        if let Some(bits) = bits {
            let reduction = &mut entry.reduction;
            reduction.count += bits.count_ones();
            reduction.all &= bits == now.mask;
            reduction.any |= bits != 0;
        }
        Ok(())
    }

    /// Completes a barrier if all have come.
    fn check_barrier(&mut self, id: u8, now: Now<'a>) {
        let entry = &mut self.block.barriers[usize::from(id)];
        if !entry.is_complete(self.block.live_warps) {
            return;
        }
        if O::ACTIVE {
            let participants = std::mem::take(&mut entry.participants);
            let at = self.at(now);
            let sync = Sync::BarrierComplete { id: u32::from(id), participants: &participants };
            self.core.observer.sync(&at, &sync);
            self.block.barriers[usize::from(id)].participants = participants;
        }
        self.block.barriers[usize::from(id)].reset();
        self.block.completed |= 1 << id;
    }

    /// The warp has exited: barriers that waited for nothing else are complete.
    pub(super) fn warp_exited(&mut self, now: Now<'a>) {
        self.block.live_warps &= !(1 << self.number);
        for id in 0..self.block.barriers.len() as u8 {
            self.check_barrier(id, now);
        }
    }

    /// Lets the warp's fragments go on that wait at a complete barrier.
    pub(super) fn wake(&mut self, completed: u16) {
        for at in 0..self.warp.fragments.len() {
            let State::Barrier(id) = self.warp.fragments[at].state else { continue };
            if completed >> id & 1 == 0 {
                continue;
            }
            self.warp.fragments[at].state = State::Ready;
            let result = self.block.barriers[usize::from(id)].result;
            let f = &self.warp.fragments[at];
            let code = &self.core.context.program.functions[f.function as usize].code;
            let now = Now { instruction: &code[f.pc as usize], function: f.function, pc: f.pc, mask: f.mask };
            let base = f.base;
            self.warp.fragments[at].pc += 1;
            self.enter_base(now, base);
            if let Action::Barrier(barrier) = &now.instruction.action
                && !matches!(barrier.kind, BarrierKind::Sync | BarrierKind::Arrive)
            {
                self.write_reduction(now, barrier.kind, result);
            }
            if O::ACTIVE {
                self.after(now);
            }
        }
    }

    fn write_reduction(&mut self, now: Now<'a>, kind: BarrierKind, result: Reduction) {
        let (registers, slot) = (&mut self.warp.registers, now.instruction.operands[0]);
        match kind {
            BarrierKind::Sync | BarrierKind::Arrive => {}
            BarrierKind::Popc { .. } => registers.set_narrow(slot, now.mask, &[result.count; LANES]),
            BarrierKind::And { .. } => registers.set_predicate(slot, now.mask, u32::from(result.all).wrapping_neg()),
            BarrierKind::Or { .. } => registers.set_predicate(slot, now.mask, u32::from(result.any).wrapping_neg()),
        }
    }
}

impl BlockState {
    /// What a fragment waits for, in words.
    pub(super) fn describe_wait(&self, warp: &Warp, state: State) -> String {
        match state {
            State::Barrier(id) => {
                format!("barrier {id}: {}", self.barriers[usize::from(id)].describe(self.live_warps))
            }
            State::Gather(Some(members)) => format!("lanes {members:#010x} of its warp"),
            State::Gather(None) => format!("all lanes of its warp, {:#010x}", warp.live),
            State::Ready => "nothing".to_owned(),
        }
    }
}
