//! Work handed to the device's threads by blocks of rows.

use warpweft_device::CpuPool;

/// Rows of a block so that each of the pool's threads gets `per_thread` blocks, but none has fewer than `least` rows.
pub(crate) fn block(rows: usize, pool: &CpuPool, per_thread: usize, least: usize) -> usize {
    rows.div_ceil(pool.threads() * per_thread).max(least).max(1)
}
