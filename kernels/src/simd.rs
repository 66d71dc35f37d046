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

/// Independent partial sums of a reduction: enough to fill the widest registers twice over, so that additions overlap,
/// and fixed, so that a sum's order does not depend on the processor.
pub(crate) const LANES: usize = 32;

/// The sum of `term(i)` for `i` in `0..len`, in a fixed order: `LANES` strided partial sums, then pairwise.
#[inline(always)]
pub(crate) fn sum(len: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut partial = [0.0f32; LANES];
    let whole = len / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, partial) in partial.iter_mut().enumerate() {
            *partial += term(start + lane);
        }
    }
    for (lane, index) in (whole..len).enumerate() {
        partial[lane] += term(index);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            partial[lane] += partial[lane + width];
        }
        width /= 2;
    }
    partial[0]
}
