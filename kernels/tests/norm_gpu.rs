//! The kernels of the global norm on the software device.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::mutants::try_mutants;
use common::padded::Padded;
use common::ways::Ways;
use common::{On, f64s, integers, normal};
use warpweft_device::View;
use warpweft_kernels::optimizer::Control;
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
        assert_eq!(Ways::EVERY.same(|on| scaled(on, factor)), scaled(&On::threads(1), factor));
    }
}

/// The control after clipping by the norm whose square is given.
fn clipped(on: &On, sum: f64, grad_scale: f64, max_norm: f64) -> Control {
    let before = Control { lr: 0.5, step: 3.0, grad_scale, skip: 0.0, norm: f64::MAX };
    let (sum, mut control) = (on.up(&[sum]), on.up(&before.to_array()));
    norm::clip(&on.stream, sum.as_view(), max_norm, control.as_view_mut()).unwrap();
    Control::from_slice(&on.down(&control))
}

/// The square of a norm, the gradients' factor before, and the largest norm.
const CLIPS: [(f64, f64, f64); 6] =
    [(0.0, 1.0, 1.0), (1e60, 1.0, 1.0), (9.0, 0.5, 1.0), (9.0, -0.25, 1.0), (2.0, 1.0, 0.0), (2.0, 3.0, f64::INFINITY)];

#[test]
fn clipping_on_the_device_is_the_hosts_to_the_bit() {
    let (on, cpu) = (On::software_with_nans(), On::threads(1));
    for (sum, scale, most) in CLIPS {
        let control = Ways::EVERY.same(|on| clipped(on, sum, scale, most));
        assert_eq!(control, clipped(&cpu, sum, scale, most));
        assert_eq!(control.norm, sum.sqrt() * scale.abs());
        assert_eq!(control.grad_scale, scale * norm::clip_coefficient(control.norm, most));
        assert_eq!((control.lr, control.step, control.skip), (0.5, 3.0, 0.0));
    }
    for sum in [f64::INFINITY, f64::NAN] {
        for on in [&on, &cpu] {
            assert_eq!(clipped(on, sum, 1.0, 1.0).skip, 1.0);
        }
    }
}

#[test]
fn every_byte_is_moved_once() {
    let all = |on: &On| [65_536, 16_384].map(|len| on.padded(8, &integers(len, 1)));
    let counted = profiles(|on| {
        squares(on, &all(on));
    });
    assert_bound_by_memory("squares", &counted[..1], 0);
    let counted = profiles(|on| {
        let mut all = all(on);
        let mut views: Vec<_> = all.iter_mut().map(Padded::view_mut).collect();
        norm::scale(&on.stream, &mut views, 0.5).unwrap();
    });
    assert_bound_by_memory("scale", &counted, 0);
}

#[test]
fn mutants_are_killed() {
    let program = programs().iter().find(|program| program.op == "norm").unwrap();
    // More chunks than the threads that add them up.
    let many = |on: &On| (0..600).map(|seed| on.padded(1, &integers(1, seed))).collect::<Vec<_>>();
    let sum = |on: &On| [squares(on, &tensors(on, integers)), squares(on, &many(on))];
    let (right, product) = (sum(&On::threads(1)), scaled(&On::threads(1), 0.3));
    let clips = |on: &On| {
        (CLIPS.map(|(sum, scale, most)| clipped(on, sum, scale, most)), clipped(on, f64::INFINITY, 1.0, 1.0).skip)
    };
    let clip = clips(&On::threads(1));
    let proof = |on: &On| sum(on) == right && scaled(on, 0.3) == product && clips(on) == clip;
    try_mutants(program, "norm_", 1, proof).assert_killed();
}
