//! `call`, `ret`, and calls of functions that the host provides.

use std::sync::PoisonError;

use super::Divergence;
use super::error::{ExecError, place_of};
use super::host::{Flow, HostCall, HostError};
use super::step::{Now, Step, Stepped, Turn};
use super::warp::{Fragment, Frame, Local};
use crate::observe::{Halt, Sync, Watcher};
use crate::program::{Call, Callee, Extern};
use crate::registers::LANES;

/// Frames begin at multiples of it in a thread's local memory.
const FRAME_ALIGN: u32 = 128;
/// Bytes of local memory that a thread may have (CUDA programming guide, technical specifications).
pub(super) const MOST_LOCAL: u32 = 512 << 10;
/// Calls in progress that a thread may have.
const MOST_CALLS: u32 = 1024;

/// The place after so many bytes where the next frame begins.
pub(super) fn aligned(bytes: u32) -> u32 {
    bytes.checked_next_multiple_of(FRAME_ALIGN).unwrap_or(u32::MAX)
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// `call`.
    pub(super) fn call(&mut self, f: &mut Fragment, now: Now<'a>, call: &'a Call) -> Stepped<Turn> {
        let held_back = f.mask & !now.mask;
        match call.callee {
            Callee::Extern(index) => self.call_host(f, now, call, index),
            Callee::Function(function) => {
                self.leave_behind(f, held_back);
                self.enter(f, now, call, function)?;
                Ok(Turn::Jump)
            }
        }
    }

    fn enter(&mut self, f: &mut Fragment, now: Now<'a>, call: &Call, function: u32) -> Stepped<()> {
        let program = self.core.context.program;
        let callee = &program.functions[function as usize];
        let arguments = f.local.end;
        let frame = aligned(arguments.saturating_add(callee.param_bytes));
        let end = aligned(frame.saturating_add(callee.local_bytes));
        if f.depth() >= MOST_CALLS || end > MOST_LOCAL {
            let place = Box::new(place_of(&self.at(now)));
            return Err(Box::new(match f.depth() >= MOST_CALLS {
                true => ExecError::Stack { place, what: "calls nested", limit: MOST_CALLS, unit: "calls" },
                false => ExecError::Stack { place, what: "local memory", limit: MOST_LOCAL, unit: "bytes" },
            }));
        }
        self.warp.local.grow(end);
        for (param, &from) in callee.params.iter().zip(&call.arguments) {
            let (from, to) = (f.local.frame + from, arguments + param.offset);
            self.warp.local.copy(f.mask, from, to, param.bytes);
        }
        let caller = &program.functions[f.function as usize];
        let (base, result) = (f.base, call.result);
        f.stack.push(Frame { function: f.function, pc: f.pc + 1, base, local: f.local, result });
        (f.function, f.pc) = (function, 0);
        f.base = base.after(caller.registers);
        f.local = Local { arguments, frame, end };
        self.enter_window(f);
        self.preset(f);
        if O::ACTIVE {
            self.tell_enter(f);
        }
        Ok(())
    }

    /// `ret`, perhaps of some lanes only.
    pub(super) fn partial_return(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        if now.mask == f.mask {
            return self.leave(f);
        }
        let Some(caller) = f.stack.last() else { return self.exit(f, now) };
        let (pc, depth) = (caller.pc, f.depth() - 1);
        if self.core.context.options.divergence == Divergence::Reconverge && !self.warp.joins.is_deeper(f, depth) {
            self.warp.open_join(f, pc, depth);
        }
        let mut part = f.split(now.mask, f.pc);
        self.leave(&mut part)?;
        self.warp.wait_or_run(part);
        f.pc += 1;
        self.enter_window(f);
        Ok(Turn::Jump)
    }

    /// All lanes of a fragment return, from the kernel to nowhere.
    pub(super) fn leave(&mut self, f: &mut Fragment) -> Stepped<Turn> {
        let program = self.core.context.program;
        let function = &program.functions[f.function as usize];
        let Some(caller) = f.stack.pop() else {
            let last = function.code.len().saturating_sub(1).min(f.pc as usize);
            let Some(instruction) = function.code.get(last) else {
                self.warp.live &= !f.mask;
                return Ok(Turn::Parked);
            };
            let now = Now { instruction, function: f.function, pc: last as u32, mask: f.mask };
            return self.exit(f, now);
        };
        let depth = f.depth();
        self.warp.leave_joins(f, depth);
        if let (Some((from, bytes)), Some(to)) = (function.returns, caller.result) {
            self.warp.local.copy(f.mask, f.local.frame + from, caller.local.frame + to, bytes);
        }
        (f.function, f.pc, f.base, f.local) = (caller.function, caller.pc, caller.base, caller.local);
        self.enter_window(f);
        Ok(Turn::Jump)
    }

    /// The lanes of `now.mask` exit.
    pub(super) fn exit(&mut self, f: &mut Fragment, now: Now<'a>) -> Stepped<Turn> {
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &Sync::Exit);
        }
        f.mask &= !now.mask;
        self.warp.live &= !now.mask;
        self.warp.forget_exited();
        self.complete_gathers()?;
        if self.warp.live == 0 {
            self.land_rest()?;
            self.warp_exited(now);
        }
        if f.mask == 0 {
            return Ok(Turn::Parked);
        }
        self.enter_window(f);
        f.pc += 1;
        Ok(Turn::Jump)
    }

    /// Calls a function of the host, lane by lane. Lanes that it lets go on wait for those that it makes try again.
    fn call_host(&mut self, f: &mut Fragment, now: Now<'a>, call: &'a Call, index: u32) -> Stepped<Turn> {
        let context = self.core.context;
        let Some(function) = context.program.externs.get(index as usize) else {
            return Err(self.host_failed(now, "?", HostError::Unknown));
        };
        let Some(host) = context.host.find(&function.name) else {
            return Err(self.host_failed(now, &function.name, HostError::Unknown));
        };
        let mut done = f.mask & !now.mask;
        for lane in super::lanes(now.mask) {
            let arguments = self.host_arguments(f, call, function, lane);
            let mut result = vec![0; function.returns as usize];
            let thread = self.thread(lane);
            let mut output = Vec::new();
            let mut host_call = HostCall {
                arguments: &arguments,
                result: &mut result,
                thread,
                block: self.block.coordinates,
                block_shape: context.launch.block,
                grid: context.launch.grid,
                device: context.launch.device,
                memory: context.memory,
                output: &mut output,
                lane,
                shared: (&mut self.block.shared, self.block.shared_bytes),
                local: &mut self.warp.local,
                params: context.launch.params,
            };
            let flow = host.call(&mut host_call);
            if !output.is_empty() {
                context.output.lock().unwrap_or_else(PoisonError::into_inner).append(&mut output);
            }
            match flow {
                Ok(Flow::Done) => done |= 1 << lane,
                Ok(Flow::Again) => continue,
                Err(error) => return Err(self.host_failed(Now { mask: 1 << lane, ..now }, &function.name, error)),
            }
            if let Some(to) = call.result {
                for (at, &byte) in result.iter().enumerate() {
                    self.warp.local.set_byte(lane, f.local.frame + to + at as u32, byte);
                }
            }
        }
        if done == f.mask {
            return Ok(Turn::Next);
        }
        self.leave_behind(f, done);
        self.core.polled = true;
        self.strong += 1;
        Ok(Turn::Yield)
    }

    /// The bytes of each argument of a lane.
    fn host_arguments(&self, f: &Fragment, call: &Call, function: &Extern, lane: usize) -> Vec<Vec<u8>> {
        let one = |(&from, &bytes): (&u32, &u32)| {
            (0..bytes).map(|at| self.warp.local.byte(lane, f.local.frame + from + at)).collect()
        };
        call.arguments.iter().zip(&function.params).map(one).collect()
    }

    /// Coordinates of a lane's thread.
    fn thread(&self, lane: usize) -> [u32; 3] {
        let [x, y, _] = self.core.context.launch.block;
        let thread = self.number * LANES as u32 + lane as u32;
        [thread % x, thread / x % y, thread / x / y]
    }

    fn host_failed(&mut self, now: Now<'a>, function: &str, source: HostError) -> Box<ExecError> {
        if let HostError::Assert(message) = &source {
            return self.halt(Some(now), &Halt::Assert(message));
        }
        if let HostError::Fault(fault) = &source {
            return self.halt(Some(now), &Halt::Fault(fault));
        }
        let place = Box::new(place_of(&self.at(now)));
        Box::new(ExecError::Host { place, function: function.to_owned(), source })
    }
}
