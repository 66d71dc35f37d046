//! The global norm by the kernels of `cu/norm.cu`.

use warpweft_device::{Stream, View, ViewMut};

use super::{SCALE, SQUARES};
use crate::KernelError;
use crate::launch::{Extent, List, NORM};

/// Threads of the block that adds the sums of chunks.
const ADDERS: u32 = 512;

pub(super) fn sum_of_squares(
    stream: &Stream,
    tensors: &[View<'_, f32>],
    sum: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    let mut list = List::default();
    for tensor in tensors {
        list.push([Some((*tensor).try_into()?), None, None, None, None], tensor.len(), tensor.is_aligned(16), [0; 2])?;
    }
    let (chunks, extent) = (list.chunks(), list.extent(SQUARES)?);
    if chunks == 0 {
        return Ok(sum.fill(stream, 0.0)?);
    }
    let (_held, [_, table, tensors, sums]) = list.upload(stream, &[], chunks * size_of::<f64>())?;
    NORM.launch::<f32>(stream, "norm_squares", extent, &[table, tensors, sums.clone()])?;
    let adders = Extent { grid: [1, 1, 1], block: [ADDERS, 1, 1], shared: 0 };
    NORM.launch::<f32>(stream, "norm_add", adders, &[sums, (chunks as u32).into(), sum.try_into()?])
}

pub(super) fn clip(
    stream: &Stream,
    sum: View<'_, f64>,
    max_norm: f64,
    control: ViewMut<'_, f64>,
) -> Result<(), KernelError> {
    NORM.launch::<f32>(stream, "norm_clip", Extent::ONE, &[sum.try_into()?, max_norm.into(), control.try_into()?])
}

pub(super) fn scale(stream: &Stream, tensors: Vec<ViewMut<'_, f32>>, factor: f32) -> Result<(), KernelError> {
    let mut list = List::default();
    for tensor in tensors {
        let (len, aligned) = (tensor.len(), tensor.as_view().is_aligned(16));
        list.push([Some(tensor.try_into()?), None, None, None, None], len, aligned, [0; 2])?;
    }
    if list.chunks() == 0 {
        return Ok(());
    }
    let extent = list.extent(SCALE)?;
    let (_held, [_, table, tensors, _]) = list.upload(stream, &[], 0)?;
    NORM.launch::<f32>(stream, "norm_scale", extent, &[table, tensors, factor.into()])
}
