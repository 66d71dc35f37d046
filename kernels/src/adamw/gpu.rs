//! AdamW by the kernel of `cu/adamw.cu`: one launch for all tensors.

use warpweft_device::{Arg, Float, Stream};

use super::coefficients::Coefficients;
use super::{OP, Options, Regions};
use crate::KernelError;
use crate::launch::{ADAMW, List};

/// Weight decay applies.
const DECAY: u64 = 2;
/// There is an f32 master.
const MASTER: u64 = 4;

pub(super) fn step<T: Float>(
    stream: &Stream,
    options: Options,
    tensors: Vec<Regions<'_, T>>,
) -> Result<(), KernelError> {
    let mut list = List::default();
    for Regions { param, master, grad, m, v, decay } in tensors {
        let (len, master_aligned) = (param.len(), master.as_ref().is_none_or(|master| master.as_view().is_aligned(16)));
        let states = [grad, m.as_view(), v.as_view()].iter().all(|view| view.is_aligned(16));
        let aligned = param.as_view().is_aligned(16) && master_aligned && states;
        let master = master.map(Arg::try_from).transpose()?;
        let all = [Some(param.try_into()?), master, Some(grad.try_into()?), Some(m.try_into()?), Some(v.try_into()?)];
        let flags = if decay { DECAY } else { 0 } | if all[1].is_some() { MASTER } else { 0 };
        list.push(all, len, aligned, flags)?;
    }
    if list.chunks() == 0 {
        return Ok(());
    }
    let (extent, [word, _]) = (list.extent(OP)?, stream.device().fault(OP)?);
    let coefficients = Coefficients::new(&options, true);
    let (_held, [table, tensors, _]) = list.upload(stream, 0)?;
    let args = [table, tensors, Arg::bytes(bytemuck::bytes_of(&coefficients)), word];
    ADAMW.launch::<T>(stream, "adamw_step_", extent, &args)
}
