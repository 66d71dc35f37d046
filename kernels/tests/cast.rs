//! Conversion: every 16-bit pattern, every tie, and double rounding from f64.
#![forbid(unsafe_code)]

mod common;

use common::{On, normal, same_bits_for_threads};
use warpweft_device::{Element, Float, bf16, f16};
use warpweft_kernels::cast;

fn convert<A: Float, B: Float>(on: &On, from: &[A]) -> Vec<B> {
    let mut to = on.garbage::<B>(from.len());
    cast::convert(&on.stream, on.up(from).as_view(), to.as_view_mut()).unwrap();
    on.down(&to)
}

/// The same value in the same place; NaN for NaN.
#[track_caller]
fn assert_same<T: Float>(given: &[T], expected: impl Iterator<Item = T>) {
    for (i, (given, expected)) in given.iter().zip(expected).enumerate() {
        let same = bytemuck::bytes_of(given) == bytemuck::bytes_of(&expected);
        assert!(same || (given.to_f64().is_nan() && expected.to_f64().is_nan()), "{i}: {given:?} for {expected:?}");
    }
}

fn every<T: Element>() -> Vec<T> {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    bytemuck::cast_slice(&patterns).to_vec()
}

#[test]
fn every_16_bit_number_widens_exactly_and_comes_back() {
    let on = On::threads(2);
    let (halves, brains) = (every::<f16>(), every::<bf16>());
    let wide = convert::<f16, f32>(&on, &halves);
    assert_same(&wide, halves.iter().map(|x| x.to_f32()));
    assert_same(&convert::<f32, f16>(&on, &wide), halves.iter().copied());
    let wide = convert::<bf16, f64>(&on, &brains);
    assert_same(&wide, brains.iter().map(|x| x.to_f64()));
    assert_same(&convert::<f64, bf16>(&on, &wide), brains.iter().copied());
    assert_same(&convert::<f16, bf16>(&on, &halves), halves.iter().map(|x| bf16::from_f32(x.to_f32())));
    assert_same(&convert::<bf16, f16>(&on, &brains), brains.iter().map(|x| f16::from_f32(x.to_f32())));
}

#[test]
fn ties_go_to_even_and_neighbours_of_ties_do_not() {
    let on = On::threads(1);
    // Around the middle between each two neighbours of the 16-bit types.
    let values: Vec<f32> = every::<bf16>()
        .iter()
        .flat_map(|x| [0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(x.to_f32().to_bits() | low)))
        .collect();
    assert_same(&convert::<f32, bf16>(&on, &values), values.iter().map(|x| bf16::from_f32(*x)));
    let values: Vec<f32> = every::<f16>()
        .iter()
        .flat_map(|x| [0x0fff, 0x1000, 0x1001].map(|low| f32::from_bits(x.to_f32().to_bits() | low)))
        .collect();
    assert_same(&convert::<f32, f16>(&on, &values), values.iter().map(|x| f16::from_f32(*x)));
}

#[test]
fn f64_is_rounded_once() {
    // Just above the middle between 1 and the next number; f32 on the way would round it to the middle, and that to 1.
    let on = On::threads(1);
    let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(convert::<f64, bf16>(&on, &[above])[0].to_f64(), 1.0 + 2f64.powi(-7));
    let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    assert_eq!(convert::<f64, f16>(&on, &[above])[0].to_f64(), 1.0 + 2f64.powi(-10));
    assert_eq!(convert::<f64, f64>(&on, &[above]), [above]);
    assert_eq!(convert::<f64, f32>(&on, &[1e39, -1e-50, 0.1]), [f32::INFINITY, -0.0, 0.1]);
}

#[test]
fn any_length_and_thread_count() {
    for len in [0, 1, 100_001] {
        let values = normal::<f32>(len, 1);
        let given = same_bits_for_threads(|on| convert::<f32, bf16>(on, &values));
        assert_eq!(given.len(), len);
        assert_same(&given, values.iter().map(|x| bf16::from_f32(*x)));
    }
}

#[test]
fn unequal_lengths_are_refused() {
    let on = On::threads(1);
    let (from, mut to) = (on.up(&[1.0f32; 3]), on.up(&[bf16::ONE; 2]));
    let error = cast::convert(&on.stream, from.as_view(), to.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "cast: `to` has 2 elements; its shape 3 needs 3");
    assert_eq!(on.down(&to), [bf16::ONE; 2]);
}
