//! The optimizers on the CPU: every tensor cut into chunks of a fixed size, the chunks spread over the threads, and each
//! chunk done block by block in f32.

use warpweft_device::{CpuPool, Float};

use super::coefficients::Coefficients;
use super::rounding::{generator, stochastic};
use super::{Options, Place, Rule};
use crate::philox::Philox4x32;
use crate::simd::vectorised;

/// A tensor, or a chunk of one, as slices of equal length.
pub(super) struct Part<'a, T, M> {
    pub(super) param: &'a mut [T],
    pub(super) master: Option<&'a mut [f32]>,
    pub(super) grad: &'a [f32],
    pub(super) m: Option<&'a mut [M]>,
    pub(super) v: Option<&'a mut [f32]>,
    pub(super) decay: bool,
    pub(super) place: Place,
}

/// Elements of a chunk: 7 streams of 64 KiB.
const CHUNK: usize = 16 * 1024;
/// Elements of a block, which lies on the stack.
const BLOCK: usize = 256;

pub(super) fn step<T: Float, M: Float>(
    pool: &CpuPool,
    options: Options,
    coefficients: Coefficients,
    parts: Vec<Part<'_, T, M>>,
) {
    let mut chunks = Vec::new();
    for part in parts {
        let (decay, tensor) = (part.decay, part.place.tensor);
        let mut masters = part.master.map(|all| all.chunks_mut(CHUNK));
        let mut ms = part.m.map(|all| all.chunks_mut(CHUNK));
        let mut vs = part.v.map(|all| all.chunks_mut(CHUNK));
        let firsts = (0u64..).map(|chunk| part.place.first.wrapping_add(chunk * CHUNK as u64));
        for ((param, grad), first) in part.param.chunks_mut(CHUNK).zip(part.grad.chunks(CHUNK)).zip(firsts) {
            let (m, v) = (ms.as_mut().and_then(Iterator::next), vs.as_mut().and_then(Iterator::next));
            let master = masters.as_mut().and_then(Iterator::next);
            chunks.push(Part { param, master, grad, m, v, decay, place: Place { tensor, first } });
        }
    }
    pool.for_each(chunks, |chunk| {
        let coefficients = if chunk.decay { coefficients } else { coefficients.without_decay() };
        let generator = generator(options.rounding, coefficients.step, chunk.place.tensor);
        vectorised(
            #[inline(always)]
            || step_chunk(options.rule, coefficients, generator, chunk),
        );
    });
}

#[inline(always)]
fn step_chunk<T: Float, M: Float>(
    rule: Rule,
    coefficients: Coefficients,
    generator: Option<Philox4x32>,
    chunk: Part<'_, T, M>,
) {
    let Part { param, mut master, grad, mut m, mut v, place, .. } = chunk;
    let [mut w, mut mean] = [[0f32; BLOCK]; 2];
    for (block, grad) in grad.chunks(BLOCK).enumerate() {
        let (begin, len) = (block * BLOCK, grad.len());
        let within = begin..begin + len;
        let (w, mean, param) = (&mut w[..len], &mut mean[..len], &mut param[within.clone()]);
        match &mut master {
            Some(master) => w.copy_from_slice(&master[within.clone()]),
            None => widen(param, w),
        }
        let m = m.as_mut().map(|m| &mut m[within.clone()]);
        if let Some(m) = &m {
            widen(m, mean);
        }
        match (rule, v.as_mut().map(|v| &mut v[within.clone()])) {
            (Rule::AdamW(_) | Rule::Adam(_), Some(v)) => {
                for (((w, grad), m), v) in w.iter_mut().zip(grad).zip(mean.iter_mut()).zip(v) {
                    *w = coefficients.adam(*w, *grad, m, v);
                }
            }
            _ if m.is_some() => {
                for ((w, grad), m) in w.iter_mut().zip(grad).zip(mean.iter_mut()) {
                    *w = coefficients.sgd_with_momentum(*w, *grad, m);
                }
            }
            _ => {
                for (w, grad) in w.iter_mut().zip(grad) {
                    *w = coefficients.sgd(*w, *grad);
                }
            }
        }
        if let Some(m) = m {
            narrow(mean, m);
        }
        match (&mut master, generator) {
            (None, Some(generator)) => chances(generator, place.first.wrapping_add(begin as u64), w, param),
            _ => narrow(w, param),
        }
        if let Some(master) = &mut master {
            master[within].copy_from_slice(w);
        }
    }
}

#[inline(always)]
fn widen<T: Float>(from: &[T], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

#[inline(always)]
fn narrow<T: Float>(from: &[f32], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::from_f32(*from);
    }
}

/// Rounds to bf16, which `T` is, by chance; `first` is the number of the first element.
#[inline(always)]
fn chances<T: Float>(generator: Philox4x32, first: u64, from: &[f32], to: &mut [T]) {
    for ((to, from), element) in to.iter_mut().zip(from).zip(0u64..) {
        *to = T::from_f32(stochastic(*from, generator.word(first.wrapping_add(element))).to_f32());
    }
}
