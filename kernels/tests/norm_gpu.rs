//! The kernels of the global norm on the software device.
#![forbid(unsafe_code)]

mod common;

use common::mutants::try_mutants;
use common::padded::Padded;
use common::ways::Ways;
use common::{On, f64s, integers, normal};
use warpweft_device::View;
use warpweft_kernels::{norm, programs};

fn squares(on: &On, tensors: &[Padded<f32>]) -> f64 {
    let views: Vec<View<'_, f32>> = tensors.iter().map(Padded::view).collect();
    norm::sum_of_squares(&on.stream, &views).unwrap()
}

/// Lengths and elements before the begin: none, less than a warp, misaligned, one chunk and a little more.
const SIZES: [(usize, usize); 6] = [(0, 8), (5, 1), (700, 8), (16_384, 8), (16_385, 1), (40_003, 8)];

fn tensors(on: &On, values: impl Fn(usize, u64) -> Vec<f32>) -> Vec<Padded<f32>> {
    (0..).zip(SIZES).map(|(seed, (len, before))| on.padded(before, &values(len, seed))).collect()
}

#[test]
fn the_sum_is_right_and_the_same_in_every_way() {
    // Whole numbers add up exactly in any order.
    let run = |on: &On| vec![squares(on, &tensors(on, integers))];
    assert_eq!(Ways::EVERY.same(run), run(&On::threads(1)));
    let run = |on: &On| vec![squares(on, &tensors(on, normal))];
    let exact: f64 = (0..).zip(SIZES).flat_map(|(seed, (len, _))| f64s(&normal::<f32>(len, seed))).map(|x| x * x).sum();
    let given = Ways::TWO.same(run)[0];
    // 170,000 additions in f64, no two of which may err in the same direction by more than 2^-53.
    assert!(((given - exact) / exact).abs() < 1e-12, "{given}, {exact}");
}

#[test]
fn nothing_overflows_and_nothing_is_lost() {
    let on = On::software();
    assert_eq!(norm::sum_of_squares(&on.stream, &[]).unwrap(), 0.0);
    assert_eq!(squares(&on, &[on.padded(8, &[])]), 0.0);
    let given = squares(&on, &[on.padded(8, &[1e30, f32::MAX, 1e-38])]);
    let exact: f64 = [1e30f32, f32::MAX, 1e-38].iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    assert_eq!(given, exact);
    let on = On::software_with_nans();
    assert!(squares(&on, &[on.padded(8, &[1.0, f32::NAN])]).is_nan());
    assert_eq!(squares(&on, &[on.padded(8, &[1.0, f32::NEG_INFINITY])]), f64::INFINITY);
}

fn scaled(on: &On, factor: f64) -> Vec<f32> {
    let mut all = tensors(on, normal);
    let mut views: Vec<_> = all.iter_mut().map(Padded::view_mut).collect();
    norm::scale(&on.stream, &mut views, factor).unwrap();
    drop(views);
    all.iter().flat_map(|tensor| tensor.down(on)).collect()
}

#[test]
fn scaling_is_the_cpus_to_the_bit() {
    // The clip coefficient of no gradient, and of a norm of 1e30.
    for factor in [norm::clip_coefficient(0.0, 1.0), norm::clip_coefficient(1e30, 1.0), 0.3] {
        assert_eq!(Ways::TWO.same(|on| scaled(on, factor)), scaled(&On::threads(1), factor));
    }
}

#[test]
fn mutants_are_killed() {
    let program = programs().iter().find(|program| program.op == "norm").unwrap();
    // More chunks than the threads that add them up.
    let many = |on: &On| (0..600).map(|seed| on.padded(1, &integers(1, seed))).collect::<Vec<_>>();
    let sum = |on: &On| [squares(on, &tensors(on, integers)), squares(on, &many(on))];
    let (right, product) = (sum(&On::threads(1)), scaled(&On::threads(1), 0.3));
    try_mutants(program, "norm_", 1, |on| sum(on) == right && scaled(on, 0.3) == product).assert_killed();
}
