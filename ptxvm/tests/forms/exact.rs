//! Floating-point arithmetic from its definition: the exact result as an integer times a power of two, rounded once.

/// A format: bits of the exponent and of the fraction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    exponent: u32,
    fraction: u32,
}

/// IEEE half precision.
pub(crate) const F16: Format = Format { exponent: 5, fraction: 10 };
/// The upper half of an f32.
pub(crate) const BF16: Format = Format { exponent: 8, fraction: 7 };
/// The upper 19 bits of an f32.
pub(crate) const TF32: Format = Format { exponent: 8, fraction: 10 };
/// IEEE single precision.
pub(crate) const F32: Format = Format { exponent: 8, fraction: 23 };
/// IEEE double precision.
pub(crate) const F64: Format = Format { exponent: 11, fraction: 52 };

/// How a number between two values of a format is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To the nearest, ties to the even one.
    Nearest,
    /// To the nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Down.
    Minus,
    /// Up.
    Plus,
}

impl Mode {
    /// Of the modifier's words, `rn` where none is there.
    pub(crate) fn of(words: &[&str]) -> Mode {
        let has = |names: [&str; 2]| words.iter().any(|word| names.contains(word));
        match () {
            _ if has(["rz", "rzi"]) => Mode::Zero,
            _ if has(["rm", "rmi"]) => Mode::Minus,
            _ if has(["rp", "rpi"]) => Mode::Plus,
            _ if words.contains(&"rna") => Mode::Away,
            _ => Mode::Nearest,
        }
    }
}

/// What bits of a format stand for, or the result of an operation before it is rounded.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// No number.
    Nan,
    /// An infinity; negative or not.
    Infinite(bool),
    /// A multiple of a power of two, zeros with their sign.
    Finite(Finite),
}

/// `±integer * 2^power`, and a little more in magnitude where `more`.
#[derive(Clone, Copy)]
pub(crate) struct Finite {
    pub(crate) negative: bool,
    pub(crate) integer: u128,
    pub(crate) power: i32,
    pub(crate) more: bool,
}

impl Format {
    /// So many bits of exponent and fraction.
    pub(crate) fn of_bits(exponent: u32, fraction: u32) -> Format {
        Format { exponent, fraction }
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The power of two of the last bit of a subnormal.
    fn least_power(self) -> i32 {
        1 - self.bias() - self.fraction as i32
    }

    /// The sign bit.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// Bits of an infinity.
    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// The NaN that operations make: all ones but the sign.
    pub(crate) fn nan(self) -> u64 {
        self.sign() - 1
    }

    /// How many last places of a subnormal the least normal number is.
    pub(crate) fn one_in_fraction(self) -> f64 {
        (1u64 << self.fraction) as f64
    }

    /// Bits of 1.
    pub(crate) fn one(self) -> u64 {
        (self.bias() as u64) << self.fraction
    }

    /// Whether bits are a NaN.
    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    /// Whether bits are a subnormal number.
    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & !self.sign();
        magnitude != 0 && magnitude < 1 << self.fraction
    }

    /// Subnormal numbers become zeros of their sign.
    pub(crate) fn flushed(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// What the bits stand for.
    pub(crate) fn number(self, bits: u64) -> Number {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & !self.sign();
        if magnitude > self.infinity() {
            return Number::Nan;
        }
        if magnitude == self.infinity() {
            return Number::Infinite(negative);
        }
        self.finite(bits)
    }

    /// What the bits stand for where every exponent is that of numbers.
    pub(crate) fn finite(self, bits: u64) -> Number {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & !self.sign();
        let (exponent, fraction) = (magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1));
        let hidden = if exponent == 0 { 0 } else { 1 << self.fraction };
        let power = self.least_power() + (exponent.max(1) - 1) as i32;
        Number::Finite(Finite { negative, integer: u128::from(fraction | hidden), power, more: false })
    }

    /// The bits of a number rounded.
    pub(crate) fn rounded(self, number: Number, mode: Mode) -> u64 {
        let value = match number {
            Number::Nan => return self.nan(),
            Number::Infinite(negative) => return self.infinity() | if negative { self.sign() } else { 0 },
            Number::Finite(value) => value,
        };
        let bits = self.encoded(number, mode);
        let sign = if value.negative { self.sign() } else { 0 };
        sign | if bits - sign < self.infinity() { bits - sign } else { self.overflow(value.negative, mode) }
    }

    /// The bits of a finite number rounded, as if exponents went on for ever.
    pub(crate) fn encoded(self, number: Number, mode: Mode) -> u64 {
        let Number::Finite(value) = number else { return self.nan() };
        let sign = if value.negative { self.sign() } else { 0 };
        let (integer, power) = value.rounded(self.fraction as i32 + 1, self.least_power(), mode);
        // A power that the sign bit has no room for is large enough.
        let steps = ((power - self.least_power()) as u64).min(1 << self.exponent);
        let magnitude = match integer {
            0 => 0,
            _ if steps == 0 => integer as u64,
            // Encoded as a sum, the hidden bit moves into the exponent.
            _ => ((steps << self.fraction) + integer as u64).min(self.sign() - 1),
        };
        sign | magnitude
    }

    /// What is too large becomes infinite, or the largest number where rounding goes the other way.
    fn overflow(self, negative: bool, mode: Mode) -> u64 {
        let inwards = match mode {
            Mode::Zero => true,
            Mode::Minus => !negative,
            Mode::Plus => negative,
            _ => false,
        };
        self.infinity() - u64::from(inwards)
    }
}

impl Finite {
    /// The nearest integer and power with at most so many bits and no power below `least`.
    pub(crate) fn rounded(self, bits: i32, least: i32, mode: Mode) -> (u128, i32) {
        let length = 128 - self.integer.leading_zeros() as i32;
        let power = (self.power + length - bits).max(least);
        let cut = power - self.power;
        if cut <= 0 {
            assert!(!self.more, "enough bits were kept");
            return (self.integer << -cut, power);
        }
        let (kept, rest) =
            if cut > 127 { (0, self.integer) } else { (self.integer >> cut, self.integer & ((1 << cut) - 1)) };
        let half = if cut > 127 { u128::MAX } else { 1 << (cut - 1) };
        let inexact = rest != 0 || self.more;
        let up = match mode {
            Mode::Nearest => rest > half || (rest == half && (self.more || kept & 1 == 1)),
            Mode::Away => rest >= half,
            Mode::Zero => false,
            Mode::Minus => inexact && self.negative,
            Mode::Plus => inexact && !self.negative,
        };
        let kept = kept + u128::from(up);
        // A carry makes one bit more, which is zero at the end.
        if kept >> bits != 0 { (kept >> 1, power + 1) } else { (kept, power) }
    }

    /// Shifted so that its highest bit is bit 125.
    fn raised(self) -> Finite {
        let shift = self.integer.leading_zeros() as i32 - 2;
        Finite { integer: self.integer << shift, power: self.power - shift, ..self }
    }
}

/// `a + b`; an exact zero of different signs is positive, and negative when rounding down.
pub(crate) fn sum(a: Number, b: Number, mode: Mode) -> Number {
    let (a, b) = match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => return Number::Nan,
        (Number::Infinite(a), Number::Infinite(b)) => return if a == b { Number::Infinite(a) } else { Number::Nan },
        (Number::Infinite(negative), _) | (_, Number::Infinite(negative)) => return Number::Infinite(negative),
        (Number::Finite(a), Number::Finite(b)) => (a, b),
    };
    if a.integer == 0 && b.integer == 0 {
        let negative = if a.negative == b.negative { a.negative } else { mode == Mode::Minus };
        return Number::Finite(Finite { negative, ..a });
    }
    if a.integer == 0 || b.integer == 0 {
        return Number::Finite(if a.integer == 0 { b } else { a });
    }
    let (a, b) = (a.raised(), b.raised());
    let (large, small) = if (a.power, a.integer) >= (b.power, b.integer) { (a, b) } else { (b, a) };
    let shift = (large.power - small.power) as u32;
    let kept = small.integer.checked_shr(shift).unwrap_or(0);
    let lost = shift > 127 || small.integer & ((1 << shift) - 1) != 0;
    let (integer, negative) = match large.negative == small.negative {
        true => (large.integer + kept, large.negative),
        // What was cut of the small one is taken from the difference: one less, and a little more than that.
        false => (large.integer - kept - u128::from(lost), large.negative),
    };
    if integer == 0 {
        return Number::Finite(Finite { negative: mode == Mode::Minus, integer: 0, power: 0, more: false });
    }
    Number::Finite(Finite { negative, integer, power: large.power, more: lost })
}

/// `a * b`.
pub(crate) fn product(a: Number, b: Number) -> Number {
    let zero = |number: &Number| matches!(number, Number::Finite(value) if value.integer == 0);
    let negative = |number: &Number| match number {
        Number::Finite(value) => value.negative,
        Number::Infinite(negative) => *negative,
        Number::Nan => false,
    };
    let sign = negative(&a) != negative(&b);
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Finite(a), Number::Finite(b)) => Number::Finite(Finite {
            negative: sign,
            integer: a.integer * b.integer,
            power: a.power + b.power,
            more: false,
        }),
        _ if zero(&a) || zero(&b) => Number::Nan,
        _ => Number::Infinite(sign),
    }
}

/// `a / b`, with more bits than any format has.
pub(crate) fn quotient(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) | (Number::Infinite(_), Number::Infinite(_)) => Number::Nan,
        (Number::Infinite(a), Number::Finite(b)) => Number::Infinite(a != b.negative),
        (Number::Finite(a), Number::Infinite(b)) => {
            Number::Finite(Finite { negative: a.negative != b, integer: 0, power: 0, more: false })
        }
        (Number::Finite(a), Number::Finite(b)) => {
            let negative = a.negative != b.negative;
            match (a.integer, b.integer) {
                (0, 0) => Number::Nan,
                (_, 0) => Number::Infinite(negative),
                (0, _) => Number::Finite(Finite { negative, ..a }),
                _ => {
                    let a = a.raised();
                    let (integer, rest) = (a.integer / b.integer, a.integer % b.integer);
                    Number::Finite(Finite { negative, integer, power: a.power - b.power, more: rest != 0 })
                }
            }
        }
    }
}

/// The square root, with more bits than any format has.
pub(crate) fn square_root(a: Number) -> Number {
    match a {
        Number::Finite(value) if value.integer == 0 => a,
        Number::Finite(value) if !value.negative => {
            let raised = value.raised();
            let even = if raised.power % 2 == 0 {
                raised
            } else {
                Finite { integer: raised.integer << 1, power: raised.power - 1, ..raised }
            };
            let root = even.integer.isqrt();
            let more = root * root != even.integer;
            Number::Finite(Finite { negative: false, integer: root, power: even.power / 2, more })
        }
        Number::Infinite(false) => a,
        _ => Number::Nan,
    }
}
