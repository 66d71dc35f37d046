//! Random numbers as a pure function of (seed, stream, index): Philox 4x32-10.
//!
//! Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A number
//! depends on nothing else, so any split of a tensor over threads, ranks or devices gets the same ones.

mod cpu;
mod generator;

pub use generator::Philox4x32;

use warpweft_device::{Float, Stream, ViewMut};

use crate::{KernelError, check};

/// Fills `out` with numbers uniform in [low, high), the generator's at indices `first`, `first + 1`, ... (where a
/// tensor is split, the global index of the part's first element): `low + (high - low) * u` in f32, rounded to `T`, so
/// `high` itself can occur by rounding.
///
/// # Errors
/// `low` or `high` not finite; a view of another device.
pub fn uniform<T: Float>(
    stream: &Stream,
    generator: Philox4x32,
    first: u64,
    (low, high): (f32, f32),
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "philox uniform";
    check::finite(OP, "low", low)?;
    check::finite(OP, "high", high)?;
    let len = out.len();
    let out = check::view_mut(stream, OP, "out", out, &[len])?;
    cpu::uniform(stream.device().cpu_pool()?, generator, first, (low, high), out);
    Ok(())
}

/// Fills `out` with numbers of the normal distribution, the generator's at indices `first`, `first + 1`, ... (where a
/// tensor is split, the global index of the part's first element): `mean + std * z` in f64, rounded once.
///
/// # Errors
/// `mean` or `std` not finite; a view of another device.
pub fn normal<T: Float>(
    stream: &Stream,
    generator: Philox4x32,
    first: u64,
    (mean, std): (f32, f32),
    out: ViewMut<'_, T>,
) -> Result<(), KernelError> {
    const OP: &str = "philox normal";
    check::finite(OP, "mean", mean)?;
    check::finite(OP, "std", std)?;
    let len = out.len();
    let out = check::view_mut(stream, OP, "out", out, &[len])?;
    cpu::normal(stream.device().cpu_pool()?, generator, first, (f64::from(mean), f64::from(std)), out);
    Ok(())
}
