//! Running a fragment: one instruction after the other, until its turn is over or it has to wait.

use super::Divergence;
use super::block::BlockState;
use super::error::ExecError;
use super::warp::{Fragment, State, Warp};
use super::worker::Core;
use crate::observe::{At, Halt, Watcher};
use crate::program::{Action, Branch, Function, Instruction, LaneFn, Order};

/// What a strong access costs of a turn more than an instruction: who spins should let others run.
const STRONG_COST: u32 = 24;

/// What follows an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The next one.
    Next,
    /// The fragment's place has changed: its pc, function, lanes or join.
    Jump,
    /// It goes on later: its turn is over.
    Yield,
    /// It has been put among those that wait, or is gone.
    Parked,
}

pub(super) type Stepped<T> = Result<T, Box<ExecError>>;

/// What an instruction can reach: the worker, the block, and the warp that runs.
pub(super) struct Step<'s, 'a, O: ?Sized> {
    pub(super) core: &'s mut Core<'a, O>,
    pub(super) block: &'s mut BlockState,
    pub(super) warp: &'s mut Warp,
    /// Number of the warp in its block.
    pub(super) number: u32,
    /// Strong accesses in this turn.
    pub(super) strong: u32,
}

/// How the lanes of a fragment stand to an instruction.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) instruction: &'a Instruction,
    pub(super) function: u32,
    pub(super) pc: u32,
    /// Lanes that execute it.
    pub(super) mask: u32,
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// Runs a fragment of the warp for about `budget` instructions; how many it ran.
    pub(super) fn run(&mut self, f: Fragment, budget: u32) -> Stepped<u32> {
        let mut ran = 0;
        let result = self.run_counted(f, budget, &mut ran);
        self.core.executed += u64::from(ran);
        result.map(|()| ran)
    }

    /// The same; what it ran before it failed counts too.
    fn run_counted(&mut self, mut f: Fragment, budget: u32, ran: &mut u32) -> Stepped<()> {
        let context = self.core.context;
        let mut code: &'a [Instruction] = &context.program.functions[f.function as usize].code;
        let mut stop = self.warp.joins.stop(&f);
        self.enter_window(&f);
        self.strong = 0;
        loop {
            if f.pc == stop {
                match self.warp.arrive(f) {
                    Some(all) => f = all,
                    None => return Ok(()),
                }
                stop = self.warp.joins.stop(&f);
                continue;
            }
            if *ran + self.strong * STRONG_COST >= budget {
                break;
            }
            *ran += 1;
            let Some(instruction) = code.get(f.pc as usize) else {
                // Control has run off the end of the code, which is a return.
                match self.leave(&mut f)? {
                    Turn::Parked => return Ok(()),
                    _ => code = &context.program.functions[f.function as usize].code,
                }
                stop = self.warp.joins.stop(&f);
                continue;
            };
            let mask = self.guard(&f, instruction);
            let now = Now { instruction, function: f.function, pc: f.pc, mask };
            match &instruction.action {
                Action::Lanes(run) => {
                    if mask != 0 {
                        self.compute(*run, now);
                    }
                    f.pc += 1;
                }
                Action::Branch(branch) => {
                    self.branch(&mut f, now, branch);
                    stop = self.warp.joins.stop(&f);
                }
                _ if mask == 0 => f.pc += 1,
                _ => match self.perform(&mut f, now)? {
                    Turn::Next => f.pc += 1,
                    Turn::Jump => {
                        code = &context.program.functions[f.function as usize].code;
                        stop = self.warp.joins.stop(&f);
                    }
                    Turn::Yield => break,
                    Turn::Parked => return Ok(()),
                },
            }
        }
        if self.strong > 0 {
            let join = f.join;
            self.warp.spun(join, self.strong);
        }
        self.warp.fragments.push(f);
        Ok(())
    }

    /// Registers to registers.
    #[inline(always)]
    fn compute(&mut self, run: LaneFn, now: Now<'a>) {
        if O::ACTIVE {
            self.before(now);
        }
        let settings = &self.core.context.options.settings;
        run(&mut self.warp.registers, &now.instruction.operands, now.mask, settings);
        if O::ACTIVE {
            self.after(now);
        }
    }

    /// The lanes of a fragment that execute an instruction.
    #[inline(always)]
    fn guard(&mut self, f: &Fragment, instruction: &'a Instruction) -> u32 {
        let Some((slot, negated)) = instruction.guard else { return f.mask };
        if O::ACTIVE {
            let at = self.at(Now { instruction, function: f.function, pc: f.pc, mask: f.mask });
            self.core.observer.guarded(&at, &self.warp.registers);
        }
        let value = self.warp.registers.predicate(slot);
        f.mask & if negated { !value } else { value }
    }

    /// Everything but arithmetic and branches.
    fn perform(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        let gathers = matches!(
            now.instruction.action,
            Action::Collective { .. } | Action::LoadMatrix { .. } | Action::WarpBarrier { .. } | Action::Barrier(_)
        );
        if gathers {
            return self.gather(f, now);
        }
        if O::ACTIVE {
            self.before(now);
        }
        let turn = match &now.instruction.action {
            Action::Load(access) => self.load(f, now, access)?,
            Action::Store(access) => self.store(f, now, access)?,
            Action::Atomic(atomic) => self.atomic(f, now, atomic)?,
            Action::CopyAsync { .. } => self.copy_async(f, now)?,
            Action::CommitGroup => self.commit_group(now),
            Action::WaitGroup(pending) => self.wait_group(now, *pending)?,
            Action::BranchIndexed { index, targets, reconverge } => {
                self.branch_indexed(f, now, *index, targets, *reconverge)?
            }
            Action::Call(call) => self.call(f, now, call)?,
            Action::Return => self.partial_return(f, now)?,
            Action::Exit => self.exit(f, now)?,
            // A launch has refused what does not run before anything ran.
            Action::Trap | Action::Breakpoint | Action::Refused => return Err(self.halt(Some(now), &Halt::Trap)),
            Action::Fence { scope, .. } => self.fence(now, *scope),
            Action::Sleep => {
                self.strong += 1;
                f.pc += 1;
                Turn::Yield
            }
            Action::Special(special) => self.read_special(now, *special),
            Action::ActiveMask => {
                let active = [now.mask; 32];
                self.warp.registers.set_narrow(now.instruction.operands[0], now.mask, &active);
                Turn::Next
            }
            Action::IsSpace(space) => self.is_space(now, *space),
            Action::ConvertAddress { space, to_generic, wide } => self.convert_address(now, *space, *to_generic, *wide),
            _ => Turn::Next,
        };
        if O::ACTIVE && turn != Turn::Jump {
            self.after(now);
        }
        Ok(turn)
    }

    /// Turns the warp's registers to a fragment's function.
    pub(super) fn enter_window(&mut self, f: &Fragment) {
        let function: &'a Function = &self.core.context.program.functions[f.function as usize];
        self.warp.registers.enter(f.base, function.registers);
    }

    /// Where the fragment stands, for observers.
    pub(super) fn at(&self, now: Now<'a>) -> At<'a> {
        let program = self.core.context.program;
        At {
            program,
            function: &program.functions[now.function as usize],
            index: now.pc,
            instruction: now.instruction,
            block: self.block.coordinates,
            block_index: self.block.index,
            warp: self.number,
            mask: now.mask,
        }
    }

    /// Tells the observer of an instruction that begins.
    pub(super) fn before(&mut self, now: Now<'a>) {
        let at = self.at(now);
        self.core.observer.before(&at, &self.warp.registers);
    }

    /// Tells the observer of an instruction that is done.
    pub(super) fn after(&mut self, now: Now<'a>) {
        let at = self.at(now);
        self.core.observer.after(&at, &self.warp.registers);
    }

    /// Tells the observer that the launch stops, and makes the error.
    pub(super) fn halt(&mut self, now: Option<Now<'a>>, halt: &Halt<'_>) -> Box<ExecError> {
        let at = now.map(|now| self.at(now));
        if O::ACTIVE {
            self.core.observer.halt(at.as_ref(), halt);
        }
        Box::new(ExecError::from_halt(at.as_ref(), halt))
    }

    /// `bra`.
    fn branch(&mut self, f: &mut Fragment, now: Now<'a>, branch: &Branch) {
        let taken = now.mask;
        if O::ACTIVE {
            let at = self.at(Now { mask: f.mask, ..now });
            self.core.observer.before(&at, &self.warp.registers);
            self.core.observer.branch(&at, taken);
        }
        if taken == f.mask {
            f.pc = branch.target;
        } else if taken == 0 || branch.target == f.pc + 1 {
            f.pc += 1;
        } else {
            self.part(f, taken, branch.target, branch.reconverge);
            f.pc += 1;
        }
    }

    /// `brx.idx`: each lane to the label that its index names.
    fn branch_indexed(
        &mut self,
        f: &mut Fragment,
        now: Now<'a>,
        index: u16,
        targets: &[u32],
        reconverge: u32,
    ) -> Stepped<Turn> {
        let indices = *self.warp.registers.narrow(index);
        let mut left = now.mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let same = super::lanes(left).filter(|&other| indices[other] == indices[lane]);
            let group = same.fold(0, |mask, lane| mask | 1 << lane);
            let Some(&target) = targets.get(indices[lane] as usize) else {
                let message = format!("index {} of {} targets in lane {lane}", indices[lane], targets.len());
                return Err(self.sync_error(now, "branch-index", &message));
            };
            left &= !group;
            if group == f.mask {
                f.pc = target;
                return Ok(Turn::Jump);
            }
            self.part(f, group, target, reconverge);
        }
        // Lanes that the guard holds back.
        f.pc += 1;
        Ok(Turn::Jump)
    }

    /// Lanes of a fragment, not all, go to `target`; the rest stays where it is.
    pub(super) fn part(&mut self, f: &mut Fragment, lanes: u32, target: u32, reconverge: u32) {
        if self.core.context.options.divergence == Divergence::Reconverge
            && let Some((pc, depth)) = self.meeting_place(f, reconverge)
        {
            self.warp.open_join(f, pc, depth);
        }
        let part = f.split(lanes, target);
        self.warp.wait_or_run(part);
    }

    /// Where the lanes of a branch meet again, and how many calls deep that is; `None` where all that is left to do for
    /// them is to exit.
    fn meeting_place(&self, f: &Fragment, reconverge: u32) -> Option<(u32, u32)> {
        let code = &self.core.context.program.functions[f.function as usize].code;
        let Some(instruction) = code.get(reconverge as usize) else {
            return f.stack.last().map(|caller| (caller.pc, f.depth() - 1));
        };
        let ends = matches!(instruction.action, Action::Return | Action::Exit) && instruction.guard.is_none();
        (!ends || !f.stack.is_empty()).then_some((reconverge, f.depth()))
    }

    /// Lanes that an instruction's guard holds back, or that are done with it, go on at the next one. In reconverging
    /// mode they wait there for the rest, which is `f`.
    pub(super) fn leave_behind(&mut self, f: &mut Fragment, lanes: u32) {
        if lanes != 0 {
            let next = f.pc + 1;
            self.part(f, lanes, next, next);
        }
    }

    /// Notes a strong access, which is what a loop that waits for others is made of.
    #[inline(always)]
    pub(super) fn note_order(&mut self, order: Order) {
        self.strong += u32::from(order != Order::Weak);
    }

    /// Whether the warp's next turn has anything to run, and if it is stuck, what to do about it.
    pub(super) fn has_turn(&mut self) -> Stepped<bool> {
        if self.warp.fragments.iter().any(|fragment| fragment.state == State::Ready) {
            return Ok(true);
        }
        self.unblock()
    }

    /// Takes a fragment that is ready out of the warp: the first in line, or by chance.
    pub(super) fn take_ready(&mut self) -> Option<Fragment> {
        let fragments = &mut self.warp.fragments;
        if self.core.context.options.divergence == Divergence::Reconverge {
            let first = fragments.iter().position(|fragment| fragment.state == State::Ready)?;
            return Some(fragments.remove(first));
        }
        let ready = |fragment: &&Fragment| fragment.state == State::Ready;
        let count = fragments.iter().filter(ready).count() as u32;
        if count == 0 {
            return None;
        }
        // Three times in four the one that is furthest behind, so that lanes meet again now and then.
        let behind = |&(_, fragment): &(usize, &Fragment)| (u32::MAX - fragment.depth(), fragment.pc);
        let all = fragments.iter().enumerate().filter(|(_, fragment)| fragment.state == State::Ready);
        let chosen = if self.core.random.below(4) < 3 {
            all.min_by_key(behind)
        } else {
            let pick = self.core.random.below(count) as usize;
            all.clone().nth(pick)
        };
        let at = chosen?.0;
        Some(self.warp.fragments.remove(at))
    }
}

impl Warp {
    /// Adds a fragment: where it stands at its join it waits there.
    pub(super) fn wait_or_run(&mut self, fragment: Fragment) {
        if fragment.pc != self.joins.stop(&fragment) {
            self.fragments.push(fragment);
        } else if let Some(all) = self.arrive(fragment) {
            self.fragments.push(all);
        }
    }
}
