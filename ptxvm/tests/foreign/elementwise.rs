//! Functions of single elements: libdevice's polynomials, angles in double, integer division, narrow formats, AdamW.
//! Errors of library functions are those of NVIDIA's table of function accuracies: a unit in the last place is two roundoffs.

use half::{bf16, f16};

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::softmax::{DIVISION, exp_error};
use crate::triton::Kernel;
use crate::vm::Ways;

const ULP: f64 = 2.0 * F32;

/// Against an integral: the Taylor series of erf, which converges for every argument used here.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

pub(crate) fn gelu(ways: &Ways) {
    let kernel = Kernel::open("gelu");
    let x = Numbers::new(81).reals::<f32>(700, 4.0);
    let mut wanted: [Vec<Bounded>; 3] = Default::default();
    for x in x.iter().map(|x| x.f64()) {
        let cdf = 0.5 * (1.0 + erf(x / 2f64.sqrt()));
        // Of erf, 2 units, and of its argument, relative 2 roundoffs, which weigh at most as much; then a sum.
        let cdf_error = 8.0 * F32;
        wanted[0].push(Bounded { value: x * cdf, error: x.abs() * cdf_error });
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        // |u| sech^2(u) < 0.45: an argument with 8 roundoffs costs less than 4; tanh itself 2 units; then a sum.
        wanted[1].push(Bounded { value: 0.5 * x * (1.0 + inner.tanh()), error: 0.5 * x.abs() * 10.0 * F32 });
        let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let error = cdf_error + (x * density).abs() * (exp_error(0.5 * x * x) + 4.0 * F32);
        wanted[2].push(Bounded { value: cdf + x * density, error });
    }
    ways.each(|machine| {
        let inp = machine.upload(&x);
        let out = [(); 3].map(|()| machine.output::<f32>(x.len()));
        let call = kernel.on(machine).buffer("erf_out", &out[0]).buffer("tanh_out", &out[1]).buffer("grad", &out[2]);
        call.buffer("inp", &inp).integers(&[("count", x.len() as i32)]).launch([3, 1, 1]);
        for (what, (out, wanted)) in ["erf", "tanh", "gradient"].iter().zip(out.iter().zip(&wanted)) {
            close(what, &machine.download::<f32>(out), wanted);
        }
    });
}

pub(crate) fn swiglu(ways: &Ways) {
    let kernel = Kernel::open("swiglu");
    let count = 1200;
    let mut numbers = Numbers::new(82);
    let (gate, up) = (numbers.reals::<bf16>(count, 6.0), numbers.reals::<bf16>(count, 2.0));
    let wanted: Vec<Bounded> = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| {
            let (g, u) = (g.f64(), u.f64());
            let value = g / (1.0 + (-g).exp()) * u;
            Bounded { value, error: value.abs() * (exp_error(g) + DIVISION + 3.0 * F32) }
        })
        .collect();
    ways.each(|machine| {
        let (g, u, out) = (machine.upload(&gate), machine.upload(&up), machine.output::<bf16>(count));
        let call = kernel.on(machine).buffer("out", &out).buffer("gate", &g).buffer("up", &u);
        call.integers(&[("count", count as i32)]).launch([3, 1, 1]);
        close("out", &machine.download::<bf16>(&out), &wanted);
    });
}

pub(crate) fn rope(ways: &Ways) {
    let kernel = Kernel::open("rope");
    let (tokens, heads, base, half) = (5, 3, 10_000f32, kernel.constant("HALF") as usize);
    let x = Numbers::new(83).reals::<f32>(tokens * heads * 2 * half, 2.0);
    let mut wanted = vec![Bounded { value: 0.0, error: 0.0 }; x.len()];
    for row in 0..tokens * heads {
        for pair in 0..half {
            let angle = (row / heads) as f64 * base.f64().powf(-(pair as f64) / half as f64);
            let (left, right) = (row * 2 * half + pair, row * 2 * half + half + pair);
            let (a, b) = (x[left].f64(), x[right].f64());
            let turned = |p: f64, q: f64| Bounded { value: p + q, error: (p.abs() + q.abs()) * 3.0 * F32 };
            wanted[left] = turned(a * angle.cos(), -b * angle.sin());
            wanted[right] = turned(b * angle.cos(), a * angle.sin());
        }
    }
    ways.each(|machine| {
        let (inp, out) = (machine.upload(&x), machine.output::<f32>(x.len()));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp);
        call.integers(&[("heads", heads as i32)]).floats(&[("base", base)]).launch([tokens as u32, heads as u32, 1]);
        close("out", &machine.download::<f32>(&out), &wanted);
    });
}

/// A row of the table: the function, and the error of the kernel's relative to its value, beyond the last rounding.
type Function = (&'static str, fn(f64) -> f64, fn(f64) -> f64);

const FUNCTIONS: [Function; 12] = [
    ("exp", f64::exp, exp_error),
    // The rounding of the argument weighs absolutely, whatever the logarithm is.
    ("log", |x| (x.abs() + 0.5).ln(), |x| ULP + F32 / (x.abs() + 0.5).ln().abs().max(1e-30)),
    ("sqrt", |x| x.abs().sqrt(), |_| 0.0),
    ("sin", f64::sin, |_| 2.0 * ULP),
    ("cos", f64::cos, |_| 2.0 * ULP),
    ("floor and ceil", |x| x.floor() + (x * 0.5).ceil(), |_| 0.0),
    ("atan2", |x| x.atan2(1.5), |_| 3.0 * ULP),
    ("log1p", |x| x.abs().ln_1p(), |_| ULP),
    ("pow", |x| x.abs().powf(1.25), |_| 4.0 * ULP),
    ("reciprocal", |x| 1.0 / x, |_| 0.0),
    ("fma", |x| x.mul_add(x, 0.1f32 as f64), |_| 0.0),
    ("rint", f64::round_ties_even, |_| 0.0),
];

pub(crate) fn float_functions(ways: &Ways) {
    let kernel = Kernel::open("float_functions");
    let mut x = Numbers::new(84).reals::<f32>(200, 12.0);
    // Ties, large arguments (whose angles take the long reduction), and where exp overflows and vanishes.
    let special = [0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 1e6, -123_456.78, 3e10, 88.0, 89.0, -150.0, 1e-3, 8_388_609.0];
    x[..special.len()].copy_from_slice(&special);
    ways.each(|machine| {
        let (inp, out) = (machine.upload(&x), machine.output::<f32>(FUNCTIONS.len() * x.len()));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp);
        call.integers(&[("count", x.len() as i32)]).launch([2, 1, 1]);
        let got = machine.download::<f32>(&out);
        for ((name, function, relative), got) in FUNCTIONS.iter().zip(got.chunks(x.len())) {
            let wanted: Vec<Bounded> = x
                .iter()
                .map(|x| {
                    let value = function(x.f64());
                    Bounded { value, error: value.abs() * relative(x.f64()) }
                })
                .collect();
            close(name, got, &wanted);
        }
    });
}

pub(crate) fn integer_functions(ways: &Ways) {
    let kernel = Kernel::open("integer_functions");
    let mut numbers = Numbers::new(85);
    // Of every size: 1 to 63 bits, both signs.
    let mut some =
        |count: usize| -> Vec<i64> { (0..count).map(|_| (numbers.bits() as i64) >> (numbers.bits() % 63)).collect() };
    let count = 250;
    let (a, mut b) = (some(count), some(count));
    b.iter_mut().filter(|b| **b == 0 || **b == -1).for_each(|b| *b = 7);
    let functions: [fn(i64, i64) -> i64; 6] = [
        |a, b| a / b,
        |a, b| a % b,
        |a, b| ((u128::from(a as u64) * u128::from(b as u64)) >> 64) as i64,
        |a, b| i64::from((a as i32).count_ones() + (b as i32).leading_zeros()),
        |a, b| (a >> 7) ^ (b << 3),
        |a, b| a.min(b).wrapping_sub(a.max(b.wrapping_neg())),
    ];
    let wanted: Vec<i64> = functions.iter().flat_map(|f| a.iter().zip(&b).map(|(&a, &b)| f(a, b))).collect();
    ways.each(|machine| {
        let (left, right, out) = (machine.upload(&a), machine.upload(&b), machine.output::<i64>(6 * count));
        let call = kernel.on(machine).buffer("out", &out).buffer("left", &left).buffer("right", &right);
        call.integers(&[("count", count as i32)]).launch([2, 1, 1]);
        same("out", &machine.download::<i64>(&out), &wanted);
    });
}

pub(crate) fn narrow_formats(ways: &Ways) {
    let kernel = Kernel::open("narrow_formats");
    let (count, block) = (600, kernel.constant("BLOCK") as usize);
    let mut x = Numbers::new(86).reals::<f32>(count, 900.0);
    // Ties of the narrow formats, a subnormal of f16.
    x[..6].copy_from_slice(&[
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        3e-7,
        -1e-6,
    ]);
    let scales: Vec<Bounded> = x
        .chunks(block)
        .map(|x| {
            let value = x.iter().map(|x| x.f64().abs()).fold(0.0, f64::max) / 127.0;
            Bounded { value, error: value * DIVISION }
        })
        .collect();
    let as_f16: Vec<f32> = x.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    let as_bf16: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    let as_integer: Vec<f32> = x.iter().map(|x| x.trunc()).map(|x| x + 0.0).collect();
    ways.each(|machine| {
        let (inp, wide) = (machine.upload(&x), machine.output::<f32>(4 * count));
        let (packed, scale) = (machine.output::<i8>(count), machine.output::<f32>(scales.len()));
        let call = kernel.on(machine).buffer("wide", &wide).buffer("packed", &packed).buffer("scales", &scale);
        call.buffer("inp", &inp).integers(&[("count", count as i32)]).launch([3, 1, 1]);
        let got = machine.download::<f32>(&wide);
        let (e5m2, rest) = got.split_at(count);
        // To f16 first, then to 2 bits of fraction: two roundings. Its values are f16 numbers whose low byte is zero.
        for (got, x) in e5m2.iter().zip(&x) {
            let room = x.f64().abs() * (0.125 + 2.0 / 2048.0) + 2f64.powi(-16);
            assert!((got.f64() - x.f64()).abs() <= room, "{x} became {got} in e5m2");
            assert_eq!(
                (f16::from_f32(*got).to_f32(), f16::from_f32(*got).to_bits() & 0xff),
                (*got, 0),
                "{got} is no e5m2"
            );
        }
        same("f16", &rest[..count], &as_f16);
        same("bf16", &rest[count..2 * count], &as_bf16);
        close(
            "i32",
            &rest[2 * count..],
            &as_integer.iter().map(|x| Bounded { value: x.f64(), error: 0.0 }).collect::<Vec<_>>(),
        );
        let got_scales = machine.download::<f32>(&scale);
        close("scales", &got_scales, &scales);
        for (at, (got, x)) in machine.download::<i8>(&packed).iter().zip(&x).enumerate() {
            let exact = x.f64() / got_scales[at / block].f64();
            assert!((f64::from(*got) - exact).abs() <= 0.5 + 127.0 * (DIVISION + F32), "{x}: {got} for {exact}");
        }
    });
}

pub(crate) fn transpose(ways: &Ways) {
    let kernel = Kernel::open("transpose");
    let (rows, columns) = (45, 70);
    let x = Numbers::new(87).reals::<f32>(rows * columns, 1.0);
    let wanted: Vec<f32> = (0..x.len()).map(|at| x[at % rows * columns + at / rows]).collect();
    ways.each(|machine| {
        let (inp, out) = (machine.upload(&x), machine.output::<f32>(x.len()));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp);
        call.integers(&[("rows", rows as i32), ("columns", columns as i32)]).launch([2, 3, 1]);
        same("out", &machine.download::<f32>(&out), &wanted);
    });
}

pub(crate) fn adamw(ways: &Ways) {
    let kernel = Kernel::open("adamw");
    let (count, step) = (500, 3);
    let [lr, beta1, beta2, eps, decay] = [1e-3f32, 0.9, 0.999, 1e-8, 0.1];
    let mut numbers = Numbers::new(88);
    let (w, m) = (numbers.reals::<f32>(count, 1.0), numbers.reals::<f32>(count, 0.1));
    let v: Vec<f32> = (0..count).map(|_| numbers.real(0.01).abs() as f32 + 1e-6).collect();
    let g = numbers.reals::<bf16>(count, 1.0);
    let mut wanted: [Vec<Bounded>; 3] = Default::default();
    for at in 0..count {
        let (b1, b2) = (beta1.f64(), beta2.f64());
        let (old_m, fresh_m) = (b1 * m[at].f64(), (1.0 - b1) * g[at].f64());
        let (old_v, fresh_v) = (b2 * v[at].f64(), (1.0 - b2) * g[at].f64().powi(2));
        // 1 - beta in f32 is exact (Sterbenz); each term is rounded, and the sum.
        let m1 = Bounded { value: old_m + fresh_m, error: 3.0 * F32 * (old_m.abs() + fresh_m.abs()) };
        let v1 = Bounded { value: old_v + fresh_v, error: 4.0 * F32 * (old_v + fresh_v) };
        // A power is within 4 units; subtracted from one, that error stays absolute.
        let correction =
            |beta: f64| (1.0 - beta.powi(step), (4.0 * ULP * beta.powi(step) + F32) / (1.0 - beta.powi(step)));
        let ((c1, e1), (c2, e2)) = (correction(b1), correction(b2));
        let root = (v1.value / c2).sqrt();
        let update = m1.value / c1 / (root + eps.f64());
        let update_error =
            m1.error / c1 / root + update.abs() * (e1 + (e2 + 4.0 * F32) / 2.0 + 2.0 * DIVISION + 6.0 * F32);
        let old = w[at].f64();
        let change = lr.f64() * (update + decay.f64() * old);
        let error = 1.01 * lr.f64() * update_error + 4.0 * F32 * lr.f64() * (update.abs() + decay.f64() * old.abs());
        wanted[0].push(Bounded { value: old - change, error });
        wanted[1].push(m1);
        wanted[2].push(v1);
    }
    ways.each(|machine| {
        let (master, m, v) = (machine.upload(&w), machine.upload(&m), machine.upload(&v));
        let (grad, weight, at) = (machine.upload(&g), machine.output::<bf16>(count), machine.upload(&[step]));
        let call =
            kernel.on(machine).buffer("weight", &weight).buffer("master", &master).buffer("m", &m).buffer("v", &v);
        let call = call.buffer("grad", &grad).buffer("step", &at).integers(&[("count", count as i32)]);
        let scalars = [("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps), ("decay", decay)];
        call.floats(&scalars).launch([2, 1, 1]);
        close("master", &machine.download::<f32>(&master), &wanted[0]);
        close("m", &machine.download::<f32>(&m), &wanted[1]);
        close("v", &machine.download::<f32>(&v), &wanted[2]);
        close("weight", &machine.download::<bf16>(&weight), &wanted[0]);
    });
}
