//! `.sync` instructions: a lane waits until all members have come that have not exited.
//!
//! Where the fragment that comes holds all members nothing is waited for. Otherwise it is set aside until the others
//! come: with the same member mask and qualifiers, not necessarily at the same place of the program (ISA, `shfl.sync`,
//! `bar.warp.sync`, `barrier`). An `.aligned` instruction must be the same one for the whole warp.
//!
//! When nothing in a warp can run, lanes that wait at joins are let go, for the members may be among them. If there are
//! none, the members never come, which is an error with a stable word:
//! `divergent-barrier`, `divergent-collective`, `mask-mismatch`, `mask-without-self`.

use super::Divergence;
use super::step::{Now, Step, Stepped, Turn};
use super::warp::{Fragment, State};
use crate::observe::{Halt, Sync, Watcher};
use crate::program::{Action, Instruction, Members};
use crate::registers::{Base, LANES};

/// Whether two fragments' instructions are the same exchange.
fn same_operation(a: &Instruction, b: &Instruction) -> bool {
    match (&a.action, &b.action) {
        _ if std::ptr::eq(a, b) => true,
        (Action::WarpBarrier { .. }, Action::WarpBarrier { .. }) => true,
        (Action::Barrier(a), Action::Barrier(b)) => !a.aligned && !b.aligned,
        (
            Action::Collective { run: a_run, members: Members::Mask(_) },
            Action::Collective { run: b_run, members: Members::Mask(_) },
        ) => std::ptr::eq(a.form, b.form) && std::ptr::fn_addr_eq(*a_run, *b_run),
        _ => false,
    }
}

/// Whether the whole warp has to execute the very same instruction.
fn aligned(instruction: &Instruction) -> bool {
    match &instruction.action {
        Action::Barrier(barrier) => barrier.aligned,
        Action::Collective { members, .. } => *members == Members::Warp,
        Action::LoadMatrix { .. } => true,
        _ => false,
    }
}

fn members(instruction: &Instruction) -> Members {
    match instruction.action {
        Action::Collective { members, .. } => members,
        Action::WarpBarrier { mask } => Members::Mask(mask),
        _ => Members::Warp,
    }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// A fragment comes to a `.sync` instruction.
    pub(super) fn gather(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        let live = self.warp.live;
        match members(now.instruction) {
            Members::Warp if now.mask == live => return self.together(f, now),
            Members::Warp => {}
            Members::Mask(slot) => {
                let masks = self.warp.registers.narrow(slot);
                let member_mask = masks[now.mask.trailing_zeros() as usize];
                if member_mask & live == now.mask && self.uniform(slot, now.mask, member_mask) {
                    self.check_exited(now, member_mask);
                    return self.together(f, now);
                }
            }
        }
        self.gather_parts(f, now)
    }

    /// Whether all lanes of `mask` hold the same value.
    fn uniform(&self, slot: u16, mask: u32, value: u32) -> bool {
        let register = self.warp.registers.narrow(slot);
        let mut differ = 0;
        for (lane, &bits) in register.iter().enumerate() {
            differ |= (bits ^ value) & (mask >> lane & 1).wrapping_neg();
        }
        differ == 0
    }

    /// Tells of a member mask that names lanes which have exited. Nobody waits for them, but what they would have given
    /// is undefined.
    fn check_exited(&mut self, now: Now<'a>, member_mask: u32) {
        let exited = member_mask & self.warp.born & !self.warp.live;
        if O::ACTIVE && exited != 0 {
            let message = format!("the member mask {member_mask:#010x} names lanes that have exited: {exited:#010x}");
            let at = self.at(now);
            self.core.observer.misuse(&at, "mask-exited-lane", &message);
        }
    }

    /// All members are in one fragment.
    fn together(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        if let Action::Barrier(_) = now.instruction.action {
            let waits = self.arrive_at_barrier(&[(now, f.base)])?;
            return Ok(match waits {
                None => Turn::Next,
                Some(id) => self.park(f, State::Barrier(id)),
            });
        }
        self.exchange(now)?;
        Ok(Turn::Next)
    }

    /// Executes an exchange among the lanes of `now.mask`.
    fn exchange(&mut self, now: Now<'a>) -> Stepped<()> {
        if O::ACTIVE {
            self.before(now);
        }
        let instruction = now.instruction;
        let sync = match &instruction.action {
            Action::Collective { run, .. } => {
                let settings = &self.core.context.options.settings;
                run(&mut self.warp.registers, &instruction.operands, now.mask, settings);
                Sync::Converge
            }
            Action::LoadMatrix { address, count, transposed } => {
                self.load_matrix(now, address, *count, *transposed)?;
                Sync::Converge
            }
            _ => Sync::WarpBarrier,
        };
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &sync);
            self.after(now);
        }
        Ok(())
    }

    /// Sets a fragment aside.
    pub(super) fn park(&mut self, f: &mut Fragment, state: State) -> Turn {
        let stack = std::mem::take(&mut f.stack);
        self.warp.fragments.push(Fragment { state, stack, ..*f });
        Turn::Parked
    }

    /// Some members are missing, or the lanes name different members.
    fn gather_parts(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        let mut waiting: Vec<(u32, Option<u32>)> = Vec::new();
        let mut all_waiting = 0;
        let mut left = now.mask;
        while left != 0 {
            let (group, members) = self.group(now, left)?;
            left &= !group;
            if let Some(members) = members
                && members & self.warp.live == group
            {
                self.check_exited(now, members);
                self.exchange(Now { mask: group, ..now })?;
            } else {
                waiting.push((group, members));
                all_waiting |= group;
            }
        }
        let Some((_, last)) = waiting.pop() else { return Ok(Turn::Next) };
        if !waiting.is_empty() && self.core.context.options.divergence == Divergence::Reconverge {
            self.warp.open_join(f, f.pc + 1, f.depth());
        }
        self.leave_behind(f, f.mask & !all_waiting);
        for (group, members) in waiting {
            let part = Fragment { state: State::Gather(members), ..f.split(group, f.pc) };
            self.warp.fragments.push(part);
        }
        self.park(f, State::Gather(last));
        self.complete_gathers()?;
        Ok(Turn::Parked)
    }

    /// The lanes among `left` that name the same members as the first of them.
    fn group(&mut self, now: Now<'a>, left: u32) -> Stepped<(u32, Option<u32>)> {
        let Members::Mask(slot) = members(now.instruction) else { return Ok((left, None)) };
        let masks = *self.warp.registers.narrow(slot);
        let members = masks[left.trailing_zeros() as usize & 31];
        let group = super::lanes(left).filter(|&lane| masks[lane] == members);
        let group = group.fold(0, |mask, lane| mask | 1 << lane);
        let outside = group & !members;
        if outside != 0 {
            let message = format!("lanes {outside:#010x} are not in their own member mask {members:#010x}");
            return Err(self.sync_error(Now { mask: outside, ..now }, "mask-without-self", &message));
        }
        Ok((group, Some(members)))
    }

    /// Lets every gathering go on whose members have all come.
    pub(super) fn complete_gathers(&mut self) -> Stepped<()> {
        let mut first = 0;
        while first < self.warp.fragments.len() {
            let State::Gather(members) = self.warp.fragments[first].state else {
                first += 1;
                continue;
            };
            let key = self.instruction(&self.warp.fragments[first]);
            let came: Vec<usize> = (first..self.warp.fragments.len())
                .filter(|&at| self.warp.fragments[at].state == State::Gather(members))
                .filter(|&at| same_operation(key, self.instruction(&self.warp.fragments[at])))
                .collect();
            let mask = came.iter().fold(0, |mask, &at| mask | self.warp.fragments[at].mask);
            if mask == members.unwrap_or(u32::MAX) & self.warp.live {
                self.complete(&came, members)?;
                first = 0;
            } else {
                first += 1;
            }
        }
        Ok(())
    }

    fn instruction(&self, f: &Fragment) -> &'a Instruction {
        // A fragment gathers at an instruction, so there is one.
        &self.core.context.program.functions[f.function as usize].code[f.pc as usize]
    }

    fn now(&self, f: &Fragment) -> Now<'a> {
        Now { instruction: self.instruction(f), function: f.function, pc: f.pc, mask: f.mask }
    }

    /// All members have come, in several fragments.
    fn complete(&mut self, came: &[usize], members: Option<u32>) -> Stepped<()> {
        let nows: Vec<Now<'a>> = came.iter().map(|&at| self.now(&self.warp.fragments[at])).collect();
        let first = nows[0];
        let mask = nows.iter().fold(0, |mask, now| mask | now.mask);
        let base = self.warp.fragments[came[0]].base;
        let same = came.iter().all(|&at| self.warp.fragments[at].base == base)
            && nows.iter().all(|now| std::ptr::eq(now.instruction, first.instruction));
        if let Some(members) = members {
            self.check_exited(first, members);
        }
        let bases: Vec<Base> = came.iter().map(|&at| self.warp.fragments[at].base).collect();
        let with_bases = |nows: Vec<Now<'a>>| nows.into_iter().zip(bases).collect::<Vec<_>>();
        let mut state = State::Ready;
        self.enter_base(first, base);
        if let Action::Barrier(_) = first.instruction.action {
            let parts = if same { vec![(Now { mask, ..first }, base)] } else { with_bases(nows) };
            if let Some(id) = self.arrive_at_barrier(&parts)? {
                state = State::Barrier(id);
            }
        } else if same || matches!(first.instruction.action, Action::WarpBarrier { .. }) {
            self.exchange(Now { mask, ..first })?;
        } else {
            self.exchange_apart(&with_bases(nows));
        }
        let waits = state != State::Ready;
        for &at in came {
            self.warp.fragments[at].state = state;
            self.warp.fragments[at].pc += u32::from(!waits);
        }
        if self.core.context.options.divergence == Divergence::Reconverge || self.core.random.below(2) == 0 {
            self.warp.merge();
        }
        Ok(())
    }

    /// Nothing of the warp is ready: lets lanes at joins go where others wait for them. Whether something is ready now.
    pub(super) fn unblock(&mut self) -> Stepped<bool> {
        let gathers = |fragment: &&Fragment| matches!(fragment.state, State::Gather(_));
        let at_joins = self.warp.joins.waiting();
        let Some(first) = self.warp.fragments.iter().find(gathers).cloned() else {
            return Ok(self.warp.release_joins());
        };
        let strict = self.warp.fragments.iter().filter(gathers).find(|f| aligned(self.instruction(f))).cloned();
        if at_joins == 0 || strict.is_some() {
            let stuck = strict.unwrap_or(first);
            return Err(self.never_come(&stuck));
        }
        Ok(self.warp.release_joins())
    }

    /// The error for a fragment whose fellow members wait elsewhere for good.
    fn never_come(&mut self, stuck: &Fragment) -> Box<super::ExecError> {
        let now = self.now(stuck);
        let others = self.warp.fragments.iter().filter(|other| other.mask != stuck.mask);
        let mut mismatch = false;
        let mut elsewhere = Vec::new();
        for other in others {
            let instruction = self.instruction(other);
            mismatch |= !aligned(now.instruction) && same_operation(now.instruction, instruction);
            elsewhere.push(describe(other, instruction.site.line));
        }
        for other in self.warp.joins.fragments() {
            let code = &self.core.context.program.functions[other.function as usize].code;
            let line = code.get(other.pc as usize).map_or(0, |instruction| instruction.site.line);
            elsewhere.push(describe(other, line));
        }
        let kind = match now.instruction.action {
            Action::Barrier(_) => "divergent-barrier",
            _ if mismatch => "mask-mismatch",
            _ => "divergent-collective",
        };
        let wanted = match stuck.state {
            State::Gather(Some(members)) => format!("lanes {members:#010x}"),
            _ => format!("all lanes of the warp, {:#010x},", self.warp.live),
        };
        let name = now.instruction.form.name;
        let message = format!(
            "lanes {:#010x} execute `{name}`, which needs {wanted} and waits for ever: {}",
            stuck.mask,
            elsewhere.join("; ")
        );
        self.sync_error(now, kind, &message)
    }

    /// A wrong use of a synchronising instruction, after which nothing can go on.
    pub(super) fn sync_error(&mut self, now: Now<'a>, kind: &'static str, message: &str) -> Box<super::ExecError> {
        self.halt(Some(now), &Halt::Sync { kind, message })
    }
}

fn describe(f: &Fragment, line: u32) -> String {
    let members = match f.state {
        State::Gather(Some(members)) => format!(" for lanes {members:#010x}"),
        _ => String::new(),
    };
    format!("lanes {:#010x} wait at line {line}{members}", f.mask)
}

const _: () = assert!(LANES == 32, "member masks are 32 bits");
