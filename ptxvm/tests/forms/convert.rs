//! `cvt` with a float on either side: the exact value, rounded once.

use warpweft_ptxvm::table::TABLE;
use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, operation};
use crate::exact::{BF16, F16, F32, F64, Finite, Format, Mode, Number, TF32};
use crate::integer::{ends, number, wrapped};

pub(crate) fn cases() -> Vec<Case> {
    let floating = |ty: &Type| ty.kind() == Kind::Float;
    let rows = TABLE.named("cvt").filter(|row| row.pattern.types().iter().any(floating));
    rows.flat_map(|row| row.pattern.spellings()).filter_map(|words| case(&format!("cvt{words}"))).collect()
}

/// A format, or one of 8 bits that has no infinity.
fn format(ty: Type) -> Option<Format> {
    Some(match ty {
        Type::F16 | Type::F16x2 => F16,
        Type::Bf16 | Type::Bf16x2 => BF16,
        Type::Tf32 => TF32,
        Type::F32 => F32,
        Type::F64 => F64,
        _ => return None,
    })
}

/// What the words of a conversion say.
#[derive(Clone)]
struct Conversion {
    to: Type,
    from: Type,
    mode: Mode,
    integral: bool,
    ftz: bool,
    sat: bool,
    satfinite: bool,
    relu: bool,
}

fn case(spelled: &str) -> Option<Case> {
    let words: Vec<&str> = spelled.split('.').collect();
    let types: Vec<Type> = words.iter().filter_map(|word| Type::from_name(word)).collect();
    let [to, from] = types[..] else { return None };
    let has = |word: &str| words.contains(&word);
    let conversion = Conversion {
        to,
        from,
        mode: Mode::of(&words),
        integral: ["rni", "rzi", "rmi", "rpi"].into_iter().any(has),
        ftz: has("ftz"),
        sat: has("sat"),
        satfinite: has("satfinite"),
        relu: has("relu"),
    };
    let (d, a) = (to.name(), from.name());
    let pair = matches!(to, Type::F16x2 | Type::Bf16x2 | Type::E4m3x2 | Type::E5m2x2) && from == Type::F32;
    let half = if matches!(to, Type::E4m3x2 | Type::E5m2x2) { 8 } else { 16 };
    let define = move |conversion: &Conversion, x: &[u64]| match (conversion.from, pair) {
        // The first source goes to the upper half.
        (_, true) => conversion.of_one(x[0]) << half | conversion.of_one(x[1]),
        (Type::F16x2 | Type::E4m3x2 | Type::E5m2x2, _) => {
            let source = if conversion.from == Type::F16x2 { 16 } else { 8 };
            let part = |at: u32| conversion.of_one(x[0] >> (source * at) & ((1 << source) - 1));
            part(0) | part(1) << half
        }
        _ => conversion.of_one(x[0]),
    };
    let operands = if pair { format!("d:{d} a:{a} b:{a}") } else { format!("d:{d} a:{a}") };
    // NaNs of floats are the same, whatever their bits; of tf32 the low bits say nothing.
    let nan = format(to).filter(|_| !matches!(to, Type::Tf32)).map(|format| {
        let width = if to.name().ends_with("x2") { 16 } else { to.bits() };
        (format, width)
    });
    let accepted = conversion.clone();
    let accept = move |x: &[u64], got: &[u64]| {
        let expected = define(&accepted, x);
        if to == Type::Tf32 {
            return expected == got[0] & !0x1fff || (F32.is_nan(expected) && F32.is_nan(got[0]));
        }
        let Some((format, width)) = nan else { return expected == got[0] };
        (0..to.bits() / width).all(|part| {
            let cut = |bits: u64| bits >> (part * width) & (u64::MAX >> (64 - width));
            let (expected, got) = (cut(expected), cut(got[0]));
            expected == got || (format.is_nan(expected) && format.is_nan(got))
        })
    };
    Some(operation(spelled, &operands, |_| vec![0]).accept(accept).case())
}

impl Conversion {
    /// One value converted.
    fn of_one(&self, bits: u64) -> u64 {
        let source = self.source(bits);
        match self.to {
            Type::E4m3x2 => eight_bits(source, self, Format::of_bits(4, 3), 0x7e),
            Type::E5m2x2 => eight_bits(source, self, Format::of_bits(5, 2), 0x7b),
            _ => match format(self.to) {
                Some(format) => self.to_float(source, format),
                None => self.to_integer(source),
            },
        }
    }

    fn source(&self, bits: u64) -> Number {
        match (format(self.from), self.from) {
            (_, Type::E4m3x2) if bits & 0x7f == 0x7f => Number::Nan,
            // All its exponents are of numbers: those of twice the format's are read by one bit more.
            (_, Type::E4m3x2) => Format::of_bits(4, 3).finite(bits),
            (_, Type::E5m2x2) => Format::of_bits(5, 2).number(bits),
            (Some(format), _) => {
                format.number(if self.ftz && self.from == Type::F32 { format.flushed(bits) } else { bits })
            }
            (None, ty) => {
                let value = number(ty, bits);
                Number::Finite(Finite { negative: value < 0, integer: value.unsigned_abs(), power: 0, more: false })
            }
        }
    }

    fn to_float(&self, source: Number, format: Format) -> u64 {
        let source = match source {
            Number::Finite(value) if self.integral => {
                let (integer, power) = value.rounded(127, 0, self.mode);
                Number::Finite(Finite { integer, power, ..value })
            }
            _ => source,
        };
        let bits = format.rounded(source, self.mode);
        let bits = if self.ftz && self.to == Type::F32 { format.flushed(bits) } else { bits };
        let negative = bits & format.sign() != 0;
        let bits = match () {
            _ if self.sat && (format.is_nan(bits) || negative) => 0,
            _ if self.sat => bits.min(format.one()),
            _ if self.relu && negative && !format.is_nan(bits) => 0,
            _ if self.satfinite && !format.is_nan(bits) && bits & !format.sign() == format.infinity() => bits - 1,
            _ => bits,
        };
        if self.to == Type::Tf32 { bits << 13 } else { bits }
    }

    /// Clamped to the type's range. A NaN becomes 0, and the highest bit alone where f64 or 64 bits take part.
    fn to_integer(&self, source: Number) -> u64 {
        let (least, most) = ends(self.to);
        let value = match source {
            Number::Nan if self.from == Type::F64 || self.to.bits() == 64 => 1 << (self.to.bits() - 1),
            Number::Nan => 0,
            Number::Infinite(negative) => {
                if negative {
                    least
                } else {
                    most
                }
            }
            Number::Finite(value) => {
                let (integer, power) = value.rounded(127, 0, self.mode);
                let magnitude = if power > 0 && integer != 0 { i128::MAX } else { integer as i128 };
                (if value.negative { -magnitude } else { magnitude }).clamp(least, most)
            }
        };
        let bits = wrapped(self.to, value);
        if self.to.bits() == 8 { wrapped(Type::B32, number(self.to, bits)) } else { bits }
    }
}

/// An 8-bit float: what is too large becomes the largest number, of either sign.
fn eight_bits(source: Number, conversion: &Conversion, format: Format, largest: u64) -> u64 {
    let Number::Finite(_) = source else {
        return match source {
            Number::Infinite(true) if conversion.relu => 0,
            Number::Infinite(negative) => largest | u64::from(negative) << 7,
            _ => 0x7f,
        };
    };
    let bits = format.encoded(source, conversion.mode);
    let (sign, magnitude) = (bits & 0x80, (bits & !0x80).min(largest));
    if conversion.relu && sign != 0 { 0 } else { sign | magnitude }
}
