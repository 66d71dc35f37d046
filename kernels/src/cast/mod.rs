//! Conversion between the float types, rounding to nearest even once. NaN stays NaN, infinities stay, values beyond the
//! target's range become infinite, and the small ones become subnormal. Bound by memory.

mod cpu;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Writes each element of `from` to `to`, which has the same length.
///
/// # Errors
/// Unequal lengths; an argument of another device.
pub fn convert<A: Float, B: Float>(stream: &Stream, from: View<'_, A>, to: ViewMut<'_, B>) -> Result<(), KernelError> {
    const OP: &str = "cast";
    let len = from.len();
    let from = check::view(stream, OP, "from", from, &[len])?;
    let to = check::view_mut(stream, OP, "to", to, &[len])?;
    cpu::convert(stream.device().cpu_pool()?, from, to);
    Ok(())
}
