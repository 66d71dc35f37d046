//! `atom` and `red`: the lanes take their turns in ascending order.
//!
//! A 32-bit one is one compare-and-exchange on the word, a 16-bit one on the word around it, a 64-bit one holds the lock
//! of its place, as do strong accesses of more than 32 bits.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use half::{bf16, f16};

use super::access::{Told, cells};
use super::address::Target;
use super::step::{Now, Step, Stepped, Turn};
use super::warp::Fragment;
use crate::memory::{Allocation, Fault, FaultKind};
use crate::numerics::double;
use crate::numerics::flags::NEAREST;
use crate::observe::{AccessKind, Watcher};
use crate::program::{Atomic, AtomicOp, Order};
use crate::registers::LANES;
use crate::types::{Kind, Space, Type};

/// What each lane brings, and what it gets.
struct Exchange {
    b: [u64; LANES],
    c: [u64; LANES],
    old: [u64; LANES],
    /// Lanes that wrote.
    wrote: u32,
}

/// An operation on a type; `flush` where subnormal f32 become zero.
#[derive(Clone, Copy)]
struct Operation {
    op: AtomicOp,
    ty: Type,
    flush: bool,
}

impl Operation {
    /// The new value, where it writes one.
    #[inline(always)]
    fn apply(self, old: u64, b: u64, c: u64) -> Option<u64> {
        let mask = u64::MAX >> (64 - self.ty.bits().clamp(1, 64));
        let less = |x: u64, y: u64| match self.ty.kind() {
            Kind::Signed => {
                let up = 64 - self.ty.bits();
                ((x << up) as i64) < (y << up) as i64
            }
            _ => x < y,
        };
        Some(match self.op {
            AtomicOp::Add if self.ty.kind() == Kind::Float => self.add_float(old, b),
            AtomicOp::Add => old.wrapping_add(b) & mask,
            AtomicOp::Inc if old >= b => 0,
            AtomicOp::Inc => old + 1,
            AtomicOp::Dec if old == 0 || old > b => b,
            AtomicOp::Dec => old - 1,
            AtomicOp::Min => {
                if less(b, old) {
                    b
                } else {
                    old
                }
            }
            AtomicOp::Max => {
                if less(old, b) {
                    b
                } else {
                    old
                }
            }
            AtomicOp::And => old & b,
            AtomicOp::Or => old | b,
            AtomicOp::Xor => old ^ b,
            AtomicOp::Exchange => b,
            AtomicOp::CompareAndSwap => return (old == b).then_some(c),
        })
    }

    fn add_float(self, old: u64, b: u64) -> u64 {
        let halves = |add: fn(u16, u16) -> u16| {
            let at = |shift: u32| u64::from(add((old >> shift) as u16, (b >> shift) as u16)) << shift;
            if self.ty.bits() == 32 { at(0) | at(16) } else { at(0) }
        };
        match self.ty {
            Type::F32 => u64::from(add_f32(old as u32, b as u32, self.flush)),
            Type::F64 => double::add::<NEAREST>(f64::from_bits(old), f64::from_bits(b)).to_bits(),
            Type::F16 | Type::F16x2 => halves(add_f16),
            _ => halves(add_bf16),
        }
    }
}

/// The canonical NaN in place of any other.
fn add_f32(a: u32, b: u32, flush: bool) -> u32 {
    let flushed = |value: f32| if flush && value.is_subnormal() { 0.0f32.copysign(value) } else { value };
    let sum = flushed(flushed(f32::from_bits(a)) + flushed(f32::from_bits(b)));
    if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() }
}

// The sum of two halves in f32 is rounded twice, to 24 bits and to at most 11: harmless, since 24 >= 2 * 11 + 2.
fn add_f16(a: u16, b: u16) -> u16 {
    let sum = f16::from_f32(f16::from_bits(a).to_f32() + f16::from_bits(b).to_f32());
    if sum.is_nan() { 0x7fff } else { sum.to_bits() }
}

fn add_bf16(a: u16, b: u16) -> u16 {
    let sum = bf16::from_f32(bf16::from_bits(a).to_f32() + bf16::from_bits(b).to_f32());
    if sum.is_nan() { 0x7fff } else { sum.to_bits() }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// `atom`, `red`.
    pub(super) fn atomic(&mut self, f: &Fragment, now: Now<'a>, atomic: &'a Atomic) -> Stepped<Turn> {
        // Who waits for somebody needs to know the old value.
        self.strong += u32::from(atomic.returns);
        if matches!(atomic.order, Order::Release(_) | Order::AcquireRelease(_)) {
            fence(Ordering::Release);
        }
        let mut target = self.target(f, &atomic.address);
        let first = usize::from(atomic.returns);
        let operands = &now.instruction.operands;
        let read = |slot: u16| match atomic.ty.bits() {
            64 => *self.warp.registers.wide(slot),
            _ => self.warp.registers.narrow(slot).map(u64::from),
        };
        let b = read(operands[first]);
        let c = if atomic.op == AtomicOp::CompareAndSwap { read(operands[first + 1]) } else { [0; LANES] };
        let mut exchange = Exchange { b, c, old: [0; LANES], wrote: 0 };
        self.by_space(&mut target, now.mask, |step, target, mask| {
            step.exchange_in(now, atomic, target, mask, &mut exchange)
        })?;
        if atomic.returns {
            let registers = &mut self.warp.registers;
            match atomic.ty.bits() {
                64 => registers.set_wide(operands[0], now.mask, &exchange.old),
                _ => registers.set_narrow(operands[0], now.mask, &exchange.old.map(|old| old as u32)),
            }
        }
        if matches!(atomic.order, Order::Acquire(_) | Order::AcquireRelease(_)) {
            fence(Ordering::Acquire);
        }
        Ok(Turn::Next)
    }

    fn exchange_in(
        &mut self,
        now: Now<'a>,
        atomic: &'a Atomic,
        target: &Target,
        mask: u32,
        exchange: &mut Exchange,
    ) -> Stepped<()> {
        let bytes = atomic.ty.bytes();
        let global = matches!(target.space, Space::Generic | Space::Global);
        // The ISA: an f32 addition flushes subnormals in global memory, and keeps them in shared memory.
        let operation = Operation { op: atomic.op, ty: atomic.ty, flush: global };
        exchange.wrote = 0;
        match target.space {
            Space::Generic | Space::Global => self.exchange_global(now, operation, target, mask, exchange)?,
            Space::Shared => {
                let size = self.block.shared_bytes;
                let (offsets, _) = self.in_window(now, target, mask, (bytes, true), size)?;
                let words = cells(&mut self.block.shared);
                for lane in super::lanes(mask) {
                    exchange.shared(operation, lane, words, offsets[lane]);
                }
            }
            Space::Local | Space::Const | Space::Param => {
                let address = target.addresses[mask.trailing_zeros() as usize & 31];
                let allocation = Some("atomics work on global and shared memory".to_owned());
                let (kind, space) = (FaultKind::WrongSpace, target.space);
                let fault = Fault { kind, lanes: mask, address, bytes, space, write: true, allocation };
                return Err(self.fault(now, fault));
            }
        }
        if O::ACTIVE {
            let told = Told { kind: AccessKind::Atomic, bytes, order: atomic.order, values: None };
            self.tell_atomic(now, target, mask, told, exchange.wrote);
        }
        Ok(())
    }

    fn exchange_global(
        &mut self,
        now: Now<'a>,
        operation: Operation,
        target: &Target,
        mask: u32,
        exchange: &mut Exchange,
    ) -> Stepped<()> {
        let (context, bytes) = (self.core.context, operation.ty.bytes());
        if bytes <= 4
            && let Some(span) = self.core.cache.span(context, &target.addresses, mask, bytes, true)
            && let Ok(page) = self.core.cache.page(&span, true)
        {
            let words = page.words();
            for lane in super::lanes(mask) {
                let offset = span.offsets[lane];
                exchange.word(operation, lane, &words[offset as usize / 4], offset);
            }
            return Ok(());
        }
        self.check_each(now, target, mask, (bytes, true))?;
        for lane in super::lanes(mask) {
            let address = target.addresses[lane];
            let _whole = (bytes > 4).then(|| context.memory.lock(address));
            let Ok((allocation, offset)) = self.core.cache.one(context, address, bytes, true) else { continue };
            if bytes > 4 {
                exchange.two_words(operation, lane, allocation, offset);
            } else {
                exchange.word(operation, lane, allocation.word(offset & !3), offset as u32);
            }
        }
        Ok(())
    }
}

impl Exchange {
    /// At a word, or a half of it.
    #[inline(always)]
    fn word(&mut self, operation: Operation, lane: usize, word: &AtomicU32, offset: u32) {
        let (b, c) = (self.b[lane], self.c[lane]);
        let shift = offset % 4 * 8;
        let keep = if operation.ty.bytes() == 4 { 0 } else { !(0xffff << shift) };
        let part = |word: u32| u64::from((word & !keep) >> shift);
        let mut wrote = false;
        let old = update(word, |word| {
            let new = operation.apply(part(word), b, c).map(|new| (word & keep) | (new as u32) << shift);
            wrote = new.is_some();
            new
        });
        self.old[lane] = part(old);
        self.wrote |= u32::from(wrote) << lane;
    }

    /// At two words, whose lock is held.
    fn two_words(&mut self, operation: Operation, lane: usize, allocation: &Allocation, offset: u64) {
        let old = allocation.load_u64(offset);
        self.old[lane] = old;
        if let Some(new) = operation.apply(old, self.b[lane], self.c[lane]) {
            self.wrote |= 1 << lane;
            allocation.store_u64(offset, new);
        }
    }

    fn shared(&mut self, operation: Operation, lane: usize, words: &[std::cell::Cell<u32>], offset: u32) {
        let words = super::words::Cells(words);
        let bytes = operation.ty.bytes();
        let old = super::words::load_element(&words, lane, offset, bytes);
        self.old[lane] = old;
        if let Some(new) = operation.apply(old, self.b[lane], self.c[lane]) {
            self.wrote |= 1 << lane;
            super::words::store_element(&words, lane, offset, bytes, new);
        }
    }
}

/// Replaces a word in one step; what it held before.
fn update(word: &AtomicU32, mut new: impl FnMut(u32) -> Option<u32>) -> u32 {
    let mut old = word.load(Ordering::Relaxed);
    while let Some(new) = new(old) {
        match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => old = now,
        }
    }
    old
}
