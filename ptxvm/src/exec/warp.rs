//! A warp: its registers, its lanes' local memory, and the fragments in which its lanes run.

use std::cell::Cell;

use super::converge::Joins;
use super::copy::Copies;
use crate::registers::{Base, LANES, Registers};

/// No join.
pub(super) const NONE: u32 = u32::MAX;

/// A caller, to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Its function.
    pub(super) function: u32,
    /// Where it goes on.
    pub(super) pc: u32,
    /// Its registers.
    pub(super) base: Base,
    /// Its local memory.
    pub(super) local: Local,
    /// Where in its frame it wants the result.
    pub(super) result: Option<u32>,
}

/// Where a function's local memory lies in its thread's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Local {
    /// Its arguments.
    pub(super) arguments: u32,
    /// Its frame.
    pub(super) frame: u32,
    /// Where a callee's begins.
    pub(super) end: u32,
}

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// For its turn.
    Ready,
    /// For other lanes of the warp to come to a `.sync` instruction: the member mask, or all of the warp.
    Gather(Option<u32>),
    /// For other warps at a barrier of the block.
    Barrier(u8),
}

/// Lanes that run together: same place, same callers.
#[derive(Clone, Debug)]
pub(super) struct Fragment {
    pub(super) function: u32,
    pub(super) pc: u32,
    pub(super) mask: u32,
    /// The innermost place where they wait for lanes that went another way.
    pub(super) join: u32,
    pub(super) state: State,
    pub(super) base: Base,
    pub(super) local: Local,
    /// Callers, outermost first.
    pub(super) stack: Vec<Frame>,
}

impl Fragment {
    /// Calls in progress.
    pub(super) fn depth(&self) -> u32 {
        self.stack.len() as u32
    }

    /// The same callers, other lanes.
    pub(super) fn split(&mut self, mask: u32, pc: u32) -> Fragment {
        self.mask &= !mask;
        Fragment { mask, pc, ..self.clone() }
    }

    /// Whether both would do the same from here on.
    pub(super) fn same_place(&self, other: &Fragment) -> bool {
        self.pc == other.pc
            && self.function == other.function
            && self.join == other.join
            && self.base == other.base
            && self.stack == other.stack
    }
}

/// A warp.
#[derive(Default)]
pub(super) struct Warp {
    pub(super) registers: Registers,
    pub(super) local: LocalMemory,
    /// Those that can run come first come, first served; those that wait stay in between.
    pub(super) fragments: Vec<Fragment>,
    pub(super) joins: Joins,
    /// Copies to shared memory that have not landed.
    pub(super) copies: Copies,
    /// Lanes that have not exited.
    pub(super) live: u32,
    /// Lanes that the launch gave it.
    pub(super) born: u32,
}

impl Warp {
    /// Makes one fragment of those that are ready at the same place, where there are several.
    pub(super) fn merge(&mut self) {
        let mut first = 0;
        while first < self.fragments.len() {
            let mut other = first + 1;
            while other < self.fragments.len() {
                let (kept, gone) = (&self.fragments[first], &self.fragments[other]);
                if kept.state == State::Ready && gone.state == State::Ready && kept.same_place(gone) {
                    let gone = self.fragments.remove(other);
                    self.fragments[first].mask |= gone.mask;
                } else {
                    other += 1;
                }
            }
            first += 1;
        }
    }
}

/// Local memory of the 32 lanes, word by word side by side as the hardware interleaves it: an access of all lanes to
/// the same place is contiguous.
#[derive(Default)]
pub(super) struct LocalMemory {
    words: Vec<u32>,
}

impl LocalMemory {
    /// Bytes that each lane has.
    pub(super) fn bytes(&self) -> u32 {
        (self.words.len() / LANES * 4) as u32
    }

    /// Makes room for so many bytes a lane.
    pub(super) fn grow(&mut self, bytes: u32) {
        let words = bytes.div_ceil(4) as usize * LANES;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    /// Its words: those of a lane are 32 apart.
    pub(super) fn cells(&mut self) -> &[Cell<u32>] {
        Cell::from_mut(self.words.as_mut_slice()).as_slice_of_cells()
    }

    /// Copies bytes within each lane of `mask`. Both places lie inside.
    pub(super) fn copy(&mut self, mask: u32, from: u32, to: u32, bytes: u32) {
        for lane in super::lanes(mask) {
            for at in 0..bytes {
                self.set_byte(lane, to + at, self.byte(lane, from + at));
            }
        }
    }

    /// A byte of a lane; 0 outside.
    pub(super) fn byte(&self, lane: usize, at: u32) -> u8 {
        self.words.get((at / 4) as usize * LANES + lane).map_or(0, |word| (word >> (at % 4 * 8)) as u8)
    }

    /// Sets a byte of a lane; nothing outside.
    pub(super) fn set_byte(&mut self, lane: usize, at: u32, value: u8) {
        if let Some(word) = self.words.get_mut((at / 4) as usize * LANES + lane) {
            let shift = at % 4 * 8;
            *word = (*word & !(0xff << shift)) | u32::from(value) << shift;
        }
    }
}
