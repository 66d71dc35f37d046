//! `sqrt`, `rsqrt` and `rcp`: the processor's own root and quotient, rounded from f64 where two operations are needed.

use super::Function;
use super::adversary::Reach;

/// The square root.
pub struct Sqrt;

/// The reciprocal of the square root.
pub struct Rsqrt;

/// The reciprocal.
pub struct Rcp;

impl Function for Sqrt {
    const ID: u64 = 4;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        x.sqrt()
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        x.sqrt()
    }

    fn reach(_x: f64, _value: f64) -> Reach {
        // 2^-23.
        Reach::Relative(f64::from(f32::EPSILON))
    }
}

impl Function for Rsqrt {
    const ID: u64 = 5;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        1.0 / x.sqrt()
    }

    fn reach(_x: f64, _value: f64) -> Reach {
        // 2^-22.9.
        Reach::Relative(1.27765353e-7)
    }
}

impl Function for Rcp {
    const ID: u64 = 6;

    #[inline(always)]
    fn value(x: f64) -> f64 {
        1.0 / x
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        1.0 / x
    }

    fn reach(_x: f64, _value: f64) -> Reach {
        Reach::Ulp(1.0)
    }
}
