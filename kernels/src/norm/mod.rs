//! The global norm of a list of gradients, and clipping by it.
//!
//! Squares and sums are f64: the largest f32 squared is 1.2e77, so nothing overflows below 1e231 elements; a NaN or an
//! infinity comes through. The order of the sum is fixed by the lengths alone. Bound by memory: 4 bytes an element.

mod cpu;
mod gpu;
pub mod reference;

use warpweft_device::{Stream, View, ViewMut};

use crate::optimizer::Control;
use crate::{KernelError, check};

const SQUARES: &str = "norm sum_of_squares";
const SCALE: &str = "norm scale";

const CLIP: &str = "norm clip";

/// The sum of the squares of all elements of all tensors; the global norm is its square root.
///
/// The call waits for the result, on a GPU too.
///
/// # Errors
/// A tensor of another device.
pub fn sum_of_squares(stream: &Stream, tensors: &[View<'_, f32>]) -> Result<f64, KernelError> {
    let mut sum = stream.device().uninitialized::<f64>(1)?;
    sum_of_squares_into(stream, tensors, sum.as_view_mut())?;
    Ok(sum.download(stream)?[0])
}

/// The same into `sum` `[1]` on the device, without waiting for it.
///
/// # Errors
/// A tensor of another device; a `sum` that is not one number. Nothing is written then.
pub fn sum_of_squares_into(
    stream: &Stream,
    tensors: &[View<'_, f32>],
    sum: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    for tensor in tensors {
        check::region(stream, SQUARES, "tensors", *tensor, &[tensor.len()])?;
    }
    let sum = check::numbers_mut(stream, SQUARES, "sum", sum, &[1])?;
    let Ok(pool) = stream.device().cpu_pool() else { return gpu::sum_of_squares(stream, tensors, sum) };
    let slices = tensors.iter().map(|tensor| tensor.host()).collect::<Result<Vec<_>, _>>()?;
    sum.host()?[0] = cpu::sum_of_squares(pool, &slices);
    Ok(())
}

/// The factor that brings gradients of global norm `norm` to at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`, as
/// PyTorch's `clip_grad_norm_` has it. NaN where the norm is NaN, 0 where it is infinite.
pub fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    let coefficient = max_norm / (norm + 1e-6);
    // Not `min`, which would turn a NaN into 1.
    if coefficient > 1.0 { 1.0 } else { coefficient }
}

/// The same on the device, for the step that `control` `[5]` ([`Control`]) is of, without waiting: from `sum` `[1]`, of
/// [`sum_of_squares_into`] and perhaps added up over ranks since. The norm is that of the gradients times `grad_scale`, which
/// is then multiplied by the factor; where it is not finite, `skip` is set. An infinite `max_norm` does not clip.
///
/// # Errors
/// A `max_norm` that is negative or NaN; another length or device. Nothing is written then.
pub fn clip(stream: &Stream, sum: View<'_, f64>, max_norm: f64, control: ViewMut<'_, f64>) -> Result<(), KernelError> {
    let sum = check::numbers(stream, CLIP, "sum", sum, &[1])?;
    let control = check::numbers_mut(stream, CLIP, "control", control, &[Control::LEN])?;
    if max_norm.is_nan() || max_norm < 0.0 {
        let allowed = "at least 0".to_owned();
        return Err(KernelError::Number { op: CLIP, argument: "max_norm", given: max_norm, allowed });
    }
    if stream.device().cpu_pool().is_err() {
        return gpu::clip(stream, sum, max_norm, control);
    }
    let (sum, control) = (sum.host()?[0], control.host()?);
    let mut now = Control::from_slice(control);
    now.norm = sum.sqrt() * now.grad_scale.abs();
    now.grad_scale *= clip_coefficient(now.norm, max_norm);
    if !now.norm.is_finite() {
        now.skip = 1.0;
    }
    control.copy_from_slice(&now.to_array());
    Ok(())
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
