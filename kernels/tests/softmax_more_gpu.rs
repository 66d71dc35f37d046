//! The kernels of softmax on the software device: numbers that are exact, arrays at any address between NaNs, and the longest
//! rows that the library promises.
#![forbid(unsafe_code)]

mod common;

use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, U, assert_like_the_cpu, assert_within, f64s, integers, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::softmax::{self, Options, Shape, reference};

const PLAIN: Options = Options { scale: 1.0, causal: None };

/// Forward between NaNs.
fn forward<T: Float>(on: &On, before: usize, shape: Shape, options: Options, x: &[T]) -> Vec<T> {
    let (x, mut y) = (on.padded(before, x), on.padded_garbage::<T>(before, x.len()));
    softmax::forward(&on.stream, shape, options, x.view(), y.view_mut()).unwrap();
    y.down(on)
}

/// Backward between NaNs.
fn backward<T: Float>(on: &On, before: usize, case: (Shape, Options), [dy, y, old]: [&[T]; 3], write: Write) -> Vec<T> {
    let (dy, y, mut dx) = (on.padded(before, dy), on.padded(before, y), on.padded(before, old));
    softmax::backward(&on.stream, case.0, case.1, dy.view(), y.view(), write, dx.view_mut()).unwrap();
    dx.down(on)
}

/// Each of the n largest elements of a row, all equal, is 1 / n, rounded once to f32 and once to storage, whatever the order; and
/// gradients of whole numbers are whole numbers.
fn exact<T: Float>(rows: usize, columns: usize) {
    let shape = Shape { rows, columns };
    let largest: Vec<bool> = integers::<f32>(rows * columns, 1).iter().map(|&x| x > 3.0).collect();
    let x: Vec<T> = largest.iter().map(|&is| T::from_f32(if is { 4.0 } else { -3e4 })).collect();
    let y = same_bits_in_every_way(|on| forward(on, 8, shape, PLAIN, &x));
    for (i, y) in y.iter().enumerate() {
        let row = i / columns * columns;
        let count = largest[row..row + columns].iter().filter(|&&is| is).count();
        // With none the row is equal throughout.
        let expected = match (count, largest[i]) {
            (0, _) => 1.0 / columns as f32,
            (count, true) => 1.0 / count as f32,
            _ => 0.0,
        };
        assert_eq!(y.to_f64(), T::from_f32(expected).to_f64(), "y[{i}] of {rows} x {columns}");
    }
    let [dy, y, old] = [2, 3, 4].map(|seed| integers::<T>(rows * columns, seed));
    let options = Options { scale: 2.0, causal: None };
    let dx = reference::backward(shape, options, &f64s(&dy), &f64s(&y));
    for (write, factor) in [(Write::Set, 0.0), (Write::Add, 1.0)] {
        let given = same_bits_in_every_way(|on| backward(on, 8, (shape, options), [&dy, &y, &old], write));
        for i in 0..given.len() {
            let expected = T::from_f64(dx[i] + factor * old[i].to_f64());
            assert_eq!(given[i].to_f64(), expected.to_f64(), "dx[{i}] of {rows} x {columns}, {write:?}");
        }
    }
}

#[test]
fn whole_numbers_are_exact() {
    for (rows, columns) in [(5, 1), (6, 7), (4, 128), (3, 100), (2, 600)] {
        exact::<f32>(rows, columns);
        exact::<bf16>(rows, columns);
        exact::<f16>(rows, columns);
    }
}

/// The same at any address: rows that begin at multiples of 16 bytes, at others, and at the begin of an allocation whose end is
/// that of the array; of whole 16 bytes and not; a warp a row and a block; causal and not.
fn anywhere<T: Float>() {
    let causal = Options { scale: 0.5, causal: Some(3) };
    for (columns, options) in [(96, PLAIN), (101, causal), (1104, causal), (1101, PLAIN)] {
        let shape = Shape { rows: 6, columns };
        let (x, dy) = (normal::<T>(6 * columns, 1), normal::<T>(6 * columns, 2));
        let y64 = reference::forward(shape, options, &f64s(&x));
        let y: Vec<T> = y64.iter().map(|&y| T::from_f64(y)).collect();
        let dx64 = reference::backward(shape, options, &f64s(&dy), &f64s(&y));
        let cpu = On::threads(1);
        let cpu =
            (forward(&cpu, 0, shape, options, &x), backward(&cpu, 0, (shape, options), [&dy, &y, &dy], Write::Set));
        for before in [0, 1, 8] {
            let given = same_bits_in_two_ways(|on| forward(on, before, shape, options, &x));
            // Numbers are at most 5 in magnitude; a thread has at most 35 of them.
            assert_within("y", &given, &y64, |i| (6.0 * 5.0 + 10.0 + 45.0) * U * y64[i]);
            assert_like_the_cpu("y", &given, &cpu.0, &y64, 2.0);
            let given = same_bits_in_two_ways(|on| backward(on, before, (shape, options), [&dy, &y, &dy], Write::Set));
            assert_within("dx", &given, &dx64, |i| (45.0 + 8.0) * U * 10.0 * y64[i] + 2f64.powi(-126));
            assert_like_the_cpu("dx", &given, &cpu.1, &dx64, 3.0);
        }
    }
}

#[test]
fn arrays_at_any_address_between_nans_are_right() {
    anywhere::<f32>();
    anywhere::<bf16>();
    anywhere::<f16>();
}

/// Rows of 2^20: a thread sums 1024 terms, each rounding of which is relative to a partial sum of at most the whole.
#[test]
fn a_row_of_1048576_is_right() {
    let shape = Shape { rows: 1, columns: 1 << 20 };
    let x = normal::<f32>(shape.columns, 1);
    let y = same_bits_in_two_ways(|on| forward(on, 8, shape, PLAIN, &x));
    let exact = reference::forward(shape, PLAIN, &f64s(&x));
    let sum_error = (1024.0 + 10.0) * U;
    assert_within("y", &y, &exact, |i| exact[i] * ((6.0 * 6.0 + 10.0) * U + sum_error));
    let dy = normal::<f32>(shape.columns, 2);
    let dx = same_bits_in_two_ways(|on| backward(on, 8, (shape, PLAIN), [&dy, &y, &dy], Write::Set));
    let (dy, y) = (f64s(&dy), f64s(&y));
    let exact = reference::backward(shape, PLAIN, &dy, &y);
    let terms = dy.iter().zip(&y).map(|(dy, y)| (dy * y).abs()).sum::<f64>();
    assert_within("dx", &dx, &exact, |i| {
        y[i] * (4.0 * U * (dy[i].abs() + terms) + terms * sum_error) + 2f64.powi(-126)
    });
}
