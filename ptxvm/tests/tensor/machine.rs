//! One `mma` on registers, found through the table.

use warpweft_ptxvm::numerics::{Settings, TensorModel};
use warpweft_ptxvm::program::LaneFn;
use warpweft_ptxvm::registers::{Base, Counts, Operands, Registers};
use warpweft_ptxvm::table::{Build, TABLE};

/// The lane function of an `mma` as spelled.
pub(crate) fn mma(spelling: &str) -> LaneFn {
    let words: Vec<&str> = spelling.split('.').collect();
    let (form, mods) = TABLE.find(words[0], &words[1..]).unwrap_or_else(|| panic!("no row for {spelling}"));
    match form.build {
        Build::Collective(choose) => choose(&mods),
        _ => panic!("{spelling} is no collective"),
    }
}

/// Runs it: registers of A, B and C, one `[u32; 32]` each; returns those of D.
pub(crate) fn run(spelling: &str, model: TensorModel, inputs: [&[[u32; 32]]; 3], results: usize) -> Vec<[u32; 32]> {
    let mut registers = Registers::default();
    registers.enter(Base::default(), Counts { narrow: 16, wide: 0, predicates: 0 });
    let mut slots = [0u16; 16];
    for (at, words) in inputs.into_iter().flatten().enumerate() {
        *registers.narrow_mut((results + at) as u16) = *words;
    }
    for (at, slot) in slots.iter_mut().enumerate() {
        *slot = at as u16;
    }
    let settings = Settings { tensor: model, ..Settings::default() };
    mma(spelling)(&mut registers, &Operands(slots), u32::MAX, &settings);
    (0..results).map(|at| *registers.narrow(at as u16)).collect()
}

/// A small generator: the same numbers in every run.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn bits(&mut self) -> u64 {
        // SplitMix64 (Steele et al. 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }
}
