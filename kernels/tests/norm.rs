//! The global norm and clipping: exact on integers, beyond f32's range, NaN and infinity, PyTorch's coefficient.
#![forbid(unsafe_code)]

mod common;

use common::{On, f64s, integers, normal, same_bits_for_threads};
use warpweft_kernels::norm::{self, reference};

fn sum_of_squares(on: &On, tensors: &[&[f32]]) -> f64 {
    let buffers: Vec<_> = tensors.iter().map(|tensor| on.up(tensor)).collect();
    let views: Vec<_> = buffers.iter().map(|buffer| buffer.as_view()).collect();
    norm::sum_of_squares(&on.stream, &views).unwrap()
}

#[test]
fn the_sum_is_the_references_and_the_same_for_every_thread_count() {
    for lengths in [vec![], vec![0, 0], vec![1], vec![31, 0, 33, 1], vec![16_384, 65_537, 5], vec![200_000]] {
        let tensors: Vec<Vec<f32>> = lengths.iter().map(|&len| normal(len, len as u64)).collect();
        let slices: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
        let sum = same_bits_for_threads(|on| vec![sum_of_squares(on, &slices)])[0];
        let wide: Vec<Vec<f64>> = tensors.iter().map(|tensor| f64s(tensor)).collect();
        let exact = reference::sum_of_squares(&wide.iter().map(Vec::as_slice).collect::<Vec<_>>());
        // Squares of f32 are exact in f64; a sum of n positive terms is off by less than n 2^-53 of it, whatever its
        // order.
        let count: usize = lengths.iter().sum();
        assert!((sum - exact).abs() <= 2.0 * count as f64 * 2f64.powi(-53) * exact, "{lengths:?}: {sum} for {exact}");

        let tensors: Vec<Vec<f32>> = lengths.iter().map(|&len| integers(len, len as u64)).collect();
        let slices: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
        let exact: i64 = slices.iter().flat_map(|tensor| tensor.iter()).map(|&x| x as i64 * x as i64).sum();
        assert_eq!(sum_of_squares(&On::threads(2), &slices), exact as f64);
    }
}

#[test]
fn the_largest_numbers_do_not_overflow_nor_the_smallest_vanish() {
    let max = f64::from(f32::MAX);
    let on = On::threads(1);
    assert_eq!(sum_of_squares(&on, &[&[f32::MAX; 64], &[f32::MIN; 64]]), 128.0 * max * max);
    let smallest = f32::from_bits(1);
    assert_eq!(sum_of_squares(&on, &[&[smallest]]), 2f64.powi(-298));
}

#[test]
fn nan_and_infinity_come_through() {
    let on = On::threads(2);
    let mut values = vec![1.0f32; 40_000];
    values[33_333] = f32::NEG_INFINITY;
    assert_eq!(sum_of_squares(&on, &[&values]), f64::INFINITY);
    values[5] = f32::NAN;
    assert!(sum_of_squares(&on, &[&values]).is_nan());
}

#[test]
fn the_coefficient_is_pytorchs() {
    // `clip_grad_norm_`: max_norm / (norm + 1e-6), at most 1.
    assert_eq!(norm::clip_coefficient(5.0, 1.0), 1.0 / (5.0 + 1e-6));
    assert_eq!(norm::clip_coefficient(0.5, 1.0), 1.0);
    assert_eq!(norm::clip_coefficient(0.0, 1.0), 1.0);
    assert_eq!(norm::clip_coefficient(0.0, 0.0), 0.0);
    assert_eq!(norm::clip_coefficient(1e30, 1.0), 1.0 / (1e30 + 1e-6));
    assert_eq!(norm::clip_coefficient(f64::INFINITY, 1.0), 0.0);
    assert!(norm::clip_coefficient(f64::NAN, 1.0).is_nan());
}

/// torch 2.15.0, `clip_grad_norm_([p], 1.0)` in float32: gradients (3, 4) become the numbers below. Huge gradients,
/// whose norm in f32 is infinite, become 0 there; here they are clipped to the norm as any others.
#[test]
fn clipping_small_zero_and_huge_gradients() {
    let clip = |on: &On, values: [f32; 2]| {
        let mut gradients = on.up(&values);
        let norm = norm::sum_of_squares(&on.stream, &[gradients.as_view()]).unwrap().sqrt();
        let factor = norm::clip_coefficient(norm, 1.0);
        norm::scale(&on.stream, &mut [gradients.as_view_mut()], factor).unwrap();
        on.down(&gradients)
    };
    let on = On::threads(1);
    assert_eq!(clip(&on, [3.0, 4.0]), [0.599_999_9, 0.799_999_83]);
    assert_eq!(clip(&on, [0.3, 0.4]), [0.3, 0.4]);
    assert_eq!(clip(&on, [0.0, 0.0]), [0.0, 0.0]);
    let root = std::f64::consts::FRAC_1_SQRT_2;
    // Rounded: the gradient 1e30 itself, the factor and the product, half a unit in the last place each.
    for value in clip(&on, [1e30, 1e30]) {
        assert!((f64::from(value) - root).abs() <= 3.0 * common::U * root, "{value}");
    }
}

#[test]
fn scaling_reaches_every_element_of_every_tensor() {
    let (a, b) = (normal::<f32>(40_000, 1), normal::<f32>(3, 2));
    let scaled = same_bits_for_threads(|on| {
        let (mut a, mut b) = (on.up(&a), on.up(&b));
        norm::scale(&on.stream, &mut [a.as_view_mut(), b.as_view_mut()], 0.3).unwrap();
        [on.down(&a), on.down(&b)].concat()
    });
    assert!(scaled.iter().zip(a.iter().chain(&b)).all(|(scaled, x)| *scaled == x * 0.3));
}

#[test]
fn tensors_of_another_device_are_refused() {
    let (on, other) = (On::threads(1), On::threads(1));
    let (mut here, mut there) = (on.up(&[2.0f32]), other.up(&[2.0f32]));
    let error = norm::sum_of_squares(&on.stream, &[here.as_view(), there.as_view()]).unwrap_err();
    assert!(error.to_string().starts_with("tensors is on device"), "{error}");
    let tensors = &mut [here.as_view_mut(), there.as_view_mut()];
    assert!(norm::scale(&on.stream, tensors, 0.5).is_err());
    assert_eq!(on.down(&here), [2.0]);
}
