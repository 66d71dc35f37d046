//! The global norm on the CPU: every tensor cut into chunks of a fixed size, their sums added in order.

use warpweft_device::CpuPool;

use crate::simd::vectorised;

/// Elements of a chunk.
const CHUNK: usize = 16 * 1024;

/// Independent partial sums within a chunk.
const LANES: usize = 32;

pub(super) fn sum_of_squares(pool: &CpuPool, tensors: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = tensors.iter().flat_map(|tensor| tensor.chunks(CHUNK)).collect();
    let mut sums = vec![0.0f64; chunks.len()];
    pool.for_each(chunks.into_iter().zip(&mut sums).collect(), |(chunk, sum)| {
        *sum = vectorised(
            #[inline(always)]
            || chunk_sum(chunk),
        );
    });
    sums.iter().sum()
}

#[inline(always)]
fn chunk_sum(chunk: &[f32]) -> f64 {
    let mut partial = [0.0f64; LANES];
    let (whole, rest) = chunk.as_chunks::<LANES>();
    for values in whole {
        for (partial, value) in partial.iter_mut().zip(values) {
            *partial += f64::from(*value) * f64::from(*value);
        }
    }
    for (partial, value) in partial.iter_mut().zip(rest) {
        *partial += f64::from(*value) * f64::from(*value);
    }
    partial.iter().sum()
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
