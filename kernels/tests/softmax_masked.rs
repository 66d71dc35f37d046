//! Softmax under a given mask, on the CPU and by the kernel on the software device: within the same bounds, with NaNs wherever
//! something is hidden.
#![forbid(unsafe_code)]

mod common;

use common::ways::{same_bits_in_every_way, same_bits_in_two_ways};
use common::{
    On, U, assert_gradient, assert_like_the_cpu, assert_within, dot, f64s, finite_differences, normal,
    same_bits_for_threads, tokens,
};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::softmax::{self, MaskShape, Options, Shape, reference};

#[derive(Clone)]
struct Case {
    shape: Shape,
    options: Options,
    mask: MaskShape,
    hidden: Vec<u8>,
}

const OWN: MaskShape = MaskShape { heads: 1, queries: 1 };

impl Case {
    /// A mask that hides about a third of each row, by bytes of any value; all of its first row, nothing of its second, and all
    /// but the last column of its third.
    fn new([rows, columns]: [usize; 2], options: Options, mask: MaskShape) -> Self {
        let of_mask = rows / mask.heads;
        let mut hidden: Vec<u8> =
            tokens(of_mask * columns, 384, 9).iter().map(|&word| word.saturating_sub(256) as u8 * 2).collect();
        for (row, hidden) in hidden.chunks_mut(columns.max(1)).enumerate().take(3) {
            hidden.fill(if row == 1 { 0 } else { 255 });
            hidden[columns - 1] = if row == 0 { 1 } else { 0 };
        }
        Self { shape: Shape { rows, columns }, options, mask, hidden }
    }

    fn columns(&self) -> usize {
        self.shape.columns
    }

    /// The row of the mask for a row of x, said otherwise than in the library: x is `[B, heads, queries, columns]`.
    fn mask_row(&self, row: usize) -> usize {
        let MaskShape { heads, queries } = self.mask;
        let (element, query) = (row / queries / heads, row % queries);
        element * queries + query
    }

    fn sees(&self, i: usize) -> bool {
        let (row, column) = (i / self.columns(), i % self.columns());
        let visible = match self.options.causal {
            Some(queries) => (row % queries + 1 + self.columns()).saturating_sub(queries),
            None => self.columns(),
        };
        column < visible && self.hidden[self.mask_row(row) * self.columns() + column] == 0
    }

    /// Normal numbers times `spread`, and `behind` wherever the mask hides.
    fn input<T: Float>(&self, seed: u64, spread: f64, behind: f32) -> Vec<T> {
        let all = normal::<T>(self.shape.rows * self.columns(), seed);
        let value = |(i, x): (usize, T)| match self.sees(i) {
            true => T::from_f64(x.to_f64() * spread),
            false => T::from_f32(behind),
        };
        all.into_iter().enumerate().map(value).collect()
    }

    fn forward<T: Float>(&self, on: &On, x: &[T]) -> Vec<T> {
        let (x, hidden, mut y) = (on.up(x), on.up(&self.hidden), on.garbage::<T>(x.len()));
        let (Case { shape, options, mask, .. }, hidden) = (self, hidden.as_view());
        softmax::forward_masked(&on.stream, *shape, *options, *mask, hidden, x.as_view(), y.as_view_mut()).unwrap();
        on.down(&y)
    }

    fn backward<T: Float>(&self, on: &On, dy: &[T], y: &[T], write: Write, before: &[T]) -> Vec<T> {
        let (dy, y, mut dx) = (on.up(dy), on.up(y), on.up(before));
        let (dy, y, to) = (dy.as_view(), y.as_view(), dx.as_view_mut());
        softmax::backward(&on.stream, self.shape, self.options, dy, y, write, to).unwrap();
        on.down(&dx)
    }

    fn reference(&self, x: &[f64]) -> Vec<f64> {
        reference::forward_masked(self.shape, self.options, self.mask, &self.hidden, x)
    }

    /// Terms that one after another enter a sum of the kernel, and the levels of the tree after it. The CPU's sums are better.
    fn sum_error(&self) -> f64 {
        (self.columns().div_ceil(32).min(self.columns()) as f64 + 10.0) * U
    }

    /// Forward and backward of `run`, which says on which devices: the bounds of `softmax_gpu.rs`.
    fn check<T: Float>(&self, run: impl Fn(&dyn Fn(&On) -> Vec<T>) -> Vec<T>) {
        let (columns, scale, cpu) = (self.columns(), f64::from(self.options.scale), On::threads(1));
        let x = self.input::<T>(1, 3.0, f32::NAN);
        let y = run(&|on| self.forward(on, &x));
        let x64 = f64s(&x);
        let exact = self.reference(&x64);
        let largest = |row: usize| {
            let seen = (row * columns..(row + 1) * columns).filter(|&i| self.sees(i));
            seen.map(|i| (x64[i] * scale).abs()).fold(0.0, f64::max)
        };
        let largest: Vec<f64> = (0..self.shape.rows).map(largest).collect();
        assert_within("y", &y, &exact, |i| {
            exact[i] * ((6.0 * largest[i / columns] + 10.0) * U + self.sum_error()) + 2f64.powi(-126)
        });
        assert!((0..y.len()).all(|i| self.sees(i) || y[i].to_f32().to_bits() == 0), "what is hidden is +0");
        assert_like_the_cpu("y", &y, &self.forward(&cpu, &x), &exact, 2.0);
        let (dy, before) = (self.input::<T>(2, 1.0, f32::NAN), normal::<T>(y.len(), 3));
        let (dy64, y64) = (f64s(&dy), f64s(&y));
        let exact = reference::backward(self.shape, self.options, &dy64, &y64);
        let sums: Vec<f64> = (0..self.shape.rows)
            .map(|row| {
                (row * columns..(row + 1) * columns).filter(|&i| self.sees(i)).map(|i| (y64[i] * dy64[i]).abs()).sum()
            })
            .collect();
        let bound = |i: usize| match self.sees(i) {
            true => {
                let terms = sums[i / columns];
                scale.abs() * y64[i] * (4.0 * U * (dy64[i].abs() + terms) + terms * self.sum_error()) + 2f64.powi(-126)
            }
            false => 0.0,
        };
        let set = run(&|on| self.backward(on, &dy, &y, Write::Set, &before));
        assert_within("dx", &set, &exact, bound);
        assert_like_the_cpu("dx", &set, &self.backward(&cpu, &dy, &y, Write::Set, &before), &exact, 3.0);
        let added = run(&|on| self.backward(on, &dy, &y, Write::Add, &before));
        let sum: Vec<f64> = exact.iter().zip(&before).map(|(dx, before)| dx + before.to_f64()).collect();
        assert_within("dx added", &added, &sum, |i| bound(i) + U * sum[i].abs());
    }

    fn on_the_cpu<T: Float>(&self) {
        self.check::<T>(|work| same_bits_for_threads(work));
    }

    fn in_every_way<T: Float>(&self) {
        self.check::<T>(|work| same_bits_in_every_way(work));
    }

    fn in_two_ways<T: Float>(&self) {
        self.check::<T>(|work| same_bits_in_two_ways(work));
    }
}

const PLAIN: Options = Options { scale: 1.0, causal: None };
const NEGATIVE: Options = Options { scale: -0.5, causal: None };
const CAUSAL: Options = Options { scale: 0.125, causal: Some(3) };
const HEADS: MaskShape = MaskShape { heads: 2, queries: 3 };
const PADDING: MaskShape = MaskShape { heads: 6, queries: 1 };

#[test]
fn the_reference_gradient_is_that_of_finite_differences() {
    for (columns, options, mask) in [(1, PLAIN, OWN), (5, NEGATIVE, HEADS), (7, CAUSAL, HEADS), (4, PLAIN, PADDING)] {
        let case = Case::new([12, columns], options, mask);
        let (x, dy) = (f64s(&case.input::<f32>(1, 1.0, 0.0)), f64s(&normal::<f32>(12 * columns, 2)));
        let dx = reference::backward(case.shape, options, &dy, &case.reference(&x));
        assert_gradient("dx", &dx, &finite_differences(&x, |x| dot(&dy, &case.reference(x))));
    }
}

#[test]
fn the_cpu_is_within_its_bound_and_the_same_for_every_thread_count() {
    for (rows, columns) in [(6, 1), (12, 2), (300, 65), (36, 2048), (6, 5000)] {
        Case::new([rows, columns], PLAIN, HEADS).on_the_cpu::<f32>();
        Case::new([rows, columns], NEGATIVE, PADDING).on_the_cpu::<bf16>();
        Case::new([rows, columns], CAUSAL, HEADS).on_the_cpu::<f16>();
    }
    Case::new([2, 70_001], PLAIN, OWN).on_the_cpu::<f32>();
}

#[test]
fn tiles_are_right_in_every_way() {
    for columns in [1, 7, 32, 100, 128] {
        Case::new([12, columns], PLAIN, HEADS).in_every_way::<f32>();
        Case::new([12, columns], NEGATIVE, PADDING).in_every_way::<bf16>();
        Case::new([12, columns], CAUSAL, HEADS).in_every_way::<f16>();
    }
}

#[test]
fn long_rows_are_right() {
    for columns in [1000, 5003] {
        Case::new([4, columns], PLAIN, MaskShape { heads: 2, queries: 1 }).in_two_ways::<f32>();
        Case::new([4, columns], NEGATIVE, MaskShape { heads: 1, queries: 2 }).in_two_ways::<bf16>();
        Case::new([3, columns], CAUSAL, OWN).in_two_ways::<f16>();
    }
    // Too long for shared memory, in whole 16 bytes and not.
    Case::new([2, 19_664], PLAIN, OWN).in_two_ways::<f32>();
    Case::new([2, 32_771], PLAIN, OWN).in_two_ways::<f16>();
}

/// What must be equal to the bit, on any device.
fn relations<T: Float>(on: &On, columns: usize) {
    let same = |a: &[T], b: &[T]| assert!(bytemuck::cast_slice::<T, u8>(a) == bytemuck::cast_slice::<T, u8>(b));
    let case = Case::new([12, columns], CAUSAL, HEADS);
    let x = case.input::<T>(1, 3.0, f32::NAN);
    let y = case.forward(on, &x);
    // What is hidden may be anything, by any byte.
    same(&case.forward(on, &case.input(1, 3.0, 1e30)), &y);
    let ones = case.hidden.iter().map(|&byte| u8::from(byte != 0)).collect();
    same(&Case { hidden: ones, ..case.clone() }.forward(on, &x), &y);
    // A mask of its own for each row, with the same rows.
    let rows = (0..12).flat_map(|row| &case.hidden[case.mask_row(row) * columns..][..columns]);
    same(&Case { hidden: rows.copied().collect(), mask: OWN, ..case.clone() }.forward(on, &x), &y);
    // The gradient of what is hidden may be anything too.
    let dx = |behind: f32| case.backward(on, &case.input(2, 1.0, behind), &y, Write::Set, &x);
    same(&dx(f32::NAN), &dx(0.0));
    same(&dx(f32::INFINITY), &dx(0.0));
    // A mask that hides nothing is none.
    let nothing = Case { hidden: vec![0; case.hidden.len()], ..case };
    let x = nothing.input::<T>(1, 3.0, f32::NAN);
    let mut plain = on.garbage::<T>(x.len());
    softmax::forward(&on.stream, nothing.shape, CAUSAL, on.up(&x).as_view(), plain.as_view_mut()).unwrap();
    same(&nothing.forward(on, &x), &on.down(&plain));
}

#[test]
fn what_is_hidden_changes_nothing_and_nothing_hidden_is_no_mask() {
    for columns in [96, 101] {
        for on in [On::threads(2), On::software()] {
            relations::<f32>(&on, columns);
            relations::<bf16>(&on, columns);
            relations::<f16>(&on, columns);
        }
    }
}

#[test]
fn a_mask_at_any_address_is_right() {
    let case = Case::new([12, 96], PLAIN, HEADS);
    let x = case.input::<bf16>(1, 3.0, f32::NAN);
    let expected = case.forward(&On::threads(1), &x);
    let on = On::software();
    for before in [1, 2, 4, 8] {
        let hidden = on.up(&[vec![0; before], case.hidden.clone(), vec![0; 3]].concat());
        let hidden = hidden.view(before..before + case.hidden.len()).unwrap();
        let mut y = on.garbage::<bf16>(x.len());
        let up = on.up(&x);
        softmax::forward_masked(&on.stream, case.shape, PLAIN, HEADS, hidden, up.as_view(), y.as_view_mut()).unwrap();
        // Each is rounded from f32 sums that differ in a few last places of f32.
        for (given, expected) in on.down(&y).iter().zip(&expected) {
            let (given, expected) = (given.to_f64(), expected.to_f64());
            assert!((given - expected).abs() <= 2f64.powi(-7) * expected, "{before}: {given}, not {expected}");
        }
    }
}

#[test]
fn degenerate_rows_do_what_the_contract_says() {
    let (low, high, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
    let x = [nan, high, low, nan, low, low, 5.0, nan, nan, 1.0, nan, 2.0, high, 1.0, 1.0, nan, 7.0, nan];
    let hidden = [9, 1, 255, 1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1];
    let case = Case { shape: Shape { rows: 6, columns: 3 }, options: PLAIN, mask: OWN, hidden: hidden.to_vec() };
    for on in [On::threads(1), On::software_with_nans()] {
        let y = case.forward(&on, &x);
        assert_eq!(y[..9], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        assert!(y[9].is_nan() && y[10].is_nan() && y[11] == 0.0, "{y:?}");
        assert!(y[12].is_nan() && y[13] == 0.0 && y[14].is_nan(), "{y:?}");
        assert_eq!(y[15..], [0.0; 3]);
        let none = Case { shape: Shape { rows: 0, columns: 3 }, hidden: Vec::new(), ..case.clone() };
        assert_eq!(none.forward::<f32>(&on, &[]), []);
    }
}

#[test]
fn wrong_masks_are_named_and_nothing_is_written() {
    for on in [On::threads(1), On::software()] {
        let (x, mut y, hidden) = (on.up(&[1.0f32; 24]), on.up(&[7.0f32; 24]), on.up(&[0u8; 12]));
        let mut error = |heads, queries| {
            let (shape, mask) = (Shape { rows: 12, columns: 2 }, MaskShape { heads, queries });
            let (hidden, x) = (hidden.as_view(), x.as_view());
            softmax::forward_masked(&on.stream, shape, PLAIN, mask, hidden, x, y.as_view_mut()).unwrap_err().to_string()
        };
        let rule = |of| format!("it must be at least 1 and a divisor of {of}: heads times queries divide the 12 rows");
        assert_eq!(error(0, 1), format!("softmax forward: `mask heads` is 0; {}", rule(12)));
        assert_eq!(error(5, 1), format!("softmax forward: `mask heads` is 5; {}", rule(12)));
        assert_eq!(error(2, 0), format!("softmax forward: `mask queries` is 0; {}", rule(6)));
        assert_eq!(error(2, 4), format!("softmax forward: `mask queries` is 4; {}", rule(6)));
        assert_eq!(error(1, 3), "softmax forward: `hidden` has 12 elements; its shape 12 x 2 needs 24");
        assert_eq!(on.down(&y), [7.0; 24]);
    }
}
