//! NaN and infinity in the formats that registers hold.

use crate::program::Bank;
use crate::registers::{LANES, Registers};
use crate::types::Type;

/// One value of a format: its exponent's bits, and its fraction's.
#[derive(Clone, Copy)]
struct Parts {
    exponent: u64,
    fraction: u64,
}

/// The parts of a format, and how many values of it lie side by side at which distance; `None` for what is no float.
fn parts(ty: Type) -> Option<(Parts, u32, u32)> {
    let of = |exponent, fraction| Parts { exponent, fraction };
    Some(match ty {
        Type::F32 | Type::Tf32 => (of(0x7f80_0000, 0x007f_ffff), 1, 32),
        Type::F64 => (of(0x7ff0_0000_0000_0000, 0x000f_ffff_ffff_ffff), 1, 64),
        Type::F16 => (of(0x7c00, 0x03ff), 1, 16),
        Type::F16x2 => (of(0x7c00, 0x03ff), 2, 16),
        Type::Bf16 => (of(0x7f80, 0x007f), 1, 16),
        Type::Bf16x2 => (of(0x7f80, 0x007f), 2, 16),
        _ => return None,
    })
}

/// Whether values of a type can be NaN or infinite, as far as this check knows it.
pub(super) fn is_float(ty: Type) -> bool {
    parts(ty).is_some()
}

/// Lanes whose register holds a NaN, and lanes where it holds an infinity.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Special {
    pub(super) nan: u32,
    pub(super) infinite: u32,
}

/// Lanes whose register has an exponent of ones: no NaN or infinity is elsewhere. Meant to be fast.
#[inline]
pub(super) fn suspects(registers: &Registers, bank: Bank, slot: u16, ty: Type) -> u32 {
    let mut found = 0;
    if bank == Bank::Wide {
        for (lane, value) in registers.wide(slot).iter().enumerate() {
            found |= u32::from(value & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000) << lane;
        }
        return found;
    }
    let Some((Parts { exponent, .. }, count, distance)) = parts(ty) else { return 0 };
    let low = exponent as u32;
    let high = if count == 2 { low << distance } else { low };
    let mut any = 0;
    let values = registers.narrow(slot);
    for value in values {
        any |= u32::from(value & low == low) | u32::from(value & high == high);
    }
    if any == 0 {
        return 0;
    }
    for (lane, value) in values.iter().enumerate() {
        found |= u32::from(value & low == low || value & high == high) << lane;
    }
    found
}

/// What a register holds in each lane.
#[inline]
pub(super) fn value(registers: &Registers, bank: Bank, slot: u16, lane: usize) -> u64 {
    match bank {
        Bank::Narrow => u64::from(registers.narrow(slot)[lane]),
        Bank::Wide => registers.wide(slot)[lane],
        Bank::Predicate => u64::from(registers.predicate(slot) >> lane & 1),
    }
}

/// Whether some value of the format in `bits` is a NaN.
pub(super) fn is_nan(ty: Type, bits: u64) -> bool {
    each(ty, bits, |exponent, fraction| exponent && fraction)
}

fn each(ty: Type, bits: u64, holds: impl Fn(bool, bool) -> bool) -> bool {
    let Some((parts, count, distance)) = parts(ty) else { return false };
    (0..count).any(|at| {
        let bits = bits >> (at * distance).min(63);
        holds(bits & parts.exponent == parts.exponent, bits & parts.fraction != 0)
    })
}

/// The special values of a register in the lanes of `mask`.
pub(super) fn special(registers: &Registers, bank: Bank, slot: u16, ty: Type, mask: u32) -> Special {
    let suspects = suspects(registers, bank, slot, ty) & mask;
    let mut found = Special::default();
    for lane in (0..LANES).filter(|lane| suspects >> lane & 1 == 1) {
        let bits = value(registers, bank, slot, lane);
        found.nan |= u32::from(is_nan(ty, bits)) << lane;
        found.infinite |= u32::from(each(ty, bits, |exponent, fraction| exponent && !fraction)) << lane;
    }
    found
}

/// Whether `bits`, of `width` bits, may still hold a NaN that was made in format `ty` after it was moved about: whole,
/// in one half, beside others, or half of itself.
pub(super) fn may_hold(ty: Type, bits: u64, width: u32) -> bool {
    let (own, elements) = match ty {
        Type::F16x2 => (Type::F16, 16),
        Type::Bf16x2 => (Type::Bf16, 16),
        _ => (ty, ty.bits()),
    };
    // Half of a NaN tells nothing.
    width < elements || (0..width / elements.max(1)).any(|at| is_nan(own, bits >> (at * elements)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nans_are_told_from_infinities_and_numbers() {
        assert!(is_nan(Type::F32, u64::from(f32::NAN.to_bits())) && !is_nan(Type::F32, 0x7f80_0000));
        assert!(is_nan(Type::F64, f64::NAN.to_bits()) && !is_nan(Type::F64, f64::INFINITY.to_bits()));
        assert!(is_nan(Type::F16x2, 0x7e00_0000) && is_nan(Type::F16x2, 0x7e00) && !is_nan(Type::F16x2, 0x7c00_7c00));
        assert!(is_nan(Type::Bf16, 0x7fc0) && !is_nan(Type::Bf16, 0x7f80) && !is_nan(Type::Bf16, 0x7e00));
    }

    #[test]
    fn a_moved_nan_is_known_again() {
        assert!(may_hold(Type::F16, 0x7e00_0000, 32) && !may_hold(Type::F16, 0x3c00_0000, 32));
        assert!(may_hold(Type::F32, 0x7fc0_0000_0000_0000, 64));
        assert!(may_hold(Type::F64, 0, 32), "half of a double cannot be judged");
        assert!(!may_hold(Type::F32, 1, 32));
    }

    #[test]
    fn suspects_are_found_in_every_bank() {
        let mut registers = Registers::default();
        let counts = crate::registers::Counts { narrow: 1, wide: 1, predicates: 0 };
        registers.enter(crate::registers::Base::default(), counts);
        registers.narrow_mut(0)[5] = 0x7c00_0000;
        registers.wide_mut(0)[31] = f64::NEG_INFINITY.to_bits();
        assert_eq!(suspects(&registers, Bank::Narrow, 0, Type::F16x2), 1 << 5);
        assert_eq!(suspects(&registers, Bank::Narrow, 0, Type::F16), 0);
        let found = special(&registers, Bank::Wide, 0, Type::F64, u32::MAX);
        assert_eq!((found.nan, found.infinite), (0, 1 << 31));
    }
}
