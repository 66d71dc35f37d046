//! Random numbers by the kernels of the software device: the CPU's, uniform ones to the bit.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::far::from_block;
use common::trial::{Judge, Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, f64s, rounding};
use warpweft_device::{DType, Float, Module, bf16, f16};
use warpweft_kernels::philox::{self, Philox4x32};
use warpweft_kernels::{KernelError, programs};

const GENERATOR: Philox4x32 = Philox4x32::new(0x0123_4567_89ab_cdef, 1 << 40 | 7);

/// Elements, elements before the begin, and the index of the first number: none, one, in the middle of a block and misaligned,
/// whole runs of 16 bytes, more than a block of threads, across 2^32, across 2^64.
const SIZES: [(usize, usize, u64); 8] = [
    (0, 8, 0),
    (1, 8, 3),
    (37, 1, 1001),
    (96, 8, 8),
    (2100, 8, 16),
    (4096, 8, 5),
    (40, 8, (1 << 34) - 16),
    (40, 8, u64::MAX - 15),
];

fn uniform<T: Float>(on: &On, (len, before, first): (usize, usize, u64)) -> Vec<f64> {
    let mut out = on.padded_garbage::<T>(before, len);
    philox::uniform(&on.stream, GENERATOR, first, (-1.0, 3.5), out.view_mut()).unwrap();
    f64s(&out.down(on))
}

fn normal<T: Float>(on: &On, size: (usize, usize, u64)) -> Vec<f64> {
    normal_of::<T>(on, size, (0.25, 1.5))
}

fn normal_of<T: Float>(on: &On, (len, before, first): (usize, usize, u64), of: (f32, f32)) -> Vec<f64> {
    let mut out = on.padded_garbage::<T>(before, len);
    philox::normal(&on.stream, GENERATOR, first, of, out.view_mut()).unwrap();
    f64s(&out.down(on))
}

/// Half way between two numbers of bf16 or f16, the lower of which is even: all numbers of a distribution that has no breadth.
fn tie<T: Float>() -> (f32, f32) {
    (1.0 + if T::DTYPE == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 2048.0 }, 0.0)
}

#[test]
fn a_tie_is_rounded_to_even() {
    let on = On::software();
    for size in SIZES {
        assert!(normal_of::<bf16>(&on, size, tie::<bf16>()).iter().all(|x| *x == 1.0), "{size:?}");
        assert!(normal_of::<f16>(&on, size, tie::<f16>()).iter().all(|x| *x == 1.0), "{size:?}");
    }
}

fn check<T: Float>() {
    let cpu = On::threads(1);
    for size in SIZES {
        let ways = if size.0 < 128 { Ways::EVERY } else { Ways::TWO };
        assert_eq!(ways.same(|on| uniform::<T>(on, size)), uniform::<T>(&cpu, size), "{size:?}");
        let (given, right) = (ways.same(|on| normal::<T>(on, size)), normal::<T>(&cpu, size));
        let mut other = 0;
        for (given, right) in given.iter().zip(&right) {
            // A last bit of f64 may decide which way a number is rounded to `T`, two halves of a unit apart.
            assert!((given - right).abs() <= 2.0 * rounding::<T>(*right), "{size:?}: {given}, not {right}");
            other += usize::from(given != right);
        }
        // The odds are 2^-27 in f32 (4 units of f64 around a tie), and less in the narrower types.
        assert!(other <= 1, "{size:?}: {other} of {} numbers are rounded the other way", size.0);
    }
}

#[test]
fn numbers_are_the_cpus_in_every_way() {
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn a_split_changes_nothing() {
    let on = On::software();
    let whole = normal::<f32>(&on, (5000, 8, 11));
    let parts = [normal::<f32>(&on, (1, 8, 11)), normal::<f32>(&on, (4092, 8, 12)), normal::<f32>(&on, (907, 1, 4104))];
    assert_eq!(parts.concat(), whole);
}

#[test]
fn every_byte_is_written_once() {
    for (what, counted) in [
        ("uniform", profiles(|on| drop(uniform::<bf16>(on, (65_536, 0, 0))))),
        ("normal", profiles(|on| drop(normal::<f32>(on, (65_536, 0, 0))))),
    ] {
        assert_bound_by_memory(what, &counted, 0);
    }
}

/// Two blocks behind 2^31 elements.
#[test]
fn offsets_have_64_bits() {
    let on = On::open("software?check=all&memory=68719476736");
    let (before, behind) = (1usize << 20, 2048 + 77);
    let begin = before * 2048;
    let out = on.device.uninitialized::<bf16>(begin + behind).unwrap();
    let program = programs().iter().find(|program| program.op == "philox").unwrap();
    let module = Module::load(&on.device, &from_block(program.ptx, before)).unwrap();
    let (seed, stream) = (5u64, 9u64);
    let args = [
        seed.into(),
        stream.into(),
        0u64.into(),
        0f32.into(),
        1f32.into(),
        (&out).try_into().unwrap(),
        ((begin + behind) as u64).into(),
        1u32.into(),
    ];
    module.kernel("philox_uniform_bf16").unwrap().launch(&on.stream, [2, 1, 1], [256, 1, 1], 0, &args).unwrap();
    let cpu = On::threads(1);
    let mut expected = cpu.garbage::<bf16>(behind);
    let generator = Philox4x32::new(seed, stream);
    philox::uniform(&cpu.stream, generator, begin as u64, (0.0, 1.0), expected.as_view_mut()).unwrap();
    assert!(out.view(begin..).unwrap().download(&on.stream).unwrap() == cpu.down(&expected));
}

#[test]
fn wrong_arguments_are_named() {
    let on = On::software();
    let mut out = on.up(&[2.0f32; 4]);
    let error = philox::uniform(&on.stream, GENERATOR, 0, (f32::NAN, 1.0), out.as_view_mut()).unwrap_err();
    assert!(matches!(error, KernelError::Number { argument: "low", .. }), "{error}");
    let error = philox::normal(&on.stream, GENERATOR, 0, (0.0, f32::INFINITY), out.as_view_mut()).unwrap_err();
    assert!(matches!(error, KernelError::Number { argument: "std", .. }), "{error}");
    assert_eq!(on.down(&out), [2.0; 4]);
    let mut wide = on.up(&[2.0f64; 4]);
    let error = philox::uniform(&on.stream, GENERATOR, 0, (0.0, 1.0), wide.as_view_mut()).unwrap_err().to_string();
    assert_eq!(error, "philox uniform: `out` is f32, bf16 or f16 on a GPU");
}

fn mutants<T: Float>(most: usize) -> Verdict {
    let all = |on: &On, judge: &mut Judge<'_>| {
        for size in SIZES {
            judge.see(&uniform::<T>(on, size));
            judge.see(&normal::<T>(on, size));
            judge.see(&normal_of::<T>(on, size, tie::<T>()));
        }
    };
    let of = |call: &str| Trial::of("philox", &format!("philox_{call}_{}", T::DTYPE), most).verdict(all);
    of("uniform").and(of("normal"))
}

#[test]
fn mutants_are_killed() {
    let few = sample(8, usize::MAX);
    mutants::<bf16>(usize::MAX).and(mutants::<f32>(few)).and(mutants::<f16>(few)).assert_killed();
}
