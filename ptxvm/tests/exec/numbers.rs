//! NaNs of f64 through the vectorised lanes: payloads and signs stay, in unoptimised builds and in optimised ones.

use crate::machine::{kernel, options};

const QUIET: u64 = 1 << 51;
/// What an invalid operation makes.
const INVALID: u64 = 0xfff8_0000_0000_0000;

/// Each lane's input: quiet, signalling and negative NaNs, infinities, numbers.
fn inputs() -> Vec<u64> {
    let nan = |bits: u64| 0x7ff0_0000_0000_0000 | bits;
    let kinds = |lane: u64| match lane % 8 {
        0 => nan(QUIET | 5 << lane),
        1 => nan(1 + lane),
        2 => nan(7 << lane) | 1 << 63,
        3 => nan(QUIET | ((1 << 51) - 1 - lane)) | 1 << 63,
        4 => f64::INFINITY.to_bits(),
        5 => f64::NEG_INFINITY.to_bits(),
        6 => (-0.0f64).to_bits(),
        _ => (lane as f64 - 20.5).to_bits(),
    };
    (0..32).map(kinds).collect()
}

/// Runs a body on each lane's input in `%rd20`, whose result is in `%rd21`.
fn results(body: &str) -> Vec<u64> {
    let body = format!(
        "mul.wide.u32 %rd30, %r1, 8; add.u64 %rd31, %rd1, %rd30; add.u64 %rd32, %rd2, %rd30;
        mov.b64 %rd22, 0d3FF8000000000000; mov.b64 %rd23, 0d7FF0000000000000; mov.b64 %rd24, 0d0000000000000000;
        ld.global.b64 %rd20, [%rd31]; {body} st.global.b64 [%rd32], %rd21; ret;"
    );
    let words = |all: &[u64]| all.iter().flat_map(|&bits| [bits as u32, (bits >> 32) as u32]).collect::<Vec<u32>>();
    let mut buffers = [words(&inputs()), vec![0; 64]];
    kernel(2, "", &body, 1, 32).run(&mut buffers, &options()).expect("it runs");
    buffers[1].chunks(2).map(|word| u64::from(word[0]) | u64::from(word[1]) << 32).collect()
}

/// The instruction gives a NaN of the input quieted, `of(x)` for a number, and the invalid operation's NaN where that is one.
fn check(instruction: &str, of: impl Fn(f64) -> f64) {
    for (input, got) in inputs().into_iter().zip(results(instruction)) {
        let x = f64::from_bits(input);
        let expected = match of(x) {
            _ if x.is_nan() => input | QUIET,
            invalid if invalid.is_nan() => INVALID,
            number => number.to_bits(),
        };
        assert_eq!(got, expected, "{instruction} of {input:#x}: {got:#x}, not {expected:#x}");
    }
}

#[test]
fn nans_of_f64_keep_sign_and_payload_in_every_lane() {
    check("add.f64 %rd21, %rd20, %rd22;", |x| x + 1.5);
    check("add.f64 %rd21, %rd20, %rd23;", |x| x + f64::INFINITY);
    check("sub.rn.f64 %rd21, %rd22, %rd20;", |x| 1.5 - x);
    check("sub.rz.f64 %rd21, %rd23, %rd20;", |x| f64::INFINITY - x);
    check("mul.f64 %rd21, %rd20, %rd24;", |x| x * 0.0);
    check("mul.rp.f64 %rd21, %rd24, %rd20;", |x| x * 0.0);
    check("div.rn.f64 %rd21, %rd20, %rd24;", |x| x / 0.0);
    check("div.rn.f64 %rd21, %rd23, %rd20;", |x| f64::INFINITY / x);
    check("rcp.rn.f64 %rd21, %rd20;", |x| 1.0 / x);
    check("sqrt.rn.f64 %rd21, %rd20;", f64::sqrt);
    check("fma.rn.f64 %rd21, %rd20, %rd24, %rd22;", |x| x.mul_add(0.0, 1.5));
    check("fma.rn.f64 %rd21, %rd22, %rd22, %rd20;", |x| 2.25 + x);
    check("fma.rm.f64 %rd21, %rd24, %rd20, %rd23;", |x| x.mul_add(0.0, f64::INFINITY));
}

#[test]
fn nans_pass_abs_f64_as_they_are() {
    for (input, got) in inputs().into_iter().zip(results("abs.f64 %rd21, %rd20;")) {
        let x = f64::from_bits(input);
        assert_eq!(got, if x.is_nan() { input } else { x.abs().to_bits() }, "{input:#x}");
    }
}

#[test]
fn nans_between_f64_and_f32() {
    let to_single = "cvt.rn.f32.f64 %f1, %rd20; mov.b32 %r10, %f1; cvt.u64.u32 %rd21, %r10;";
    let cases = [
        (to_single, 0x7fff_ffff),
        ("cvt.rz.f32.f64 %f1, %rd20; mov.b32 %r10, %f1; cvt.u64.u32 %rd21, %r10;", 0x7fff_ffff),
    ];
    for (body, nan) in cases {
        for (input, got) in inputs().into_iter().zip(results(body)) {
            if f64::from_bits(input).is_nan() {
                assert_eq!(got, nan, "{body} of {input:#x}");
            }
        }
    }
    // The upper word, read as an f32 NaN, goes to f64 with its sign and payload.
    let upper = "shr.u64 %rd25, %rd20, 32; cvt.u32.u64 %r10, %rd25; or.b32 %r10, %r10, 0x7f800001; mov.b32 %f1, %r10; cvt.f64.f32 %rd21, %f1;";
    for (input, got) in inputs().into_iter().zip(results(upper)) {
        let single = input >> 32 | 0x7f80_0001;
        let expected = (single >> 31) << 63 | 0x7ff8_0000_0000_0000 | (single & 0x7f_ffff) << 29;
        assert_eq!(got, expected, "{input:#x}");
    }
}

#[test]
fn an_atomic_sum_of_f64_keeps_the_cells_nan() {
    // The cell comes first, then what is added.
    let got = results(
        "st.global.b64 [%rd32], %rd20; atom.global.add.f64 %rd26, [%rd32], %rd23; ld.global.b64 %rd21, [%rd32];",
    );
    for (input, got) in inputs().into_iter().zip(got) {
        let x = f64::from_bits(input);
        let expected = match x + f64::INFINITY {
            _ if x.is_nan() => input | QUIET,
            invalid if invalid.is_nan() => INVALID,
            number => number.to_bits(),
        };
        assert_eq!(got, expected, "{input:#x}");
    }
}
