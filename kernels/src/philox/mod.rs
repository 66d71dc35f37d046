//! Random numbers as a pure function of (seed, stream, index): Philox 4x32-10.
//!
//! Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A number
//! depends on nothing else, so any split of a tensor over threads, ranks or devices gets the same ones: uniform numbers have
//! the same bits on every device; of normal ones the logarithm, sine and cosine are the platform's, so that a GPU's f64 may
//! differ in its last bits from the CPU's, and the number after its rounding to `T` where that lies so close to a tie.
//! On a GPU 16 bytes are written at a time where `first` is a multiple of what they hold.

mod cpu;
mod generator;
mod gpu;

pub use generator::Philox4x32;

use warpweft_device::{Float, Stream, ViewMut};

use crate::{KernelError, check};

/// Fills `out` with numbers uniform in [low, high), the generator's at indices `first`, `first + 1`, ... (where a
/// tensor is split, the global index of the part's first element): `low + (high - low) * u` in f32, rounded to `T`, so
/// `high` itself can occur by rounding.
///
/// # Errors
/// `low` or `high` not finite; a view of another device; f64 on a GPU.
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
    let out = check::region_mut(stream, OP, "out", out, &[len])?;
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::uniform(pool, generator, first, (low, high), out.host()?),
        Err(_) => {
            let kernel = (OP, "philox_uniform_");
            gpu::fill(kernel, stream, generator, first, [low.into(), (high - low).into()], out)?;
        }
    }
    Ok(())
}

/// Fills `out` with numbers of the normal distribution, the generator's at indices `first`, `first + 1`, ... (where a
/// tensor is split, the global index of the part's first element): `mean + std * z` in f64, rounded once.
///
/// # Errors
/// `mean` or `std` not finite; a view of another device; f64 on a GPU.
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
    let out = check::region_mut(stream, OP, "out", out, &[len])?;
    let (mean, std) = (f64::from(mean), f64::from(std));
    match stream.device().cpu_pool() {
        Ok(pool) => cpu::normal(pool, generator, first, (mean, std), out.host()?),
        Err(_) => gpu::fill((OP, "philox_normal_"), stream, generator, first, [mean.into(), std.into()], out)?,
    }
    Ok(())
}
