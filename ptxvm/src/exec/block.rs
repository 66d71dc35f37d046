//! A block: its shared memory, its barriers, its warps. It is a state machine without a stack of its own, so it can be
//! left and taken up again at any instruction.

use super::barrier::NamedBarrier;
use super::step::{Step, Stepped};
use super::warp::{Fragment, Local, NONE, State, Warp};
use super::worker::Core;
use super::{Divergence, Schedule};
use crate::memory::DeviceId;
use crate::observe::{At, Halt, Waiting, Watcher};
use crate::program::Program;
use crate::registers::{Base, LANES};

/// Instructions of a warp's turn.
const QUANTUM: u32 = 256;
/// What shared memory holds that nobody has written: a NaN in each float format.
const UNDEFINED: u32 = 0xfff5_fff5;

/// What the warps of a block share.
#[derive(Default)]
pub(super) struct BlockState {
    pub(super) index: u64,
    pub(super) coordinates: [u32; 3],
    /// Shared memory, in words.
    pub(super) shared: Vec<u32>,
    pub(super) shared_bytes: u32,
    pub(super) barriers: [NamedBarrier; 16],
    /// Barriers that have just been completed, a bit each.
    pub(super) completed: u16,
    /// Warps of the block.
    pub(super) warps: u32,
    /// Warps that have not exited, a bit each.
    pub(super) live_warps: u32,
    /// Asynchronous copies begun.
    pub(super) copies: u64,
}

/// A block that is resident.
#[derive(Default)]
pub(super) struct Block {
    pub(super) state: BlockState,
    warps: Vec<Warp>,
}

/// What a turn of a block came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Warp instructions.
    pub(super) ran: u64,
    /// Some warp seems to wait for another block: most of what it did was looking.
    pub(super) spun: bool,
}

impl Block {
    /// Makes the block of a number, in the memory of one that has ended.
    pub(super) fn begin<O: Watcher + ?Sized>(&mut self, core: &mut Core<'_, O>, index: u64) {
        let context = core.context;
        let [x, y, _] = context.launch.grid.map(u64::from);
        let state = &mut self.state;
        state.index = index;
        state.coordinates = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
        state.shared_bytes = context.extent.shared;
        state.shared.clear();
        state.shared.resize(state.shared_bytes.div_ceil(4) as usize, UNDEFINED);
        state.barriers = Default::default();
        (state.completed, state.copies) = (0, 0);
        state.warps = context.extent.threads.div_ceil(LANES as u32);
        state.live_warps = u32::MAX >> (32 - state.warps);
        self.warps.resize_with(state.warps as usize, Warp::default);
        if O::ACTIVE {
            core.observer.block_begins(state.coordinates, index, state.shared_bytes);
        }
        for number in 0..state.warps {
            let warp = &mut self.warps[number as usize];
            Step { core, block: &mut self.state, warp, number, strong: 0 }.begin_warp();
        }
    }

    /// All its threads have exited.
    pub(super) fn is_done(&self) -> bool {
        self.state.live_warps == 0
    }

    /// Gives each warp a turn.
    pub(super) fn turn<O: Watcher + ?Sized>(
        &mut self,
        core: &mut Core<'_, O>,
        order: &mut Vec<u32>,
    ) -> Stepped<Progress> {
        let mut progress = Progress::default();
        order.clear();
        order.extend(super::lanes(self.state.live_warps).map(|warp| warp as u32));
        match core.context.options.schedule {
            Schedule::RoundRobin => {}
            Schedule::Reverse => order.reverse(),
            Schedule::Random => core.random.shuffle(order),
        }
        for &number in order.iter() {
            let warp = &mut self.warps[number as usize];
            let mut step = Step { core, block: &mut self.state, warp, number, strong: 0 };
            let turn = step.turn()?;
            progress.ran += turn.ran;
            progress.spun |= turn.spun;
            let completed = std::mem::take(&mut self.state.completed);
            if completed != 0 {
                self.wake(core, completed);
            }
            if O::ACTIVE {
                core.check_errors()?;
            }
        }
        if progress.ran == 0 && !self.is_done() && core.allowance(1) > 0 {
            return Err(self.deadlock(core));
        }
        Ok(progress)
    }

    fn wake<O: Watcher + ?Sized>(&mut self, core: &mut Core<'_, O>, completed: u16) {
        for (number, warp) in self.warps.iter_mut().enumerate() {
            Step { core, block: &mut self.state, warp, number: number as u32, strong: 0 }.wake(completed);
        }
    }

    /// An instruction that it is about to run, for the report of a kernel that does not end.
    pub(super) fn somewhere<'p>(&self, program: &'p Program) -> Option<At<'p>> {
        let ready = |(_, f): &(usize, &Fragment)| f.state == State::Ready;
        let all =
            self.warps.iter().enumerate().flat_map(|(number, warp)| warp.fragments.iter().map(move |f| (number, f)));
        let (number, f) = all.clone().find(ready).or_else(|| all.clone().next())?;
        let function = program.functions.get(f.function as usize)?;
        Some(At {
            program,
            function,
            index: f.pc,
            instruction: function.code.get(f.pc as usize)?,
            block: self.state.coordinates,
            block_index: self.state.index,
            warp: number as u32,
            mask: f.mask,
        })
    }

    /// No warp can run, and nothing is pending that could wake one.
    fn deadlock<O: Watcher + ?Sized>(&mut self, core: &mut Core<'_, O>) -> Box<super::ExecError> {
        let mut waiting = Vec::new();
        for (number, warp) in self.warps.iter().enumerate() {
            let block = self.state.coordinates;
            for f in warp.fragments.iter() {
                let what = self.state.describe_wait(warp, f.state);
                let (warp, mask, place) = (number as u32, f.mask, (f.function, f.pc));
                waiting.push(Waiting { block, warp, mask, place, what });
            }
        }
        let halt = Halt::Deadlock(&waiting);
        if O::ACTIVE {
            core.observer.halt(None, &halt);
        }
        Box::new(super::ExecError::from_halt(None, &halt))
    }
}

impl<O: Watcher + ?Sized> Step<'_, '_, O> {
    /// Gives the warp its registers and its first fragment.
    fn begin_warp(&mut self) {
        let context = self.core.context;
        let function = &context.program.functions[context.launch.function as usize];
        let threads = context.extent.threads - self.number * LANES as u32;
        let mask = u32::MAX >> (32 - threads.min(LANES as u32));
        let warp = &mut *self.warp;
        (warp.live, warp.born) = (mask, mask);
        warp.fragments.clear();
        warp.joins = Default::default();
        warp.copies.clear();
        warp.local.clear();
        warp.local.grow(function.local_bytes);
        warp.registers.clear();
        let f = Fragment {
            function: context.launch.function,
            pc: 0,
            mask,
            join: NONE,
            state: State::Ready,
            base: Base::default(),
            local: Local { arguments: 0, frame: 0, end: super::call::aligned(function.local_bytes) },
            stack: Vec::new(),
        };
        self.warp.registers.enter(f.base, function.registers);
        self.preset(&f);
        if O::ACTIVE {
            self.tell_enter(&f);
        }
        self.warp.fragments.push(f);
    }

    /// The warp's turn: its fragments run one after the other until the turn is used up or none can run.
    fn turn(&mut self) -> Stepped<Progress> {
        let mut progress = Progress::default();
        let options = self.core.context.options;
        let mut left = match options.schedule {
            Schedule::Random => 1 + self.core.random.below(QUANTUM / 2),
            _ => QUANTUM,
        };
        left = self.core.allowance(left);
        self.land_by_chance()?;
        while left > 0 && self.has_turn()? {
            let Some(f) = self.take_ready() else { break };
            let slice = match options.divergence {
                Divergence::Independent if !self.warp.fragments.is_empty() => 1 + self.core.random.below(8),
                _ => left,
            };
            let ran = self.run(f, slice.min(left))?;
            progress.ran += u64::from(ran);
            progress.spun |= self.strong * 4 > ran;
            left = left.saturating_sub(ran.max(1) + self.strong * 8);
            if self.block.completed != 0 {
                break;
            }
            if options.divergence == Divergence::Independent && self.core.random.below(2) == 0 {
                self.warp.merge();
            }
        }
        Ok(progress)
    }

    /// The device that the kernel runs on.
    pub(super) fn device(&self) -> DeviceId {
        self.core.context.launch.device
    }
}
