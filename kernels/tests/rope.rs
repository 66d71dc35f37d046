//! rope: within derived bounds of the f64 reference, at far positions too, and its own inverse.
#![forbid(unsafe_code)]

mod common;

use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::rope::{self, Options, Shape, reference};

const POSITIONS: [usize; 3] = [0, 1000, 131_071 - 9];

fn shape(heads: usize, head_size: usize, row_stride: usize) -> Shape {
    Shape { batch: 2, tokens: 10, heads, head_size, row_stride }
}

fn turned<T: Float>(on: &On, shape: Shape, options: Options, x: &[T], backward: bool) -> Vec<T> {
    let mut x = on.up(x);
    let call = if backward { rope::backward } else { rope::forward };
    call(&on.stream, shape, options, None, x.as_view_mut()).unwrap();
    on.down(&x)
}

/// What a rotation may be off by: two products and a sum (2 U of each product), cosine and sine rounded (U each).
fn bound(x: &[f64]) -> f64 {
    3.0 * U * 2.0 * x.iter().fold(0.0, |a: f64, b| a.max(b.abs()))
}

fn check<T: Float>() {
    let on = On::threads(2);
    for interleaved in [false, true] {
        for position in POSITIONS {
            for (heads, head_size, row_stride) in [(3, 32, 96), (2, 10, 35), (0, 8, 8), (1, 2, 2), (1, 128, 256)] {
                let (shape, options) =
                    (shape(heads, head_size, row_stride), Options { position, interleaved, ..Options::default() });
                let x: Vec<T> = normal(2 * 10 * row_stride, 1);
                for (backward, sign) in [(false, 1.0), (true, -1.0)] {
                    let mut expected = f64s(&x);
                    reference::rotate(shape, options, None, sign, &mut expected);
                    let given = turned(&on, shape, options, &x, backward);
                    let bound = bound(&f64s(&x));
                    assert_within(&format!("{shape:?} {options:?}"), &given, &expected, |_| bound);
                    // What is not a turned head stays.
                    for (given, x) in given.chunks(row_stride).zip(x.chunks(row_stride)) {
                        assert_eq!(given[heads * head_size..], x[heads * head_size..]);
                    }
                }
            }
        }
    }
}

#[test]
fn it_agrees_with_the_reference_up_to_position_131071() {
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn backward_undoes_forward_to_rounding() {
    let on = On::threads(2);
    for interleaved in [false, true] {
        let (shape, options) = (shape(3, 64, 192), Options { position: 131_062, interleaved, ..Options::default() });
        let x: Vec<f32> = normal(2 * 10 * 192, 2);
        let back = turned(&on, shape, options, &turned(&on, shape, options, &x, false), true);
        let exact = f64s(&x);
        // Two rotations, and cosine² + sine² of the rounded pair differs from 1 by at most 2 U (|cos| + |sin|).
        let bound = 2.0 * bound(&exact);
        assert_within("round trip", &back, &exact, |_| bound);
    }
}

#[test]
fn the_references_inverse_is_the_gradient_by_finite_differences() {
    for interleaved in [false, true] {
        let (shape, options) = (shape(1, 4, 6), Options { position: 3, interleaved, ..Options::default() });
        let (x, dy) = (f64s(&normal::<f32>(120, 3)), f64s(&normal::<f32>(120, 4)));
        let loss = |x: &[f64]| {
            let mut y = x.to_vec();
            reference::rotate(shape, options, None, 1.0, &mut y);
            dot(&y, &dy)
        };
        let mut dx = dy.clone();
        reference::rotate(shape, options, None, -1.0, &mut dx);
        assert_gradient("dx", &dx, &finite_differences(&x, loss));
    }
}

#[test]
fn position_zero_is_the_identity_and_threads_change_no_bit() {
    let x: Vec<f32> = normal(2 * 10 * 96, 5);
    let shape = shape(3, 32, 96);
    let y = same_bits_for_threads(|on| turned(on, shape, Options::default(), &x, false));
    assert_eq!(y[..96], x[..96]);
    assert_ne!(y[96..192], x[96..192]);
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let attempt = |shape: Shape, options: Options, len: usize| {
        let mut x = on.up(&vec![7.0f32; len]);
        let error = rope::forward(&on.stream, shape, options, None, x.as_view_mut()).unwrap_err();
        assert!(on.down(&x).iter().all(|&x| x == 7.0));
        error.to_string()
    };
    let options = Options::default();
    assert_eq!(
        attempt(shape(2, 8, 16), options, 319),
        "rope::forward: `x` has 319 elements; its shape 2 x 10 x 16 needs 320"
    );
    assert!(attempt(shape(2, 7, 14), options, 280).contains("`head_size` is 7; it must be even"));
    assert!(attempt(shape(3, 8, 16), options, 320).contains("`row_stride` is 16; it must be at least 24"));
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(attempt(shape(2, 8, 16), Options { base, ..options }, 320).contains("`base` is"));
    }
}

#[test]
fn positions_as_data_turn_each_row_by_its_own_angle() {
    let on = On::threads(2);
    let (shape, options) = (shape(3, 32, 96), Options { position: 5, ..Options::default() });
    let x: Vec<f32> = normal(2 * 10 * 96, 6);
    let same = [3, 0, 131_071, 4, 4, 9, 8, 1, 2, 70_000];
    let other = [7, 7, 7, 0, 1, 2, 3, 0, 1, 100_000];
    for positions in [[same, same].concat(), [same, other].concat(), [other, same].concat()] {
        let places = on.up(&positions);
        for (backward, sign) in [(false, 1.0), (true, -1.0)] {
            let mut given = on.up(&x);
            let call = if backward { rope::backward } else { rope::forward };
            call(&on.stream, shape, options, Some(places.as_view()), given.as_view_mut()).unwrap();
            let mut expected = f64s(&x);
            reference::rotate(shape, options, Some(&positions), sign, &mut expected);
            let bound = bound(&f64s(&x));
            assert_within(&format!("{positions:?}"), &on.down(&given), &expected, |_| bound);
        }
    }
}

#[test]
fn positions_that_count_up_are_the_ones_that_need_not_be_given() {
    let on = On::threads(1);
    let x: Vec<f32> = normal(2 * 10 * 96, 7);
    let (shape, options) = (shape(3, 32, 96), Options::default());
    let counted = turned(&on, shape, options, &x, false);
    let places = on.up(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].repeat(2));
    let mut given = on.up(&x);
    rope::forward(&on.stream, shape, options, Some(places.as_view()), given.as_view_mut()).unwrap();
    assert_eq!(on.down(&given), counted);

    let short = on.up(&[0u32; 19]);
    let error = rope::forward(&on.stream, shape, options, Some(short.as_view()), given.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "rope::forward: `positions` has 19 elements; its shape 2 x 10 needs 20");
    assert_eq!(on.down(&given), counted, "nothing is written");
    // No tokens at all.
    let (none, mut nothing) = (on.up::<u32>(&[]), on.up::<f32>(&[]));
    let empty = Shape { tokens: 0, ..shape };
    rope::forward(&on.stream, empty, options, Some(none.as_view()), nothing.as_view_mut()).unwrap();
}
