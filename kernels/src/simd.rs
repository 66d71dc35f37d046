//! One door to the processor's best instruction set, in safe code.

use pulp::Arch;

/// Runs `body` compiled for the best instruction set that this processor has (AVX-512, AVX2 with FMA, NEON, or the
/// build's baseline): the compiler vectorises the plain loops in it.
///
/// `body` and what it calls, closures too, must be `#[inline(always)]`: what is not inlined is compiled for the baseline
/// only, where a `mul_add` is a call of the C library. Calls of iterators' `for_each` and `map` do not pass that on, so
/// write loops. The choice is looked up once
/// a call, a few nanoseconds: put the loop over rows inside, not outside.
#[inline(always)]
pub(crate) fn vectorised<R>(body: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(body)
}

/// Partial results of a reduction along a row: the lanes of the widest register. Fixed, so that a sum's order does not
/// depend on the processor.
pub(crate) const LANES: usize = 16;

/// The partial results joined pairwise, as a register halves.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// For [`fold`].
#[inline(always)]
pub(crate) fn add(a: f32, b: f32) -> f32 {
    a + b
}

/// For [`fold`]: the larger; a NaN in `b` is passed over.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}
