//! What the tests of the ops share: devices of several thread counts and software devices, inputs, comparison within a
//! bound, and derivatives by finite differences.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod attention;
pub(crate) mod attention_bounds;
pub(crate) mod attention_trial;
pub(crate) mod calls;
pub(crate) mod counters;
pub(crate) mod degenerate;
pub(crate) mod dispatched;
pub(crate) mod far;
pub(crate) mod mutants;
pub(crate) mod optimizer;
pub(crate) mod padded;
pub(crate) mod products;
pub(crate) mod routing;
pub(crate) mod trial;
pub(crate) mod ways;

use warpweft_device::{Buffer, DType, Device, Element, Float, Stream};
use warpweft_kernels::philox::Philox4x32;

/// A device with its stream, and short ways to move arrays.
pub(crate) struct On {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
}

impl On {
    pub(crate) fn threads(threads: usize) -> Self {
        let device = Device::cpu_with_threads(threads).unwrap();
        let stream = device.stream();
        Self { device, stream }
    }

    pub(crate) fn up<T: Element>(&self, values: &[T]) -> Buffer<T> {
        self.device.upload(values).unwrap()
    }

    pub(crate) fn down<T: Element>(&self, buffer: &Buffer<T>) -> Vec<T> {
        buffer.download(&self.stream).unwrap()
    }

    /// A buffer of NaN, so that an element which an op forgets to write is seen.
    pub(crate) fn garbage<T: Float>(&self, len: usize) -> Buffer<T> {
        self.up(&vec![T::from_f32(f32::NAN); len])
    }
}

/// Runs `work` with 1, 2 and 3 threads, asserts that it returns the same bits, and returns them.
pub(crate) fn same_bits_for_threads<T: Element>(work: impl Fn(&On) -> Vec<T>) -> Vec<T> {
    let first = work(&On::threads(1));
    for threads in 2..=3 {
        let other = work(&On::threads(threads));
        assert!(bytemuck::cast_slice::<T, u8>(&first) == bytemuck::cast_slice::<T, u8>(&other), "{threads} threads");
    }
    first
}

/// Numbers of the standard normal distribution, rounded to `T`.
pub(crate) fn normal<T: Float>(len: usize, seed: u64) -> Vec<T> {
    let generator = Philox4x32::new(seed, 0);
    (0..len as u64).map(|i| T::from_f64(generator.normal(i))).collect()
}

/// Integers from -7 to 7: their sums and products are exact in f32 in any order.
pub(crate) fn integers<T: Float>(len: usize, seed: u64) -> Vec<T> {
    let generator = Philox4x32::new(seed, 1);
    (0..len as u64).map(|i| T::from_f64(f64::from(generator.word(i) % 15) - 7.0)).collect()
}

/// Tokens below `vocab`.
pub(crate) fn tokens(len: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let generator = Philox4x32::new(seed, 2);
    (0..len as u64).map(|i| generator.word(i) % vocab).collect()
}

pub(crate) fn f64s<T: Float>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// The unit roundoff of f32 arithmetic: the relative error of one operation.
pub(crate) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// The relative error of a kernel's sum along a row: terms that one after another enter a thread's sum (a row has a thread for
/// 64 bytes, 32 at least and 1024 at most), and the levels of the tree after it.
pub(crate) fn row_error<T: Float>(columns: usize) -> f64 {
    let threads = (columns * size_of::<T>()).div_ceil(64).next_power_of_two().clamp(32, 1024);
    // The rest behind whole 16 bytes is one more.
    (columns.div_ceil(threads).max(16 / size_of::<T>()) as f64 + 11.0) * U
}

/// The relative error of a kernel's sum over rows: 128 of them in f32, 16 by each of 8 warps, and those in f64.
pub(crate) fn columns_error() -> f64 {
    (16.0 + 8.0) * U
}

/// The error of rounding `value` to `T`: half a unit in the last place, or half the smallest subnormal.
pub(crate) fn rounding<T: Float>(value: f64) -> f64 {
    let (fraction_bits, smallest_exponent) = match T::DTYPE {
        DType::F32 => (24, -149),
        DType::BF16 => (8, -133),
        DType::F16 => (11, -24),
        other => panic!("no storage type: {other}"),
    };
    (value.abs() * 2f64.powi(-fraction_bits)).max(2f64.powi(smallest_exponent - 1))
}

/// Asserts that each element is within `bound(i)` plus the rounding to `T` of what is expected, with NaN where NaN is
/// expected and infinities where those are. The bound holds first-order error terms; 1 % is for the higher orders.
#[track_caller]
pub(crate) fn assert_within<T: Float>(what: &str, given: &[T], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(given.len(), expected.len(), "{what}: length");
    for (i, (given, &expected)) in given.iter().zip(expected).enumerate() {
        let given = given.to_f64();
        if expected.is_nan() || expected.is_infinite() {
            assert!(given == expected || (given.is_nan() && expected.is_nan()), "{what}[{i}]: {given}, not {expected}");
            continue;
        }
        let allowed = 1.01 * (bound(i) + rounding::<T>(expected));
        let error = (given - expected).abs();
        // Written so that a NaN, as an element or as a bound, fails.
        assert!(
            error <= allowed,
            "{what}[{i}]: {given:e}, expected {expected:e}: off by {error:e}, allowed {allowed:e}"
        );
    }
}

/// Asserts that the largest error of a kernel is at most `factor` times that of the CPU's op in the same storage, whose sums
/// are better: 2 for outputs, 3 for gradients. Only for bf16 and f16, where storage decides.
#[track_caller]
pub(crate) fn assert_like_the_cpu<T: Float>(what: &str, given: &[T], cpu: &[T], exact: &[f64], factor: f64) {
    if T::DTYPE == DType::F32 {
        return;
    }
    let largest = |values: &[T]| {
        values.iter().zip(exact).map(|(value, exact)| (value.to_f64() - exact).abs()).fold(0.0, f64::max)
    };
    let (given, cpu) = (largest(given), largest(cpu));
    assert!(given <= factor * cpu, "{what}: off by {given:e}, the CPU by {cpu:e}");
}

/// The gradient of `f` at `x`, by central differences of the fourth order.
///
/// With h = 2^-9 the truncation h^4 / 30 times the fifth derivative is 5e-13 times it, and the rounding of f64 in
/// `f`, 1.5 * 2^-53 |f| / h, is 9e-14 times `f`'s summed terms.
pub(crate) fn finite_differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let h = 1.0 / 512.0;
    let mut moved = x.to_vec();
    let mut gradient = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        let mut at = |offset: f64| {
            moved[i] = x[i] + offset;
            f(&moved)
        };
        gradient.push((8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h));
        moved[i] = x[i];
    }
    gradient
}

/// Asserts that a gradient in f64 is the finite differences', within 1e-8: by the errors of [`finite_differences`] this
/// holds for terms that sum to 1e4 with fifth derivatives up to 1e4, which tests keep to.
#[track_caller]
pub(crate) fn assert_gradient(what: &str, gradient: &[f64], differences: &[f64]) {
    assert_eq!(gradient.len(), differences.len(), "{what}: length");
    for (i, (gradient, difference)) in gradient.iter().zip(differences).enumerate() {
        let error = (gradient - difference).abs();
        assert!(error <= 1e-8, "{what}[{i}]: {gradient:e}, by differences {difference:e}");
    }
}

/// The sum of products: a scalar function of an op's output whose gradient there is `dy`.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
