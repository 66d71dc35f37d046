//! CUB's device-wide scans. A tile's total is published in global memory and the tiles after it spin until it is there.

use bytemuck::{Pod, Zeroable, cast_slice};

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::recording::Recording;
use crate::vm::Ways;

fn scan<T: Pod + std::fmt::Debug>(
    ways: &Ways,
    case: &str,
    make: impl Fn(usize) -> Vec<T>,
    wanted: impl Fn(&[T]) -> Vec<T>,
) {
    let recording = Recording::open(case);
    let input = make(recording.count::<T>("in"));
    let wanted = wanted(&input);
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("out", &after.read::<T>("out"), &wanted);
    });
}

fn inclusive<T: Copy>(input: &[T], op: impl Fn(T, T) -> T) -> Vec<T> {
    let mut sum: Option<T> = None;
    let mut step = |x: &T| {
        let next = sum.map_or(*x, |sum| op(sum, *x));
        sum = Some(next);
        next
    };
    input.iter().map(&mut step).collect()
}

fn exclusive<T: Copy>(input: &[T], first: T, op: impl Fn(T, T) -> T) -> Vec<T> {
    let mut sum = first;
    let mut step = |x: &T| {
        let next = op(sum, *x);
        std::mem::replace(&mut sum, next)
    };
    input.iter().map(&mut step).collect()
}

pub(crate) fn inclusive_sum_i32(ways: &Ways) {
    let make = |count| Numbers::new(101).integers(count, -2_000_000_000, 2_000_000_000);
    scan(ways, "cub_scan.inclusive_sum_i32", make, |x| inclusive(x, i32::wrapping_add));
}

pub(crate) fn exclusive_max_i32(ways: &Ways) {
    let make = |count| Numbers::new(102).integers(count, -1_000_000, 1_000_000);
    scan(ways, "cub_scan.exclusive_max_i32", make, |x| exclusive(x, -7, i32::max));
}

/// x -> scale x + shift, composed in order: any exchange of two elements gives another result.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Affine {
    scale: u32,
    shift: u32,
}

pub(crate) fn inclusive_affine(ways: &Ways) {
    let make = |count| {
        let mut numbers = Numbers::new(103);
        // Odd scales never wear out to zero.
        (0..count).map(|_| Affine { scale: numbers.bits() as u32 | 1, shift: numbers.bits() as u32 }).collect()
    };
    scan(ways, "cub_scan.inclusive_affine", make, |x| {
        inclusive(x, |first: Affine, then: Affine| Affine {
            scale: first.scale.wrapping_mul(then.scale),
            shift: first.shift.wrapping_mul(then.scale).wrapping_add(then.shift),
        })
    });
}

/// 16 bytes: more than CUB can publish with its flag in one store.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Wide {
    sum: i64,
    count: i32,
    largest: i32,
}

pub(crate) fn inclusive_wide(ways: &Ways) {
    let make = |count| {
        let mut numbers = Numbers::new(104);
        (0..count).map(|_| Wide { sum: numbers.bits() as i64, count: 1, largest: numbers.bits() as i32 }).collect()
    };
    scan(ways, "cub_scan.inclusive_wide", make, |x| {
        inclusive(x, |a: Wide, b: Wide| Wide {
            sum: a.sum.wrapping_add(b.sum),
            count: a.count + b.count,
            largest: a.largest.max(b.largest),
        })
    });
}

pub(crate) fn exclusive_sum_f32(ways: &Ways) {
    let recording = Recording::open("cub_scan.exclusive_sum_f32");
    let input = Numbers::new(105).reals::<f32>(recording.count::<f32>("in"), 1.0);
    let (mut sum, mut size) = (0.0, 0.0);
    let mut wanted = Vec::new();
    for (before, x) in input.iter().enumerate() {
        // Whatever the tree, an element passes at most as many additions as there are elements before it.
        wanted.push(Bounded { value: sum, error: before as f64 * F32 * size });
        (sum, size) = (sum + x.f64(), size + x.f64().abs());
    }
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        close("out", &after.read::<f32>("out"), &wanted);
    });
}

/// Sums start anew at every change of key; runs of 1 to about 3000 cross the tiles.
pub(crate) fn exclusive_sum_by_key(ways: &Ways) {
    let recording = Recording::open("cub_scan.exclusive_sum_by_key");
    let count = recording.count::<i32>("in");
    let mut numbers = Numbers::new(106);
    let mut keys = Vec::new();
    while keys.len() < count {
        let run = 1 + numbers.between(0, 3000) * numbers.between(0, 2);
        keys.extend(vec![keys.len() as i32; (run as usize).min(count - keys.len())]);
    }
    let input = numbers.integers(count, -1000, 1000);
    let mut wanted = vec![0i32; count];
    for at in 1..count {
        wanted[at] = if keys[at] == keys[at - 1] { wanted[at - 1] + input[at - 1] } else { 0 };
    }
    ways.each(|machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("in", cast_slice(&input))]);
        same("out", &after.read::<i32>("out"), &wanted);
    });
}
