//! From an instruction's address operand to places in a space.

use warpweft_ptxvm_isa::vectorised;

use super::step::{Now, Step, Stepped, Turn};
use super::warp::{Fragment, Local};
use super::words;
use crate::memory::{Fault, FaultKind, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::observe::{Halt, Watcher};
use crate::program::{Address, AddressBase};
use crate::registers::LANES;
use crate::types::Space;

/// The addresses of the lanes, all in one space: offsets where the space is a window.
pub(super) struct Target {
    pub(super) space: Space,
    pub(super) addresses: [u64; LANES],
}

/// The space whose window holds a generic address.
pub(super) fn window(address: u64) -> Option<(Space, u64)> {
    let of = |start: u64| address.wrapping_sub(start);
    [(Space::Shared, SHARED_WINDOW), (Space::Local, LOCAL_WINDOW), (Space::Param, PARAM_WINDOW)]
        .into_iter()
        .find(|&(_, start)| of(start) < WINDOW_BYTES)
        .map(|(space, start)| (space, of(start)))
}

/// Whether a generic address can be in a window at all; a cheap test first.
#[inline(always)]
fn may_be_window(address: u64) -> bool {
    address >> 40 == SHARED_WINDOW >> 40
}

/// Where the window of a space begins in the generic space.
fn window_start(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Generic | Space::Global | Space::Const => 0,
    }
}

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// The addresses that an operand gives, in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn target(&self, f: &Fragment, address: &Address) -> Target {
        self.target_of(f.local, address)
    }

    /// The same, by where the function's local memory lies.
    #[inline(always)]
    pub(super) fn target_of(&self, local: Local, address: &Address) -> Target {
        let offset = address.offset as u64;
        let all = |start: u64| [start.wrapping_add(offset); LANES];
        let (space, addresses) = match address.base {
            AddressBase::Wide(slot) => {
                let base = self.warp.registers.wide(slot);
                let sums = vectorised(
                    #[inline(always)]
                    || std::array::from_fn(|lane| base[lane].wrapping_add(offset)),
                );
                (address.space, sums)
            }
            AddressBase::Narrow(slot) => {
                let (base, add) = (self.warp.registers.narrow(slot), offset as u32);
                let sums = vectorised(
                    #[inline(always)]
                    || std::array::from_fn(|lane| u64::from(base[lane].wrapping_add(add))),
                );
                (address.space, sums)
            }
            AddressBase::Absolute => (address.space, all(0)),
            AddressBase::Variable(variable) => {
                let start = self.core.context.launch.variables.get(variable as usize).copied();
                (address.space, all(start.unwrap_or(0)))
            }
            AddressBase::Frame => (Space::Local, all(u64::from(local.frame))),
            AddressBase::FunctionParam => (Space::Local, all(u64::from(local.arguments))),
            AddressBase::KernelParam => (Space::Param, all(0)),
        };
        Target { space, addresses }
    }

    /// Calls `part` once for each space that the lanes' generic addresses are in.
    #[inline(always)]
    pub(super) fn by_space(
        &mut self,
        target: &mut Target,
        mask: u32,
        mut part: impl FnMut(&mut Self, &Target, u32) -> Stepped<()>,
    ) -> Stepped<()> {
        if target.space != Space::Generic {
            return part(self, target, mask);
        }
        target.space = Space::Global;
        let addresses = &target.addresses;
        let any = vectorised(
            #[inline(always)]
            || addresses.iter().fold(false, |any, &address| any | may_be_window(address)),
        );
        if !any {
            return part(self, target, mask);
        }
        self.by_window(target, mask, &mut part)
    }

    /// The same where some lane's address may be in a window.
    fn by_window(
        &mut self,
        target: &Target,
        mask: u32,
        part: &mut impl FnMut(&mut Self, &Target, u32) -> Stepped<()>,
    ) -> Stepped<()> {
        let inside = |&lane: &usize| may_be_window(target.addresses[lane]);
        let mut windowed = super::lanes(mask).filter(inside).fold(0, |all, lane| all | 1 << lane);
        if windowed != mask {
            part(self, target, mask & !windowed)?;
        }
        while windowed != 0 {
            let first = target.addresses[windowed.trailing_zeros() as usize];
            let space = window(first).map_or(Space::Global, |(space, _)| space);
            let mut addresses = target.addresses;
            let mut group = 0;
            for lane in super::lanes(windowed) {
                let found = window(addresses[lane]);
                if found.map_or(Space::Global, |(space, _)| space) == space {
                    addresses[lane] = found.map_or(addresses[lane], |(_, offset)| offset);
                    group |= 1 << lane;
                }
            }
            part(self, &Target { space, addresses }, group)?;
            windowed &= !group;
        }
        Ok(())
    }

    /// Offsets of an access inside a window of `size` bytes and the step between them ([`words::step`]), or the fault.
    #[inline(always)]
    pub(super) fn in_window(
        &mut self,
        now: Now<'a>,
        target: &Target,
        mask: u32,
        access: (u32, bool),
        size: u32,
    ) -> Stepped<([u32; LANES], u32)> {
        let bytes = access.0;
        let addresses = &target.addresses;
        // No lane may begin behind this; a negative number where none fits.
        let last = i64::from(size) - i64::from(bytes);
        let mut offsets = [0; LANES];
        let (over, low, step) = vectorised(
            #[inline(always)]
            || {
                let (mut over, mut low) = (0, 0);
                for lane in 0..LANES {
                    let on = u64::from(mask >> lane & 1).wrapping_neg();
                    let address = addresses[lane] & on;
                    // A window is far smaller than half the address space, so a high bit is beyond it too.
                    over |= (last.wrapping_sub(address as i64) as u64 | address) & on;
                    low |= address as u32;
                    offsets[lane] = address as u32;
                }
                (over >> 63, low, words::step(&offsets, mask))
            },
        );
        if over != 0 || low & (bytes - 1) != 0 {
            return Err(self.window_fault(now, target, mask, access, size));
        }
        Ok((offsets, step))
    }

    #[cold]
    fn window_fault(
        &mut self,
        now: Now<'a>,
        target: &Target,
        mask: u32,
        (bytes, write): (u32, bool),
        size: u32,
    ) -> Box<super::ExecError> {
        let kind_of = |address: u64| match () {
            () if address.saturating_add(u64::from(bytes)) <= u64::from(size) => {
                (!address.is_multiple_of(u64::from(bytes))).then_some(FaultKind::Misaligned)
            }
            () if window(address).is_some() || address > u64::from(u32::MAX) => Some(FaultKind::WrongSpace),
            () => Some(FaultKind::OutOfBounds),
        };
        let mut bad = super::lanes(mask).filter_map(|lane| Some((lane, kind_of(target.addresses[lane])?)));
        let (lane, kind) = bad.next().unwrap_or((0, FaultKind::OutOfBounds));
        let lanes = bad.filter(|&(_, other)| other == kind).fold(1 << lane, |lanes, (lane, _)| lanes | 1 << lane);
        let name = match target.space {
            Space::Shared => "the shared memory of the block",
            Space::Local => "the local memory of the thread",
            _ => "the parameters of the kernel",
        };
        let fault = Fault {
            kind,
            lanes,
            address: target.addresses[lane],
            bytes,
            space: target.space,
            write,
            allocation: Some(format!("{name} has {size} bytes")),
        };
        self.fault(now, fault)
    }

    /// An access that cannot be done.
    #[cold]
    pub(super) fn fault(&mut self, now: Now<'a>, fault: Fault) -> Box<super::ExecError> {
        let now = Now { mask: fault.lanes, ..now };
        self.halt(Some(now), &Halt::Fault(&fault))
    }

    /// `isspacep`: whether a generic address is in a space.
    pub(super) fn is_space(&mut self, now: Now<'a>, space: Space) -> Turn {
        let operands = &now.instruction.operands;
        let addresses = *self.warp.registers.wide(operands[1]);
        let mut result = 0;
        for (lane, &address) in addresses.iter().enumerate() {
            let found = window(address).map_or(Space::Global, |(space, _)| space);
            let inside = match space {
                Space::Const => self.is_constant(address),
                Space::Global => found == Space::Global && !self.is_constant(address),
                _ => found == space,
            };
            result |= u32::from(inside) << lane;
        }
        self.warp.registers.set_predicate(operands[0], now.mask, result);
        Turn::Next
    }

    /// Whether an address is in a constant variable of the module.
    fn is_constant(&self, address: u64) -> bool {
        let context = self.core.context;
        let variables = context.program.variables.iter().zip(context.launch.variables);
        let mut constants = variables.filter(|(variable, _)| variable.space == Space::Const);
        constants.any(|(variable, &start)| address.wrapping_sub(start) < variable.bytes)
    }

    /// `cvta`, `cvta.to`.
    pub(super) fn convert_address(&mut self, now: Now<'a>, space: Space, to_generic: bool, wide: bool) -> Turn {
        let operands = &now.instruction.operands;
        let start = window_start(space);
        let start = if to_generic { start } else { start.wrapping_neg() };
        if wide {
            let from = self.warp.registers.wide(operands[1]);
            let out = std::array::from_fn(|lane| from[lane].wrapping_add(start));
            self.warp.registers.set_wide(operands[0], now.mask, &out);
        } else {
            let from = self.warp.registers.narrow(operands[1]);
            let out = std::array::from_fn(|lane| from[lane].wrapping_add(start as u32));
            self.warp.registers.set_narrow(operands[0], now.mask, &out);
        }
        Turn::Next
    }
}
