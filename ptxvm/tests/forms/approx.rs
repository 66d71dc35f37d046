//! Approximate functions: within the bound that the ISA states of the true value, which f64 holds.

use warpweft_ptxvm::table::TABLE;

use crate::case::{Case, operation};
use crate::exact::Format;
use crate::floats::{format, value};

/// How far a result may be from the true one: relative to it, and besides, absolute.
type Bound = (f64, f64);

pub(crate) fn cases() -> Vec<Case> {
    let names = ["ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt", "div"];
    let spelled = names.iter().flat_map(|name| {
        TABLE.named(name).flat_map(move |row| row.pattern.spellings().map(move |words| format!("{name}{words}")))
    });
    spelled.filter(|form| form.contains(".approx") || form.contains(".full")).filter_map(|form| case(&form)).collect()
}

/// The true value.
fn truth(name: &str, x: &[f64]) -> f64 {
    match name {
        "ex2" => x[0].exp2(),
        "lg2" => x[0].log2(),
        "sin" => x[0].sin(),
        "cos" => x[0].cos(),
        "tanh" => x[0].tanh(),
        "rcp" => 1.0 / x[0],
        "rsqrt" => 1.0 / x[0].sqrt(),
        "sqrt" => x[0].sqrt(),
        _ => x[0] / x[1],
    }
}

/// The ISA's bounds. An ulp of f32 is at most 2^-23 of the value.
fn bound(name: &str, t: &str, x: f64) -> Bound {
    let two = |power: i32| f64::from(power).exp2();
    match (name, t) {
        ("ex2", "f16" | "f16x2") => (2f64.powf(-9.9), 0.0),
        ("ex2", "bf16" | "bf16x2") => (two(-7), 0.0),
        ("tanh", "f16" | "f16x2") => (0.0, 2f64.powf(-10.987)),
        ("tanh", "bf16" | "bf16x2") => (0.0, two(-8)),
        ("tanh", _) => (two(-11), 0.0),
        (_, "f64") => (two(-20), 0.0),
        ("ex2" | "div", _) => (2.0 * two(-23), 0.0),
        ("rcp" | "sqrt", _) => (two(-23), 0.0),
        ("rsqrt", _) => (2f64.powf(-22.9), 0.0),
        ("lg2", _) if x > 0.5 && x < 2.0 => (0.0, two(-22)),
        ("lg2", _) => (two(-22), 0.0),
        _ => (0.0, 2f64.powf(-20.5)),
    }
}

fn case(spelled: &str) -> Option<Case> {
    let words: Vec<String> = spelled.split('.').map(str::to_owned).collect();
    let (name, t) = (words[0].clone(), words.last()?.clone());
    let (format, packed) = format(&t)?;
    let ftz = words.iter().any(|word| word == "ftz");
    let operands = if name == "div" { format!("d:{t} a:{t} b:{t}") } else { format!("d:{t} a:{t}") };
    let accept = move |x: &[u64], got: &[u64]| {
        let part = |shift: u32| {
            let cut = |bits: u64| if packed { bits >> shift & 0xffff } else { bits };
            let x: Vec<u64> = x.iter().map(|&bits| cut(bits)).collect();
            accepted(&name, &t, format, ftz, &x, cut(got[0]))
        };
        part(0) && (!packed || part(16))
    };
    Some(operation(spelled, &operands, |_| vec![0]).accept(accept).case())
}

fn accepted(name: &str, t: &str, format: Format, ftz: bool, x: &[u64], got: u64) -> bool {
    let source = |bits: u64| match ftz {
        // The gross approximations of f64 ignore the low half of their source.
        true if t == "f64" => format.flushed(bits & !0xffff_ffff),
        true => format.flushed(bits),
        false => bits,
    };
    let x: Vec<f64> = x.iter().map(|&bits| value(format, source(bits))).collect();
    let (exact, got) = (truth(name, &x), value(format, got));
    // A divisor of 2^126 or more makes 0, and NaN of an infinity (div.approx, div.full).
    if name == "div"
        && x[1].abs() > 126f64.exp2()
        && x[1].is_finite()
        && (got == 0.0 || (x[0].is_infinite() && got.is_nan()))
    {
        return true;
    }
    if exact.is_nan() {
        return got.is_nan();
    }
    let largest = value(format, format.infinity() - 1);
    let least = value(format, 1);
    let (relative, absolute) = bound(name, t, x[0].abs());
    if exact.abs() > largest * (1.0 - 2.0 * relative) {
        return got == f64::INFINITY.copysign(exact) || (got - exact).abs() <= exact.abs() * relative;
    }
    // What is subnormal may be flushed, and has fewer bits where it is not.
    let normal = least * format.one_in_fraction();
    let slack = if exact.abs() < normal && (ftz || t == "f64") { normal } else { least };
    got.is_sign_negative() == exact.is_sign_negative()
        && (got - exact).abs() <= exact.abs() * relative + absolute + slack
        || (got - exact).abs() <= absolute
}
