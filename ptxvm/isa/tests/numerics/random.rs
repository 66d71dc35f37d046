//! Seeded numbers to try: every exponent, near ones, few bits set, and the ends.

use crate::exact::Format;

/// A generator of random bits (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A code of a format of so many bits: any, one of short fractions (so that sums are exact and ties common), one near 1,
    /// or one at the ends of the range.
    pub(crate) fn code(&mut self, format: Format, bits: u32) -> u64 {
        let fraction = format.digits as u32 - 1;
        let any = self.bits() >> (64 - bits);
        let sign = self.bits() & 1 << (bits - 1);
        let keep = self.bits() as u32 % (fraction + 1);
        let short = any >> keep << keep;
        let field = |exponent: u64| short & ((1 << fraction) - 1) | exponent << fraction | sign;
        let middle = (1 - format.least) as u64;
        match self.bits() % 8 {
            0 => any,
            1 => short,
            2 => field(self.bits() % 3),
            3 => field(2 * middle - self.bits() % 3),
            _ => field(middle - 3 + self.bits() % 7),
        }
    }
}
