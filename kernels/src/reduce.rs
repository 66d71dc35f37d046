//! Sums along rows and over rows, in a fixed order and in f64: the number of terms then adds no error worth counting, and
//! what rounding the terms have of their own is all there is.

use warpweft_device::Float;

/// Independent partial sums, so that additions overlap; fixed, so that the order does not depend on the processor.
const LANES: usize = 16;

/// The sums over `i` of the `K` terms of `term([inputs[0][i], inputs[1][i], ...])`; inputs of equal length.
///
/// Term `i` goes to partial sum `i % 16`; these are then added in pairs.
#[inline(always)]
pub(crate) fn sums<T: Float, const I: usize, const K: usize>(
    inputs: [&[T]; I],
    term: impl Fn([f32; I]) -> [f64; K],
) -> [f64; K] {
    let mut partial = [[0.0f64; LANES]; K];
    let len = inputs.iter().map(|input| input.len()).min().unwrap_or(0);
    let whole = len / LANES;
    let chunks = inputs.map(|input| &input.as_chunks::<LANES>().0[..whole]);
    for chunk in 0..whole {
        let chunk = chunks.map(|input| &input[chunk]);
        for lane in 0..LANES {
            let terms = term(chunk.map(|input| input[lane].to_f32()));
            for k in 0..K {
                partial[k][lane] += terms[k];
            }
        }
    }
    for (lane, index) in (whole * LANES..len).enumerate() {
        let terms = term(inputs.map(|input| input[index].to_f32()));
        for k in 0..K {
            partial[k][lane] += terms[k];
        }
    }
    partial.map(pairwise)
}

/// Exact in f64, where the square of every f32 fits.
#[inline(always)]
pub(crate) fn square(x: f32) -> f64 {
    f64::from(x) * f64::from(x)
}

#[inline(always)]
fn pairwise(mut partial: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            partial[lane] += partial[lane + width];
        }
        width /= 2;
    }
    partial[0]
}

/// How many rows of `columns` elements make one task for a thread: about 16 Ki elements, which outweighs handing the
/// task out. A function of the shape alone, as every blocking here.
pub(crate) fn rows_per_task(columns: usize) -> usize {
    (16 * 1024 / columns.max(1)).max(1)
}

/// Rows summed by one task of a weight's gradient. The blocks, and so the bits of the sum, follow from the shape alone.
pub(crate) const ROWS_PER_PARTIAL: usize = 128;

/// Adds the sum of the partial sums [blocks, K, C] to `K` gradients [C], block after block, rounding once.
pub(crate) fn add_partials<const K: usize>(partials: &[f64], gradients: [&mut [f32]; K]) {
    let channels = gradients[0].len();
    let mut total = vec![0.0f64; K * channels];
    for partial in partials.chunks_exact((K * channels).max(1)) {
        for (total, partial) in total.iter_mut().zip(partial) {
            *total += partial;
        }
    }
    for (gradient, total) in gradients.into_iter().zip(total.chunks_exact(channels.max(1))) {
        for (gradient, total) in gradient.iter_mut().zip(total) {
            *gradient = (f64::from(*gradient) + total) as f32;
        }
    }
}
