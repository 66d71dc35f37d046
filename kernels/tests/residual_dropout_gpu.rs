//! The residual sum with dropout, on the CPU and by its kernels on the software device: the same bits.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, U, assert_gradient, assert_within, dot, f64s, finite_differences, normal, same_bits_for_threads};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::residual::{Dropout, Shape, backward_dropout, forward_dropout, reference};

const fn dropout(probability: f32, first: u64) -> Dropout {
    Dropout { probability, seed: 0x0123_4567_89ab_cdef, sequence: 1 << 40 | 3, first }
}

/// Rows, channels, elements before the begin, and the number of the first.
type Size = (usize, usize, usize, u64);

/// Forward with and without a bias, and backward.
fn run<T: Float>(on: &On, (rows, channels, before, first): Size, probability: f32) -> [Vec<T>; 3] {
    let (shape, drop) = (Shape { rows, channels }, dropout(probability, first));
    let [x, branch] = [1, 2].map(|seed| on.padded(before, &normal::<T>(rows * channels, seed)));
    let bias = on.padded(before, &normal::<T>(channels, 3));
    let [with, without] = [Some(bias.view()), None].map(|bias| {
        let mut out = on.padded_garbage::<T>(before, rows * channels);
        forward_dropout(&on.stream, shape, drop, x.view(), branch.view(), bias, out.view_mut()).unwrap();
        out.down(on)
    });
    let mut dbranch = on.padded_garbage::<T>(before, rows * channels);
    backward_dropout(&on.stream, shape, drop, branch.view(), dbranch.view_mut()).unwrap();
    [with, without, dbranch.down(on)]
}

/// Nothing; odd rows, misaligned, in the middle of a block of random numbers; whole accesses; rows of more than a block of threads;
/// numbers beyond 2^32 blocks.
const SIZES: [Size; 8] = [
    (0, 3, 8, 0),
    (5, 0, 8, 0),
    (3, 7, 1, 13),
    (5, 96, 8, 8),
    (6, 100, 8, 0),
    (3, 40, 8, 4),
    (2, 5003, 8, 0),
    (2, 2056, 8, (1 << 40) - 2056),
];

fn check<T: Float>() {
    for size in SIZES {
        let right = same_bits_for_threads(|on| run::<T>(on, size, 0.3).concat());
        let ways = if size.0 * size.1 < 600 { Ways::EVERY } else { Ways::TWO };
        assert!(ways.same(|on| run::<T>(on, size, 0.3).concat()) == right, "{size:?}");
        let (rows, channels, _, first) = size;
        let (shape, drop) = (Shape { rows, channels }, dropout(0.3, first));
        let [x, branch] = [1, 2].map(|seed| f64s(&normal::<T>(rows * channels, seed)));
        let bias = f64s(&normal::<T>(channels, 3));
        let [with, without, dbranch] = run::<T>(&On::threads(1), size, 0.3);
        for (given, bias) in [(with, Some(&bias[..])), (without, None)] {
            let exact = reference::forward_dropout(shape, drop, &x, &branch, bias);
            // The sum, the factor, and one operation.
            let bound = |i: usize| U * (3.0 * 1.5 * (branch[i].abs() + 4.0) + exact[i].abs());
            assert_within("out", &given, &exact, bound);
        }
        let exact = reference::backward_dropout(drop, &branch);
        assert_within("dbranch", &dbranch, &exact, |i| 2.0 * U * exact[i].abs());
    }
}

#[test]
fn every_type_has_the_cpus_bits_in_every_way_and_is_within_its_bound() {
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn the_mask_is_a_function_of_seed_sequence_and_element() {
    let cpu = On::threads(2);
    let (rows, channels) = (64, 1024);
    let [whole, ..] = run::<f32>(&cpu, (rows, channels, 8, 0), 0.25);
    let [.., kept] = run::<f32>(&cpu, (rows, channels, 8, 0), 0.25);
    let branch = normal::<f32>(rows * channels, 2);
    let dropped = kept.iter().filter(|x| **x == 0.0).count() as f64;
    let n = (rows * channels) as f64;
    // Six standard deviations of a count.
    assert!((dropped - 0.25 * n).abs() < 6.0 * (n * 0.1875).sqrt(), "{dropped} of {n}");
    assert!(kept.iter().zip(&branch).all(|(kept, x)| *kept == 0.0 || *kept == x * (4.0 / 3.0)));
    // The second half by itself, as another rank has it: its inputs differ, its mask does not.
    let half = (rows / 2 * channels) as u64;
    let [.., part] = run::<f32>(&On::software(), (rows / 2, channels, 8, half), 0.25);
    assert!(part.iter().zip(&kept[half as usize..]).all(|(a, b)| (*a == 0.0) == (*b == 0.0)));
    assert_ne!(run::<f32>(&cpu, (rows, channels, 8, 8), 0.25)[0], whole);
}

#[test]
fn all_and_nothing_are_kept() {
    for on in [On::software(), On::threads(1)] {
        let (x, branch) = (normal::<bf16>(21, 1), normal::<bf16>(21, 2));
        let [_, out, dbranch] = run::<bf16>(&on, (3, 7, 8, 0), 0.0);
        let sum = x.iter().zip(&branch).map(|(x, branch)| bf16::from_f32(x.to_f32() + branch.to_f32()));
        assert_eq!((out, dbranch), (sum.collect(), branch));
        let [with, out, dbranch] = run::<bf16>(&on, (3, 7, 8, 0), 1.0);
        assert_eq!((with, out, dbranch), (x.clone(), x, vec![bf16::ZERO; 21]));
    }
}

#[test]
fn what_is_dropped_is_not_read_into_a_sum() {
    let on = On::software_with_nans();
    let shape = Shape { rows: 4, channels: 8 };
    let (x, branch, mut out) = (on.up(&[1.0f32; 32]), on.up(&[f32::NAN; 32]), on.up(&[0.0f32; 32]));
    let drop = dropout(0.5, 0);
    forward_dropout(&on.stream, shape, drop, x.as_view(), branch.as_view(), None, out.as_view_mut()).unwrap();
    let out = on.down(&out);
    assert!(out.iter().all(|x| *x == 1.0 || x.is_nan()) && out.contains(&1.0) && out.iter().any(|x| x.is_nan()));
}

#[test]
fn the_gradient_is_that_of_the_formula() {
    let (shape, drop) = (Shape { rows: 3, channels: 5 }, dropout(0.4, 3));
    let [x, branch, dout] = [1, 2, 4].map(|seed| f64s(&normal::<f32>(15, seed)));
    let loss = |branch: &[f64]| dot(&reference::forward_dropout(shape, drop, &x, branch, None), &dout);
    assert_gradient("dbranch", &reference::backward_dropout(drop, &dout), &finite_differences(&branch, loss));
}

#[test]
fn wrong_arguments_are_named() {
    let on = On::software();
    let shape = Shape { rows: 2, channels: 3 };
    let (x, mut out) = (on.up(&[1.0f32; 6]), on.up(&[2.0f32; 6]));
    for probability in [-0.1, 1.5, f32::NAN] {
        let drop = dropout(probability, 0);
        let error = forward_dropout(&on.stream, shape, drop, x.as_view(), x.as_view(), None, out.as_view_mut());
        let error = error.unwrap_err();
        assert!(matches!(error, KernelError::Number { argument: "dropout", .. }), "{error}");
    }
    let bias = Some(x.as_view());
    let error = forward_dropout(&on.stream, shape, dropout(0.1, 0), x.as_view(), x.as_view(), bias, out.as_view_mut());
    assert!(matches!(error, Err(KernelError::Length { argument: "bias", given: 6, .. })), "{error:?}");
    let error = backward_dropout(&on.stream, shape, dropout(0.1, 0), x.as_view(), out.view_mut(1..).unwrap());
    assert!(matches!(error, Err(KernelError::Length { argument: "dbranch", given: 5, .. })), "{error:?}");
    assert_eq!(on.down(&out), [2.0; 6]);
}

#[test]
fn every_byte_is_moved_once() {
    let counted = profiles(|on| drop(run::<bf16>(on, (64, 2048, 0, 0), 0.1)));
    // The bias, by every row.
    assert_bound_by_memory("forward", &counted[..2], 63 * 4096);
    assert_bound_by_memory("backward", &counted[2..], 0);
}

/// The bits of the CPU are what all must have.
fn mutants<T: Float>(most: usize) -> Verdict {
    let all = |on: &On| SIZES.map(|size| [0.3, 1.0].map(|p| run::<T>(on, size, p)));
    let right = all(&On::threads(1));
    let of = |call: &str| {
        let kernel = format!("residual_{call}_{}", T::DTYPE);
        Trial::of("residual", &kernel, most).verdict(|on, judge| judge.holds(all(on) == right))
    };
    of("dropout").and(of("dropout_backward"))
}

#[test]
fn mutants_are_killed() {
    let few = sample(8, usize::MAX);
    mutants::<f32>(sample(30, usize::MAX)).and(mutants::<bf16>(few)).and(mutants::<f16>(few)).assert_killed();
}
