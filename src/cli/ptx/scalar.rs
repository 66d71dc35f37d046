//! Numbers as kernel arguments: from JSON, or from the text of a flag.

use serde_json::Value as Json;
use warpweft::device::ptxvm::system::{Argument, Value};
use warpweft::device::{bf16, f16};

/// A number of a kernel's parameter type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    S8(i8),
    S16(i16),
    S32(i32),
    S64(i64),
    F32(f32),
    F64(f64),
    F16(f16),
    Bf16(bf16),
}

impl Scalar {
    pub(super) const TYPES: [&str; 12] =
        ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64", "f16", "bf16"];

    /// A JSON number, or a string as a flag has it (`"nan"`, `"0x7f"`).
    pub(super) fn from_json(ty: &str, value: &Json) -> Result<Scalar, String> {
        match value {
            Json::Number(number) => Scalar::parse(ty, &number.to_string()),
            Json::String(text) => Scalar::parse(ty, text),
            _ => Err(format!("{ty} cannot be {value}: it is a number")),
        }
    }

    /// A decimal number; integers also with `0x`, floats also `nan`, `inf`, `-inf`. It must be in the type's range.
    pub(super) fn parse(ty: &str, text: &str) -> Result<Scalar, String> {
        let scalar = match ty {
            "u8" => Scalar::U8(integer(ty, text)?),
            "u16" => Scalar::U16(integer(ty, text)?),
            "u32" => Scalar::U32(integer(ty, text)?),
            "u64" => Scalar::U64(integer(ty, text)?),
            "s8" => Scalar::S8(integer(ty, text)?),
            "s16" => Scalar::S16(integer(ty, text)?),
            "s32" => Scalar::S32(integer(ty, text)?),
            "s64" => Scalar::S64(integer(ty, text)?),
            "f64" => Scalar::F64(float(ty, text, |value| value)?),
            "f32" => {
                float(ty, text, |value| f64::from(value as f32))?;
                // From the digits, so that the value is rounded once.
                Scalar::F32(text.parse().map_err(|_| no_number(ty, text))?)
            }
            "f16" => Scalar::F16(f16::from_f64(float(ty, text, |value| f16::from_f64(value).to_f64())?)),
            "bf16" => Scalar::Bf16(bf16::from_f64(float(ty, text, |value| bf16::from_f64(value).to_f64())?)),
            _ => return Err(format!("there is no type `{ty}`; the types are {}", Scalar::TYPES.join(", "))),
        };
        Ok(scalar)
    }

    /// As an argument.
    pub(super) fn value(self) -> Value {
        match self {
            Scalar::U8(value) => value.value(),
            Scalar::U16(value) => value.value(),
            Scalar::U32(value) => value.value(),
            Scalar::U64(value) => value.value(),
            Scalar::S8(value) => value.value(),
            Scalar::S16(value) => value.value(),
            Scalar::S32(value) => value.value(),
            Scalar::S64(value) => value.value(),
            Scalar::F32(value) => value.value(),
            Scalar::F64(value) => value.value(),
            Scalar::F16(value) => value.value(),
            Scalar::Bf16(value) => value.value(),
        }
    }
}

fn no_number(ty: &str, text: &str) -> String {
    format!("{ty} cannot be `{text}`: it is no number of that type")
}

fn integer<T: TryFrom<i128>>(ty: &str, text: &str) -> Result<T, String> {
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let value = value.map_err(|_| no_number(ty, text))?;
    T::try_from(value).map_err(|_| format!("{ty} cannot be {text}: it is out of range"))
}

/// `rounded` is the value in the target type: one that only becomes infinite there is refused.
fn float(ty: &str, text: &str, rounded: impl Fn(f64) -> f64) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| no_number(ty, text))?;
    // A number that overflows f64 parses as infinity; only the word may.
    let spelled = text.trim_start_matches(['+', '-']).to_ascii_lowercase().starts_with("inf");
    if rounded(value).is_infinite() && !spelled {
        return Err(format!("{ty} cannot be {text}: it is out of range"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_type_and_range() {
        for (ty, text, wanted) in [
            ("u8", "255", Scalar::U8(255)),
            ("s8", "-128", Scalar::S8(-128)),
            ("u64", "18446744073709551615", Scalar::U64(u64::MAX)),
            ("s64", "-9223372036854775808", Scalar::S64(i64::MIN)),
            ("u32", "0xffffffff", Scalar::U32(u32::MAX)),
            ("f32", "0.1", Scalar::F32(0.1)),
            ("f32", "-inf", Scalar::F32(f32::NEG_INFINITY)),
            ("f16", "65504", Scalar::F16(f16::MAX)),
            ("bf16", "1.5", Scalar::Bf16(bf16::from_f32(1.5))),
            ("f64", "1e-320", Scalar::F64(1e-320)),
        ] {
            assert_eq!(Scalar::parse(ty, text), Ok(wanted), "{ty}:{text}");
        }
        assert!(matches!(Scalar::parse("f32", "nan"), Ok(Scalar::F32(value)) if value.is_nan()));
        for (ty, text) in [
            ("u8", "256"),
            ("u8", "-1"),
            ("s8", "128"),
            ("u32", "1.5"),
            ("u64", "18446744073709551616"),
            ("f32", "1e39"),
            ("f16", "1e6"),
            ("f64", "1e400"),
            ("f32", "one"),
            ("i32", "1"),
            ("u32", ""),
        ] {
            assert!(Scalar::parse(ty, text).is_err(), "{ty}:{text}");
        }
    }

    #[test]
    fn json_numbers_are_read_whole() {
        let of = |ty: &str, text: &str| Scalar::from_json(ty, &serde_json::from_str(text).unwrap());
        assert_eq!(of("u64", "18446744073709551615"), Ok(Scalar::U64(u64::MAX)));
        assert_eq!(of("f32", "1"), Ok(Scalar::F32(1.0)));
        assert_eq!(of("f64", "1e22"), Ok(Scalar::F64(1e22)));
        assert_eq!(of("f32", "\"inf\""), Ok(Scalar::F32(f32::INFINITY)));
        assert!(of("u32", "true").is_err() && of("u32", "1.5").is_err() && of("u32", "[1]").is_err());
    }
}
