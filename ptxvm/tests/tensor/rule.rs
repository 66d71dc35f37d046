//! The published rule in whole numbers, written apart from the model: a term is (significand, exponent) in integers of
//! 128 bits and more; alignment, truncation and rounding are shifts.

/// A format of the inputs: fraction bits, least exponent, width of the exponent's field.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    pub(crate) fraction: u32,
    pub(crate) exponent_bits: u32,
    /// e4m3 has no infinity: all ones is NaN only with an all-ones fraction.
    pub(crate) finite: bool,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent_bits: 5, finite: false };
pub(crate) const BF16: Format = Format { fraction: 7, exponent_bits: 8, finite: false };
pub(crate) const TF32: Format = Format { fraction: 10, exponent_bits: 8, finite: false };
pub(crate) const F32: Format = Format { fraction: 23, exponent_bits: 8, finite: false };
pub(crate) const E4M3: Format = Format { fraction: 3, exponent_bits: 4, finite: true };
pub(crate) const E5M2: Format = Format { fraction: 2, exponent_bits: 5, finite: false };

/// A number: special, or significand * 2^(exponent - fraction bits of its format).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Nan,
    Infinite(bool),
    Finite { significand: i128, exponent: i32 },
}

impl Format {
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent_bits + self.fraction
    }

    pub(crate) fn read(self, bits: u32) -> Number {
        let negative = bits >> (self.bits() - 1) & 1 == 1;
        let field = bits >> self.fraction & ((1 << self.exponent_bits) - 1);
        let fraction = bits & ((1 << self.fraction) - 1);
        let top = (1 << self.exponent_bits) - 1;
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        if field == top && (!self.finite || fraction == (1 << self.fraction) - 1) {
            return if fraction == 0 && !self.finite { Number::Infinite(negative) } else { Number::Nan };
        }
        let hidden = if field == 0 { 0 } else { 1i128 << self.fraction };
        let magnitude = hidden + i128::from(fraction);
        let significand = if negative { -magnitude } else { magnitude };
        Number::Finite { significand, exponent: (field.max(1) as i32) - bias }
    }
}

/// What a model does.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// Products in a step.
    pub(crate) step: usize,
    /// Fraction bits kept of a term.
    pub(crate) kept: i32,
    /// Terms are aligned to this exponent at least.
    pub(crate) least: i32,
}

/// How a sum is rounded: to f32 toward zero (keeping so many fraction bits), or to f16 to nearest even.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Out {
    F32 { fraction: u32 },
    F16,
}

/// D of one element, as bits.
pub(crate) fn dot(rule: Rule, input: Format, out: Out, a: &[u32], b: &[u32], c: u32) -> u32 {
    let mut sum = c;
    for (a, b) in a.chunks(rule.step).zip(b.chunks(rule.step)) {
        sum = step(rule, input, out, a, b, sum);
    }
    sum
}

fn step(rule: Rule, input: Format, out: Out, a: &[u32], b: &[u32], c: u32) -> u32 {
    let format = if out == Out::F16 { F16 } else { F32 };
    // (significand, exponent, fraction bits)
    let mut terms: Vec<(i128, i32, i32)> = Vec::new();
    let (mut plus, mut minus, mut nan) = (false, false, false);
    for (&a, &b) in a.iter().zip(b) {
        match (input.read(a), input.read(b)) {
            (Number::Nan, _) | (_, Number::Nan) => nan = true,
            (Number::Infinite(sign), Number::Infinite(other)) => {
                *(if sign == other { &mut plus } else { &mut minus }) = true
            }
            (Number::Infinite(sign), Number::Finite { significand, .. })
            | (Number::Finite { significand, .. }, Number::Infinite(sign)) => match significand {
                0 => nan = true,
                _ => *(if sign == (significand < 0) { &mut plus } else { &mut minus }) = true,
            },
            (Number::Finite { significand: x, exponent: e }, Number::Finite { significand: y, exponent: f }) => {
                terms.push((x * y, e + f, 2 * input.fraction as i32));
            }
        }
    }
    match format.read(c) {
        Number::Nan => nan = true,
        Number::Infinite(sign) => *(if sign { &mut minus } else { &mut plus }) = true,
        Number::Finite { significand, exponent } => terms.push((significand, exponent, format.fraction as i32)),
    }
    if nan || plus && minus {
        return if out == Out::F16 { 0x7fff } else { 0x7fff_ffff };
    }
    if plus || minus {
        let infinity = ((1 << format.exponent_bits) - 1) << format.fraction;
        return infinity | u32::from(minus) << (format.bits() - 1);
    }
    let terms = terms.into_iter().filter(|term| term.0 != 0);
    let largest = terms.clone().map(|term| term.1).fold(rule.least, i32::max);
    let total: i128 = terms
        .map(|(significand, exponent, fraction)| {
            // Toward zero: Rust's division of integers truncates.
            let shift = rule.kept - fraction - (largest - exponent);
            if shift >= 0 { significand << shift } else { significand / (1i128 << (-shift).min(126)) }
        })
        .sum();
    round(total, largest - rule.kept, format, out)
}

/// `total * 2^scale` in the format, bit by bit.
fn round(total: i128, scale: i32, format: Format, out: Out) -> u32 {
    let sign = u32::from(total < 0) << (format.bits() - 1);
    let magnitude = total.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let bias = (1i32 << (format.exponent_bits - 1)) - 1;
    let kept = if let Out::F32 { fraction } = out { fraction } else { 10 } as i32;
    // The exponent of the leading bit, not below the format's least.
    let exponent = (127 - magnitude.leading_zeros() as i32 + scale).max(1 - bias);
    let quantum = exponent - kept;
    let drop = quantum - scale;
    let mut units = if drop > 0 { magnitude >> drop.min(127) } else { magnitude << -drop };
    if out == Out::F16 && drop > 0 && drop < 127 {
        let (rest, half) = (magnitude & ((1u128 << drop) - 1), 1u128 << (drop - 1));
        units += u128::from(rest > half || rest == half && units & 1 == 1);
    }
    if units == 0 {
        return 0;
    }
    // Rounding up may carry into the next exponent: plain addition of the fields does the right thing.
    let base = (exponent + bias - 1).max(0) as u128;
    let wide = (units << (format.fraction as i32 - kept)) + (base << format.fraction);
    let infinity = ((1u128 << format.exponent_bits) - 1) << format.fraction;
    wide.min(infinity) as u32 | sign
}
