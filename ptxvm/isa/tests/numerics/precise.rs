//! The functions with about 100 bits: fixed point of 128 bits with 120 after the point, plain series, and digits one by one.

use crate::exact::Exact;

/// One.
pub(crate) const ONE: u128 = 1 << 120;

/// A positive number, `bits * 2^exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) bits: u128,
    pub(crate) exponent: i32,
}

impl Number {
    pub(crate) fn exact(self) -> Exact {
        Exact::new(self.negative, self.bits, self.exponent)
    }

    /// As f64, for comparing within a bound.
    pub(crate) fn near(self) -> f64 {
        let magnitude = self.bits as f64 * 2f64.powi(self.exponent / 2) * 2f64.powi(self.exponent - self.exponent / 2);
        if self.negative { -magnitude } else { magnitude }
    }
}

fn product(a: u128, b: u128) -> u128 {
    let low = |x: u128| x & u128::from(u64::MAX);
    let (a1, a0, b1, b0) = (a >> 64, low(a), b >> 64, low(b));
    let middle = ((a0 * b0) >> 64) + low(a1 * b0) + low(a0 * b1);
    let high = a1 * b1 + ((a1 * b0) >> 64) + ((a0 * b1) >> 64) + (middle >> 64);
    high << 8 | low(middle) >> 56
}

/// The logarithm of two: the sum of `1 / (k 2^k)`.
fn ln2() -> u128 {
    (1..127u128).map(|k| ((1u128 << 127) >> k) / k).sum::<u128>() >> 7
}

/// `e^x - 1` for x below one.
fn grown(x: u128) -> u128 {
    let (mut term, mut sum) = (ONE, 0);
    for n in 1..60 {
        term = product(term, x) / n;
        sum += term;
    }
    sum
}

/// Sign, mantissa of 24 bits or fewer and exponent of an f32 that is not special.
fn parts(x: f32) -> (bool, u128, i32) {
    let (field, fraction) = ((x.to_bits() >> 23 & 0xff) as i32, u128::from(x.to_bits() & 0x7f_ffff));
    (x < 0.0, if field == 0 { fraction } else { fraction | 1 << 23 }, field.max(1) - 150)
}

/// A number of at most 127 as fixed point, cut off below.
fn fixed(mantissa: u128, exponent: i32) -> u128 {
    let shift = exponent + 120;
    if shift >= 0 { mantissa << shift } else { mantissa.checked_shr(shift.unsigned_abs()).unwrap_or(0) }
}

/// `2^x` for |x| below 200.
pub(crate) fn ex2(x: f32) -> Number {
    let (negative, mantissa, exponent) = parts(x);
    let magnitude = fixed(mantissa, exponent);
    let (whole, fraction) = ((magnitude >> 120) as i32, magnitude % ONE);
    let (whole, fraction) = match (negative, fraction) {
        (false, _) => (whole, fraction),
        (true, 0) => (-whole, 0),
        (true, _) => (-whole - 1, ONE - fraction),
    };
    Number { negative: false, bits: ONE + grown(product(fraction, ln2())), exponent: whole - 120 }
}

/// The logarithm with base two of a positive number, digit by digit: squaring doubles it.
pub(crate) fn lg2(x: f32) -> Number {
    let (_, mantissa, exponent) = parts(x);
    let length = 128 - mantissa.leading_zeros() as i32;
    let mut power = mantissa << (121 - length);
    let mut digits = 0i128;
    for _ in 0..100 {
        power = product(power, power);
        let two = power >> 121;
        digits = digits << 1 | two as i128;
        power >>= two;
    }
    let value = (i128::from(exponent + length - 1) << 100) + digits;
    Number { negative: value < 0, bits: value.unsigned_abs(), exponent: -100 }
}

/// The quotient of numbers below 128, as fixed point.
fn quotient(a: u128, b: u128) -> u128 {
    let (mut rest, mut digits) = (a, 0);
    for _ in 0..=120 {
        digits = digits << 1 | u128::from(rest >= b);
        rest = (rest - if rest >= b { b } else { 0 }) << 1;
    }
    digits
}

/// The hyperbolic tangent.
pub(crate) fn tanh(x: f32) -> Number {
    let (negative, mantissa, exponent) = parts(x);
    if x.abs() < 2f32.powi(-30) {
        // x - x^3/3, which the last of 100 digits shows.
        return Number { negative, bits: (mantissa << 90) - 1, exponent: exponent - 90 };
    }
    let twice = if x.abs() > 20.0 { 40 * ONE } else { fixed(mantissa, exponent + 1) };
    let (whole, rest) = (twice / ln2(), twice % ln2());
    let (less_one, small) = (grown(rest), ONE >> whole);
    let bits = quotient(less_one + (ONE - small), ONE + less_one + small);
    Number { negative, bits, exponent: -120 }
}

/// Words of an angle, the lowest first, with 300 bits after the point.
type Angle = [u64; 6];

fn added(a: &Angle, b: &Angle) -> Angle {
    let mut carry = 0;
    std::array::from_fn(|at| {
        let sum = u128::from(a[at]) + u128::from(b[at]) + carry;
        carry = sum >> 64;
        sum as u64
    })
}

fn less(a: &Angle, b: &Angle) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

fn taken(a: &Angle, b: &Angle) -> Angle {
    let mut borrow = 0;
    std::array::from_fn(|at| {
        let difference = i128::from(a[at]) - i128::from(b[at]) - borrow;
        borrow = i128::from(difference < 0);
        difference as u64
    })
}

fn divided(a: &Angle, by: u64) -> Angle {
    let mut rest = 0u128;
    let mut all = *a;
    for word in all.iter_mut().rev() {
        let number = rest << 64 | u128::from(*word);
        *word = (number / u128::from(by)) as u64;
        rest = number % u128::from(by);
    }
    all
}

/// `count / n`'s inverse tangent, by its series.
fn inverse_tangent(count: u64, n: u64) -> Angle {
    let mut one = [0; 6];
    one[300 / 64] = count << (300 % 64);
    let mut power = divided(&one, n);
    let mut sum = power;
    for k in 1.. {
        power = divided(&power, n * n);
        let term = divided(&power, 2 * k + 1);
        if term == [0; 6] {
            break;
        }
        sum = if k % 2 == 1 { taken(&sum, &term) } else { added(&sum, &term) };
    }
    sum
}

/// A quarter turn: `8 atan(1/5) - 2 atan(1/239)` (Machin).
fn quarter() -> Angle {
    taken(&inverse_tangent(8, 5), &inverse_tangent(2, 239))
}

/// Reduces angles.
pub(crate) struct Circle {
    quarter: Angle,
    turn: Angle,
}

impl Circle {
    pub(crate) fn new() -> Circle {
        let quarter = quarter();
        let half = added(&quarter, &quarter);
        Circle { quarter, turn: added(&half, &half) }
    }

    fn doubled(&self, a: &Angle) -> Angle {
        let twice = added(a, a);
        if less(&twice, &self.turn) { twice } else { taken(&twice, &self.turn) }
    }

    /// The quarter turn that an angle of at least 2^-30 lies in, and what is left of it, with 120 bits; and what the
    /// quarter turn lacks.
    fn reduced(&self, x: f32) -> (usize, u128, u128) {
        let (_, mantissa, exponent) = parts(x.abs());
        let mut angle = [0u64; 6];
        // Digits of the mantissa from the top, and then its exponent: each step doubles, modulo a turn.
        let (start, doublings) = if exponent < 0 { (300 + exponent, 0) } else { (300, exponent) };
        let mut unit = [0u64; 6];
        unit[start as usize / 64] = 1 << (start % 64);
        for bit in (0..24).rev() {
            angle = self.doubled(&angle);
            if mantissa >> bit & 1 == 1 {
                angle = added(&angle, &unit);
                if !less(&angle, &self.turn) {
                    angle = taken(&angle, &self.turn);
                }
            }
        }
        for _ in 0..doublings {
            angle = self.doubled(&angle);
        }
        let mut quarters = 0;
        while !less(&angle, &self.quarter) {
            angle = taken(&angle, &self.quarter);
            quarters += 1;
        }
        (quarters, shortened(&angle), shortened(&taken(&self.quarter, &angle)))
    }

    pub(crate) fn sin(&self, x: f32) -> Number {
        if x.abs() < 2f32.powi(-30) {
            let (negative, mantissa, exponent) = parts(x);
            return Number { negative, bits: (mantissa << 90) - 1, exponent: exponent - 90 };
        }
        let (quarters, angle, lacking) = self.reduced(x);
        let value = if quarters % 2 == 0 { sine(angle, lacking) } else { sine(lacking, angle) };
        Number { negative: (x < 0.0) != (quarters >= 2), bits: value, exponent: -120 }
    }

    pub(crate) fn cos(&self, x: f32) -> Number {
        if x.abs() < 2f32.powi(-30) {
            return Number { negative: false, bits: ONE - 1, exponent: -120 };
        }
        let (quarters, angle, lacking) = self.reduced(x);
        let value = if quarters % 2 == 0 { sine(lacking, angle) } else { sine(angle, lacking) };
        Number { negative: quarters == 1 || quarters == 2, bits: value, exponent: -120 }
    }
}

/// The highest 128 bits below 8, with 120 after the point.
fn shortened(a: &Angle) -> u128 {
    // Bit 180 of the angle is the lowest: 180 = 2 * 64 + 52.
    let wide = u128::from(a[3]) | u128::from(a[4]) << 64;
    wide << 12 | u128::from(a[2]) >> 52
}

/// The sine of an angle in the first quarter turn, of which `lacking` is left.
fn sine(angle: u128, lacking: u128) -> u128 {
    let (small, cosine) = if angle < lacking { (angle, false) } else { (lacking, true) };
    let square = product(small, small);
    let mut term = if cosine { ONE } else { small };
    let mut sum = term;
    for k in 1..30u128 {
        let n = 2 * k + u128::from(!cosine);
        term = product(term, square) / (n * (n - 1));
        sum = if k % 2 == 1 { sum - term } else { sum + term };
    }
    sum
}
