//! The kernels of softmax on the software device, under every check and in every way of running.
#![forbid(unsafe_code)]

mod common;

use common::trial::{Trial, Verdict, sample};
use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{On, U, assert_like_the_cpu, assert_within, f64s, normal, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::softmax::{self, MaskShape, Options, Shape, reference};

fn forward<T: Float>(on: &On, shape: Shape, options: Options, x: &[T]) -> Vec<T> {
    let mut y = on.garbage::<T>(x.len());
    softmax::forward(&on.stream, shape, options, on.up(x).as_view(), y.as_view_mut()).unwrap();
    on.down(&y)
}

fn backward<T: Float>(on: &On, case: (Shape, Options), dy: &[T], y: &[T], write: Write, before: &[T]) -> Vec<T> {
    let (dy, y, mut dx) = (on.up(dy), on.up(y), on.up(before));
    softmax::backward(&on.stream, case.0, case.1, dy.as_view(), y.as_view(), write, dx.as_view_mut()).unwrap();
    on.down(&dx)
}

/// Terms that one after another enter a thread's sum, and the levels of the tree after it.
fn sum_error(columns: usize) -> f64 {
    (columns.div_ceil(32).min(columns) as f64 + 10.0) * U
}

fn visible(options: Options, row: usize, columns: usize) -> usize {
    match options.causal {
        Some(queries) => (row % queries + 1 + columns).saturating_sub(queries).min(columns),
        None => columns,
    }
}

/// Masked elements of the input are NaN: nobody may read them.
fn input<T: Float>(shape: Shape, options: Options, spread: f64) -> Vec<T> {
    let mut x: Vec<T> = normal::<T>(shape.rows * shape.columns, 1);
    for (i, x) in x.iter_mut().enumerate() {
        let masked = i % shape.columns >= visible(options, i / shape.columns, shape.columns);
        *x = if masked { T::from_f32(f32::NAN) } else { T::from_f64(x.to_f64() * spread) };
    }
    x
}

fn check<T: Float>(rows: usize, columns: usize, options: Options, all: bool) {
    let shape = Shape { rows, columns };
    let x = input::<T>(shape, options, 3.0);
    let ways =
        |work: &dyn Fn(&On) -> Vec<T>| if all { same_bits_in_every_way(work) } else { same_bits_in_two_ways(work) };
    let y = ways(&|on| forward(on, shape, options, &x));
    let (x64, scale) = (f64s(&x), f64::from(options.scale));
    let exact = reference::forward(shape, options, &x64);
    // Of an element: product, difference and exponential (2 units) here and in the sum's terms and the rescaling of
    // partial sums, the sum's own error, the reciprocal and the product with it.
    let largest: Vec<f64> = (0..rows)
        .map(|row| {
            let seen = &x64[row * columns..row * columns + visible(options, row, columns)];
            seen.iter().map(|x| (x * scale).abs()).fold(0.0, f64::max)
        })
        .collect();
    assert_within("y", &y, &exact, |i| {
        exact[i] * ((6.0 * largest[i / columns] + 10.0) * U + sum_error(columns)) + 2f64.powi(-126)
    });
    let cpu = On::threads(1);
    assert_like_the_cpu("y", &y, &forward(&cpu, shape, options, &x), &exact, 2.0);
    let (dy, before) = (normal::<T>(y.len(), 2), normal::<T>(y.len(), 3));
    let (dy64, y64) = (f64s(&dy), f64s(&y));
    let exact = reference::backward(shape, options, &dy64, &y64);
    let sums: Vec<f64> =
        (0..rows).map(|row| (row * columns..(row + 1) * columns).map(|i| (y64[i] * dy64[i]).abs()).sum()).collect();
    let bound = |i: usize| {
        let terms = sums[i / columns];
        scale.abs() * y64[i] * (4.0 * U * (dy64[i].abs() + terms) + terms * sum_error(columns)) + 2f64.powi(-126)
    };
    let set = ways(&|on| backward(on, (shape, options), &dy, &y, Write::Set, &before));
    assert_within("dx", &set, &exact, bound);
    let cpu = backward(&cpu, (shape, options), &dy, &y, Write::Set, &before);
    assert_like_the_cpu("dx", &set, &cpu, &exact, 3.0);
    let added = ways(&|on| backward(on, (shape, options), &dy, &y, Write::Add, &before));
    let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
    assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());
}

const CAUSAL: Options = Options { scale: 0.125, causal: Some(3) };

#[test]
fn tiles_are_right_in_every_way() {
    for (rows, columns) in [(1, 1), (6, 7), (9, 32), (3, 128), (6, 100)] {
        check::<f32>(rows, columns, Options::default(), true);
        check::<bf16>(rows, columns, Options { scale: -0.5, causal: None }, true);
        check::<f16>(rows - rows % 3 + 3, columns, CAUSAL, true);
    }
}

#[test]
fn long_rows_are_right() {
    for (rows, columns) in [(2, 1000), (1, 16_384), (2, 5003)] {
        check::<f32>(rows, columns, Options::default(), false);
        check::<bf16>(rows, columns, Options { scale: 0.25, causal: None }, false);
    }
    check::<f16>(6, 520, CAUSAL, false);
    check::<f32>(1, 65_537, Options::default(), false);
}

#[test]
fn degenerate_rows_are_as_on_the_cpu() {
    let inf = f32::INFINITY;
    let x = [-inf, -inf, -inf, 1.0, -inf, 2.0, inf, 1.0, 1.0, f32::NAN, 0.0, 0.0, 88.0, 1e30, -1e30];
    let shape = Shape { rows: 5, columns: 3 };
    let expected = forward(&On::threads(1), shape, Options::default(), &x);
    let given = forward(&On::software_with_nans(), shape, Options::default(), &x);
    for (i, (given, expected)) in given.iter().zip(&expected).enumerate() {
        assert!((given.is_nan() && expected.is_nan()) || (given - expected).abs() < 1e-6, "{i}: {given}, {expected}");
    }
    let none = Shape { rows: 0, columns: 5 };
    assert!(forward::<f32>(&On::software(), none, Options::default(), &[]).is_empty());
}

/// Cases that take every way through a kernel: packed and not, staged and not, a warp a row and a block, masked and not. As many
/// bytes in every type.
fn cases<T: Float>() -> Vec<(Shape, Options)> {
    let plain = Options { scale: 0.5, causal: None };
    let long = Options { scale: 0.5, causal: Some(64) };
    let cases = [
        (6, 100, CAUSAL),
        (64, 101, long),
        (5, 37, plain),
        (3, 1101, CAUSAL),
        (2, 1100, plain),
        (3, 24_580, CAUSAL),
        (1, 24_577, plain),
    ];
    cases.map(|(rows, columns, options)| (Shape { rows, columns: columns * 4 / size_of::<T>() }, options)).to_vec()
}

/// Sizes, the mask's bytes, and x.
type Masked<T> = (Shape, Options, MaskShape, Vec<u8>, Vec<T>);

/// The same under a given mask, with NaNs behind it: its rows at any multiple of 16 bytes of x and at others, shared and not, and too
/// long for shared memory, where the mask's bytes decide.
fn masked<T: Float>() -> Vec<Masked<T>> {
    let heads = MaskShape { heads: 2, queries: 3 };
    let padding = MaskShape { heads: 3, queries: 1 };
    let plain = Options { scale: 0.5, causal: None };
    let long = 25_000 * 4 / (size_of::<T>() + 1) / 8 * 8;
    let factor = 4 / size_of::<T>();
    let cases = [
        (12, 100 * factor, plain, heads),
        (12, 37 * factor + 1, CAUSAL, heads),
        (3, 1100 * factor, plain, padding),
        (3, 1101 * factor + 1, CAUSAL, padding),
        (1, long, plain, MaskShape { heads: 1, queries: 1 }),
        (2, long + 1, plain, MaskShape { heads: 1, queries: 2 }),
    ];
    let case = |(rows, columns, options, mask): (usize, usize, Options, MaskShape)| {
        let shape = Shape { rows, columns };
        let mut hidden: Vec<u8> =
            tokens(rows / mask.heads * columns, 3, 5).iter().map(|&word| word as u8 / 2).collect();
        // A row that sees nothing, where there are others.
        if rows > 3 {
            hidden[..columns].fill(2);
        }
        let mut x = input::<T>(shape, options, 2.0);
        for (i, x) in x.iter_mut().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let of_mask = row / mask.queries / mask.heads * mask.queries + row % mask.queries;
            if hidden[of_mask * columns + column] != 0 {
                *x = T::from_f32(f32::NAN);
            }
        }
        (shape, options, mask, hidden, x)
    };
    cases.map(case).into()
}

fn forward_masked<T: Float>(on: &On, case: &Masked<T>) -> Vec<T> {
    let (shape, options, mask, hidden, x) = case;
    let (hidden, x, mut y) = (on.up(hidden), on.up(x), on.garbage::<T>(x.len()));
    let (hidden, x) = (hidden.as_view(), x.as_view());
    softmax::forward_masked(&on.stream, *shape, *options, *mask, hidden, x, y.as_view_mut()).unwrap();
    on.down(&y)
}

fn mutants<T: Float>(most: usize) -> Verdict {
    // Of numbers near each other, and of such that e^x of a difference is beyond f32.
    let spread = |spread: f64| cases::<T>().into_iter().map(move |case| (case, input::<T>(case.0, case.1, spread)));
    let mut inputs: Vec<_> = spread(2.0).chain(spread(1000.0).take(5)).collect();
    // A row that has nothing.
    let columns = inputs[2].0.0.columns;
    inputs[2].1[..columns].fill(T::from_f32(f32::NEG_INFINITY));
    let kernel = |call: &str| format!("softmax_{call}_{}", T::DTYPE);
    let masked = masked::<T>();
    let verdict = Trial::of("softmax", &kernel("forward"), most).verdict(|on, judge| {
        masked.iter().for_each(|case| judge.see(&forward_masked(on, case)));
        inputs.iter().for_each(|((shape, options), x)| judge.see(&forward(on, *shape, *options, x)));
    });
    let gradients: Vec<_> = inputs
        .iter()
        .map(|((shape, options), x)| {
            let mut y = forward(&On::software(), *shape, *options, x);
            // As behind a given mask, in every place of 16 bytes.
            y.iter_mut().skip(3).step_by(5).for_each(|y| *y = T::from_f32(0.0));
            let (mut dy, before) = (normal::<T>(y.len(), 7), normal::<T>(y.len(), 8));
            // Nobody uses the gradient of what is 0.
            dy.iter_mut().zip(f64s(&y)).filter(|(_, y)| *y == 0.0).for_each(|(dy, _)| *dy = T::from_f32(f32::NAN));
            ((*shape, *options), dy, y, before)
        })
        .collect();
    verdict.and(Trial::of("softmax", &kernel("backward"), most).verdict(|on, judge| {
        for (case, dy, y, before) in &gradients {
            for write in [Write::Set, Write::Add] {
                judge.see(&backward(on, *case, dy, y, write, before));
            }
        }
    }))
}

#[test]
fn mutants_are_killed() {
    mutants::<f32>(sample(30, 200)).assert_killed();
    let few = sample(6, 40);
    mutants::<bf16>(few).and(mutants::<f16>(few)).assert_killed();
}
