//! The approximate functions: correctly rounded without the adversary, within the ISA's bounds with it.

use half::{bf16, f16};
use warpweft_ptxvm_isa::numerics::approx::exponential::{Ex2, Tanh};
use warpweft_ptxvm_isa::numerics::approx::logarithm::Lg2;
use warpweft_ptxvm_isa::numerics::approx::root::{Rcp, Rsqrt, Sqrt};
use warpweft_ptxvm_isa::numerics::approx::trigonometric::{Cos, NEAR, Sin, near_cos_rounded, near_sin_rounded};
use warpweft_ptxvm_isa::numerics::approx::{Function, gross, moved, moved_short, quotient, rounded, rounded_short};
use warpweft_ptxvm_isa::numerics::flags::FTZ;
use warpweft_ptxvm_isa::numerics::{Approx, Settings};

use crate::exact::{BF16, Exact, F16, F32, Mode, root};
use crate::precise::{self, Circle, Number};
use crate::random::Random;

/// Inputs between those that are looked at. With WARPWEFT_EXHAUSTIVE=1 it is every f32.
fn stride() -> usize {
    if std::env::var_os("WARPWEFT_EXHAUSTIVE").is_some() { 1 } else { 4001 }
}

/// Where the function's value in f64 is not within 2^-44 of the middle of two f32, rounding it is right if its error is
/// below that, which `accurate` checks; the inputs where it is are computed with 100 bits.
fn correctly_rounded<F: Function>(name: &str, domain: impl Fn(f32) -> bool, precise: impl Fn(f32) -> Number) {
    let (mut near_middle, mut wrong) = (0, Vec::new());
    for bits in (0..=u32::MAX).step_by(stride()) {
        let x = f32::from_bits(bits);
        if !domain(x) {
            continue;
        }
        let got = rounded::<F, 0>(x);
        let value = F::value(x.into());
        if value.abs() >= f64::from(f32::MIN_POSITIVE) {
            let below = value.to_bits() & 0x1fff_ffff;
            let from_middle = below.abs_diff(0x1000_0000);
            assert!(from_middle < 512 || got == value as f32, "{name}({x:e})");
            if from_middle >= 512 {
                continue;
            }
        }
        near_middle += 1;
        if f64::from(got) != precise(x).exact().round(F32, Mode::Nearest) {
            wrong.push(format!("{bits:#010x} ({x:e})"));
        }
    }
    assert!(near_middle > 0, "{name}: no input was looked at closely");
    assert!(wrong.is_empty(), "{name}: {} of {near_middle} close cases round wrong: {wrong:?}", wrong.len());
}

/// The value in f64 is within 2^-50 of the true one.
fn accurate<F: Function>(name: &str, domain: impl Fn(f32) -> bool, precise: impl Fn(f32) -> Number) {
    let mut random = Random(23);
    let mut worst = 0f64;
    for _ in 0..20_000 {
        let x = f32::from_bits(random.code(F32, 32) as u32);
        if domain(x) {
            let (got, expected) = (F::value(x.into()), precise(x));
            let difference = Exact::of(got).plus(&negated(&expected.exact()));
            let error =
                if difference.is_zero() { 0.0 } else { difference.round(crate::exact::F64, Mode::Nearest).abs() };
            worst = worst.max(error / expected.near().abs());
        }
    }
    assert!(worst > 0.0 && worst < 2f64.powi(-50), "{name}: an error of 2^{:.2}", worst.log2());
}

fn negated(x: &Exact) -> Exact {
    let mut x = x.clone();
    x.negative = !x.negative;
    x
}

fn check<F: Function>(name: &str, domain: impl Fn(f32) -> bool + Copy, precise: impl Fn(f32) -> Number + Copy) {
    accurate::<F>(name, domain, precise);
    correctly_rounded::<F>(name, domain, precise);
}

#[test]
fn ex2_is_correctly_rounded() {
    check::<Ex2>("ex2", |x| x.abs() < 160.0 && x != 0.0, precise::ex2);
}

#[test]
fn lg2_is_correctly_rounded() {
    check::<Lg2>("lg2", |x| x > 0.0 && x.is_finite() && x != 1.0, precise::lg2);
}

#[test]
fn tanh_is_correctly_rounded() {
    check::<Tanh>("tanh", |x| x.is_finite() && x != 0.0, precise::tanh);
}

#[test]
fn sin_is_correctly_rounded() {
    let circle = Circle::new();
    check::<Sin>("sin", |x| x.is_finite() && x != 0.0, |x| circle.sin(x));
}

#[test]
fn cos_is_correctly_rounded() {
    let circle = Circle::new();
    check::<Cos>("cos", |x| x.is_finite() && x != 0.0, |x| circle.cos(x));
}

#[test]
fn near_angles_are_the_same_both_ways() {
    let mut random = Random(3);
    for _ in 0..100_000 {
        let x = f32::from_bits(random.code(F32, 32) as u32);
        if x.abs() <= NEAR {
            assert_eq!(near_sin_rounded(x).to_bits(), Sin::rounded(x).to_bits(), "sin({x:e})");
            assert_eq!(near_cos_rounded(x).to_bits(), Cos::rounded(x).to_bits(), "cos({x:e})");
        }
    }
}

#[test]
fn the_hard_cases_round_right() {
    // Within 2^-29 of a unit of the middle of two f32, so that 53 bits do not decide: all that there are.
    let circle = Circle::new();
    let wanted = |number: Number| number.exact().round(F32, Mode::Nearest);
    for x in [0x3b42_9d37, 0xbcf3_a937].map(f32::from_bits) {
        assert_ne!(f64::from(Ex2::value(x.into()) as f32), wanted(precise::ex2(x)), "{x:e} is an easy case");
        assert_eq!(f64::from(rounded::<Ex2, 0>(x)), wanted(precise::ex2(x)), "ex2({x:e})");
    }
    for x in [9830.398, -9830.398] {
        assert_eq!(f64::from(rounded::<Sin, 0>(x)), wanted(circle.sin(x)), "sin({x:e})");
        assert_eq!(near_sin_rounded(x), rounded::<Sin, 0>(x), "sin({x:e})");
    }
    for x in [0x5f18_b878, 0x6115_cb11].map(f32::from_bits) {
        assert_eq!(f64::from(rounded::<Cos, 0>(x)), wanted(circle.cos(x)), "cos({x:e})");
        assert_eq!(rounded::<Cos, 0>(-x), rounded::<Cos, 0>(x));
    }
}

#[test]
fn roots_and_reciprocals_are_correctly_rounded() {
    for bits in (0..=u32::MAX).step_by(stride()) {
        let x = f32::from_bits(bits);
        if x.is_normal() && x > 0.0 {
            // In f64 a root or a quotient of f32 is never rounded onto a middle: one more rounding is right.
            let (root, part) = (f64::from(x).sqrt() as f32, (1.0 / f64::from(x)) as f32);
            assert_eq!(rounded::<Sqrt, 0>(x), root, "sqrt({x:e})");
            assert_eq!((rounded::<Rcp, 0>(x), rounded::<Rcp, 0>(-x)), (part, -part), "rcp({x:e})");
        }
    }
}

/// `y` is 1/sqrt(x) rounded to nearest: the squares of the middles around it, times x, lie around one.
fn is_reciprocal_root(x: f32, y: f32) -> bool {
    let parts = |x: f32| (u128::from(x.to_bits() & 0x7f_ffff | 1 << 23), (x.to_bits() >> 23) as i32 - 150);
    let ((a, i), (b, j)) = (parts(x), parts(y));
    // (2b ± 1)^2 * a * 2^(2(j-1) + i) against 1.
    let one = 1u128 << -(2 * (j - 1) + i);
    (2 * b - 1).pow(2) * a < one && one < (2 * b + 1).pow(2) * a
}

#[test]
fn rsqrt_is_correctly_rounded_for_every_fraction() {
    // A factor of four in x is a factor of two in the result: two binades are all.
    for bits in (0x3f80_0000u32..0x4080_0000).step_by(if stride() == 1 { 1 } else { 17 }) {
        let x = f32::from_bits(bits);
        let y = rounded::<Rsqrt, 0>(x);
        assert!(x == 1.0 || y == 0.5 || is_reciprocal_root(x, y), "rsqrt({x:e}) is not {y:e}");
        assert_eq!(rounded::<Rsqrt, 0>(x * 2f32.powi(40)), y * 2f32.powi(-20));
        assert_eq!(rounded::<Sqrt, 0>(x), root(x.into(), F32, Mode::Nearest) as f32);
    }
    for bits in 1..2000 {
        let x = f32::from_bits(bits);
        assert_eq!(rounded::<Rsqrt, 0>(x), rounded::<Rsqrt, 0>(x * 2f32.powi(40)) * 2f32.powi(20), "a subnormal");
    }
}

#[test]
fn sixteen_bit_functions_are_correctly_rounded() {
    for code in 0..=0xffffu16 {
        let (h, b) = (f16::from_bits(code), bf16::from_bits(code));
        let x = F16.value(code.into()) as f32;
        if x.is_finite() && x != 0.0 {
            let expected = precise::ex2(x.clamp(-190.0, 190.0)).exact().round(F16, Mode::Nearest);
            assert_eq!(F16.value(rounded_short::<f16, Ex2, 0>(h).to_bits().into()), expected, "ex2 of f16 {x:e}");
            let expected = precise::tanh(x).exact().round(F16, Mode::Nearest);
            assert_eq!(F16.value(rounded_short::<f16, Tanh, 0>(h).to_bits().into()), expected, "tanh of f16 {x:e}");
        }
        let x = BF16.value(code.into()) as f32;
        if x.is_finite() && x != 0.0 {
            let expected = precise::tanh(x).exact().round(BF16, Mode::Nearest);
            assert_eq!(BF16.value(rounded_short::<bf16, Tanh, 0>(b).to_bits().into()), expected, "tanh of bf16 {x:e}");
            let expected = precise::ex2(x.clamp(-190.0, 190.0)).exact().round(BF16, Mode::Nearest);
            let expected = if expected < f64::from(f32::MIN_POSITIVE) { 0.0 } else { expected };
            assert_eq!(BF16.value(rounded_short::<bf16, Ex2, FTZ>(b).to_bits().into()), expected, "ex2 of bf16 {x:e}");
        }
    }
}

fn adversary(seed: u64) -> Settings {
    Settings { approx: Approx::Adversary, seed, ..Settings::default() }
}

/// Every move is within `bound` of the value (given input, value and rounded result), a good part of the results move, and
/// they move both ways, the same way each time, another way with another seed.
fn moves<F: Function>(name: &str, inputs: impl Fn(&mut Random) -> f32, bound: impl Fn(f64, f64, f32) -> f64) {
    let mut random = Random(29);
    let (mut up, mut down, mut other_seed) = (0, 0, 0);
    const INPUTS: usize = 20_000;
    for _ in 0..INPUTS {
        let x = inputs(&mut random);
        let (near, got) = (rounded::<F, 0>(x), moved::<F, 0>(x, &adversary(1)));
        let value = F::value(x.into());
        let error = (f64::from(got) - value).abs();
        assert!(error <= bound(x.into(), value, near), "{name}({x:e}) moved from {near:e} to {got:e}");
        assert_eq!(got.is_sign_negative(), near.is_sign_negative(), "{name}({x:e}) changes its sign");
        assert!(got != 0.0 && got.is_finite(), "{name}({x:e}) moved to a special value");
        assert_eq!(got.to_bits(), moved::<F, 0>(x, &adversary(1)).to_bits(), "a function of seed and input");
        up += usize::from(got > near);
        down += usize::from(got < near);
        other_seed += usize::from(got != moved::<F, 0>(x, &adversary(2)));
    }
    let least = INPUTS / 20;
    assert!(up > least && down > least && other_seed > least, "{name}: {up} up, {down} down, {other_seed} by the seed");
}

fn ulp(x: f32) -> f64 {
    f64::from(x.abs().next_up()) - f64::from(x.abs())
}

#[test]
fn the_adversary_stays_within_the_isas_bounds() {
    let positive = |random: &mut Random| f32::from_bits((random.bits() % 0x7f00_0000) as u32 + 0x10_0000);
    let within = |limit: f64| {
        move |random: &mut Random| ((random.bits() >> 11) as f64 / 2f64.powi(53) * 2.0 * limit - limit) as f32
    };
    // As the ISA has it: 2 ulp from the correctly rounded result.
    moves::<Ex2>("ex2", within(120.0), |_, value, near| 2.0 * ulp(near) + (f64::from(near) - value).abs());
    moves::<Lg2>(
        "lg2",
        positive,
        |x, value, _| {
            if x > 0.5 && x < 2.0 { 2f64.powi(-22) } else { 2f64.powi(-22) * value.abs() }
        },
    );
    moves::<Lg2>("lg2", |random| 0.51 + within(0.4)(random).abs(), |_, _, _| 2f64.powi(-22));
    moves::<Rcp>("rcp", |random| within(1e6)(random), |_, value, _| ulp(value as f32));
    moves::<Rsqrt>("rsqrt", positive, |_, value, _| 2f64.powf(-22.9) * value);
    moves::<Sqrt>("sqrt", positive, |_, value, _| 2f64.powi(-23) * value);
    moves::<Tanh>("tanh", within(4.0), |_, value, _| 2f64.powi(-11) * value.abs());
    moves::<Sin>("sin", within(6.25), |_, _, _| 2f64.powf(-20.5));
    moves::<Cos>("cos", within(6.25), |_, _, _| 2f64.powf(-20.5));
    moves::<Sin>("sin", within(314.0), |_, _, _| 2f64.powf(-14.7));
}

#[test]
fn the_adversary_leaves_special_values() {
    let settings = adversary(4);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    fn same<F: Function>(x: f32, settings: &Settings) {
        assert_eq!(moved::<F, 0>(x, settings).to_bits(), rounded::<F, 0>(x).to_bits(), "at {x}");
    }
    for x in special.into_iter().chain([200.0, -200.0]) {
        same::<Ex2>(x, &settings);
    }
    for x in special {
        same::<Sin>(x, &settings);
        same::<Cos>(x, &settings);
    }
    for x in special.into_iter().chain([1.0, -1.0]) {
        same::<Lg2>(x, &settings);
    }
    for x in special {
        same::<Rcp>(x, &settings);
        same::<Rsqrt>(x, &settings);
        same::<Sqrt>(x, &settings);
        same::<Tanh>(x, &settings);
    }
}

#[test]
fn the_adversary_moves_short_results_within_their_bounds() {
    let settings = adversary(6);
    let mut moved_results = [0; 4];
    for code in 0..=0xffffu16 {
        let (h, b) = (f16::from_bits(code), bf16::from_bits(code));
        let x = F16.value(code.into());
        if x.is_finite() && x != 0.0 && x.abs() < 10.0 {
            let (got, near) = (moved_short::<f16, Ex2, 0>(h, &settings), rounded_short::<f16, Ex2, 0>(h));
            assert!((F16.value(got.to_bits().into()) - x.exp2()).abs() <= 2f64.powf(-9.9) * x.exp2(), "ex2 f16 {x:e}");
            moved_results[0] += usize::from(got != near);
            let (got, near) = (moved_short::<f16, Tanh, 0>(h, &settings), rounded_short::<f16, Tanh, 0>(h));
            assert!((F16.value(got.to_bits().into()) - x.tanh()).abs() <= 2f64.powf(-10.987), "tanh f16 {x:e}");
            moved_results[1] += usize::from(got != near);
        }
        let x = BF16.value(code.into());
        if x.is_finite() && x != 0.0 && x.abs() < 100.0 {
            let (got, near) = (moved_short::<bf16, Ex2, FTZ>(b, &settings), rounded_short::<bf16, Ex2, FTZ>(b));
            let value = if x.abs() < f64::from(f32::MIN_POSITIVE) { 1.0 } else { x.exp2() };
            assert!((BF16.value(got.to_bits().into()) - value).abs() <= 2f64.powi(-7) * value, "ex2 bf16 {x:e}");
            moved_results[2] += usize::from(got != near);
            let (got, near) = (moved_short::<bf16, Tanh, 0>(b, &settings), rounded_short::<bf16, Tanh, 0>(b));
            assert!((BF16.value(got.to_bits().into()) - x.tanh()).abs() <= 2f64.powi(-8), "tanh bf16 {x:e}");
            moved_results[3] += usize::from(got != near);
        }
    }
    assert!(moved_results.iter().all(|&count| count > 1000), "{moved_results:?}");
}

#[test]
fn quotients() {
    let mut random = Random(31);
    let settings = adversary(9);
    let (mut moved_full, mut moved_approx) = (0, 0);
    for _ in 0..50_000 {
        let [a, b] = [0; 2].map(|_| f32::from_bits(random.code(F32, 32) as u32));
        if !(a.is_finite() && b.is_finite()) || a == 0.0 || b == 0.0 {
            continue;
        }
        let near = crate::exact::quotient(a.into(), b.into(), F32, Mode::Nearest) as f32;
        assert_eq!(quotient::full::<0>(a, b), near, "div.full {a:e} / {b:e}");
        let allowed = 2.0 * ulp(near) + f64::from(ulp(near) as f32) * 0.5;
        let got = quotient::full_moved::<0>(a, b, &settings);
        assert!(got == near || (f64::from(got) - f64::from(near)).abs() <= allowed, "div.full {a:e} / {b:e}: {got:e}");
        moved_full += usize::from(got != near);
        let got = quotient::approx::<0>(a, b);
        let large = b.abs() > 2f32.powi(126);
        assert_eq!(got, if large { 0f32.copysign(a * b.signum()) } else { near }, "div.approx {a:e} / {b:e}");
        moved_approx += usize::from(got != quotient::approx_moved::<0>(a, b, &settings));
    }
    assert!(moved_full > 5000 && moved_approx > 5000, "{moved_full} and {moved_approx} moved");
    let large = f32::from_bits(0x7f00_0000);
    assert!(quotient::approx::<0>(f32::INFINITY, large).is_nan(), "the ISA: infinity by a large number");
    assert_eq!(quotient::approx::<0>(-3.0, large).to_bits(), 0x8000_0000, "the ISA: a zero with the quotient's sign");
    assert_eq!(quotient::approx::<0>(-3.0, f32::INFINITY).to_bits(), 0x8000_0000);
}

#[test]
fn gross_forms_of_f64() {
    let settings = Settings::default();
    let mut random = Random(37);
    for _ in 0..50_000 {
        let x = f64::from_bits(random.bits());
        if !x.is_normal() {
            continue;
        }
        let upper = f64::from_bits(x.to_bits() >> 32 << 32);
        let got = gross::rcp(x, &settings);
        let expected = 1.0 / upper;
        let close =
            if expected.is_normal() { ((got - expected) / expected).abs() <= 2f64.powi(-21) } else { got == 0.0 };
        assert!(got.to_bits() as u32 == 0 && close, "rcp.approx.ftz.f64 {x:e} is {got:e}");
        let got = gross::rsqrt(x.abs(), &settings);
        let expected = 1.0 / upper.abs().sqrt();
        assert!(got.to_bits() as u32 == 0 && ((got - expected) / expected).abs() <= 2f64.powi(-21), "rsqrt {x:e}");
        // The squares of its neighbours, times x, lie around one. (A factor of four in x is one of two in the result.)
        let y = gross::rsqrt_double(x.abs());
        let (up, down) = match x.abs() {
            large if large > 1.0 => (2f64.powi(-400), 2f64.powi(200)),
            _ => (2f64.powi(400), 2f64.powi(-200)),
        };
        let (x, y) = (x.abs() * up, y * down);
        let beyond = |y: f64| {
            let square = Exact::product(y, y);
            let low = square.plus(&negated(&Exact::of(y * y))).round(crate::exact::F64, Mode::Nearest);
            x.mul_add(y * y, -1.0) + x * low
        };
        assert!(beyond(y.next_down()) < 0.0 && beyond(y.next_up()) > 0.0, "rsqrt.approx.f64 {x:e} is {y:e}");
    }
    let words = |x: f64| (gross::rcp(x, &settings).to_bits(), gross::rsqrt(x, &settings).to_bits());
    let (infinity, minus) = (0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000);
    assert_eq!(words(0.0), (infinity, infinity));
    assert_eq!(words(-0.0), (minus, minus));
    assert_eq!(words(5e-324), (infinity, infinity));
    assert_eq!(words(-1e-310), (minus, minus));
    assert_eq!(words(f64::INFINITY), (0, 0));
    assert_eq!(words(f64::NEG_INFINITY), (1 << 63, 0x7fff_ffff_0000_0000));
    assert_eq!(words(f64::NAN), (0x7fff_ffff_0000_0000, 0x7fff_ffff_0000_0000));
    assert_eq!(gross::rcp(1.5, &adversary(1)).to_bits() as u32, 0);
}
