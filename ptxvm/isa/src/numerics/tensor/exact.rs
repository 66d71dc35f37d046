//! The tensor core as measured: products exact, all terms of a step aligned to the largest exponent and truncated, an
//! exact sum, one rounding.
//!
//! A term's exponent is the sum of its factors' exponents, before any normalisation (a subnormal has its format's least
//! exponent), so a product's significand lies in [0, 4). A term that is zero takes no part in the alignment.
//!
//! The two papers differ in one corner: where every term is tiny, MMA-Sim aligns to 2^-126 at least (the exponent of a
//! zero C), Khattak and Mikaitis to 2^-132 (sm_80) and 2^-133 (sm_90), and to 2^-20 and 2^-21 for f16 sums. The latter,
//! measured with test vectors made for that corner, are taken here; only results below 2^-120 (f32) can differ.

use super::{Input, Sum, Tile, round_to_f16};
use crate::lanes::vectorised;
use crate::numerics::TensorModel;

/// Fraction bits of an input's significand as held here: those of f16 and tf32, the longest.
const INPUT_FRACTION: u32 = 10;
/// Fraction bits of an aligned term before its truncation: the most that any model keeps.
const TERM_FRACTION: i32 = 25;
/// The exponent of a zero: far below any other, also after another exponent is added.
const ZERO_EXPONENT: i32 = -4096;

/// 2^128: the least magnitude that is infinite in f32 after truncation.
const BEYOND_F32: f64 = f64::from_bits((1023 + 128) << 52);

/// What distinguishes the models.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Products summed in one step.
    step: usize,
    /// Fraction bits that a term keeps.
    fraction: i32,
    /// The least exponent that terms are aligned to.
    least: i32,
    /// The least exponent of the input format.
    input_least: i32,
    /// The least exponent of C's format.
    sum_least: i32,
    /// How D is rounded.
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// f32, toward zero.
    Truncate,
    /// f32 with 13 fraction bits, toward zero: fp8 on sm_89.
    TruncateTo13,
    /// f16, to nearest even.
    HalfNearest,
}

impl Rule {
    /// The rule of a shape in a model; none where the model is [`TensorModel::Native`].
    pub(super) fn of(k: usize, input: Input, sum: Sum, model: TensorModel) -> Option<Rule> {
        let eight_bit = matches!(input, Input::E4m3 | Input::E5m2);
        let ampere = match model {
            TensorModel::ExactSm80 => true,
            TensorModel::ExactSm90 => false,
            TensorModel::Native => return None,
        };
        let step = match (ampere, input) {
            (false, _) => k,
            (true, Input::Tf32) => 4,
            (true, Input::F16 | Input::Bf16) => 8,
            (true, Input::E4m3 | Input::E5m2) => 16,
        };
        let fraction = if ampere && eight_bit { 13 } else { 25 - i32::from(ampere) };
        let least = match sum {
            Sum::F32 => -133 + i32::from(ampere),
            Sum::F16 => -21 + i32::from(ampere),
        };
        let round = match sum {
            Sum::F16 => Round::HalfNearest,
            Sum::F32 if ampere && eight_bit => Round::TruncateTo13,
            Sum::F32 => Round::Truncate,
        };
        let input_least = match input {
            Input::F16 | Input::E5m2 => -14,
            Input::E4m3 => -6,
            Input::Bf16 | Input::Tf32 => -126,
        };
        let sum_least = if sum == Sum::F16 { -14 } else { -126 };
        Some(Rule { step: step.min(k), fraction, least, input_least, sum_least, round })
    }
}

/// The significand as an integer of 23 fraction bits, and the exponent, of a finite value; the exponent is not below `least`.
#[inline(always)]
fn decode(value: f32, least: i32) -> (u32, i32) {
    let bits = value.to_bits();
    let field = (bits >> 23 & 0xff) as i32;
    let significand = (bits & 0x7f_ffff) | if field == 0 { 0 } else { 0x80_0000 };
    let exponent = if field == 0 { -126 } else { field - 127 };
    // A subnormal of a narrower format is a normal f32: give it back its format's exponent.
    let short = (least - exponent).clamp(0, 31);
    let exponent = if significand == 0 { ZERO_EXPONENT } else { exponent + short };
    (significand >> short, exponent)
}

/// Masks of negative values: all ones, or zero.
#[inline(always)]
fn sign(value: f32) -> i32 {
    value.to_bits() as i32 >> 31
}

/// Replaces `tile.c` by the tile's product plus C.
pub(super) fn multiply<const K: usize>(tile: &mut Tile<K>, rule: &Rule) {
    let special = vectorised(
        #[inline(always)]
        || has_special(tile),
    );
    if special { multiply_with_specials(tile, rule) } else { multiply_finite(tile, rule) }
}

/// The same where every operand is finite.
fn multiply_finite<const K: usize>(tile: &mut Tile<K>, rule: &Rule) {
    vectorised(
        #[inline(always)]
        || steps(tile, rule),
    );
}

#[inline(always)]
fn steps<const K: usize>(tile: &mut Tile<K>, rule: &Rule) {
    for first in (0..K).step_by(rule.step) {
        match rule.step {
            4 => step::<K, 4>(tile, first, rule),
            8 => step::<K, 8>(tile, first, rule),
            16 => step::<K, 16>(tile, first, rule),
            _ => step::<K, 32>(tile, first, rule),
        }
    }
}

/// One step: `STEP` products of every element, from column `first` of A on.
#[inline(always)]
fn step<const K: usize, const STEP: usize>(tile: &mut Tile<K>, first: usize, rule: &Rule) {
    let mut b = Terms::<STEP, 8>::zeros();
    for at in 0..STEP {
        b.set(at, &tile.b[first + at], rule.input_least);
    }
    for row in 0..16 {
        let mut a = Terms::<1, STEP>::zeros();
        let mut factors = [0f32; STEP];
        factors.copy_from_slice(&tile.a[row][first..first + STEP]);
        a.set(0, &factors, rule.input_least);
        tile.c[row] = sum_row(&tile.c[row], &a, &b, rule);
    }
}

/// Factors taken apart: significands of [`INPUT_FRACTION`] bits, exponents, masks of the negative ones.
struct Terms<const LINES: usize, const WIDTH: usize> {
    significands: [[u32; WIDTH]; LINES],
    exponents: [[i32; WIDTH]; LINES],
    signs: [[i32; WIDTH]; LINES],
}

impl<const LINES: usize, const WIDTH: usize> Terms<LINES, WIDTH> {
    #[inline(always)]
    fn zeros() -> Self {
        Terms { significands: [[0; WIDTH]; LINES], exponents: [[0; WIDTH]; LINES], signs: [[0; WIDTH]; LINES] }
    }

    #[inline(always)]
    fn set(&mut self, line: usize, values: &[f32; WIDTH], least: i32) {
        for (at, &value) in values.iter().enumerate() {
            let (significand, exponent) = decode(value, least);
            self.significands[line][at] = significand >> (23 - INPUT_FRACTION);
            self.exponents[line][at] = exponent;
            self.signs[line][at] = sign(value);
        }
    }
}

/// The sums of one row's step: C aligned and truncated, the products likewise, added exactly, rounded once.
#[inline(always)]
fn sum_row<const STEP: usize>(c: &[f32; 8], a: &Terms<1, STEP>, b: &Terms<STEP, 8>, rule: &Rule) -> [f32; 8] {
    let mut c_significands = [0u32; 8];
    let mut c_exponents = [0i32; 8];
    for column in 0..8 {
        (c_significands[column], c_exponents[column]) = decode(c[column], rule.sum_least);
    }
    let mut largest = [rule.least; 8];
    for (largest, exponent) in largest.iter_mut().zip(c_exponents) {
        *largest = exponent.max(*largest);
    }
    for at in 0..STEP {
        let exponent = a.exponents[0][at];
        for (largest, other) in largest.iter_mut().zip(b.exponents[at]) {
            *largest = (exponent + other).max(*largest);
        }
    }
    let drop = TERM_FRACTION - rule.fraction;
    let mut total = [0f64; 8];
    for column in 0..8 {
        let shift = (largest[column] - c_exponents[column] + drop).min(31);
        let term = ((c_significands[column] << (TERM_FRACTION - 23)) >> shift) as i32;
        let negative = sign(c[column]);
        total[column] = f64::from((term ^ negative) - negative);
    }
    // Eight products are below 2^30 in sum, so an i32 holds them.
    for group in (0..STEP).step_by(8) {
        let mut sum = [0i32; 8];
        for at in group..(group + 8).min(STEP) {
            // Term fraction: 10 + 10 of the factors and 5 more.
            let significand = a.significands[0][at] << 5;
            let (exponent, sign) = (a.exponents[0][at] - drop, a.signs[0][at]);
            for column in 0..8 {
                let shift = (largest[column] - exponent - b.exponents[at][column]).min(31);
                let term = ((significand * b.significands[at][column]) >> shift) as i32;
                let negative = sign ^ b.signs[at][column];
                sum[column] += (term ^ negative) - negative;
            }
        }
        for column in 0..8 {
            total[column] += f64::from(sum[column]);
        }
    }
    let mut out = [0f32; 8];
    for column in 0..8 {
        let scale = f64::from_bits(((1023 + largest[column] - rule.fraction) as u64) << 52);
        let rounded = rule.round.apply(total[column] * scale);
        // A step before this one may have overflowed; all other terms are finite here.
        out[column] = if c[column].is_infinite() { c[column] } else { rounded };
    }
    out
}

impl Round {
    /// The value of D. A zero is positive, whatever the signs of the terms were.
    #[inline(always)]
    fn apply(self, value: f64) -> f32 {
        let rounded = match self {
            Round::Truncate => truncate(value),
            Round::TruncateTo13 => f32::from_bits(truncate(value).to_bits() & !0x3ff),
            Round::HalfNearest => round_to_f16(value),
        };
        if rounded == 0.0 { 0.0 } else { rounded }
    }
}

/// Toward zero; 2^128 and above is infinite.
#[inline(always)]
fn truncate(value: f64) -> f32 {
    let nearest = value as f32;
    // Rounding to nearest may have gone one too far; below 2^128 not to infinity either.
    let too_far = f64::from(nearest).abs() > value.abs() && value.abs() < BEYOND_F32;
    f32::from_bits(nearest.to_bits() - u32::from(too_far))
}

/// Whether an operand is infinite or NaN.
#[inline(always)]
fn has_special<const K: usize>(tile: &Tile<K>) -> bool {
    let special = |value: f32| u32::from(value.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    let mut found = 0;
    for row in 0..16 {
        for at in 0..K {
            found |= special(tile.a[row][at]);
        }
        for column in 0..8 {
            found |= special(tile.c[row][column]);
        }
    }
    for at in 0..K {
        for column in 0..8 {
            found |= special(tile.b[at][column]);
        }
    }
    found != 0
}

/// The same where an operand is infinite or NaN: such a result follows IEEE 754 (a NaN is canonical), any other is as ever.
fn multiply_with_specials<const K: usize>(tile: &mut Tile<K>, rule: &Rule) {
    let nan = if rule.round == Round::HalfNearest {
        half::f16::from_bits(0x7fff).to_f32()
    } else {
        f32::from_bits(0x7fff_ffff)
    };
    let before = tile.clone();
    let mut finite = tile.clone();
    let clean = |value: &mut f32| *value = if value.is_finite() { *value } else { 0.0 };
    finite.a.iter_mut().flatten().for_each(clean);
    finite.b.iter_mut().flatten().for_each(clean);
    finite.c.iter_mut().flatten().for_each(clean);
    multiply_finite(&mut finite, rule);
    for row in 0..16 {
        for column in 0..8 {
            // Exact products of finite values cannot overflow an f64, so the sum is special exactly where a term is.
            let products = (0..K).map(|at| f64::from(before.a[row][at]) * f64::from(before.b[at][column]));
            let terms = products.chain([f64::from(before.c[row][column])]);
            let special: f64 = terms.filter(|term| !term.is_finite()).sum();
            tile.c[row][column] = match special {
                sum if sum.is_nan() => nan,
                sum if sum.is_infinite() => sum as f32,
                _ => finite.c[row][column],
            };
        }
    }
}
