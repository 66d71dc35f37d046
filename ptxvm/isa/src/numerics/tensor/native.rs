//! The fast way: f32 multiplications and additions in the order of k. Products of the input formats are exact in f32
//! (but for bf16 and tf32 beyond its range), so only the additions round, to nearest.

use super::{Sum, Tile, round_to_f16};
use crate::numerics::single;

/// Replaces `tile.c` by the tile's product plus C.
#[inline(always)]
pub(super) fn multiply<const K: usize>(tile: &mut Tile<K>, sum: Sum) {
    for row in 0..16 {
        let mut total = tile.c[row];
        for at in 0..K {
            let factor = tile.a[row][at];
            for (total, other) in total.iter_mut().zip(&tile.b[at]) {
                *total += factor * other;
            }
        }
        for value in &mut total {
            if sum == Sum::F16 {
                *value = round_to_f16(f64::from(*value));
            }
            // The unit's own NaN, as the exact models give it.
            if single::is_nan(*value) {
                *value = single::NAN;
            }
        }
        tile.c[row] = total;
    }
}
