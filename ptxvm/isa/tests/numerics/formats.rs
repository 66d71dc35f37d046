//! Formats narrower than f32, and integers: every code read, and numbers of all kinds written in every rounding.

use half::{bf16, f16};
use warpweft_ptxvm_isa::numerics::flags::{AWAY, DOWN, NEAREST, SATFINITE, UP, ZERO};
use warpweft_ptxvm_isa::numerics::format::{self, E4m3, E5m2, Tf32};
use warpweft_ptxvm_isa::numerics::integer::{self, Integer, to_integer};
use warpweft_ptxvm_isa::numerics::single;

use crate::exact::{BF16, Exact, F16, F32, F64, Format, Mode, TF32, rounded};
use crate::random::Random;

const E5M2: Format = Format { digits: 3, least: -14, largest: 15 };
/// Its largest numbers are those of the exponent that IEEE would keep for infinity; the last code of it is NaN.
const E4M3: Format = Format { digits: 4, least: -6, largest: 8 };

fn same(got: f32, expected: f64) -> bool {
    if expected.is_nan() { got.to_bits() == 0x7fff_ffff } else { f64::from(got).to_bits() == expected.to_bits() }
}

#[test]
fn every_code_is_read_as_its_value() {
    for code in 0..=0xffff {
        assert!(same(format::to_f32::<f16>(code), F16.value(code.into())), "f16 {code:04x}");
        assert!(same(format::to_f32::<bf16>(code), BF16.value(code.into())), "bf16 {code:04x}");
    }
    for code in 0..=0xff_u32 {
        assert!(same(format::to_f32::<E5m2>(code), E5M2.value(code.into())), "e5m2 {code:02x}");
        let (field, fraction) = (code >> 3 & 15, f64::from(code & 7));
        let magnitude = match field {
            0 => fraction / 8.0 / 64.0,
            15 if fraction == 7.0 => f64::NAN,
            _ => (1.0 + fraction / 8.0) * 2f64.powi(field as i32 - 7),
        };
        let expected = if code < 0x80 { magnitude } else { -magnitude };
        assert!(same(format::to_f32::<E4m3>(code), expected), "e4m3 {code:02x}");
    }
}

/// Sources: a stride through all f32, and around the middle between each two f16.
fn sources() -> impl Iterator<Item = f32> {
    let stride = (0..=u32::MAX).step_by(40_009).map(f32::from_bits);
    let middles = (0..0x7c00u64).step_by(3).flat_map(|code| {
        let middle = ((F16.value(code) + F16.value((code + 1).min(0x7bff))) / 2.0) as f32;
        [middle, middle.next_up(), -middle.next_down(), -middle]
    });
    stride.chain(middles).chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 65519.996, 65520.0, 448.0, 464.0, 465.0])
}

/// What a format makes of a number: codes are compared.
fn expected(x: f32, format: Format, mode: Mode) -> u64 {
    format.code(rounded(x.into(), format, mode))
}

fn written<const M: u32>(mode: Mode) {
    for x in sources() {
        let shown = format!("{x:e} ({:08x}) {mode:?}", x.to_bits());
        let wide = f64::from(x);
        if x.is_nan() {
            assert_eq!(format::from_f32::<f16, M>(x), 0x7fff);
            assert_eq!(format::from_f64::<bf16, M>(wide), 0x7fff);
            continue;
        }
        assert_eq!(u64::from(format::from_f32::<f16, M>(x)), expected(x, F16, mode), "f16 of {shown}");
        assert_eq!(u64::from(format::from_f64::<f16, M>(wide)), expected(x, F16, mode), "f16 of f64 {shown}");
        assert_eq!(u64::from(format::from_f32::<bf16, M>(x)), expected(x, BF16, mode), "bf16 of {shown}");
        assert_eq!(u64::from(format::from_f64::<bf16, M>(wide)), expected(x, BF16, mode), "bf16 of f64 {shown}");
        assert_eq!(u64::from(format::from_f32::<Tf32, M>(x)), expected(x, TF32, mode), "tf32 of {shown}");
        assert_eq!(u64::from(format::from_f32::<E5m2, M>(x)), expected(x, E5M2, mode), "e5m2 of {shown}");
    }
}

#[test]
fn numbers_are_rounded_to_a_format_once() {
    written::<NEAREST>(Mode::Nearest);
    written::<ZERO>(Mode::Zero);
    written::<DOWN>(Mode::Down);
    written::<UP>(Mode::Up);
    written::<AWAY>(Mode::Away);
}

#[test]
fn what_is_too_large_stays_finite() {
    for x in sources() {
        let e4m3 = if x.is_nan() {
            0x7f
        } else {
            let magnitude = rounded(f64::from(x).abs(), E4M3, Mode::Nearest).min(448.0);
            E4M3.code(magnitude) | u64::from(x.is_sign_negative()) << 7
        };
        assert_eq!(u64::from(format::from_f32::<E4m3, SATFINITE>(x)), e4m3, "e4m3 of {x:e}");
        let f16_code = if x.is_nan() {
            0x7fff
        } else {
            F16.code(rounded(f64::from(x), F16, Mode::Nearest).clamp(-65504.0, 65504.0))
        };
        assert_eq!(u64::from(format::from_f32::<f16, SATFINITE>(x)), f16_code, "f16 of {x:e}");
    }
}

#[test]
fn f64_is_rounded_once_to_every_format() {
    let mut random = Random(11);
    for _ in 0..40_000 {
        // The middle of two f32 or f16, moved by less than either can tell.
        let narrow = match random.bits() % 2 {
            0 => f64::from(f32::from_bits(random.code(F32, 32) as u32)),
            _ => F16.value(random.code(F16, 16)),
        };
        let x = match random.bits() % 4 {
            0 => f64::from_bits(random.code(F64, 64)),
            1 => narrow * (1.0 + 2f64.powi(-25)),
            2 => narrow * (1.0 + 2f64.powi(-12) + 2f64.powi(-40)),
            _ => narrow * (1.0 + 2f64.powi(-11) - 2f64.powi(-50)),
        };
        if x.is_nan() {
            continue;
        }
        let check = |got: f64, format: Format, mode| {
            let expected = rounded(x, format, mode);
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{x:e} is {got:e}, expected {expected:e}: {format:?} {mode:?}"
            );
        };
        check(single::narrow::<NEAREST>(x).into(), F32, Mode::Nearest);
        check(single::narrow::<ZERO>(x).into(), F32, Mode::Zero);
        check(single::narrow::<DOWN>(x).into(), F32, Mode::Down);
        check(single::narrow::<UP>(x).into(), F32, Mode::Up);
        check(F16.value(format::from_f64::<f16, NEAREST>(x).into()), F16, Mode::Nearest);
        check(F16.value(format::from_f64::<f16, UP>(x).into()), F16, Mode::Up);
        check(BF16.value(format::from_f64::<bf16, NEAREST>(x).into()), BF16, Mode::Nearest);
    }
}

/// From floats to one integer type in every rounding.
fn to_integers<I: Integer>(least: i128, most: i128) {
    let mut random = Random(5);
    for round in 0..20_000 {
        let x = match round % 3 {
            0 => f64::from_bits(random.code(F64, 64)),
            // Around the halves, and around the ends of the types.
            1 => {
                (random.bits() >> (random.bits() % 64)) as f64 / 2.0
                    * if random.bits().is_multiple_of(2) { 1.0 } else { -1.0 }
            }
            _ => [least as f64, most as f64][round / 3 % 2] + (random.bits() % 9) as f64 / 2.0 - 2.0,
        };
        if x.is_nan() {
            continue;
        }
        let expected = |mode| {
            let whole = match x {
                f64::INFINITY => i128::MAX,
                f64::NEG_INFINITY => i128::MIN,
                _ => Exact::of(x).integer(mode),
            };
            whole.clamp(least, most)
        };
        let got = [
            (to_integer::<I, NEAREST, true>(x).value(), Mode::Nearest),
            (to_integer::<I, ZERO, true>(x).value(), Mode::Zero),
            (to_integer::<I, DOWN, true>(x).value(), Mode::Down),
            (to_integer::<I, UP, true>(x).value(), Mode::Up),
        ];
        for (got, mode) in got {
            assert_eq!(got, expected(mode), "{x:e} to an integer from {least} to {most}, {mode:?}");
        }
    }
    // The ISA: zero, but the highest bit where the source is f64 or the result has 64 bits.
    assert_eq!(to_integer::<I, ZERO, true>(f64::NAN).value(), I::high_bit().value());
    let short = if I::BITS == 64 { I::high_bit().value() } else { 0 };
    assert_eq!(to_integer::<I, ZERO, false>(f64::NAN).value(), short);
}

#[test]
fn floats_become_integers() {
    to_integers::<u8>(0, u8::MAX.into());
    to_integers::<i8>(i8::MIN.into(), i8::MAX.into());
    to_integers::<u16>(0, u16::MAX.into());
    to_integers::<i16>(i16::MIN.into(), i16::MAX.into());
    to_integers::<u32>(0, u32::MAX.into());
    to_integers::<i32>(i32::MIN.into(), i32::MAX.into());
    to_integers::<u64>(0, u64::MAX.into());
    to_integers::<i64>(i64::MIN.into(), i64::MAX.into());
}

fn from_integer<I: Integer>(x: I) {
    let exact = Exact::new(x.value() < 0, x.value().unsigned_abs(), 0);
    let expected = |format, mode| if x.value() == 0 { 0.0 } else { exact.round(format, mode) };
    let got = [
        (integer::to_f64::<I, NEAREST>(x), F64, Mode::Nearest),
        (integer::to_f64::<I, ZERO>(x), F64, Mode::Zero),
        (integer::to_f64::<I, DOWN>(x), F64, Mode::Down),
        (integer::to_f64::<I, UP>(x), F64, Mode::Up),
        (integer::to_f32::<I, NEAREST>(x).into(), F32, Mode::Nearest),
        (integer::to_f32::<I, ZERO>(x).into(), F32, Mode::Zero),
        (integer::to_f32::<I, DOWN>(x).into(), F32, Mode::Down),
        (integer::to_f32::<I, UP>(x).into(), F32, Mode::Up),
        (F16.value(format::from_f64::<f16, NEAREST>(integer::to_odd(x)).into()), F16, Mode::Nearest),
        (F16.value(format::from_f64::<f16, DOWN>(integer::to_odd(x)).into()), F16, Mode::Down),
        (BF16.value(format::from_f64::<bf16, NEAREST>(integer::to_odd(x)).into()), BF16, Mode::Nearest),
    ];
    for (got, format, mode) in got {
        let expected = expected(format, mode);
        assert_eq!(
            got.to_bits(),
            expected.to_bits(),
            "{} is {got:e}, expected {expected:e}: {format:?} {mode:?}",
            x.value()
        );
    }
}

#[test]
fn integers_become_floats() {
    let mut random = Random(17);
    for round in 0..20_000 {
        // Few bits at the top and few at the bottom: ties, and ties that one low bit decides.
        let bits = random.bits();
        let x = match round % 3 {
            0 => bits >> (bits % 64),
            1 => (bits | 1 << 63) >> 39 << 39 | 1 << 38 | (bits & 1),
            _ => ((bits | 1 << 63) >> 10 << 10 | bits & 1) >> (bits % 11),
        };
        from_integer(x);
        from_integer(x as i64);
        from_integer(x as u32);
        from_integer((x >> 32) as i32);
        from_integer(x as u16);
        from_integer(x as i8);
    }
}
