//! The kernels of conversion on the software device: the CPU's bits.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Trial, Verdict};
use common::ways::Ways;
use common::{On, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::cast;

fn convert<A: Float, B: Float>(on: &On, before: usize, from: &[A]) -> Vec<u64> {
    let (from, mut to) = (on.padded(before, from), on.padded_garbage::<B>(before, from.len()));
    cast::convert(&on.stream, from.view(), to.view_mut()).unwrap();
    // NaNs of any payload are alike.
    let bits = |value: B| if value.to_f64().is_nan() { u64::MAX } else { value.to_f64().to_bits() };
    to.down(on).into_iter().map(bits).collect()
}

/// Numbers of every size, ties, and what is none.
fn numbers<A: Float>(len: usize) -> Vec<A> {
    let special =
        [0.0, -0.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 65_520.0, 65_519.0, 1e-7, 3e-8, 1.00390625, 1e38];
    let spread = (0i32..).zip(normal::<f32>(len, 1)).map(|(i, x)| f64::from(x) * 2f64.powi(i % 80 - 40));
    spread.enumerate().map(|(i, x)| A::from_f64(special.get(i).copied().unwrap_or(x))).collect()
}

fn check<A: Float, B: Float>() {
    for (len, before) in [(0, 8), (1, 8), (31, 1), (300, 8), (2053, 8), (2051, 1)] {
        let from = numbers::<A>(len);
        let ways = if len < 128 { Ways::EVERY } else { Ways::TWO };
        assert_eq!(ways.same(|on| convert::<A, B>(on, before, &from)), convert::<A, B>(&On::threads(1), before, &from));
    }
}

#[test]
fn every_pair_of_types_is_converted_as_on_the_cpu() {
    check::<f32, bf16>();
    check::<f32, f16>();
    check::<f32, f32>();
    check::<bf16, f32>();
    check::<bf16, f16>();
    check::<f16, f32>();
    check::<f16, bf16>();
    check::<f16, f16>();
}

#[test]
fn f64_is_refused() {
    let on = On::software();
    let (from, mut to) = (on.up(&[1.0f64]), on.up(&[2.0f32]));
    let error = cast::convert(&on.stream, from.as_view(), to.as_view_mut()).unwrap_err().to_string();
    assert_eq!(error, "cast: `from` is f32, bf16 or f16 on a GPU");
    assert_eq!(on.down(&to), [2.0]);
}

#[test]
fn every_byte_is_moved_once() {
    let from = normal::<f32>(65_536, 1);
    let counted = profiles(|on| drop(convert::<f32, f32>(on, 8, &from)));
    assert_bound_by_memory("cast", &counted, 0);
}

fn mutants<A: Float, B: Float>() -> Verdict {
    let sizes = [(2053, 0), (1024, 0), (1500, 3), (2048, 3), (4096, 0), (4104, 0)];
    Trial::of("cast", &format!("cast_{}_{}", A::DTYPE, B::DTYPE), usize::MAX).verdict(|on, judge| {
        sizes.iter().for_each(|(len, before)| judge.see(&convert::<A, B>(on, *before, &numbers::<A>(*len))));
    })
}

#[test]
fn mutants_are_killed() {
    let from_f32 = mutants::<f32, f32>().and(mutants::<f32, bf16>()).and(mutants::<f32, f16>());
    let from_bf16 = mutants::<bf16, f32>().and(mutants::<bf16, bf16>()).and(mutants::<bf16, f16>());
    let from_f16 = mutants::<f16, f32>().and(mutants::<f16, bf16>()).and(mutants::<f16, f16>());
    from_f32.and(from_bf16).and(from_f16).assert_killed();
}
