//! Bank conflicts of shared memory: 32 banks of 4 bytes. Accesses of 8 bytes go by half warps, of 16 by quarters (CUDA C++
//! Programming Guide, "Shared Memory"); in each such phase the bank with the most distinct words sets the passes.

use crate::registers::LANES;

/// Passes that an access takes, and the least that one of its width and mask could take.
pub(super) fn wavefronts(addresses: &[u64; LANES], mask: u32, bytes: u32) -> (u64, u64) {
    let lanes_at_once = match bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let (mut passes, mut least) = (0, 0);
    for phase in (0..LANES).step_by(lanes_at_once) {
        // Distinct words of this phase, sorted so that repeats lie together.
        let mut words = [0u64; LANES * 2];
        let mut count = 0;
        for (lane, address) in addresses.iter().enumerate().skip(phase).take(lanes_at_once) {
            if mask >> lane & 1 == 1 {
                let last = (address + u64::from(bytes.max(1)) - 1) / 4;
                for word in (address / 4..=last).take(4) {
                    words[count] = word;
                    count += 1;
                }
            }
        }
        let words = &mut words[..count];
        words.sort_unstable();
        let mut in_bank = [0u64; 32];
        let mut before = None;
        for &word in words.iter() {
            if before != Some(word) {
                in_bank[(word % 32) as usize] += 1;
                before = Some(word);
            }
        }
        passes += in_bank.into_iter().max().unwrap_or(0);
        least += u64::from(count > 0);
    }
    (passes, least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(address: impl Fn(u64) -> u64) -> [u64; LANES] {
        std::array::from_fn(|lane| address(lane as u64))
    }

    #[test]
    fn conflicts_are_those_of_the_programming_guide() {
        // Linear words, one word for all, and a permutation: no conflict.
        assert_eq!(wavefronts(&lanes(|lane| 4 * lane), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&lanes(|_| 64), u32::MAX, 4), (1, 1));
        assert_eq!(wavefronts(&lanes(|lane| 4 * (lane ^ 5)), u32::MAX, 4), (1, 1));
        // A stride of two words: two ways. Of 32 words: 32 ways. Of 33: none.
        assert_eq!(wavefronts(&lanes(|lane| 8 * lane), u32::MAX, 4), (2, 1));
        assert_eq!(wavefronts(&lanes(|lane| 128 * lane), u32::MAX, 4), (32, 1));
        assert_eq!(wavefronts(&lanes(|lane| 132 * lane), u32::MAX, 4), (1, 1));
        // Bytes within a word share it.
        assert_eq!(wavefronts(&lanes(|lane| lane), u32::MAX, 1), (1, 1));
        // 8 and 16 bytes: two and four phases, whatever they hold.
        assert_eq!(wavefronts(&lanes(|lane| 8 * lane), u32::MAX, 8), (2, 2));
        assert_eq!(wavefronts(&lanes(|lane| 16 * lane), u32::MAX, 16), (4, 4));
        // Eight rows of 16 bytes at a stride of 128 bytes, as an unswizzled ldmatrix reads them: eight ways.
        assert_eq!(wavefronts(&lanes(|lane| 128 * lane), 0xff, 16), (8, 1));
        assert_eq!(wavefronts(&lanes(|lane| 144 * lane), 0xff, 16), (1, 1));
        assert_eq!(wavefronts(&lanes(|lane| 4 * lane), 0, 4), (0, 0));
    }
}
