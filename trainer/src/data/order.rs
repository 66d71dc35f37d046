//! The order in which windows are seen: a permutation of each epoch that is computed, never stored.
//!
//! A Feistel network over the smallest even number of bits that holds the window count is a bijection whatever its
//! round function; applying it again while the result lies outside (cycle walking, Black and Rogaway 2002) makes it one
//! of exactly the windows. So window `i` of epoch `e` is found in constant time and memory, the same on every rank.

/// Rounds of the network; four already pass for random (Luby and Rackoff), and more cost nothing here.
const ROUNDS: u64 = 6;

/// Bijective mixing of 64 bits (the finaliser of SplitMix64).
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of one epoch.
pub(super) fn key(seed: u64, epoch: u64) -> u64 {
    mix(mix(seed) ^ epoch)
}

/// Where the permutation of `key` takes `index`; `index < count`, and so is the result.
pub(super) fn permute(key: u64, count: u64, index: u64) -> u64 {
    debug_assert!(index < count);
    let bits = u64::BITS - (count - 1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1_u64 << half) - 1;
    let mut x = index;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ mix(right ^ (round << 48))) & mask));
        }
        x = (left << half) | right;
        if x < count {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_met_exactly_once() {
        for count in [1, 2, 3, 4, 5, 7, 8, 16, 17, 100, 1000, 4097] {
            for epoch in 0..3 {
                let mut seen = vec![false; count as usize];
                for index in 0..count {
                    let at = permute(key(7, epoch), count, index);
                    assert!(!std::mem::replace(&mut seen[at as usize], true), "{at} twice of {count}");
                }
            }
        }
    }

    #[test]
    fn large_counts_stay_inside() {
        for count in [u64::from(u32::MAX), 1 << 40, (1 << 40) + 1] {
            for index in [0, 1, count / 2, count - 1] {
                assert!(permute(key(1, 1), count, index) < count);
            }
        }
    }

    #[test]
    fn epochs_and_seeds_give_different_orders() {
        let order = |seed, epoch| (0..64).map(|i| permute(key(seed, epoch), 64, i)).collect::<Vec<_>>();
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), (0..64).collect::<Vec<_>>());
    }
}
