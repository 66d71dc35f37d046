//! Which bytes of global memory a launch touches, and in how many sectors a request lies.

use std::collections::HashMap;

use crate::registers::LANES;

/// Bytes of a sector, the unit in which global memory moves.
pub(super) const SECTOR: u64 = 32;

/// Bytes that one bitmap covers.
const PAGE: u64 = 1 << 12;

/// A set of bytes.
#[derive(Default)]
pub(super) struct Footprint {
    pages: HashMap<u64, [u64; PAGE as usize / 64]>,
}

impl Footprint {
    /// Adds `bytes` at the address of each lane of `mask`.
    pub(super) fn add(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32) {
        let mut at = 0;
        while at < LANES {
            if mask >> at & 1 == 0 {
                at += 1;
                continue;
            }
            // Lanes side by side are one run.
            let (start, mut end) = (addresses[at], addresses[at] + u64::from(bytes));
            at += 1;
            while at < LANES && mask >> at & 1 == 1 && addresses[at] == end {
                end += u64::from(bytes);
                at += 1;
            }
            self.add_run(start, end);
        }
    }

    fn add_run(&mut self, mut start: u64, end: u64) {
        while start < end {
            let page = self.pages.entry(start / PAGE).or_insert([0; PAGE as usize / 64]);
            let stop = end.min((start / PAGE + 1) * PAGE);
            while start < stop {
                let (word, bit) = ((start % PAGE / 64) as usize, start % 64);
                let count = (64 - bit).min(stop - start);
                page[word] |= (u64::MAX >> (64 - count)) << bit;
                start += count;
            }
        }
    }

    /// Bytes in the set.
    pub(super) fn bytes(&self) -> u64 {
        self.pages.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Distinct sectors that a request touches.
pub(super) fn sectors(addresses: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let mut touched = [0u64; LANES * 3];
    let mut count = 0;
    for (lane, &address) in addresses.iter().enumerate() {
        if mask >> lane & 1 == 1 {
            let last = (address + u64::from(bytes).max(1) - 1) / SECTOR;
            // 64 bytes lie in three sectors at most.
            for sector in (address / SECTOR..=last).take(3) {
                touched[count] = sector;
                count += 1;
            }
        }
    }
    let touched = &mut touched[..count];
    touched.sort_unstable();
    let repeated = touched.windows(2).filter(|pair| pair[0] == pair[1]).count();
    (count - repeated) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(address: impl Fn(u64) -> u64) -> [u64; LANES] {
        std::array::from_fn(|lane| address(lane as u64))
    }

    #[test]
    fn coalesced_words_take_four_sectors_and_strided_ones_a_sector_each() {
        assert_eq!(sectors(&lanes(|lane| 4096 + 4 * lane), u32::MAX, 4), 4);
        assert_eq!(sectors(&lanes(|lane| 4100 + 4 * lane), u32::MAX, 4), 5);
        assert_eq!(sectors(&lanes(|lane| 4096 + 128 * lane), u32::MAX, 4), 32);
        assert_eq!(sectors(&lanes(|_| 4096), u32::MAX, 4), 1);
        assert_eq!(sectors(&lanes(|lane| 4096 + 16 * lane), u32::MAX, 16), 16);
        assert_eq!(sectors(&lanes(|lane| 4096 + 4 * lane), 0b11, 4), 1);
        assert_eq!(sectors(&lanes(|lane| 4096 + 4 * lane), 0, 4), 0);
    }

    #[test]
    fn the_footprint_counts_each_byte_once() {
        let mut set = Footprint::default();
        set.add(&lanes(|lane| 4090 + 4 * lane), u32::MAX, 4);
        assert_eq!(set.bytes(), 128);
        set.add(&lanes(|lane| 4090 + 4 * lane), u32::MAX, 4);
        set.add(&lanes(|_| 4091), u32::MAX, 2);
        assert_eq!(set.bytes(), 128);
        set.add(&lanes(|lane| 1 << 33 | lane << 20), 0b101, 16);
        assert_eq!(set.bytes(), 160);
    }
}
