//! Sums along rows and over rows, in a fixed order and in f64: the number of terms then adds no error worth counting,
//! and what rounding the terms have of their own is all there is.

use warpweft_device::Float;

/// Independent partial sums, so that additions overlap; fixed, so that the order does not depend on the processor.
const LANES: usize = 16;

/// The sum over `i` of `term([inputs[0][i], inputs[1][i], ...])`; inputs of equal length.
///
/// Term `i` goes to partial sum `i % 16`; these are then added in pairs.
#[inline(always)]
pub(crate) fn sum<T: Float, const I: usize>(inputs: [&[T]; I], term: impl Fn([f32; I]) -> f64) -> f64 {
    let mut partial = [0.0f64; LANES];
    let len = inputs.iter().map(|input| input.len()).min().unwrap_or(0);
    let whole = len / LANES;
    let chunks = inputs.map(|input| &input.as_chunks::<LANES>().0[..whole]);
    for chunk in 0..whole {
        let chunk = chunks.map(|input| &input[chunk]);
        for lane in 0..LANES {
            partial[lane] += term(chunk.map(|input| input[lane].to_f32()));
        }
    }
    for (lane, index) in (whole * LANES..len).enumerate() {
        partial[lane] += term(inputs.map(|input| input[index].to_f32()));
    }
    pairwise(partial)
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

/// How many of `rows` rows of `columns` elements make one task for a thread. Handing tasks out costs about 20 us, so an
/// op of up to 128 Ki elements is one task, and larger ones have tasks of 32 Ki. A function of the shape alone, as
/// every blocking here: the threads must not show in the results.
pub(crate) fn rows_per_task(rows: usize, columns: usize) -> usize {
    if rows.saturating_mul(columns) <= 128 * 1024 {
        return rows.max(1);
    }
    (32 * 1024 / columns.max(1)).max(1)
}

/// How many rows are summed into one block of partial sums. At least 64, so that these stay small beside the rows.
pub(crate) fn rows_per_partial(rows: usize, columns: usize) -> usize {
    rows_per_task(rows, columns).max(64)
}

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
