//! Seeded inputs, and comparisons whose tolerance is given for every element.

use bytemuck::Pod;
use half::{bf16, f16};

/// Unit roundoffs: the relative error of one rounding to nearest.
pub(crate) const F32: f64 = 1.0 / (1u64 << 24) as f64;
pub(crate) const F16: f64 = 1.0 / 2048.0;
pub(crate) const BF16: f64 = 1.0 / 256.0;
/// Relative error of rounding to tf32 toward zero, as the tensor core does with what it is given.
pub(crate) const TF32: f64 = 1.0 / 1024.0;

/// A small generator of our own (splitmix64): the same inputs on every machine.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [low, high).
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.bits() % (high - low) as u64) as i64
    }

    pub(crate) fn integers(&mut self, count: usize, low: i64, high: i64) -> Vec<i32> {
        (0..count).map(|_| self.between(low, high) as i32).collect()
    }

    /// Uniform in [-reach, reach).
    pub(crate) fn real(&mut self, reach: f64) -> f64 {
        ((self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * reach
    }

    /// Uniform, and representable in `T`: the reference starts from the very numbers that the kernel reads.
    pub(crate) fn reals<T: Real>(&mut self, count: usize, reach: f64) -> Vec<T> {
        (0..count).map(|_| T::from_f64(self.real(reach))).collect()
    }

    /// Small integers as floats: their sums of products are exact in any order.
    pub(crate) fn whole<T: Real>(&mut self, count: usize, reach: i64) -> Vec<T> {
        (0..count).map(|_| T::from_f64(self.between(-reach, reach + 1) as f64)).collect()
    }

    /// A permutation of 0..count.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<i32> {
        let mut order: Vec<i32> = (0..count as i32).collect();
        for i in (1..count).rev() {
            order.swap(i, self.between(0, i as i64 + 1) as usize);
        }
        order
    }
}

/// A float format that a kernel reads or writes.
pub(crate) trait Real: Pod + PartialEq + std::fmt::Debug {
    /// Relative error of rounding to it.
    const ROUNDING: f64;
    /// The least positive number, subnormal: half of it is the absolute error of rounding near zero.
    const LEAST: f64;
    fn from_f64(value: f64) -> Self;
    fn f64(self) -> f64;
}

macro_rules! real {
    ($($kind:ty, $rounding:expr, $least:expr, $from:expr, $to:expr;)*) => {$(
        impl Real for $kind {
            const ROUNDING: f64 = $rounding;
            const LEAST: f64 = $least;
            fn from_f64(value: f64) -> Self { $from(value) }
            fn f64(self) -> f64 { $to(self) }
        }
    )*};
}

real! {
    f64, F32 * F32 / 32.0, 5e-324, |x| x, |x| x;
    f32, F32, 1.5e-45, |x| x as f32, f64::from;
    f16, F16, 6e-8, f16::from_f64, f16::to_f64;
    bf16, BF16, 1e-40, bf16::from_f64, bf16::to_f64;
}

pub(crate) fn wide<T: Real>(values: &[T]) -> Vec<f64> {
    values.iter().map(|x| x.f64()).collect()
}

/// A reference value and how far a right kernel may be from it, before the result is rounded to its format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

/// Every element is within its own bound and the rounding of its format; infinities and NaN patterns are equal.
pub(crate) fn close<T: Real>(what: &str, got: &[T], wanted: &[Bounded]) {
    assert_eq!(got.len(), wanted.len(), "{what}: elements");
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let got = got.f64();
        let Bounded { value, error } = *wanted;
        let rounded = T::from_f64(value).f64();
        if !rounded.is_finite() {
            assert_eq!(got, rounded, "{what}[{at}]");
            continue;
        }
        assert!(error.is_finite() && error >= 0.0, "{what}[{at}]: the bound is {error}");
        let room = error + (value.abs() + error) * T::ROUNDING + T::LEAST;
        let right = (got - value).abs() <= room;
        assert!(right, "{what}[{at}] is {got}, wanted {value} within {room:e} (off by {:e})", (got - value).abs());
    }
}

/// Every element is the same. For floats: the same bits.
pub(crate) fn same<T: Pod + std::fmt::Debug>(what: &str, got: &[T], wanted: &[T]) {
    assert_eq!(got.len(), wanted.len(), "{what}: elements");
    let differs = got.iter().zip(wanted).position(|(a, b)| bytemuck::bytes_of(a) != bytemuck::bytes_of(b));
    if let Some(at) = differs {
        panic!(
            "{what}[{at}] is {:?}, wanted {:?}; around it {:?}, wanted {:?}",
            got[at],
            wanted[at],
            around(got, at),
            around(wanted, at)
        );
    }
}

fn around<T>(values: &[T], at: usize) -> &[T] {
    &values[at.saturating_sub(3)..(at + 5).min(values.len())]
}
