//! How work and state are spread over ranks: one file a parallelism, and the layouts they are all derived from.

use std::ops::Range;

pub mod check;
pub mod context;
pub(crate) mod digest;
pub(crate) mod exact;
pub(crate) mod executor;
pub mod expert;
pub mod gradients;
pub mod layout;
pub(crate) mod links;
pub mod mesh;
pub(crate) mod pipeline;
pub mod plan;
pub mod simulated;
pub mod tensor;
pub mod traffic;
pub mod weights;
pub mod zero;

/// The part of `count` things that rank `rank` of `world` has: an even split, the first ranks one more where it is uneven.
pub fn share(count: usize, world: usize, rank: usize) -> Range<usize> {
    let (each, more) = (count / world, count % world);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_once() {
        for (count, world) in [(12, 1), (12, 4), (7, 3), (2, 4), (0, 2)] {
            let parts: Vec<usize> = (0..world).flat_map(|rank| share(count, world, rank)).collect();
            assert_eq!(parts, (0..count).collect::<Vec<_>>(), "{count} over {world}");
        }
    }
}
