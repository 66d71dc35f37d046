//! The approximations of f64: `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`, which read and write the upper word alone,
//! and `rsqrt.approx.f64`.

use super::adversary;
use crate::numerics::double;
use crate::numerics::{Approx, Settings};

/// The NaN of the gross forms.
const NAN: f64 = f64::from_bits(0x7fff_ffff_0000_0000);

/// The upper word of a source, with subnormals flushed.
#[inline(always)]
fn upper(x: f64) -> f64 {
    let bits = x.to_bits() >> 32 << 32;
    f64::from_bits(if bits & 0x7ff0_0000_0000_0000 == 0 { bits & 1 << 63 } else { bits })
}

/// Rounds to the upper word, to nearest even.
#[inline(always)]
fn to_upper(x: f64) -> f64 {
    let bits = x.to_bits();
    // An infinity has no bits below, so it stays; a carry past the largest number makes one.
    let rounded = bits.wrapping_add(0x7fff_ffff + (bits >> 32 & 1)) >> 32 << 32;
    if double::is_nan(x) { NAN } else { upper(f64::from_bits(rounded)) }
}

/// One unit of the upper word up, down or none, as the seed says. The ISA names no bound for these forms.
fn moved(near: f64, input: f64, settings: &Settings, operation: u64) -> f64 {
    if settings.approx == Approx::Rounded || !near.is_normal() {
        return near;
    }
    let draw = adversary::draw(settings.seed, operation, input.to_bits());
    let steps = (draw * 1.5).round() as i64;
    let candidate = f64::from_bits(near.to_bits().wrapping_add_signed(steps << 32));
    if candidate.is_normal() { candidate } else { near }
}

/// `rcp.approx.ftz.f64`.
#[inline(always)]
pub fn rcp(x: f64, settings: &Settings) -> f64 {
    moved(to_upper(1.0 / upper(x)), upper(x), settings, 7)
}

/// `rsqrt.approx.ftz.f64`.
#[inline(always)]
pub fn rsqrt(x: f64, settings: &Settings) -> f64 {
    moved(to_upper(1.0 / upper(x).sqrt()), upper(x), settings, 8)
}

/// `rsqrt.approx.f64`: one correction of the quotient, whose error is then far below half a unit in the last place. The ISA
/// names no bound, so the adversary does not move it.
#[inline(always)]
pub fn rsqrt_double(x: f64) -> f64 {
    let near = 1.0 / x.sqrt();
    if !near.is_normal() {
        return if double::is_nan(near) {
            if double::is_nan(x) { double::quiet(x) } else { double::INVALID }
        } else {
            near
        };
    }
    // Scaled by a power of four, so that the square of the result and its error are normal numbers.
    let (scale, unscale) = match x {
        small if small < 1e-150 => (2f64.powi(600), 2f64.powi(300)),
        large if large > 1e150 => (2f64.powi(-600), 2f64.powi(-300)),
        _ => (1.0, 1.0),
    };
    let (x, near) = (x * scale, near / unscale);
    let square = near * near;
    let square_rest = near.mul_add(near, -square);
    let residual = (-x).mul_add(square, 1.0) - x * square_rest;
    near.mul_add(0.5 * residual, near) * unscale
}
