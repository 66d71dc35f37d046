//! The matrix products of the kernels on the software device, under every check and in every way of running.
#![forbid(unsafe_code)]

mod common;

use common::products::{Case, PLAIN, With};
use common::{On, f64s, integers};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{Activation, reference};

/// A device of one multiprocessor, which gets large tiles wherever the operands allow them.
fn one_multiprocessor() -> On {
    On::open("software?check=all&multiprocessors=1&divergence=independent&async=latest&schedule=random&seed=1")
}

const ALL: With = With { scale: 0.5, bias: true, residual: true, ..PLAIN };

/// Shapes for each kind of tile: units whole, K no multiple of a step, K and rows odd, one row, one column, nothing.
const SHAPES: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 8, 239),
    (64, 64, 32),
    (72, 136, 40),
    (65, 130, 100),
    (128, 128, 8),
    (136, 200, 328),
    (33, 16, 129),
    (130, 7, 16),
    (4, 4, 0),
    (0, 4, 4),
    (4, 0, 8),
];

fn rounded<T: Float>(exact: Vec<f64>) -> Vec<T> {
    exact.into_iter().map(T::from_f64).collect()
}

#[test]
fn small_integers_are_bitwise_exact_with_every_tile() {
    fn check<T: Float>() {
        for on in [On::software(), one_multiprocessor()] {
            for sizes in SHAPES {
                for offset in [0, 1] {
                    let case = Case::<T> { offset, ..Case::new(sizes, integers) };
                    let what = format!("{} {sizes:?} {offset}", T::DTYPE);
                    let (x, w, bias, dy) = (f64s(&case.x), f64s(&case.w), f64s(&case.bias), f64s(&case.dy));
                    let halves: Vec<f64> = x.iter().map(|x| x * 0.5).collect();
                    let expected =
                        reference::forward(case.shape, &halves, &w, Some(&bias), Activation::None, Some(&dy));
                    assert_eq!(case.forward(&on, ALL).0, rounded(expected), "{what}");
                    let dx = reference::backward_input(case.shape, &dy, &w);
                    let set = case.backward_input(&on, Write::Set, T::from_f32(0.0));
                    assert_eq!(set, rounded(dx.clone()), "{what}");
                    let added = dx.into_iter().map(|dx| dx + 3.0).collect();
                    assert_eq!(case.backward_input(&on, Write::Add, T::from_f32(3.0)), rounded(added), "{what}");
                    let dw = reference::backward_weight(case.shape, &x, &dy).into_iter().map(|dw| dw + 5.0);
                    assert_eq!(f64s(&case.backward_weight(&on, 5.0)), dw.collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}
