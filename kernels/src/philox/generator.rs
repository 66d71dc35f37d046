//! The generator itself: a block cipher of a counter, in ten rounds.

/// Philox 4x32-10 with its 64-bit key set to a seed and the upper half of its 128-bit counter to a stream number.
///
/// Every method is a pure function of (seed, stream, index): there is no state to advance, and nothing to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Philox4x32 {
    key: [u32; 2],
    stream: [u32; 2],
}

/// The two multipliers, and the two Weyl increments of the key: constants of the paper.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

impl Philox4x32 {
    /// The numbers of `stream` (say, the index of a tensor) under `seed`.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { key: halves(seed), stream: halves(stream) }
    }

    /// Its seed and stream.
    pub(super) const fn numbers(self) -> [u64; 2] {
        [whole(self.key), whole(self.stream)]
    }

    /// The cipher: four random words for a 128-bit counter under a 64-bit key, low words first.
    #[inline(always)]
    pub const fn cipher(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
        let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
        let mut round = 0;
        while round < 10 {
            let a = MULTIPLIERS[0] as u64 * c0 as u64;
            let b = MULTIPLIERS[1] as u64 * c2 as u64;
            [c0, c1, c2, c3] = [(b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32];
            k0 = k0.wrapping_add(WEYL[0]);
            k1 = k1.wrapping_add(WEYL[1]);
            round += 1;
        }
        [c0, c1, c2, c3]
    }

    /// The four random words at `position`.
    #[inline(always)]
    pub const fn block(self, position: u64) -> [u32; 4] {
        let [low, high] = halves(position);
        Self::cipher([low, high, self.stream[0], self.stream[1]], self.key)
    }

    /// The random word at `index`: four lie in each block.
    #[inline(always)]
    pub const fn word(self, index: u64) -> u32 {
        self.block(index / 4)[(index % 4) as usize]
    }

    /// A number in [0, 1), one of the 2^24 multiples of 2^-24: exact in f32.
    #[inline(always)]
    pub const fn uniform(self, index: u64) -> f32 {
        Self::unit(self.word(index))
    }

    /// The upper 24 bits of a word as a fraction.
    #[inline(always)]
    pub(super) const fn unit(word: u32) -> f32 {
        (word >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A number of the standard normal distribution, by Box and Muller's transform in f64 of two uniform numbers of 53
    /// bits; elements 2i and 2i + 1 are the cosine and the sine of block i. No magnitude exceeds 8.58.
    ///
    /// The logarithm, sine and cosine are the platform's, so its f64 may differ in the last bit between platforms.
    pub fn normal(self, index: u64) -> f64 {
        self.normal_pair(index / 2)[(index % 2) as usize]
    }

    /// The normal numbers at indices `2 * position` and `2 * position + 1`.
    #[inline(always)]
    pub(super) fn normal_pair(self, position: u64) -> [f64; 2] {
        let [a, b, c, d] = self.block(position);
        // In (0, 1], so that the logarithm is finite.
        let radius = (-2.0 * (1.0 - fraction(a, b)).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * fraction(c, d)).sin_cos();
        [radius * cosine, radius * sine]
    }
}

/// A number in [0, 1) of 53 bits: the upper ones of `high`, then `low`.
#[inline(always)]
fn fraction(low: u32, high: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Low word first.
#[inline(always)]
const fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The other way.
const fn whole([low, high]: [u32; 2]) -> u64 {
    (high as u64) << 32 | low as u64
}
