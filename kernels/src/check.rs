//! Arguments against their shapes: each view must lie on the stream's device and have exactly the shape's elements.

use warpweft_device::{DType, Element, Stream, View, ViewMut};

use crate::{Dims, KernelError};

/// The number of elements of a shape.
///
/// The sizes beside a zero must be addressable too: strides are made of them, and loops over what holds nothing.
pub(crate) fn elements(op: &'static str, argument: &'static str, dims: &[usize]) -> Result<usize, KernelError> {
    let mut sizes = dims.iter().filter(|&&size| size != 0);
    let product = sizes.try_fold(1usize, |product, &size| product.checked_mul(size));
    match product.filter(|&product| product <= isize::MAX as usize) {
        Some(_) if dims.contains(&0) => Ok(0),
        Some(product) => Ok(product),
        None => Err(KernelError::TooLarge { op, argument, dims: Dims(dims.to_vec()) }),
    }
}

fn length(op: &'static str, argument: &'static str, given: usize, dims: &[usize]) -> Result<(), KernelError> {
    if given == elements(op, argument, dims)? {
        return Ok(());
    }
    Err(KernelError::Length { op, argument, given, expected: Dims(dims.to_vec()) })
}

/// An argument to read, which must have the shape `dims`, on whichever device the stream is. A GPU has no kernels for arrays of f64.
pub(crate) fn region<'a, T: Element>(
    stream: &Stream,
    op: &'static str,
    argument: &'static str,
    view: View<'a, T>,
    dims: &[usize],
) -> Result<View<'a, T>, KernelError> {
    storage::<T>(stream, op, argument)?;
    numbers(stream, op, argument, view, dims)
}

/// The same of an argument to write.
pub(crate) fn region_mut<'a, T: Element>(
    stream: &Stream,
    op: &'static str,
    argument: &'static str,
    view: ViewMut<'a, T>,
    dims: &[usize],
) -> Result<ViewMut<'a, T>, KernelError> {
    storage::<T>(stream, op, argument)?;
    numbers_mut(stream, op, argument, view, dims)
}

/// As [`region`] of an argument that may be f64 on a GPU too: sums, and the numbers of a step.
pub(crate) fn numbers<'a, T: Element>(
    stream: &Stream,
    op: &'static str,
    argument: &'static str,
    view: View<'a, T>,
    dims: &[usize],
) -> Result<View<'a, T>, KernelError> {
    stream.same_device(argument, view.device())?;
    length(op, argument, view.len(), dims)?;
    Ok(view)
}

/// As [`region_mut`] of such an argument.
pub(crate) fn numbers_mut<'a, T: Element>(
    stream: &Stream,
    op: &'static str,
    argument: &'static str,
    view: ViewMut<'a, T>,
    dims: &[usize],
) -> Result<ViewMut<'a, T>, KernelError> {
    stream.same_device(argument, view.device())?;
    length(op, argument, view.len(), dims)?;
    Ok(view)
}

fn storage<T: Element>(stream: &Stream, op: &'static str, argument: &'static str) -> Result<(), KernelError> {
    if T::DTYPE != DType::F64 || stream.device().cpu_pool().is_ok() {
        return Ok(());
    }
    Err(KernelError::Combination { op, argument, rule: "is f32, bf16 or f16 on a GPU" })
}

/// The constant under a square root: finite and not negative.
pub(crate) fn epsilon(op: &'static str, eps: f32) -> Result<(), KernelError> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    let allowed = "finite and at least 0".to_owned();
    Err(KernelError::Number { op, argument: "eps", given: f64::from(eps), allowed })
}

/// Tokens or targets: each inside the vocabulary, or the one to ignore.
pub(crate) fn tokens(op: &'static str, ids: &[u32], vocab: usize, ignore: Option<u32>) -> Result<(), KernelError> {
    // `as usize` widens: no platform here has a narrower address than 32 bits.
    match ids.iter().position(|&token| token as usize >= vocab && Some(token) != ignore) {
        Some(row) => Err(KernelError::OutOfVocabulary { op, row, token: ids[row], vocab }),
        None => Ok(()),
    }
}

/// A factor: any finite number.
pub(crate) fn finite(op: &'static str, argument: &'static str, given: f32) -> Result<(), KernelError> {
    if given.is_finite() {
        return Ok(());
    }
    Err(KernelError::Number { op, argument, given: f64::from(given), allowed: "finite".to_owned() })
}
