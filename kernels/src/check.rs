//! Arguments against their shapes: each view must lie on the stream's device and have exactly the shape's elements.

use warpweft_device::{Element, Stream, View, ViewMut};

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

/// An argument to read, which must have the shape `dims`, on whichever device the stream is.
pub(crate) fn region<'a, T: Element>(
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

/// An argument to write, which must have the shape `dims`, on whichever device the stream is.
pub(crate) fn region_mut<'a, T: Element>(
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
