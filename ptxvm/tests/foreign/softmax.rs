//! Softmax of Triton, in its three shapes, and cross-entropy.

use half::{bf16, f16};

use crate::numbers::{Bounded, F32, Numbers, Real, close, same, wide};
use crate::triton::Kernel;
use crate::vm::Ways;

/// Relative error of `exp(z)` computed as `ex2.approx(z log2(e))` where z is a difference: 2 units in the last place of
/// `ex2.approx` (4 roundoffs), and |z| for each rounding of z: the difference, the constant, the product.
pub(crate) fn exp_error(z: f64) -> f64 {
    (4.0 + 4.0 * z.abs()) * F32
}

/// 2 units in the last place: `div.full`.
pub(crate) const DIVISION: f64 = 4.0 * F32;

/// One row. `steps` is how often the sum was rescaled on the way, `input` the absolute error of the elements themselves.
fn softmax_row(x: &[f64], steps: usize, input: f64) -> Vec<Bounded> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = x.iter().copied().fold(f64::INFINITY, f64::min);
    let total: f64 = x.iter().map(|x| (x - largest).exp()).sum();
    // The sum is of positive terms: its relative error is at most the worst term's, and the additions'.
    let sum = (steps + 1) as f64 * (exp_error(largest - least) + 2.0 * input) + (x.len() + steps) as f64 * F32;
    let bounded = x.iter().map(|x| {
        let z = x - largest;
        let value = z.exp() / total;
        Bounded { value, error: 1.01 * value * (exp_error(z) + 2.0 * input + sum + DIVISION) }
    });
    bounded.collect()
}

fn rows<T: Real>(ways: &Ways, name: &str, rows: usize, columns: usize, programs: u32) {
    let kernel = Kernel::open(name);
    // A stride beyond the row, whose padding is NaN: nothing of it may be read into a result.
    let stride = columns + 16;
    let mut numbers = Numbers::new(21);
    let mut x = numbers.reals::<T>(rows * stride, 6.0);
    for (at, x) in x.iter_mut().enumerate() {
        if at % stride >= columns {
            *x = T::from_f64(f64::NAN);
        }
    }
    let wanted: Vec<_> = wide(&x).chunks(stride).map(|row| softmax_row(&row[..columns], 0, 0.0)).collect();
    ways.each(|machine| {
        let (input, out) = (machine.upload(&x), machine.zeros::<T>(rows * stride));
        let sizes = [("rows", rows as i32), ("columns", columns as i32), ("stride", stride as i32)];
        kernel.on(machine).buffer("out", &out).buffer("inp", &input).integers(&sizes).launch([programs, 1, 1]);
        for (got, wanted) in machine.download::<T>(&out).chunks(stride).zip(&wanted) {
            close("row", &got[..columns], wanted);
            same("padding", &got[columns..], &vec![T::from_f64(0.0); stride - columns]);
        }
    });
}

pub(crate) fn rows_f32(ways: &Ways) {
    rows::<f32>(ways, "softmax_f32", 5, 781, 2);
}

/// The pipelined loop over rows: `cp.async`.
pub(crate) fn rows_bf16(ways: &Ways) {
    rows::<bf16>(ways, "softmax_bf16", 7, 496, 2);
}

pub(crate) fn rows_f16_one_warp(ways: &Ways) {
    rows::<f16>(ways, "softmax_f16_one_warp", 9, 51, 3);
}

pub(crate) fn online(ways: &Ways) {
    let kernel = Kernel::open("softmax_online");
    let (rows, columns, scale) = (3, 1000, 0.375f32);
    let x = Numbers::new(22).reals::<f32>(rows * columns, 20.0);
    let steps = columns.div_ceil(kernel.constant("BLOCK") as usize);
    let scaled: Vec<f64> = x.iter().map(|x| x.f64() * scale.f64()).collect();
    let wanted: Vec<Bounded> = scaled.chunks(columns).flat_map(|row| softmax_row(row, steps, 8.0 * F32)).collect();
    ways.each(|machine| {
        let (input, out) = (machine.upload(&x), machine.output::<f32>(x.len()));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &input);
        call.integers(&[("columns", columns as i32)]).floats(&[("scale", scale)]).launch([rows as u32, 1, 1]);
        close("out", &machine.download::<f32>(&out), &wanted);
    });
}

pub(crate) fn backward(ways: &Ways) {
    let kernel = Kernel::open("softmax_backward");
    let (rows, columns) = (4, 301);
    let mut numbers = Numbers::new(23);
    let y: Vec<bf16> = (0..rows * columns).map(|_| bf16::from_f64(numbers.real(0.5).abs() / 50.0)).collect();
    let dy = numbers.reals::<bf16>(rows * columns, 1.0);
    let mut wanted = Vec::new();
    for (p, g) in wide(&y).chunks(columns).zip(wide(&dy).chunks(columns)) {
        let along: f64 = p.iter().zip(g).map(|(p, g)| p * g).sum();
        let size: f64 = p.iter().zip(g).map(|(p, g)| (p * g).abs()).sum();
        wanted.extend(p.iter().zip(g).map(|(p, g)| {
            let error = p * (size * (columns + 1) as f64 + 2.0 * (g.abs() + along.abs())) * F32;
            Bounded { value: p * (g - along), error }
        }));
    }
    ways.each(|machine| {
        let (y, dy, dx) = (machine.upload(&y), machine.upload(&dy), machine.output::<bf16>(rows * columns));
        let call = kernel.on(machine).buffer("dx", &dx).buffer("y", &y).buffer("dy", &dy);
        call.integers(&[("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        close("dx", &machine.download::<bf16>(&dx), &wanted);
    });
}

/// Losses, and gradients over the logits; the third row's target is ignored.
pub(crate) fn cross_entropy(ways: &Ways) {
    let kernel = Kernel::open("cross_entropy");
    let (columns, ignored, scale, smoothing) = (555, -100i32, 0.25f32, 0.1f32);
    let targets = [7i64, 554, i64::from(ignored), 0, 300];
    let rows = targets.len();
    let logits = Numbers::new(24).reals::<bf16>(rows * columns, 8.0);
    let steps = columns.div_ceil(kernel.constant("BLOCK") as usize);
    let (mut losses, mut gradients) = (Vec::new(), Vec::new());
    for (x, &target) in wide(&logits).chunks(columns).zip(&targets) {
        if target == i64::from(ignored) {
            losses.push(Bounded { value: 0.0, error: 0.0 });
            gradients.extend(vec![Bounded { value: 0.0, error: 0.0 }; columns]);
            continue;
        }
        let (loss, row) = cross_entropy_row(x, target as usize, smoothing.f64(), steps);
        losses.push(loss);
        gradients.extend(
            row.iter()
                .map(|x| Bounded { value: x.value * scale.f64(), error: x.error * scale.f64() + x.value.abs() * F32 }),
        );
    }
    ways.each(|machine| {
        let (in_place, which, out) = (machine.upload(&logits), machine.upload(&targets), machine.output::<f32>(rows));
        let call = kernel.on(machine).buffer("logits", &in_place).buffer("targets", &which).buffer("losses", &out);
        let call = call.integers(&[("columns", columns as i32), ("ignored", ignored)]);
        call.floats(&[("scale", scale), ("smoothing", smoothing)]).launch([rows as u32, 1, 1]);
        close("losses", &machine.download::<f32>(&out), &losses);
        close("gradients", &machine.download::<bf16>(&in_place), &gradients);
    });
}

fn cross_entropy_row(x: &[f64], target: usize, smoothing: f64, steps: usize) -> (Bounded, Vec<Bounded>) {
    let count = x.len() as f64;
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = largest - x.iter().copied().fold(f64::INFINITY, f64::min);
    let total: f64 = x.iter().map(|x| (x - largest).exp()).sum();
    let lse = largest + total.ln();
    // log(total) by lg2.approx: an absolute error below 2^-22 of log2, beside what the sum carries.
    let sum = (steps + 1) as f64 * exp_error(range) + (count + steps as f64) * F32;
    let lse_error = sum + 4.0 * F32 * (1.0 + total.ln()) + 2.0 * F32 * lse.abs();
    let mean = x.iter().sum::<f64>() / count;
    let size = x.iter().map(|x| x.abs()).sum::<f64>() / count;
    let value = lse - (1.0 - smoothing) * x[target] - smoothing * mean;
    let loss =
        Bounded { value, error: lse_error + (count + 8.0) * size * F32 + 4.0 * F32 * (lse.abs() + x[target].abs()) };
    let gradient = x.iter().enumerate().map(|(at, x)| {
        let p = (x - lse).exp();
        let wanted = if at == target { 1.0 - smoothing } else { 0.0 } + smoothing / count;
        let error = p * (exp_error(x - lse) + lse_error * 1.01) + 6.0 * F32 * (p + wanted);
        Bounded { value: p - wanted, error }
    });
    (loss, gradient.collect())
}
