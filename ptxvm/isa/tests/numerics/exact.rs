//! Arithmetic by its definition: exact numbers in fixed point, wide enough for every product and sum of f64, and one
//! rounding that reads the exact number's bits. Nothing here is shared with the device's own arithmetic.

/// 64-bit words of a number.
const WORDS: usize = 68;
/// The weight of the lowest bit is 2^-POINT: below the product of two subnormals, and further for cut-off tails.
const POINT: i32 = 2200;

/// A number, `±bits * 2^-POINT`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    words: [u64; WORDS],
}

/// Rounding to a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
    Away,
}

/// A binary format: digits with the hidden one, the exponent of the least normal number, and of the largest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) digits: i32,
    pub(crate) least: i32,
    pub(crate) largest: i32,
}

pub(crate) const F64: Format = Format { digits: 53, least: -1022, largest: 1023 };
pub(crate) const F32: Format = Format { digits: 24, least: -126, largest: 127 };
pub(crate) const F16: Format = Format { digits: 11, least: -14, largest: 15 };
pub(crate) const BF16: Format = Format { digits: 8, least: -126, largest: 127 };
pub(crate) const TF32: Format = Format { digits: 11, least: -126, largest: 127 };

impl Format {
    /// The value of a code: the definition of a binary interchange format.
    pub(crate) fn value(self, code: u64) -> f64 {
        let fraction_bits = self.digits - 1;
        let (exponents, bias) = (self.largest + 1 - (self.least - 1), 1 - self.least);
        let fraction = (code & ((1 << fraction_bits) - 1)) as f64;
        let field = (code >> fraction_bits) as i32 & exponents;
        let sign = if code >> fraction_bits > exponents as u64 { -1.0 } else { 1.0 };
        let unit = power(-fraction_bits);
        sign * match field {
            0 => fraction * unit * power(self.least),
            field if field == exponents && fraction == 0.0 => f64::INFINITY,
            field if field == exponents => f64::NAN,
            field => (1.0 + fraction * unit) * power(field - bias),
        }
    }

    /// The code of a number that the format has, or of an infinity.
    pub(crate) fn code(self, x: f64) -> u64 {
        let fraction_bits = self.digits - 1;
        let sign = u64::from(x.is_sign_negative()) << (fraction_bits + exponent_bits(self));
        let magnitude = match x.abs() {
            0.0 => 0,
            f64::INFINITY => ((self.largest + 1 - (self.least - 1)) as u64) << fraction_bits,
            x if x < power(self.least) => (x / power(self.least) / power(-fraction_bits)) as u64,
            x => {
                let exponent = (self.least..=self.largest).rev().find(|&e| x >= power(e)).expect("a number in range");
                let scaled =
                    if exponent < -1000 { x * power(1000) / power(exponent + 1000) } else { x / power(exponent) };
                (((exponent - self.least + 1) as u64) << fraction_bits)
                    + ((scaled - 1.0) / power(-fraction_bits)) as u64
            }
        };
        sign | magnitude
    }
}

fn exponent_bits(format: Format) -> i32 {
    ((format.largest + 1 - (format.least - 1)) as u64 + 1).trailing_zeros() as i32
}

/// Two to a power that an f64 has.
pub(crate) fn power(exponent: i32) -> f64 {
    match exponent {
        ..-1022 => f64::from_bits(1 << (exponent + 1074)),
        _ => f64::from_bits(((exponent + 1023) as u64) << 52),
    }
}

impl Exact {
    pub(crate) const ZERO: Exact = Exact { negative: false, words: [0; WORDS] };

    /// `±integer * 2^exponent`; bits below the lowest weight become one lowest bit.
    pub(crate) fn new(negative: bool, integer: u128, exponent: i32) -> Exact {
        let mut number = Exact { negative, ..Exact::ZERO };
        for bit in (0..128).filter(|bit| integer >> bit & 1 == 1) {
            let place = (bit + exponent + POINT).max(0) as usize;
            number.words[place / 64] |= 1 << (place % 64);
        }
        number
    }

    /// The value of a finite number.
    pub(crate) fn of(x: f64) -> Exact {
        assert!(x.is_finite());
        let (negative, integer, exponent) = parts(x);
        Exact::new(negative, integer.into(), exponent)
    }

    pub(crate) fn product(x: f64, y: f64) -> Exact {
        let ((p, a, i), (q, b, j)) = (parts(x), parts(y));
        Exact::new(p != q, u128::from(a) * u128::from(b), i + j)
    }

    /// The quotient with 100 digits, digit by digit; a remainder sets one more.
    pub(crate) fn quotient(x: f64, y: f64) -> Exact {
        let ((p, a, i), (q, b, j)) = (parts(x), parts(y));
        let (mut rest, divisor) = (u128::from(a), u128::from(b));
        let mut digits = rest / divisor;
        rest %= divisor;
        let mut exponent = i - j;
        while digits >> 100 == 0 {
            rest <<= 1;
            digits = digits << 1 | u128::from(rest >= divisor);
            rest -= if rest >= divisor { divisor } else { 0 };
            exponent -= 1;
        }
        Exact::new(p != q, digits << 1 | u128::from(rest != 0), exponent - 1)
    }

    /// The square root with 60 digits, by trial of each digit; a remainder sets one more.
    pub(crate) fn root(x: f64) -> Exact {
        let (_, integer, exponent) = parts(x);
        let mut number = u128::from(integer);
        let mut exponent = exponent;
        while number >> 118 == 0 || exponent % 2 != 0 {
            number <<= 1;
            exponent -= 1;
        }
        let mut root = 0u128;
        for bit in (0..61).rev() {
            let trial = root | 1 << bit;
            if trial * trial <= number {
                root = trial;
            }
        }
        Exact::new(false, root << 1 | u128::from(root * root != number), exponent / 2 - 1)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    pub(crate) fn plus(&self, other: &Exact) -> Exact {
        if self.negative == other.negative {
            let mut sum = self.clone();
            let mut carry = 0;
            for (word, &added) in sum.words.iter_mut().zip(&other.words) {
                let total = u128::from(*word) + u128::from(added) + carry;
                *word = total as u64;
                carry = total >> 64;
            }
            return sum;
        }
        let (large, small) = if self.magnitude_less(other) { (other, self) } else { (self, other) };
        let mut difference = large.clone();
        let mut borrow = 0;
        for (word, &taken) in difference.words.iter_mut().zip(&small.words) {
            let total = i128::from(*word) - i128::from(taken) - borrow;
            *word = total as u64;
            borrow = i128::from(total < 0);
        }
        difference
    }

    fn magnitude_less(&self, other: &Exact) -> bool {
        self.words.iter().rev().lt(other.words.iter().rev())
    }

    fn bit(&self, place: i32) -> bool {
        place >= 0 && self.words[place as usize / 64] >> (place % 64) & 1 == 1
    }

    fn any_below(&self, place: i32) -> bool {
        let (whole, part) = (place.max(0) as usize / 64, place.max(0) % 64);
        self.words[..whole].iter().any(|&word| word != 0) || self.words[whole] & ((1 << part) - 1) != 0
    }

    fn top(&self) -> i32 {
        let word = self.words.iter().rposition(|&word| word != 0).expect("no zero");
        word as i32 * 64 + 63 - self.words[word].leading_zeros() as i32
    }

    /// Rounds a number that is not zero: its digits as an integer and the exponent of the last, or `None` for overflow to
    /// infinity.
    fn digits(&self, format: Format, mode: Mode) -> Option<(u64, i32)> {
        let last = (self.top() - (format.digits - 1)).max(format.least - (format.digits - 1) + POINT);
        let kept = (0..format.digits).fold(0, |sum, at| sum | u64::from(self.bit(last + at)) << at);
        let (half, below) = (self.bit(last - 1), self.any_below(last - 1));
        let up = match mode {
            Mode::Nearest => half && (below || kept & 1 == 1),
            Mode::Away => half,
            Mode::Zero => false,
            Mode::Down => self.negative && (half || below),
            Mode::Up => !self.negative && (half || below),
        };
        let kept = kept + u64::from(up);
        let (kept, last) = if kept == 1 << format.digits { (kept >> 1, last + 1) } else { (kept, last) };
        let last = last - POINT;
        if last > format.largest - (format.digits - 1) {
            let finite = match mode {
                Mode::Nearest | Mode::Away => false,
                Mode::Zero => true,
                Mode::Down => !self.negative,
                Mode::Up => self.negative,
            };
            return finite.then_some(((1 << format.digits) - 1, format.largest - (format.digits - 1)));
        }
        Some((kept, last))
    }

    /// Rounds to a format of up to 53 digits; the value as f64, which holds them all.
    pub(crate) fn round(&self, format: Format, mode: Mode) -> f64 {
        if self.is_zero() {
            return 0.0;
        }
        let magnitude = match self.digits(format, mode) {
            None => f64::INFINITY,
            // Two steps, for a power of two below the least normal one is no f64 to multiply with.
            Some((kept, last)) => kept as f64 * power(last / 2) * power(last - last / 2),
        };
        if self.negative { -magnitude } else { magnitude }
    }

    /// Rounds to an integer, beyond any range as far as an i128 goes.
    pub(crate) fn integer(&self, mode: Mode) -> i128 {
        if self.is_zero() {
            return 0;
        }
        if self.top() > POINT + 120 {
            return if self.negative { i128::MIN / 2 } else { i128::MAX / 2 };
        }
        let kept = (0..122).fold(0i128, |sum, at| sum | i128::from(self.bit(POINT + at)) << at);
        let (half, below) = (self.bit(POINT - 1), self.any_below(POINT - 1));
        let up = match mode {
            Mode::Nearest => half && (below || kept & 1 == 1),
            Mode::Away => half,
            Mode::Zero => false,
            Mode::Down => self.negative && (half || below),
            Mode::Up => !self.negative && (half || below),
        };
        let kept = kept + i128::from(up);
        if self.negative { -kept } else { kept }
    }
}

/// Sign, integer and exponent of a finite f64.
fn parts(x: f64) -> (bool, u64, i32) {
    let bits = x.to_bits();
    let (field, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
    match field {
        0 => (x.is_sign_negative(), fraction, -1074),
        _ => (x.is_sign_negative(), fraction | 1 << 52, field as i32 - 1075),
    }
}

/// The zero that an exact sum of two terms is: of their sign where they agree, else +0, or -0 rounding down.
pub(crate) fn zero_of_sum(first_negative: bool, second_negative: bool, mode: Mode) -> f64 {
    match (first_negative, second_negative) {
        (true, true) => -0.0,
        (false, false) => 0.0,
        _ if mode == Mode::Down => -0.0,
        _ => 0.0,
    }
}

/// `a * b + c` rounded once to a format, special values by IEEE 754. NaN has no payload here.
pub(crate) fn fused(a: f64, b: f64, c: f64, format: Format, mode: Mode) -> f64 {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        // With an infinity or NaN nothing is rounded; finite numbers count by their sign alone.
        let unit = |x: f64| if x.is_finite() && x != 0.0 { 1f64.copysign(x) } else { x };
        let (a, b) = (unit(a), unit(b));
        return a * b + if c.is_finite() { 0.0 } else { c };
    }
    let (product, added) = (Exact::product(a, b), Exact::of(c));
    let sum = product.plus(&added);
    if sum.is_zero() {
        return zero_of_sum(a.is_sign_negative() != b.is_sign_negative(), c.is_sign_negative(), mode);
    }
    sum.round(format, mode)
}

pub(crate) fn sum(a: f64, b: f64, format: Format, mode: Mode) -> f64 {
    if !(a.is_finite() && b.is_finite()) {
        return a + b;
    }
    let sum = Exact::of(a).plus(&Exact::of(b));
    if sum.is_zero() { zero_of_sum(a.is_sign_negative(), b.is_sign_negative(), mode) } else { sum.round(format, mode) }
}

pub(crate) fn product(a: f64, b: f64, format: Format, mode: Mode) -> f64 {
    if !(a.is_finite() && b.is_finite()) || a == 0.0 || b == 0.0 {
        return a * b;
    }
    Exact::product(a, b).round(format, mode)
}

pub(crate) fn quotient(a: f64, b: f64, format: Format, mode: Mode) -> f64 {
    if !(a.is_finite() && b.is_finite()) || a == 0.0 || b == 0.0 {
        return a / b;
    }
    Exact::quotient(a, b).round(format, mode)
}

pub(crate) fn root(a: f64, format: Format, mode: Mode) -> f64 {
    if !a.is_finite() || a <= 0.0 { a.sqrt() } else { Exact::root(a).round(format, mode) }
}

/// A finite number rounded to a format; the rest stays.
pub(crate) fn rounded(a: f64, format: Format, mode: Mode) -> f64 {
    if a.is_finite() && a != 0.0 { Exact::of(a).round(format, mode) } else { a }
}
