//! Sources to try: the corner values of each type, combined, and seeded random ones.

use warpweft_ptxvm::types::Type;

/// Tuples of sources for one form.
const TUPLES: usize = 1024;

/// A generator of random bits, seeded (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    /// Seeded by a text.
    pub(crate) fn of(text: &str) -> Random {
        Random(
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)),
        )
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

/// Tuples of values of the types: every combination of corners where they are few enough, else a random choice of
/// combinations, then random bits, of which some are small.
pub(crate) fn tuples(seed: &str, types: &[Type]) -> Vec<Vec<u64>> {
    let mut random = Random::of(seed);
    let corners: Vec<Vec<u64>> = types.iter().map(|&ty| corners(ty)).collect();
    let combinations = corners.iter().map(Vec::len).try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX);
    let mut all: Vec<Vec<u64>> = Vec::new();
    if combinations <= 2 * TUPLES {
        for number in 0..combinations {
            let mut rest = number;
            let pick = |values: &Vec<u64>| {
                let at = rest % values.len();
                rest /= values.len();
                values[at]
            };
            all.push(corners.iter().map(pick).collect());
        }
    } else {
        for _ in 0..TUPLES {
            all.push(corners.iter().map(|values| values[random.below(values.len())]).collect());
        }
    }
    for _ in 0..TUPLES / 4 {
        all.push(types.iter().map(|&ty| random_value(ty, &mut random)).collect());
    }
    all
}

/// Random bits of a type; of integers every other one is small.
fn random_value(ty: Type, random: &mut Random) -> u64 {
    let bits = random.bits();
    let few = if is_float(ty) || random.below(2) == 0 { bits } else { bits >> (random.below(64)) };
    few & mask(loaded_bits(ty))
}

/// Bits of a value as it is loaded: 8-bit values have rubbish above them in a 32-bit register.
fn loaded_bits(ty: Type) -> u32 {
    if ty.bits() == 8 { 32 } else { ty.bits() }
}

fn mask(bits: u32) -> u64 {
    if bits > 63 { u64::MAX } else { (1 << bits) - 1 }
}

fn is_float(ty: Type) -> bool {
    matches!(ty.kind(), warpweft_ptxvm::types::Kind::Float)
}

/// The values of a type at which operations change their ways.
pub(crate) fn corners(ty: Type) -> Vec<u64> {
    match ty {
        Type::Pred => vec![0, 1],
        Type::F32 | Type::Tf32 => f32_corners(),
        Type::F64 => f64_corners(),
        Type::F16 => HALF_CORNERS.to_vec(),
        Type::Bf16 => BF16_CORNERS.to_vec(),
        Type::F16x2 => packed(&HALF_CORNERS),
        Type::Bf16x2 => packed(&BF16_CORNERS),
        Type::U16x2 | Type::S16x2 => packed(&integer_corners(16)),
        _ => integer_corners(ty.bits()).into_iter().map(|value| value & mask(loaded_bits(ty))).collect(),
    }
}

/// Integers of so many bits: around zero, the ends, shift amounts around the widths, patterns.
fn integer_corners(bits: u32) -> Vec<u64> {
    let top = 1u64 << (bits - 1);
    let mut all = vec![0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257];
    all.extend([
        top - 1,
        top,
        top + 1,
        top.wrapping_sub(2),
        0u64.wrapping_sub(1),
        0u64.wrapping_sub(2),
        0u64.wrapping_sub(7),
    ]);
    all.extend([
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        0x0123_4567_89ab_cdef,
        0xff00_ff00_ff00_ff00,
        top >> 1,
        1 << (bits / 2),
    ]);
    if bits > 16 {
        all.extend([0x7fff, 0x8000, 0xffff, 0x1_0000, 0x7f_ffff, 0x80_0000, 0x100_0000]);
    }
    if bits > 32 {
        all.extend([
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0xffff_ffff_8000_0000,
            0xffff_ffff_7fff_ffff,
        ]);
    }
    let width = mask(if bits == 8 { 32 } else { bits });
    all.iter_mut().for_each(|value| *value &= width);
    all.sort_unstable();
    all.dedup();
    all
}

/// Zeros, ones, subnormals, the ends, infinities, NaNs (quiet and signalling, both signs), ties, and the neighbours of
/// the integers' ends.
fn f32_corners() -> Vec<u64> {
    let positive = [
        0x0000_0000u32,
        0x0000_0001,
        0x0000_0002,
        0x0040_0000,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x3300_0000,
        0x3f00_0000,
        0x3eff_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x3f7f_ffff,
        0x3fc0_0000,
        0x4020_0000,
        0x4000_0000,
        0x4040_0000,
        0x40c9_0fdb,
        0x42fe_0000,
        0x437f_0000,
        0x477f_ffff,
        0x4780_0000,
        0x4b00_0001,
        0x4b80_0000,
        0x4eff_ffff,
        0x4f00_0000,
        0x4f80_0000,
        0x5f00_0000,
        0x5f80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0x7fff_ffff,
    ];
    positive.iter().flat_map(|&bits| [u64::from(bits), u64::from(bits | 1 << 31)]).collect()
}

fn f64_corners() -> Vec<u64> {
    let mut positive: Vec<u64> = vec![
        0,
        1,
        2,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0x7fff_ffff_ffff_ffff,
    ];
    let values = [
        0.5,
        1.0,
        1.0 + f64::EPSILON,
        1.0 - f64::EPSILON / 2.0,
        1.5,
        2.5,
        3.0,
        1e-45,
        1.1754943508222875e-38,
        3.4028234663852886e38,
        3.402823567797337e38,
        2147483647.0,
        2147483648.5,
        4294967295.0,
        4294967296.0,
        9007199254740993.0,
        9223372036854775807.0,
        18446744073709551615.0,
        1e300,
        65504.0,
        65520.0,
    ];
    positive.extend(values.map(f64::to_bits));
    positive.iter().flat_map(|&bits| [bits, bits | 1 << 63]).collect()
}

const HALF_CORNERS: [u64; 32] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x0401, 0x3800, 0xb800, 0x3bff, 0x3c00, 0xbc00,
    0x3c01, 0x3e00, 0x4000, 0xc000, 0x4100, 0x4200, 0x5bf8, 0x6400, 0x6401, 0x77ff, 0x7800, 0x7bff, 0xfbff, 0x7c00,
    0xfc00, 0x7e00, 0x7c01, 0xffff,
];

const BF16_CORNERS: [u64; 32] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x0081, 0x3f00, 0xbf00, 0x3f7f, 0x3f80, 0xbf80,
    0x3f81, 0x3fc0, 0x4000, 0xc000, 0x4020, 0x4040, 0x42ff, 0x4300, 0x4f00, 0x5f00, 0x7f00, 0x7f7f, 0xff7f, 0x7f80,
    0xff80, 0x7fc0, 0x7f81, 0xffff,
];

/// Two 16-bit values side by side: each corner with another.
fn packed(halves: &[u64]) -> Vec<u64> {
    halves.iter().zip(halves.iter().cycle().skip(11)).map(|(low, high)| low | high << 16).collect()
}
