//! Sums, products, fused sums, quotients and roots in every rounding.

use half::{bf16, f16};
use warpweft_ptxvm_isa::numerics::flags::{DOWN, FTZ, NEAREST, UP, ZERO};
use warpweft_ptxvm_isa::numerics::{double, single, sixteen};

use crate::exact::{self, BF16, F16, F32, F64, Format, Mode};
use crate::random::Random;

const ROUNDS: usize = 40_000;

/// Bits of a result; every NaN counts as one.
fn bits(x: f64) -> u64 {
    if x.is_nan() { u64::MAX } else { x.to_bits() }
}

/// Compares an operation of three sources in a format with its definition.
fn compare(
    name: &str,
    format: Format,
    width: u32,
    got: impl Fn([u64; 3]) -> f64,
    expected: impl Fn(f64, f64, f64) -> f64,
) {
    let mut random = Random(name.bytes().fold(7, |sum, byte| (sum << 5) ^ (sum >> 3) ^ u64::from(byte)));
    for _ in 0..ROUNDS {
        let codes = [0; 3].map(|_| random.code(format, width));
        let [a, b, c] = codes.map(|code| format.value(code));
        let (got, expected) = (got(codes), expected(a, b, c));
        assert!(bits(got) == bits(expected), "{name} of {a:e}, {b:e}, {c:e} is {got:e}, expected {expected:e}");
    }
}

fn f32s<const M: u32>(mode: Mode) {
    let x = |code: u64| f32::from_bits(code as u32);
    let name = |operation: &str| format!("{operation} {mode:?} f32");
    compare(
        &name("add"),
        F32,
        32,
        |[a, b, _]| single::add::<M>(x(a), x(b)).into(),
        |a, b, _| exact::sum(a, b, F32, mode),
    );
    compare(
        &name("sub"),
        F32,
        32,
        |[a, b, _]| single::sub::<M>(x(a), x(b)).into(),
        |a, b, _| exact::sum(a, -b, F32, mode),
    );
    compare(
        &name("mul"),
        F32,
        32,
        |[a, b, _]| single::mul::<M>(x(a), x(b)).into(),
        |a, b, _| exact::product(a, b, F32, mode),
    );
    compare(
        &name("fma"),
        F32,
        32,
        |[a, b, c]| single::fma::<M>(x(a), x(b), x(c)).into(),
        |a, b, c| exact::fused(a, b, c, F32, mode),
    );
    compare(
        &name("div"),
        F32,
        32,
        |[a, b, _]| single::div::<M>(x(a), x(b)).into(),
        |a, b, _| exact::quotient(a, b, F32, mode),
    );
    compare(&name("sqrt"), F32, 32, |[a, ..]| single::sqrt::<M>(x(a)).into(), |a, _, _| exact::root(a, F32, mode));
}

#[test]
fn f32_in_every_rounding() {
    f32s::<NEAREST>(Mode::Nearest);
    f32s::<ZERO>(Mode::Zero);
    f32s::<DOWN>(Mode::Down);
    f32s::<UP>(Mode::Up);
}

fn f64s<const M: u32>(mode: Mode) {
    let x = f64::from_bits;
    let name = |operation: &str| format!("{operation} {mode:?} f64");
    compare(&name("add"), F64, 64, |[a, b, _]| double::add::<M>(x(a), x(b)), |a, b, _| exact::sum(a, b, F64, mode));
    compare(&name("sub"), F64, 64, |[a, b, _]| double::sub::<M>(x(a), x(b)), |a, b, _| exact::sum(a, -b, F64, mode));
    compare(&name("mul"), F64, 64, |[a, b, _]| double::mul::<M>(x(a), x(b)), |a, b, _| exact::product(a, b, F64, mode));
    compare(
        &name("fma"),
        F64,
        64,
        |[a, b, c]| double::fma::<M>(x(a), x(b), x(c)),
        |a, b, c| exact::fused(a, b, c, F64, mode),
    );
    compare(
        &name("div"),
        F64,
        64,
        |[a, b, _]| double::div::<M>(x(a), x(b)),
        |a, b, _| exact::quotient(a, b, F64, mode),
    );
    compare(&name("sqrt"), F64, 64, |[a, ..]| double::sqrt::<M>(x(a)), |a, _, _| exact::root(a, F64, mode));
}

#[test]
fn f64_in_every_rounding() {
    f64s::<NEAREST>(Mode::Nearest);
    f64s::<ZERO>(Mode::Zero);
    f64s::<DOWN>(Mode::Down);
    f64s::<UP>(Mode::Up);
}

#[test]
fn f64_keeps_the_payload_of_the_first_nan() {
    let nan = |bits: u64| f64::from_bits(0x7ff0_0000_0000_0000 | bits);
    let cases = [
        (double::add::<NEAREST>(nan(5), nan(6)), 0x7ff8_0000_0000_0005),
        (double::add::<UP>(1.0, -nan(6)), 0xfff8_0000_0000_0006),
        (double::sub::<NEAREST>(1.0, nan(6)), 0x7ff8_0000_0000_0006),
        (double::mul::<DOWN>(f64::INFINITY, nan(9)), 0x7ff8_0000_0000_0009),
        (double::fma::<NEAREST>(1.0, 2.0, nan(3)), 0x7ff8_0000_0000_0003),
        (double::fma::<ZERO>(1.0, nan(4), nan(3)), 0x7ff8_0000_0000_0004),
        (double::div::<NEAREST>(0.0, 0.0), 0xfff8_0000_0000_0000),
        (double::sqrt::<UP>(-1.0), 0xfff8_0000_0000_0000),
        (double::fma::<DOWN>(f64::INFINITY, 0.0, 1.0), 0xfff8_0000_0000_0000),
    ];
    for (at, (got, expected)) in cases.into_iter().enumerate() {
        assert_eq!(got.to_bits(), expected, "case {at}: {:x}", got.to_bits());
    }
}

#[test]
fn f16_and_bf16_round_once() {
    let (h, b) = (|code: u64| f16::from_bits(code as u16), |code: u64| bf16::from_bits(code as u16));
    let near = Mode::Nearest;
    let (hv, bv) = (|x: f16| F16.value(x.to_bits().into()), |x: bf16| BF16.value(x.to_bits().into()));
    compare(
        "add f16",
        F16,
        16,
        |x| hv(sixteen::add::<f16, 0>(h(x[0]), h(x[1]))),
        |a, b, _| exact::sum(a, b, F16, near),
    );
    compare(
        "mul f16",
        F16,
        16,
        |x| hv(sixteen::mul::<f16, 0>(h(x[0]), h(x[1]))),
        |a, b, _| exact::product(a, b, F16, near),
    );
    compare(
        "fma f16",
        F16,
        16,
        |x| hv(sixteen::fma::<f16, 0>(h(x[0]), h(x[1]), h(x[2]))),
        |a, b, c| exact::fused(a, b, c, F16, near),
    );
    compare(
        "add bf16",
        BF16,
        16,
        |x| bv(sixteen::add::<bf16, 0>(b(x[0]), b(x[1]))),
        |a, b, _| exact::sum(a, b, BF16, near),
    );
    compare(
        "mul bf16",
        BF16,
        16,
        |x| bv(sixteen::mul::<bf16, 0>(b(x[0]), b(x[1]))),
        |a, b, _| exact::product(a, b, BF16, near),
    );
    compare(
        "fma bf16",
        BF16,
        16,
        |x| bv(sixteen::fma::<bf16, 0>(b(x[0]), b(x[1]), b(x[2]))),
        |a, b, c| exact::fused(a, b, c, BF16, near),
    );
}

#[test]
fn sums_that_a_second_rounding_would_spoil() {
    // 160 * 106 = 16960 is the middle of the bf16 16896 and 17024. What is added is too small for an f64 of the sum, and
    // decides.
    let x = |value: f32| bf16::from_f32(value);
    let tiny = 2f32.powi(-60);
    for (added, expected) in [(0.0, 16896.0), (tiny, 17024.0), (-tiny, 16896.0)] {
        assert_eq!(sixteen::fma::<bf16, 0>(x(160.0), x(106.0), x(added)), x(expected), "160 * 106 + {added:e}");
    }
    // 97 * 172961 = 2^24 + 1 is the middle of two f32.
    for (added, expected) in [(0.0, 16777216.0), (tiny, 16777218.0), (-tiny, 16777216.0)] {
        assert_eq!(single::fma::<NEAREST>(97.0, 172961.0, added), expected, "97 * 172961 + {added:e}");
    }
}

#[test]
fn flushing_keeps_signs_and_changes_only_subnormals() {
    let small = f32::from_bits(0x0040_0000);
    assert_eq!(single::add::<FTZ>(-small, -0.0).to_bits(), 0x8000_0000);
    assert_eq!(single::mul::<FTZ>(f32::MIN_POSITIVE, -0.5).to_bits(), 0x8000_0000, "a result is flushed");
    assert_eq!(single::mul::<NEAREST>(f32::MIN_POSITIVE, -0.5).to_bits(), 0x8040_0000);
    assert_eq!(single::fma::<FTZ>(1.0, f32::MIN_POSITIVE, 0.0), f32::MIN_POSITIVE);
    assert_eq!(single::div::<{ FTZ | DOWN }>(1.0, -small), f32::NEG_INFINITY, "a flushed divisor is zero");
}
