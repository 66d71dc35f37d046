//! Which bytes of shared and local memory have a value.

use super::lanes;
use crate::registers::LANES;

/// The undefined bytes of each lane's access: bit i is byte i.
pub(super) type Bytes = [u64; LANES];

/// The shared memory of a block: bit i of word w is byte 64 w + i, set while it is undefined.
#[derive(Debug, Default)]
pub(super) struct Shared {
    words: Vec<u64>,
    /// How many bytes are undefined: none, and nothing else is looked at.
    undefined: u64,
}

impl Shared {
    pub(super) fn new(bytes: u32) -> Shared {
        let words = (bytes as usize).div_ceil(64);
        Shared { words: vec![u64::MAX; words], undefined: words as u64 * 64 }
    }

    /// The undefined bytes of an access; `None` where there are none.
    pub(super) fn read(&self, addresses: &[u64; LANES], mask: u32, bytes: u32) -> Option<Bytes> {
        if self.undefined == 0 {
            return None;
        }
        let mut out = [0; LANES];
        let mut any = 0;
        for lane in lanes(mask) {
            out[lane] = self.at(addresses[lane], bytes);
            any |= out[lane];
        }
        (any != 0).then_some(out)
    }

    /// An aligned access of up to 64 bytes lies in one word.
    pub(super) fn at(&self, address: u64, bytes: u32) -> u64 {
        let word = self.words.get((address / 64) as usize).copied().unwrap_or(0);
        word >> (address % 64) & ones(bytes)
    }

    /// Each lane has written; `undefined` says what of it has no value.
    pub(super) fn write(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32, undefined: Option<&Bytes>) {
        if self.undefined == 0 && undefined.is_none() {
            return;
        }
        for lane in lanes(mask) {
            let Some(word) = self.words.get_mut((addresses[lane] / 64) as usize) else { continue };
            let shift = addresses[lane] % 64;
            let new = *word & !(ones(bytes) << shift) | undefined.map_or(0, |all| all[lane] & ones(bytes)) << shift;
            self.undefined = self.undefined + u64::from(new.count_ones()) - u64::from(word.count_ones());
            *word = new;
        }
    }
}

/// The local memory of a warp's lanes: for each byte, the lanes in which it is undefined.
#[derive(Debug, Default)]
pub(super) struct Local {
    planes: Vec<u32>,
}

impl Local {
    /// The undefined bytes of an access; `None` where there are none.
    pub(super) fn read(&self, addresses: &[u64; LANES], mask: u32, bytes: u32) -> Option<Bytes> {
        let plane = |address: u64| self.planes.get(address as usize).copied().unwrap_or(u32::MAX);
        let mut out = [0; LANES];
        let mut any = 0;
        for lane in lanes(mask) {
            for byte in 0..u64::from(bytes) {
                out[lane] |= u64::from(plane(addresses[lane] + byte) >> lane & 1) << byte;
            }
            any |= out[lane];
        }
        (any != 0).then_some(out)
    }

    /// Each lane has written.
    pub(super) fn write(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32, undefined: Option<&Bytes>) {
        for lane in lanes(mask) {
            let end = addresses[lane] as usize + bytes as usize;
            if self.planes.len() < end {
                self.planes.resize(end.next_multiple_of(256), u32::MAX);
            }
            let bits = undefined.map_or(0, |all| all[lane]);
            for (byte, plane) in self.planes[end - bytes as usize..end].iter_mut().enumerate() {
                *plane = *plane & !(1 << lane) | ((bits >> byte & 1) as u32) << lane;
            }
        }
    }
}

/// So many low bits.
pub(super) fn ones(bytes: u32) -> u64 {
    if bytes >= 64 { u64::MAX } else { (1 << bytes) - 1 }
}
