//! The registers of a warp: 32 lanes side by side, so that one instruction is one loop over arrays.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// A register of 8, 16 or 32 bits in each lane; the bits above the type's width are zero.
pub type Narrow = [u32; LANES];

/// A register of 64 bits in each lane.
pub type Wide = [u64; LANES];

/// The operands of an instruction: slots of registers in the order of the instruction's text, vectors flattened.
///
/// Which bank a slot belongs to follows from the form's operand types. An immediate is a register that holds the same
/// value in each lane, a sink (`_`) is a register that nobody reads: the lane functions know neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands(pub [u16; 16]);

impl std::ops::Index<usize> for Operands {
    type Output = u16;
    #[inline(always)]
    fn index(&self, at: usize) -> &u16 {
        &self.0[at]
    }
}

/// How many registers of each bank a function needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of 32 bits or fewer.
    pub narrow: u16,
    /// Of 64 bits.
    pub wide: u16,
    /// Predicates.
    pub predicates: u16,
}

/// The register banks of one warp, seen through the window of the function that runs.
///
/// A called function's registers begin where its caller's end ([`Registers::enter`]).
#[derive(Clone, Debug, Default)]
pub struct Registers {
    narrow: Vec<Narrow>,
    wide: Vec<Wide>,
    predicates: Vec<u32>,
    base: Base,
}

/// Where a function's window begins in each bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// In the narrow bank.
    pub narrow: u32,
    /// In the wide bank.
    pub wide: u32,
    /// In the predicate bank.
    pub predicates: u32,
}

impl Base {
    /// Where the window of a callee begins when the function of this window has `counts` registers.
    pub fn after(self, counts: Counts) -> Base {
        Base {
            narrow: self.narrow + u32::from(counts.narrow),
            wide: self.wide + u32::from(counts.wide),
            predicates: self.predicates + u32::from(counts.predicates),
        }
    }
}

/// Registers that are added to a bank in one copy.
const STRIDE: usize = 16;

/// Adds registers of zeros to a bank that has fewer than `count`: every warp of every block begins with it, and
/// `Vec::resize` may compile to a call of the C library for each register.
fn lengthen<T: Copy>(bank: &mut Vec<T>, zeros: &[T; STRIDE], count: u32) {
    let mut missing = (count as usize).saturating_sub(bank.len());
    while missing > 0 {
        let added = missing.min(STRIDE);
        bank.extend_from_slice(&zeros[..added]);
        missing -= added;
    }
}

impl Registers {
    /// Moves the window to `base`, with room for `counts` registers; new registers hold zero.
    pub fn enter(&mut self, base: Base, counts: Counts) {
        let end = base.after(counts);
        lengthen(&mut self.narrow, &[[0; LANES]; STRIDE], end.narrow);
        lengthen(&mut self.wide, &[[0; LANES]; STRIDE], end.wide);
        lengthen(&mut self.predicates, &[0; STRIDE], end.predicates);
        self.base = base;
    }

    /// Forgets all values, and keeps the memory.
    pub fn clear(&mut self) {
        self.narrow.clear();
        self.wide.clear();
        self.predicates.clear();
        self.base = Base::default();
    }

    /// The window.
    pub fn base(&self) -> Base {
        self.base
    }

    /// A narrow register.
    #[inline(always)]
    pub fn narrow(&self, slot: u16) -> &Narrow {
        &self.narrow[self.base.narrow as usize + usize::from(slot)]
    }

    /// A narrow register, to write.
    #[inline(always)]
    pub fn narrow_mut(&mut self, slot: u16) -> &mut Narrow {
        &mut self.narrow[self.base.narrow as usize + usize::from(slot)]
    }

    /// A wide register.
    #[inline(always)]
    pub fn wide(&self, slot: u16) -> &Wide {
        &self.wide[self.base.wide as usize + usize::from(slot)]
    }

    /// A wide register, to write.
    #[inline(always)]
    pub fn wide_mut(&mut self, slot: u16) -> &mut Wide {
        &mut self.wide[self.base.wide as usize + usize::from(slot)]
    }

    /// A predicate: bit l is lane l's.
    #[inline(always)]
    pub fn predicate(&self, slot: u16) -> u32 {
        self.predicates[self.base.predicates as usize + usize::from(slot)]
    }

    /// Writes a predicate in the lanes of `mask`.
    #[inline(always)]
    pub fn set_predicate(&mut self, slot: u16, mask: u32, value: u32) {
        let register = &mut self.predicates[self.base.predicates as usize + usize::from(slot)];
        *register = (*register & !mask) | (value & mask);
    }

    /// Writes a narrow register in the lanes of `mask`.
    #[inline(always)]
    pub fn set_narrow(&mut self, slot: u16, mask: u32, value: &Narrow) {
        let register = self.narrow_mut(slot);
        if mask == u32::MAX {
            *register = *value;
        } else {
            for lane in 0..LANES {
                register[lane] = if mask >> lane & 1 == 1 { value[lane] } else { register[lane] };
            }
        }
    }

    /// Writes a wide register in the lanes of `mask`.
    #[inline(always)]
    pub fn set_wide(&mut self, slot: u16, mask: u32, value: &Wide) {
        let register = self.wide_mut(slot);
        if mask == u32::MAX {
            *register = *value;
        } else {
            for lane in 0..LANES {
                register[lane] = if mask >> lane & 1 == 1 { value[lane] } else { register[lane] };
            }
        }
    }
}
