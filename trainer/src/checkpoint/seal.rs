//! Seals: what is known of a file's bytes when it is written, and where they differ when it is read.
//!
//! The SHA-256 proves a file; a CRC32C for each block says which block is wrong. A CRC is linear, so the difference
//! between two of them depends on the error alone, and running it backwards finds a single wrong byte.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a block.
pub(super) const BLOCK: usize = 1 << 16;
/// CRC32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seal {
    pub(super) bytes: u64,
    pub(super) sha256: String,
    /// Of each block of 65,536 bytes, the last one shorter.
    pub(super) crc32c: Vec<u32>,
}

/// How a file differs from its seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Cut off or longer: from this byte on.
    Length { at: u64 },
    /// One of the bytes from `first` to `last`.
    Bytes { first: u64, last: u64 },
    /// The file agrees with part of the seal, so the seal is what was damaged: its field.
    Seal { field: &'static str },
}

/// Makes a seal from bytes as they pass.
#[derive(Default)]
pub(super) struct Sealer {
    bytes: u64,
    sha256: Sha256,
    crc32c: Vec<u32>,
    block: u32,
    filled: usize,
}

impl Sealer {
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        self.sha256.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.block = crc32c::crc32c_append(self.block, now);
            self.filled += now.len();
            if self.filled == BLOCK {
                self.end_block();
            }
            bytes = later;
        }
    }

    fn end_block(&mut self) {
        self.crc32c.push(self.block);
        (self.block, self.filled) = (0, 0);
    }

    pub(super) fn finish(mut self) -> Seal {
        if self.filled > 0 {
            self.end_block();
        }
        Seal { bytes: self.bytes, sha256: hex(&self.sha256.finalize()), crc32c: self.crc32c }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Seal {
    pub(super) fn of(bytes: &[u8]) -> Seal {
        let mut sealer = Sealer::default();
        sealer.update(bytes);
        sealer.finish()
    }

    /// Compares a file with its seal.
    pub(super) fn check(&self, file: &[u8]) -> Result<(), Difference> {
        let now = Seal::of(file);
        if now == *self {
            return Ok(());
        }
        if now.sha256 == self.sha256 {
            return Err(Difference::Seal { field: if now.bytes == self.bytes { "crc32c" } else { "bytes" } });
        }
        if now.bytes != self.bytes {
            return Err(Difference::Length { at: now.bytes.min(self.bytes) });
        }
        let Some(block) = now.crc32c.iter().zip(&self.crc32c).position(|(a, b)| a != b) else {
            let field = if now.crc32c.len() == self.crc32c.len() { "sha256" } else { "crc32c" };
            return Err(Difference::Seal { field });
        };
        let start = block * BLOCK;
        let end = file.len().min(start + BLOCK);
        if let Some((at, error)) = locate(now.crc32c[block] ^ self.crc32c[block], end - start) {
            let mut repaired = file.to_vec();
            repaired[start + at] ^= error;
            if Seal::of(&repaired).sha256 == self.sha256 {
                let at = (start + at) as u64;
                return Err(Difference::Bytes { first: at, last: at });
            }
        }
        Err(Difference::Bytes { first: start as u64, last: end as u64 - 1 })
    }
}

/// The CRC's state after one byte from state zero.
const fn after_byte(byte: u8) -> u32 {
    let mut state = byte as u32;
    let mut bit = 0;
    while bit < 8 {
        state = if state & 1 == 1 { (state >> 1) ^ POLYNOMIAL } else { state >> 1 };
        bit += 1;
    }
    state
}

/// The first place, from the end, where a single wrong byte explains a difference between the CRCs of two blocks of
/// `length` bytes: its index and the bits that are wrong.
fn locate(difference: u32, length: usize) -> Option<(usize, u8)> {
    let table: [u32; 256] = std::array::from_fn(|byte| after_byte(byte as u8));
    // A step forward is s -> (s >> 8) ^ table[s & 255]; the table's top bytes are a permutation, so it can be undone.
    let mut by_top = [0_u8; 256];
    (0..=255_u8).for_each(|byte| by_top[(table[usize::from(byte)] >> 24) as usize] = byte);
    let mut state = difference;
    for behind in 0..length {
        let byte = by_top[(state >> 24) as usize];
        let rest = state ^ table[usize::from(byte)];
        if rest == 0 {
            return Some((length - 1 - behind, byte));
        }
        state = (rest << 8) | u32::from(byte);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * i + 7 * i) as u8).collect()
    }

    #[test]
    fn every_wrong_byte_is_found() {
        for length in [1, 2, 3, 100, 65_536, 65_537, 150_000] {
            let mut file = text(length);
            let seal = Seal::of(&file);
            assert_eq!(seal.check(&file), Ok(()));
            for at in (0..length).step_by(1 + length / 23).chain([length - 1]) {
                for bits in [1, 0x80, 0xff, 0x5a] {
                    file[at] ^= bits;
                    let at = at as u64;
                    assert_eq!(seal.check(&file), Err(Difference::Bytes { first: at, last: at }));
                    file[at as usize] ^= bits;
                }
            }
        }
    }

    #[test]
    fn several_wrong_bytes_give_their_block() {
        let mut file = text(200_000);
        let seal = Seal::of(&file);
        file[70_000] ^= 1;
        file[70_100] ^= 1;
        assert_eq!(seal.check(&file), Err(Difference::Bytes { first: 65_536, last: 131_071 }));
    }

    #[test]
    fn a_wrong_length_gives_the_end() {
        let file = text(1000);
        let seal = Seal::of(&file);
        assert_eq!(seal.check(&file[..400]), Err(Difference::Length { at: 400 }));
        assert_eq!(seal.check(&[&file[..], &[0]].concat()), Err(Difference::Length { at: 1000 }));
    }

    #[test]
    fn a_damaged_seal_is_not_blamed_on_the_file() {
        let file = text(1000);
        let seal = Seal::of(&file);
        let wrong = Seal { bytes: 1001, ..seal.clone() };
        assert_eq!(wrong.check(&file), Err(Difference::Seal { field: "bytes" }));
        let wrong = Seal { crc32c: vec![1], ..seal.clone() };
        assert_eq!(wrong.check(&file), Err(Difference::Seal { field: "crc32c" }));
        let wrong = Seal { sha256: "0".repeat(64), ..seal };
        assert_eq!(wrong.check(&file), Err(Difference::Seal { field: "sha256" }));
    }
}
