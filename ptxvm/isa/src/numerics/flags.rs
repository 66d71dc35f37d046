//! The modifiers of a floating-point instruction as one constant, so that an operation is compiled once for each
//! combination and decides nothing while it runs.

/// Rounding of the result: the low three bits of a set of flags.
pub const ROUNDING: u32 = 7;
/// `.rn`: to nearest, ties to even.
pub const NEAREST: u32 = 0;
/// `.rz`: toward zero.
pub const ZERO: u32 = 1;
/// `.rm`: toward negative infinity.
pub const DOWN: u32 = 2;
/// `.rp`: toward positive infinity.
pub const UP: u32 = 3;
/// `.rna`: to nearest, ties away from zero.
pub const AWAY: u32 = 4;
/// `.ftz`: subnormal sources and results become zeros of their sign.
pub const FTZ: u32 = 8;
/// `.sat`: the result is clamped to [+0, 1], and NaN becomes +0.
pub const SAT: u32 = 16;
/// `.relu`: a negative result becomes +0.
pub const RELU: u32 = 32;
/// `.satfinite`: what is too large becomes the largest finite number of its sign.
pub const SATFINITE: u32 = 64;

/// Whether `value`, of which the bits `rest` below the last place are cut off, rounds away from zero. `half` is half of a
/// unit in the last place.
#[inline(always)]
pub(super) fn rounds_away<const M: u32>(negative: bool, odd: bool, rest: u64, half: u64) -> bool {
    match M & ROUNDING {
        NEAREST => rest > half || (rest == half && odd),
        AWAY => rest >= half,
        DOWN => negative && rest != 0,
        UP => !negative && rest != 0,
        _ => false,
    }
}

/// Whether what is too large for a format becomes its largest finite number, not an infinity.
#[inline(always)]
pub(super) fn stays_finite<const M: u32>(negative: bool) -> bool {
    match M & ROUNDING {
        NEAREST | AWAY => false,
        DOWN => !negative,
        UP => negative,
        _ => true,
    }
}
