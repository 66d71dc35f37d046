//! Arithmetic of the element types: each with the type in which it is accumulated.

use half::slice::HalfFloatSliceExt;
use warpweft_device::{Element, Float, bf16, f16};

/// An element type with its accumulator.
pub(super) trait Number: Element {
    /// What sums are made in: f32 for narrow floats, else the type itself.
    type Wide: Copy + Default;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn prod(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(a: Self::Wide, ranks: usize) -> Self::Wide;

    /// Whether single conversions are slow, so that loops convert whole blocks at a time.
    const BLOCKWISE: bool = false;

    /// Widens a block; both slices have the same length.
    #[inline(always)]
    fn widen_block(from: &[Self], to: &mut [Self::Wide]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    /// Rounds a block; both slices have the same length.
    #[inline(always)]
    fn narrow_block(from: &[Self::Wide], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::narrow(*from);
        }
    }
}

macro_rules! integer {
    ($($type:ty: $through:ty),* $(,)?) => {
        $(impl Number for $type {
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type { self }
            #[inline(always)]
            fn narrow(wide: $type) -> $type { wide }
            #[inline(always)]
            fn sum(a: $type, b: $type) -> $type { a.wrapping_add(b) }
            #[inline(always)]
            fn prod(a: $type, b: $type) -> $type { a.wrapping_mul(b) }
            #[inline(always)]
            fn min(a: $type, b: $type) -> $type { Ord::min(a, b) }
            #[inline(always)]
            fn max(a: $type, b: $type) -> $type { Ord::max(a, b) }
            #[inline(always)]
            // The quotient is no larger than the dividend, so that it fits; the ranks may not fit the element type.
            fn divide(a: $type, ranks: usize) -> $type { (<$through>::from(a) / ranks as $through) as $type }
        })*
    };
}

integer! { i8: i64, i16: i64, i32: i64, i64: i64, u8: u64, u16: u64, u32: u64, u64: u64 }

/// The operations on accumulators that are floats. Of two equal numbers with different bits (zeros of either sign), a
/// bitwise or is the negative one and a bitwise and the positive one.
macro_rules! float_operations {
    ($wide:ty) => {
        #[inline(always)]
        fn sum(a: $wide, b: $wide) -> $wide {
            a + b
        }
        #[inline(always)]
        fn prod(a: $wide, b: $wide) -> $wide {
            a * b
        }
        #[inline(always)]
        fn min(a: $wide, b: $wide) -> $wide {
            let equal = <$wide>::from_bits(a.to_bits() | b.to_bits());
            let number = if a < b {
                a
            } else if a == b {
                equal
            } else {
                b
            };
            if a.is_nan() { a } else { number }
        }
        #[inline(always)]
        fn max(a: $wide, b: $wide) -> $wide {
            let equal = <$wide>::from_bits(a.to_bits() & b.to_bits());
            let number = if a > b {
                a
            } else if a == b {
                equal
            } else {
                b
            };
            if a.is_nan() { a } else { number }
        }
        #[inline(always)]
        fn divide(a: $wide, ranks: usize) -> $wide {
            a / ranks as $wide
        }
    };
}

macro_rules! float {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $type {
                $narrow(wide)
            }
            float_operations!($wide);
        }
    };
}

float!(f64, f64, |x| x, |x| x);
float!(f32, f32, |x| x, |x| x);
float!(bf16, f32, Float::to_f32, Float::from_f32);

impl Number for f16 {
    type Wide = f32;
    // One conversion asks the processor what it can do; a block asks once.
    const BLOCKWISE: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn narrow(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
    fn widen_block(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow_block(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
    float_operations!(f32);
}
