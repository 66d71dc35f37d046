//! Conversion on the CPU: chunks of a fixed size, spread over the threads.

use warpweft_device::{CpuPool, DType, Float};

use crate::simd::vectorised;

/// Elements of a chunk.
const CHUNK: usize = 32 * 1024;

pub(super) fn convert<A: Float, B: Float>(pool: &CpuPool, from: &[A], to: &mut [B]) {
    pool.for_each(from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)).collect(), |(from, to)| {
        vectorised(
            #[inline(always)]
            || {
                for (from, to) in from.iter().zip(to) {
                    *to = one(*from);
                }
            },
        );
    });
}

/// Through f32, which holds every f16 and bf16, but from f64 directly: f32 on the way would round twice.
#[inline(always)]
fn one<A: Float, B: Float>(value: A) -> B {
    if const { matches!(A::DTYPE, DType::F64) } { B::from_f64(value.to_f64()) } else { B::from_f32(value.to_f32()) }
}
