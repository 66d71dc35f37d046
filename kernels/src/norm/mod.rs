//! The global norm of a list of gradients, and clipping by it.
//!
//! Squares and sums are f64: the largest f32 squared is 1.2e77, so nothing overflows below 1e231 elements; a NaN or an
//! infinity comes through. The order of the sum is fixed by the lengths alone. Bound by memory: 4 bytes an element.

mod cpu;
pub mod reference;

use warpweft_device::{Stream, View, ViewMut};

use crate::{KernelError, check};

/// The sum of the squares of all elements of all tensors; the global norm is its square root.
///
/// # Errors
/// A tensor of another device.
pub fn sum_of_squares(stream: &Stream, tensors: &[View<'_, f32>]) -> Result<f64, KernelError> {
    const OP: &str = "norm sum_of_squares";
    let mut slices = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        slices.push(check::view(stream, OP, "tensors", *tensor, &[tensor.len()])?);
    }
    Ok(cpu::sum_of_squares(stream.device().cpu_pool()?, &slices))
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
    const OP: &str = "norm scale";
    let mut slices = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let len = tensor.len();
        slices.push(check::view_mut(stream, OP, "tensors", tensor.reborrow(), &[len])?);
    }
    cpu::scale(stream.device().cpu_pool()?, slices, factor as f32);
    Ok(())
}
