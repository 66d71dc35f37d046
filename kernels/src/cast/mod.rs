//! Conversion between the float types, rounding to nearest even once. NaN stays NaN, infinities stay, values beyond the
//! target's range become infinite, and the small ones become subnormal. Bound by memory.

mod cpu;
mod gpu;

use warpweft_device::{Float, Stream, View, ViewMut};

use crate::{KernelError, check};

/// Writes each element of `from` to `to`, which has the same length.
///
/// # Errors
/// Unequal lengths; an argument of another device; f64, which a GPU has no kernels for.
pub fn convert<A: Float, B: Float>(stream: &Stream, from: View<'_, A>, to: ViewMut<'_, B>) -> Result<(), KernelError> {
    const OP: &str = "cast";
    let len = from.len();
    let from = check::region(stream, OP, "from", from, &[len])?;
    let to = check::region_mut(stream, OP, "to", to, &[len])?;
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::convert(pool, from.host()?, to.host()?),
        Err(_) => gpu::convert(OP, stream, from, to)?,
    }
    Ok(())
}
