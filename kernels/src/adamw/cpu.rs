//! AdamW on the CPU: every tensor cut into chunks of a fixed size, the chunks spread over the threads.

use warpweft_device::{CpuPool, Float};

use super::Options;
use super::coefficients::Coefficients;
use crate::simd::vectorised;

/// A tensor, or a chunk of one, as slices of equal length.
pub(super) struct Part<'a, T> {
    pub(super) param: &'a mut [T],
    pub(super) master: Option<&'a mut [f32]>,
    pub(super) grad: &'a [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) decay: bool,
}

/// Elements of a chunk: 7 streams of 64 KiB.
const CHUNK: usize = 16 * 1024;

pub(super) fn step<T: Float>(pool: &CpuPool, options: Options, parts: Vec<Part<'_, T>>) {
    let [without_decay, with_decay] = [false, true].map(|decay| Coefficients::new(&options, decay));
    let mut chunks = Vec::new();
    for part in parts {
        let decay = part.decay;
        let mut masters = part.master.map(|master| master.chunks_mut(CHUNK));
        let state = part.m.chunks_mut(CHUNK).zip(part.v.chunks_mut(CHUNK));
        for ((param, grad), (m, v)) in part.param.chunks_mut(CHUNK).zip(part.grad.chunks(CHUNK)).zip(state) {
            let master = masters.as_mut().and_then(Iterator::next);
            chunks.push(Part { param, master, grad, m, v, decay });
        }
    }
    pool.for_each(chunks, |chunk| {
        let coefficients = if chunk.decay { with_decay } else { without_decay };
        vectorised(
            #[inline(always)]
            || step_chunk(coefficients, chunk),
        );
    });
}

#[inline(always)]
fn step_chunk<T: Float>(coefficients: Coefficients, chunk: Part<'_, T>) {
    let Part { param, master, grad, m, v, .. } = chunk;
    let state = m.iter_mut().zip(v);
    match master {
        Some(master) => {
            for (((param, master), grad), (m, v)) in param.iter_mut().zip(master).zip(grad).zip(state) {
                *master = coefficients.update(*master, *grad, m, v);
                *param = T::from_f32(*master);
            }
        }
        None => {
            for ((param, grad), (m, v)) in param.iter_mut().zip(grad).zip(state) {
                *param = T::from_f32(coefficients.update(param.to_f32(), *grad, m, v));
            }
        }
    }
}
