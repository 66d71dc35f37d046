//! The global norm on the CPU: every tensor cut into chunks of a fixed size, their sums added in order.

use warpweft_device::CpuPool;

use crate::reduce;
use crate::simd::vectorised;

/// Elements of a chunk.
const CHUNK: usize = 16 * 1024;

pub(super) fn sum_of_squares(pool: &CpuPool, tensors: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = tensors.iter().flat_map(|tensor| tensor.chunks(CHUNK)).collect();
    let mut sums = vec![0.0f64; chunks.len()];
    pool.for_each(chunks.into_iter().zip(&mut sums).collect(), |(chunk, sum)| {
        *sum = vectorised(
            #[inline(always)]
            || reduce::sum([chunk], |[x]| reduce::square(x)),
        );
    });
    sums.iter().sum()
}

pub(super) fn scale(pool: &CpuPool, tensors: Vec<&mut [f32]>, factor: f32) {
    let chunks = tensors.into_iter().flat_map(|tensor| tensor.chunks_mut(CHUNK)).collect();
    pool.for_each(chunks, |chunk| {
        vectorised(
            #[inline(always)]
            || chunk.iter_mut().for_each(|value| *value *= factor),
        );
    });
}
