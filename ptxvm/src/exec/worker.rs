//! A worker: a host thread that keeps some blocks resident and gives them turns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::block::Block;
use super::cache::Cache;
use super::error::ExecError;
use super::limits::Extent;
use super::random::Random;
use super::step::Stepped;
use super::{HostFunctions, Launch, Options, Schedule};
use crate::memory::AddressSpace;
use crate::observe::{Halt, Watcher};
use crate::program::Program;

/// Blocks that a worker takes up at first. More come in as blocks end, or when those that are resident seem to wait for
/// others: few blocks at a time keep the host's caches warm.
const FIRST_BLOCKS: usize = 2;
/// Rounds without a block's end after which the worker takes up more blocks in any case.
const PATIENT_ROUNDS: u32 = 1024;

/// What all workers of a launch share.
pub(super) struct Context<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) program: &'a Program,
    pub(super) memory: &'a AddressSpace,
    pub(super) host: &'a HostFunctions,
    pub(super) options: &'a Options,
    /// The kernel's parameters, in words.
    pub(super) params: Vec<u32>,
    pub(super) extent: Extent,
    /// Blocks that each worker may keep resident.
    pub(super) window: usize,
    /// The next block to begin.
    pub(super) next: AtomicU64,
    /// Warp instructions so far.
    pub(super) executed: AtomicU64,
    /// Somebody has failed: all stop.
    pub(super) stopped: AtomicBool,
    pub(super) failure: Mutex<Option<Box<ExecError>>>,
    /// What the kernel printed.
    pub(super) output: Mutex<Vec<u8>>,
}

/// A worker's own.
pub(super) struct Core<'a, O: ?Sized> {
    pub(super) context: &'a Context<'a>,
    pub(super) observer: &'a mut O,
    pub(super) random: Random,
    pub(super) cache: Cache,
    /// Warp instructions that this worker has run.
    pub(super) executed: u64,
    /// How many of these the launch's count already has.
    counted: u64,
    /// Times that a kernel has looked at a clock: it never sees the same time twice.
    pub(super) looks: u64,
    /// Some lane waits for a function of the host.
    pub(super) polled: bool,
}

impl<'a, O: Watcher + ?Sized> Core<'a, O> {
    pub(super) fn new(context: &'a Context<'a>, observer: &'a mut O, number: u64) -> Core<'a, O> {
        let random = Random::new(context.options.seed, number);
        Core { context, observer, random, cache: Cache::default(), executed: 0, counted: 0, looks: 0, polled: false }
    }

    /// Runs blocks until none is left, or until somebody fails.
    pub(super) fn work(&mut self) {
        if let Err(error) = self.run_blocks() {
            self.context.stopped.store(true, Relaxed);
            let mut failure = self.context.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
        }
    }

    fn run_blocks(&mut self) -> Stepped<()> {
        let context = self.context;
        let mut resident: VecDeque<Block> = VecDeque::new();
        let mut spare: Vec<Block> = Vec::new();
        let mut wanted = FIRST_BLOCKS.min(context.window);
        let (mut order, mut warps) = (Vec::new(), Vec::new());
        let mut quiet = 0;
        loop {
            while resident.len() < wanted {
                let index = context.next.fetch_add(1, Relaxed);
                if index >= context.extent.blocks {
                    break;
                }
                let mut block = spare.pop().unwrap_or_default();
                block.begin(self, index);
                resident.push_back(block);
            }
            if resident.is_empty() || context.stopped.load(Relaxed) {
                return Ok(());
            }
            let spun = self.round(&mut resident, &mut order, &mut warps)?;
            quiet += 1;
            let before = resident.len();
            self.retire(&mut resident, &mut spare);
            if resident.len() < before {
                quiet = 0;
            }
            if spun || quiet >= PATIENT_ROUNDS {
                quiet = 0;
                wanted = (wanted + wanted / 4 + 1).min(context.window);
            }
        }
    }

    /// Gives each resident block a turn; whether some seem to wait for other blocks.
    fn round(&mut self, resident: &mut VecDeque<Block>, order: &mut Vec<usize>, warps: &mut Vec<u32>) -> Stepped<bool> {
        order.clear();
        order.extend(0..resident.len());
        match self.context.options.schedule {
            Schedule::RoundRobin => {}
            Schedule::Reverse => order.reverse(),
            Schedule::Random => self.random.shuffle(order),
        }
        let mut spun = false;
        self.polled = false;
        for &at in order.iter() {
            let turn = resident[at].turn(self, warps);
            self.context.executed.fetch_add(self.executed - self.counted, Relaxed);
            self.counted = self.executed;
            spun |= turn?.spun;
            if self.allowance(1) == 0 {
                self.limit_reached(resident)?;
            }
        }
        if self.polled {
            // Whoever is to answer may need this processor.
            std::thread::yield_now();
        }
        Ok(spun)
    }

    fn retire(&mut self, resident: &mut VecDeque<Block>, spare: &mut Vec<Block>) {
        let mut at = 0;
        while at < resident.len() {
            if !resident[at].is_done() {
                at += 1;
                continue;
            }
            if let Some(block) = resident.remove(at) {
                if O::ACTIVE {
                    self.observer.block_ends(block.state.index);
                }
                spare.push(block);
            }
        }
    }

    /// Stops the kernel unless nothing of it is left.
    fn limit_reached(&mut self, resident: &VecDeque<Block>) -> Stepped<()> {
        let context = self.context;
        let block = resident.iter().find(|block| !block.is_done());
        if block.is_none() && context.next.load(Relaxed) >= context.extent.blocks {
            return Ok(());
        }
        let at = block.and_then(|block| block.somewhere(context.program));
        let halt = Halt::Limit(context.options.limit);
        if O::ACTIVE {
            self.observer.halt(at.as_ref(), &halt);
        }
        Err(Box::new(ExecError::from_halt(at.as_ref(), &halt)))
    }

    /// How many of `wanted` instructions the limit still allows: exactly, where there is one worker.
    pub(super) fn allowance(&self, wanted: u32) -> u32 {
        let executed = self.context.executed.load(Relaxed) + (self.executed - self.counted);
        u64::from(wanted).min(self.context.options.limit.saturating_sub(executed)) as u32
    }

    /// Stops when as many errors are reported as the launch allows.
    pub(super) fn check_errors(&mut self) -> Stepped<()> {
        let reported = self.observer.errors();
        if reported >= self.context.options.most_errors.max(1) {
            return Err(Box::new(ExecError::TooManyErrors { reported }));
        }
        Ok(())
    }
}
