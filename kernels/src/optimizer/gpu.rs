//! The optimizers by the kernels of `cu/optimizer.cu`: one launch for all tensors.

use warpweft_device::{Arg, DType, Float, Stream, View};

use super::coefficients::Coefficients;
use super::{Numbers, OP, Options, Regions, Rounding, Rule, Step};
use crate::KernelError;
use crate::launch::{Extent, List, OPTIMIZER};

/// Weight decay applies.
const DECAY: u64 = 2;
/// There is an f32 master.
const MASTER: u64 = 4;
/// There is a mean (or sum) of gradients.
const MEAN: u64 = 8;
/// It is bf16.
const SHORT_MEAN: u64 = 16;
/// The parameter is rounded by chance.
const STOCHASTIC: u64 = 32;
/// Elements that one thread rounds with the four words of one block of random numbers.
const WORDS: u64 = 4;

pub(super) fn step<T: Float, M: Float>(
    stream: &Stream,
    options: Options,
    numbers: Numbers<'_>,
    tensors: Vec<Regions<'_, T, M>>,
) -> Result<(), KernelError> {
    let list = list(&options, tensors)?;
    if list.chunks() == 0 {
        return Ok(());
    }
    let (extent, [word, _]) = (list.extent(OP)?, stream.device().fault(OP)?);
    // With numbers of the device those here are replaced before the step.
    let now = if let Numbers::Host(step) = numbers { step } else { Step::default() };
    let coefficients = Coefficients::new(&options, &now);
    let front = bytemuck::bytes_of(&coefficients);
    let (_held, [coefficients, table, tensors, _]) = list.upload(stream, front, 0)?;
    if let Numbers::Device(control) = numbers {
        prepare(stream, &options, control, coefficients.clone())?;
    }
    let seed = if let Rounding::Stochastic { seed } = options.rounding { seed } else { 0 };
    let kernel = match options.rule {
        Rule::AdamW(_) | Rule::Adam(_) => "optimizer_adam_",
        Rule::Sgd(_) => "optimizer_sgd_",
    };
    OPTIMIZER.launch::<T>(stream, kernel, extent, &[table, tensors, coefficients, seed.into(), word])
}

fn list<T: Float, M: Float>(options: &Options, tensors: Vec<Regions<'_, T, M>>) -> Result<List, KernelError> {
    let mut list = List::default();
    for Regions { param, master, grad, m, v, decay, place } in tensors {
        let len = param.len();
        let stochastic = options.rounding != Rounding::Nearest;
        let mut aligned = param.as_view().is_aligned(16) && grad.is_aligned(16);
        aligned &= m.as_ref().is_none_or(|m| m.as_view().is_aligned(16));
        aligned &= [&master, &v].into_iter().flatten().all(|floats| floats.as_view().is_aligned(16));
        aligned &= !stochastic || place.first.is_multiple_of(WORDS);
        let mut flags = u64::from(place.tensor) << 32;
        for (set, flag) in [
            (decay, DECAY),
            (master.is_some(), MASTER),
            (m.is_some(), MEAN),
            (M::DTYPE == DType::BF16, SHORT_MEAN),
            (stochastic, STOCHASTIC),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let [master, v] = [master, v].map(|floats| floats.map(Arg::try_from).transpose());
        let m = m.map(Arg::try_from).transpose();
        list.push(
            [Some(param.try_into()?), master?, Some(grad.try_into()?), m?, v?],
            len,
            aligned,
            [flags, place.first],
        )?;
    }
    Ok(list)
}

/// Makes the coefficients of numbers on the device.
fn prepare(stream: &Stream, options: &Options, control: View<'_, f64>, to: Arg) -> Result<(), KernelError> {
    let [word, no_step] = stream.device().fault("optimizer: a step that is no whole number from 1 on, in `control`")?;
    let [_, no_rate] =
        stream.device().fault("optimizer: a learning rate that is not finite and at least 0, in `control`")?;
    // Where there is no such setting its number is one that changes nothing.
    let (beta1, beta2, decay) = match options.rule {
        Rule::AdamW(adam) => (adam.beta1, adam.beta2, options.weight_decay),
        Rule::Adam(adam) => (adam.beta1, adam.beta2, 0.0),
        Rule::Sgd(_) => (0.0, 0.0, 0.0),
    };
    let args = [control.try_into()?, beta1.into(), beta2.into(), decay.into(), to, word, no_step, no_rate];
    OPTIMIZER.launch::<f32>(stream, "optimizer_prepare", Extent::ONE, &args)
}
