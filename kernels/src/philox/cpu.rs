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

/// Fills `out` with the numbers at `first`, `first + 1`, ..., of which each block holds `N`: number i is
/// `block(i / N)[i % N]`.
#[inline(always)]
fn fill<T: Float, const N: usize>(first: u64, out: &mut [T], block: impl Fn(u64) -> [T; N]) {
    let (mut index, mut rest) = (first, out);
    while !rest.is_empty() {
        let within = (index % N as u64) as usize;
        let count = (N - within).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&block(index / N as u64)[within..][..count]);
        (index, rest) = (index.wrapping_add(count as u64), later);
    }
}

pub(super) fn uniform<T: Float>(
    pool: &CpuPool,
    generator: Philox4x32,
    first: u64,
    (low, high): (f32, f32),
    out: &mut [T],
) {
    let number = |word| T::from_f32(Philox4x32::unit(word).mul_add(high - low, low));
    pool.for_each(chunks(first, out), |(first, out)| {
        vectorised(
            #[inline(always)]
            || fill(first, out, |position| generator.block(position).map(number)),
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
    let number = |z: f64| T::from_f64(z.mul_add(std, mean));
    pool.for_each(chunks(first, out), |(first, out)| {
        vectorised(
            #[inline(always)]
            || fill(first, out, |position| generator.normal_pair(position).map(number)),
        );
    });
}
