//! Special registers, and the registers whose value is known when a function is entered.

use super::step::{Now, Step, Turn};
use super::warp::Fragment;
use crate::observe::{At, Watcher};
use crate::program::{Preset, Special};
use crate::registers::LANES;

/// Nanoseconds that an instruction counts for in `%globaltimer`: time here is the number of instructions, so that a run
/// can be repeated.
const NANOSECONDS: u64 = 1;

impl<'a, O: Watcher + ?Sized> Step<'_, 'a, O> {
    /// Fills the preset registers of the function that a fragment has entered, in its lanes.
    pub(super) fn preset(&mut self, f: &Fragment) {
        let context = self.core.context;
        for &preset in &context.program.functions[f.function as usize].preset {
            let mask = f.mask;
            match preset {
                Preset::Narrow(slot, value) => self.warp.registers.set_narrow(slot, mask, &[value; LANES]),
                Preset::Wide(slot, value) => self.warp.registers.set_wide(slot, mask, &[value; LANES]),
                Preset::Predicate(slot, value) => {
                    self.warp.registers.set_predicate(slot, mask, u32::from(value).wrapping_neg());
                }
                Preset::Variable(slot, variable, addend) => {
                    let start = context.launch.variables.get(variable as usize).copied().unwrap_or(0);
                    self.warp.registers.set_wide(slot, mask, &[start.wrapping_add_signed(addend); LANES]);
                }
                Preset::Special(slot, Special::GridId) => {
                    self.warp.registers.set_wide(slot, mask, &[context.launch.grid_id; LANES]);
                }
                Preset::Special(slot, special) => {
                    let values = self.special(special);
                    self.warp.registers.set_narrow(slot, mask, &values);
                }
                Preset::Local(slot, offset) => {
                    let address = u64::from(f.local.frame) + u64::from(offset);
                    self.warp.registers.set_wide(slot, mask, &[address; LANES]);
                }
            }
        }
    }

    /// Tells the observer that a function was entered.
    pub(super) fn tell_enter(&mut self, f: &Fragment) {
        let program = self.core.context.program;
        let callee = &program.functions[f.function as usize];
        if let Some(instruction) = callee.code.first() {
            let now = Now { instruction, function: f.function, pc: 0, mask: f.mask };
            let at: At<'a> = self.at(now);
            self.core.observer.enter(&at, callee, &self.warp.registers);
        }
    }

    /// A special register of 32 bits that does not change while the block lives.
    fn special(&self, special: Special) -> [u32; LANES] {
        let context = self.core.context;
        let launch = context.launch;
        let all = |value: u32| [value; LANES];
        let axis = |shape: [u32; 3], axis: u8, w: u32| all(shape.get(usize::from(axis)).copied().unwrap_or(w));
        let by_lane = |value: fn(u32) -> u32| std::array::from_fn(|lane| value(lane as u32));
        match special {
            Special::Tid(axis) => std::array::from_fn(|lane| {
                let thread = self.number * LANES as u32 + lane as u32;
                let [x, y, _] = launch.block;
                match axis {
                    0 => thread % x,
                    1 => thread / x % y,
                    2 => thread / x / y,
                    _ => 0,
                }
            }),
            Special::Ntid(at) => axis(launch.block, at, 0),
            Special::CtaId(at) => axis(self.block.coordinates, at, 0),
            Special::NctaId(at) => axis(launch.grid, at, 0),
            Special::LaneId => by_lane(|lane| lane),
            Special::WarpId => all(self.number),
            Special::NwarpId => all(self.block.warps),
            Special::SmId => all((self.block.index % u64::from(launch.sms.max(1))) as u32),
            Special::NsmId => all(launch.sms),
            Special::LaneMaskEq => by_lane(|lane| 1 << lane),
            Special::LaneMaskLe => by_lane(|lane| u32::MAX >> (31 - lane)),
            Special::LaneMaskLt => by_lane(|lane| (1 << lane) - 1),
            Special::LaneMaskGe => by_lane(|lane| u32::MAX << lane),
            Special::LaneMaskGt => by_lane(|lane| (u32::MAX << lane) << 1),
            // Every block is a cluster of its own.
            Special::ClusterId(at) => axis(self.block.coordinates, at, 0),
            Special::NclusterId(at) => axis(launch.grid, at, 0),
            Special::ClusterNctaId(at) => axis([1; 3], at, 0),
            Special::ClusterNctaRank => all(1),
            Special::DynamicSharedSize => all(launch.dynamic_shared),
            Special::TotalSharedSize => all(self.block.shared_bytes),
            Special::ClusterCtaId(_) | Special::ClusterCtaRank | Special::IsExplicitCluster => all(0),
            Special::EnvReg(_) | Special::Pm => all(0),
            // Of 64 bits: whoever reads them writes a wide register.
            Special::GridId | Special::Clock64 | Special::GlobalTimer => all(0),
            Special::Clock | Special::GlobalTimerLo => all(self.time() as u32),
            Special::ClockHi | Special::GlobalTimerHi => all((self.time() >> 32) as u32),
        }
    }

    /// Instructions that this worker has run, about.
    fn time(&self) -> u64 {
        (self.core.executed + self.core.looks) * NANOSECONDS
    }

    /// `mov` from a special register that changes.
    pub(super) fn read_special(&mut self, now: Now<'a>, special: Special) -> Turn {
        self.core.looks += 1;
        let slot = now.instruction.operands[0];
        match special {
            Special::Clock64 | Special::GlobalTimer => {
                let time = self.time();
                self.warp.registers.set_wide(slot, now.mask, &[time; LANES]);
            }
            Special::GridId => {
                let id = self.core.context.launch.grid_id;
                self.warp.registers.set_wide(slot, now.mask, &[id; LANES]);
            }
            other => {
                let values = self.special(other);
                self.warp.registers.set_narrow(slot, now.mask, &values);
            }
        }
        Turn::Next
    }
}
