//! The element types that a buffer can hold.

use std::fmt::{self, Debug};

use bytemuck::Pod;
pub use half::{bf16, f16};

/// The type of one element, as a value: what a device, a peer or a file is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 64-bit IEEE float.
    F64,
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float: 5 bits of exponent, 10 of fraction.
    F16,
    /// bfloat16: 8 bits of exponent, 7 of fraction.
    BF16,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
}

impl DType {
    /// Every element type, in the order of the enum.
    pub const ALL: [DType; 12] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// The short name used in messages, flags and files: `f32`, `bf16`, `u8`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }

    /// The type of that short name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type that a [`Buffer`](crate::Buffer) can hold: plain bytes, any pattern valid.
pub trait Element: Pod + Send + Sync + Debug + PartialEq {
    /// The type as a value.
    const DTYPE: DType;
}

/// A floating-point [`Element`] that kernels compute with: stored as itself, accumulated in f32 (f64 in references).
pub trait Float: Element + PartialOrd {
    /// Zero.
    const ZERO: Self;
    /// The value as f32; exact for every type but f64, which rounds to nearest even.
    fn to_f32(self) -> f32;
    /// Rounds to nearest even.
    fn from_f32(value: f32) -> Self;
    /// The value as f64; always exact.
    fn to_f64(self) -> f64;
    /// Rounds to nearest even, once.
    fn from_f64(value: f64) -> Self;
}

macro_rules! element {
    ($($type:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $type { const DTYPE: DType = DType::$dtype; })*
    };
}

element! {
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Float for f16 {
    const ZERO: Self = f16::ZERO;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // Without a branch or a call, so that it is vectorised. The exponent's bias differs by 112: a multiplication by
        // 2^112, which makes normal numbers of subnormal ones too.
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let not_finite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | not_finite | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Nearest even on the last bit kept, with the bias changed by 112; 65520 and above carry into infinity.
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
        // Below 2^-14 the last bit is worth 2^-24, as it is in an f32 from 1/2 to 1: adding 1/2 rounds there.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        let within = if magnitude < 143 << 23 { finite } else { 0x7c00 };
        // A NaN keeps what fits of its payload and stays one by its quiet bit.
        let result = if value.is_nan() { 0x7e00 | ((magnitude >> 13) & 0x3ff) } else { within };
        f16::from_bits((result | (bits >> 16) & 0x8000) as u16)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(Float::to_f32(self))
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Float::from_f32(rounded_to_odd(value))
    }
}

impl Float for bf16 {
    const ZERO: Self = bf16::ZERO;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // A shift, which the compiler vectorises; every bfloat16 (NaN too) is the top half of an f32.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        // Nearest even without a branch that would stop vectorisation; a NaN stays a NaN by its quiet bit.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(Float::to_f32(self))
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Float::from_f32(rounded_to_odd(value))
    }
}

/// The f32 next to `value` that is odd in its last bit, or `value` where an f32 holds it. Rounding that to a format of
/// at least two bits fewer is rounding `value` itself once, as no odd f32 is such a format's tie (S. Boldo, G. Melquiond,
/// "When double rounding is odd", 2005). The `half` crate's own conversion from f64 ignores the lower 32 bits.
#[inline(always)]
fn rounded_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    let exact = f64::from(nearest);
    if exact == value || value.is_nan() || bits & 1 == 1 {
        return nearest;
    }
    f32::from_bits(if exact.abs() < value.abs() { bits + 1 } else { bits - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_come_back() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("float"), None);
    }

    #[test]
    fn bf16_is_the_half_crates_for_every_pattern_and_every_tie() {
        for top in 0..=u16::MAX {
            let ours = Float::to_f32(bf16::from_bits(top));
            assert_eq!(ours.to_bits(), u32::from(top) << 16);
            for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits((u32::from(top) << 16) | low);
                let (ours, theirs) = (<bf16 as Float>::from_f32(value), bf16::from_f32(value));
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn f16_is_the_half_crates_for_every_pattern_and_every_tie() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (Float::to_f32(f16::from_bits(bits)), f16::from_bits(bits).to_f32());
            // Only a signalling NaN may differ: the half crate, or the processor under it, makes it a quiet one.
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
        // Every exponent and the upper bits of the fraction, with ties and their neighbours in the lower ones.
        for top in 0..=u32::MAX >> 11 {
            for low in [0, 1, 0x3ff, 0x400, 0x401, 0x7ff] {
                let value = f32::from_bits(top << 11 | low);
                let (ours, theirs) = (<f16 as Float>::from_f32(value), f16::from_f32(value));
                assert!(ours.to_bits() == theirs.to_bits() || value.is_nan() && ours.is_nan(), "{value:e}");
            }
        }
    }

    /// Every tie of the positive finite numbers, and what is next to it on either side by less than an f32 shows.
    #[test]
    fn f64_is_rounded_once() {
        fn check<T: Float>(from_bits: impl Fn(u16) -> T, finite: u16) {
            for pattern in 0..finite {
                let (low, high) = (from_bits(pattern), from_bits(pattern + 1));
                let tie = (low.to_f64() + high.to_f64()) / 2.0;
                let even = if pattern.is_multiple_of(2) { low } else { high };
                assert_eq!(T::from_f64(tie), even, "{tie:e}");
                assert_eq!(T::from_f64(tie.next_down()), low, "{tie:e}");
                assert_eq!(T::from_f64(tie.next_up()), high, "{tie:e}");
                assert_eq!(T::from_f64(-tie.next_up()).to_f64(), -high.to_f64(), "{tie:e}");
            }
            assert_eq!(T::from_f64(f64::MAX).to_f64(), f64::INFINITY);
            assert_eq!(T::from_f64(f64::NEG_INFINITY).to_f64(), f64::NEG_INFINITY);
            assert_eq!(T::from_f64(f64::MIN_POSITIVE).to_f64(), 0.0);
            assert!(T::from_f64(f64::NAN).to_f64().is_nan());
        }
        check(f16::from_bits, 0x7bff);
        check(bf16::from_bits, 0x7f7f);
    }
}
