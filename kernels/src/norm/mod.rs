//! The global norm of a list of gradients, and clipping by it.
//!
//! Squares and sums are f64: the largest f32 squared is 1.2e77, so nothing overflows below 1e231 elements; a NaN or an
//! infinity comes through. The order of the sum is fixed by the lengths alone. Bound by memory: 4 bytes an element.

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Stream, View, ViewMut};

use crate::{KernelError, check};

const SQUARES: &str = "norm sum_of_squares";
const SCALE: &str = "norm scale";

/// The sum of the squares of all elements of all tensors; the global norm is its square root.
///
/// The call waits for the result, on a GPU too.
///
/// # Errors
/// A tensor of another device.
pub fn sum_of_squares(stream: &Stream, tensors: &[View<'_, f32>]) -> Result<f64, KernelError> {
    for tensor in tensors {
        check::region(stream, SQUARES, "tensors", *tensor, &[tensor.len()])?;
    }
    let Ok(pool) = stream.device().cpu_pool() else { return gpu::sum_of_squares(stream, tensors) };
    let slices = tensors.iter().map(|tensor| tensor.host()).collect::<Result<Vec<_>, _>>()?;
    Ok(cpu::sum_of_squares(pool, &slices))
}

/// The factor that brings gradients of global norm `norm` to at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`, as
/// PyTorch's `clip_grad_norm_` has it. NaN where the norm is NaN, 0 where it is infinite.
pub fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    let coefficient = max_norm / (norm + 1e-6);
    // Not `min`, which would turn a NaN into 1.
    if coefficient > 1.0 { 1.0 } else { coefficient }
}

/// Multiplies every element of all tensors by `factor`, rounded to f32: the clipping itself, where the optimizer does
/// not apply the coefficient on the way.
///
/// # Errors
/// A tensor of another device. Nothing is written then.
pub fn scale(stream: &Stream, tensors: &mut [ViewMut<'_, f32>], factor: f64) -> Result<(), KernelError> {
    let mut regions = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let len = tensor.len();
        regions.push(check::region_mut(stream, SCALE, "tensors", tensor.reborrow(), &[len])?);
    }
    let Ok(pool) = stream.device().cpu_pool() else { return gpu::scale(stream, regions, factor as f32) };
    let slices = regions.into_iter().map(ViewMut::host).collect::<Result<Vec<_>, _>>()?;
    cpu::scale(pool, slices, factor as f32);
    Ok(())
}
