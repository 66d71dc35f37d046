//! Filling with random numbers on the CPU: chunks spread over the threads, each number from its own index.

use warpweft_device::{CpuPool, Float};

use super::Philox4x32;
use crate::simd::vectorised;

/// Elements of a chunk.
const CHUNK: usize = 8 * 1024;

/// The chunks of `out`, each with the index of its first number. Indices wrap at 2^64.
fn chunks<T>(first: u64, out: &mut [T]) -> Vec<(u64, &mut [T])> {
    let starts = (0u64..).map(|chunk| first.wrapping_add(chunk * CHUNK as u64));
    starts.zip(out.chunks_mut(CHUNK)).collect()
}

pub(super) fn uniform<T: Float>(
    pool: &CpuPool,
    generator: Philox4x32,
    first: u64,
    (low, high): (f32, f32),
    out: &mut [T],
) {
    pool.for_each(chunks(first, out), |(first, out)| {
        vectorised(
            #[inline(always)]
            || {
                for (offset, out) in out.iter_mut().enumerate() {
                    let u = generator.uniform(first.wrapping_add(offset as u64));
                    *out = T::from_f32(u.mul_add(high - low, low));
                }
            },
        );
    });
}

pub(super) fn normal<T: Float>(
    pool: &CpuPool,
    generator: Philox4x32,
    first: u64,
    (mean, std): (f64, f64),
    out: &mut [T],
) {
    pool.for_each(chunks(first, out), |(first, out)| {
        for (offset, out) in out.iter_mut().enumerate() {
            *out = T::from_f64(generator.normal(first.wrapping_add(offset as u64)).mul_add(std, mean));
        }
    });
}
