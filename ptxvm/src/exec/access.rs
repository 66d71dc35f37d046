//! `ld` and `st`.

use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

use super::address::Target;
use super::step::{Now, Step, Stepped, Turn};
use super::warp::Fragment;
use super::words::{self, Cells, Fixed, Interleaved, Lanes, Paged, Pattern};
use crate::memory::{Allocation, Fault, FaultKind, Page};
use crate::observe::{AccessKind, MemoryAccess, Watcher};
use crate::program::{Access, Order};
use crate::registers::LANES;
use crate::types::{Scope, Space};

/// Bytes beyond which a strong access takes a lock, so that nobody sees half of it.
const WORD: u32 = 4;

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// `ld`.
    pub(super) fn load(&mut self, f: &Fragment, now: Now<'a>, access: &'a Access) -> Stepped<Turn> {
        self.note_order(access.order);
        let mut target = self.target(f, &access.address);
        self.by_space(&mut target, now.mask, |step, target, mask| step.load_from(now, access, target, mask))?;
        if matches!(access.order, Order::Acquire(_) | Order::AcquireRelease(_)) {
            fence(Ordering::Acquire);
        }
        Ok(Turn::Next)
    }

    #[inline(always)]
    fn load_from(&mut self, now: Now<'a>, access: &'a Access, target: &Target, mask: u32) -> Stepped<()> {
        let bytes = access.ty.bytes() * u32::from(access.count);
        let operands = &now.instruction.operands;
        let size = match target.space {
            Space::Generic | Space::Global | Space::Const => return self.load_global(now, access, target, mask),
            Space::Shared => self.block.shared_bytes,
            Space::Local => self.warp.local.bytes(),
            Space::Param => self.core.context.params.len() as u32 * WORD,
        };
        let (offsets, step) = self.in_window(now, target, mask, (bytes, false), size)?;
        if O::ACTIVE {
            self.tell(now, target, mask, Told { kind: AccessKind::Read, bytes, order: access.order, values: None });
        }
        let at = Lanes { offsets: &offsets, mask, step };
        let registers = &mut self.warp.registers;
        match target.space {
            Space::Shared => words::load(&Cells(cells(&mut self.block.shared)), registers, operands, access, at),
            Space::Local => words::load(&Interleaved(self.warp.local.cells()), registers, operands, access, at),
            _ => words::load(&Fixed(&self.core.context.params), registers, operands, access, at),
        }
        Ok(())
    }

    fn load_global(&mut self, now: Now<'a>, access: &'a Access, target: &Target, mask: u32) -> Stepped<()> {
        let bytes = access.ty.bytes() * u32::from(access.count);
        let context = self.core.context;
        let operands = &now.instruction.operands;
        let told = Told { kind: AccessKind::Read, bytes, order: access.order, values: None };
        let apart = access.order != Order::Weak && bytes > WORD;
        let span = self.core.cache.span(context, &target.addresses, mask, bytes, false);
        if let Some(span) = span.filter(|_| !apart) {
            if O::ACTIVE {
                self.tell(now, target, mask, told);
            }
            let at = Lanes { offsets: &span.offsets, mask, step: span.step };
            let registers = &mut self.warp.registers;
            match self.core.cache.page(&span, false) {
                Ok(page) => words::load(&Paged(page.words()), registers, operands, access, at),
                Err(pattern) => words::load(&Pattern(pattern), registers, operands, access, at),
            }
            return Ok(());
        }
        self.check_each(now, target, mask, (bytes, false))?;
        if O::ACTIVE {
            self.tell(now, target, mask, told);
        }
        for lane in super::lanes(mask) {
            let address = target.addresses[lane];
            let _whole = apart.then(|| context.memory.lock(address));
            let Ok((allocation, offset)) = self.core.cache.one(context, address, bytes, false) else { continue };
            let (page, at) = Page::split(offset);
            let offsets = [at as u32; LANES];
            let at = Lanes { offsets: &offsets, mask: 1 << lane, step: 0 };
            let registers = &mut self.warp.registers;
            match allocation.page(page) {
                Ok(page) => words::load(&Paged(page.words()), registers, operands, access, at),
                Err(pattern) => words::load(&Pattern(pattern), registers, operands, access, at),
            }
        }
        Ok(())
    }

    /// `st`.
    pub(super) fn store(&mut self, f: &Fragment, now: Now<'a>, access: &'a Access) -> Stepped<Turn> {
        self.note_order(access.order);
        if matches!(access.order, Order::Release(_) | Order::AcquireRelease(_)) {
            fence(Ordering::Release);
        }
        let mut target = self.target(f, &access.address);
        self.by_space(&mut target, now.mask, |step, target, mask| step.store_to(now, access, target, mask))?;
        Ok(Turn::Next)
    }

    #[inline(always)]
    fn store_to(&mut self, now: Now<'a>, access: &'a Access, target: &Target, mask: u32) -> Stepped<()> {
        let bytes = access.ty.bytes() * u32::from(access.count);
        let operands = &now.instruction.operands;
        let size = match target.space {
            Space::Generic | Space::Global | Space::Const => return self.store_global(now, access, target, mask),
            Space::Shared => self.block.shared_bytes,
            Space::Local => self.warp.local.bytes(),
            Space::Param => return Err(self.read_only(now, target, mask, bytes)),
        };
        let (offsets, step) = self.in_window(now, target, mask, (bytes, true), size)?;
        if O::ACTIVE {
            self.tell_store(now, target, mask, access);
        }
        let at = Lanes { offsets: &offsets, mask, step };
        let registers = &self.warp.registers;
        match target.space {
            Space::Shared => words::store(&Cells(cells(&mut self.block.shared)), registers, operands, access, at),
            _ => words::store(&Interleaved(self.warp.local.cells()), registers, operands, access, at),
        }
        Ok(())
    }

    fn store_global(&mut self, now: Now<'a>, access: &'a Access, target: &Target, mask: u32) -> Stepped<()> {
        let bytes = access.ty.bytes() * u32::from(access.count);
        let context = self.core.context;
        let operands = &now.instruction.operands;
        let apart = access.order != Order::Weak && bytes > WORD;
        let span = self.core.cache.span(context, &target.addresses, mask, bytes, true);
        if let Some(span) = span.filter(|_| !apart) {
            if O::ACTIVE {
                self.tell_store(now, target, mask, access);
            }
            let at = Lanes { offsets: &span.offsets, mask, step: span.step };
            if let Ok(page) = self.core.cache.page(&span, true) {
                words::store(&Paged(page.words()), &self.warp.registers, operands, access, at);
            }
            return Ok(());
        }
        self.check_each(now, target, mask, (bytes, true))?;
        if O::ACTIVE {
            self.tell_store(now, target, mask, access);
        }
        for lane in super::lanes(mask) {
            let address = target.addresses[lane];
            let _whole = apart.then(|| context.memory.lock(address));
            let Ok((allocation, offset)) = self.core.cache.one(context, address, bytes, true) else { continue };
            let (page, at) = Page::split(offset);
            let at = Lanes { offsets: &[at as u32; LANES], mask: 1 << lane, step: 0 };
            let page = Paged(allocation.page_or_new(page).words());
            words::store(&page, &self.warp.registers, operands, access, at);
        }
        Ok(())
    }

    /// Sees that each lane's access to global memory can be done.
    pub(super) fn check_each(
        &mut self,
        now: Now<'a>,
        target: &Target,
        mask: u32,
        (bytes, write): (u32, bool),
    ) -> Stepped<()> {
        let context = self.core.context;
        let mut first: Option<(u64, FaultKind)> = None;
        let mut bad = 0;
        for lane in super::lanes(mask) {
            let address = target.addresses[lane];
            let found = self.core.cache.one(context, address, bytes, write).map(|_: (&Allocation, u64)| ());
            let kind = match found {
                _ if !address.is_multiple_of(u64::from(bytes)) => FaultKind::Misaligned,
                Ok(()) => continue,
                Err(kind) => kind,
            };
            if first.is_none_or(|(_, other)| other == kind) {
                bad |= 1 << lane;
                first.get_or_insert((address, kind));
            }
        }
        let Some((address, kind)) = first else { return Ok(()) };
        let space = if target.space == Space::Generic { Space::Global } else { target.space };
        let mut fault = context.memory.fault(self.device(), address, bytes, space, write);
        (fault.lanes, fault.kind) = (bad, kind);
        if super::address::window(address).is_some() {
            fault.kind = FaultKind::WrongSpace;
        }
        Err(self.fault(now, fault))
    }

    #[cold]
    pub(super) fn read_only(&mut self, now: Now<'a>, target: &Target, mask: u32, bytes: u32) -> Box<super::ExecError> {
        let address = target.addresses[mask.trailing_zeros() as usize & 31];
        let allocation = Some("the parameters of a kernel are constant".to_owned());
        let kind = FaultKind::ReadOnly;
        self.fault(now, Fault { kind, lanes: mask, address, bytes, space: target.space, write: true, allocation })
    }

    /// Tells the observer of an access.
    pub(super) fn tell(&mut self, now: Now<'a>, target: &Target, mask: u32, told: Told<'_>) {
        let wrote = if matches!(told.kind, AccessKind::Read | AccessKind::AsyncRead) { 0 } else { mask };
        self.tell_atomic(now, target, mask, told, wrote);
    }

    /// Tells the observer of an access of which only some lanes wrote.
    pub(super) fn tell_atomic(&mut self, now: Now<'a>, target: &Target, mask: u32, told: Told<'_>, wrote: u32) {
        let at = self.at(Now { mask, ..now });
        let space = if target.space == Space::Generic { Space::Global } else { target.space };
        let Told { kind, bytes, order, values } = told;
        let addresses = &target.addresses;
        self.core.observer.access(&at, &MemoryAccess { kind, space, addresses, mask, bytes, order, values, wrote });
    }

    fn tell_store(&mut self, now: Now<'a>, target: &Target, mask: u32, access: &Access) {
        let bytes = access.ty.bytes() * u32::from(access.count);
        let values = words::values(&self.warp.registers, &now.instruction.operands, access, mask);
        let told = Told { kind: AccessKind::Write, bytes, order: access.order, values: Some(&values) };
        self.tell(now, target, mask, told);
    }

    /// `membar`, `fence`.
    pub(super) fn fence(&mut self, now: Now<'a>, scope: Scope) -> Turn {
        fence(Ordering::SeqCst);
        if O::ACTIVE {
            let at = self.at(now);
            self.core.observer.sync(&at, &crate::observe::Sync::Fence { scope });
        }
        Turn::Next
    }
}

/// What an observer is told of an access beside where it is.
pub(super) struct Told<'v> {
    pub(super) kind: AccessKind,
    pub(super) bytes: u32,
    pub(super) order: Order,
    pub(super) values: Option<&'v [[u8; 32]; LANES]>,
}

/// Words that one thread owns, to be read and written through a shared reference.
pub(super) fn cells(words: &mut [u32]) -> &[Cell<u32>] {
    Cell::from_mut(words).as_slice_of_cells()
}
