//! CUB's device-wide reductions.

use bytemuck::cast_slice;
use half::bf16;
use warpweft_ptxvm::report::Check;

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::recording::Recording;
use crate::vm::{Known, Ways};

/// A float sum in any order: each element passes at most as many additions as there are elements.
fn sum<T: Real>(ways: &Ways, case: &str, reach: f64, map: impl Fn(f64) -> f64) {
    let recording = Recording::open(case);
    let input = Numbers::new(121).reals::<T>(recording.count::<T>("in"), reach);
    let terms = || input.iter().map(|x| map(x.f64()));
    let error = terms().map(f64::abs).sum::<f64>() * (input.len() + 1) as f64 * F32;
    let wanted = [Bounded { value: terms().sum(), error }];
    // Worst-case bounds over many elements are wide; whole numbers have none.
    let whole = Numbers::new(122).whole::<T>(input.len(), 3);
    let exact = whole.iter().map(|x| map(x.f64())).sum::<f64>() as f32;
    ways.each(|machine| {
        close("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<f32>("out"), &wanted);
    });
    ways.few(|machine| {
        same(
            "out of whole numbers",
            &recording.replay(machine, &[("in", cast_slice(&whole))]).read::<f32>("out"),
            &[exact],
        );
    });
}

pub(crate) fn sum_f32(ways: &Ways) {
    sum::<f32>(ways, "cub_reduce.sum_f32", 1.0, |x| x);
}

pub(crate) fn sum_bf16_one_tile(ways: &Ways) {
    sum::<bf16>(ways, "cub_reduce.sum_bf16_one_tile", 4.0, |x| x);
}

pub(crate) fn squares_f32(ways: &Ways) {
    sum::<f32>(ways, "cub_reduce.squares_f32", 2.0, |x| x * x);
}

pub(crate) fn product_u32(ways: &Ways) {
    let recording = Recording::open("cub_reduce.product_u32");
    let mut numbers = Numbers::new(123);
    let input: Vec<u32> = (0..recording.count::<u32>("in")).map(|_| numbers.bits() as u32 | 1).collect();
    let wanted = input.iter().fold(3u32, |product, x| product.wrapping_mul(*x));
    ways.each(|machine| {
        same("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<u32>("out"), &[wanted]);
    });
}

pub(crate) fn min_f64(ways: &Ways) {
    let recording = Recording::open("cub_reduce.min_f64");
    let input = Numbers::new(124).reals::<f64>(recording.count::<f64>("in"), 1e9);
    let wanted = input.iter().copied().fold(f64::INFINITY, f64::min);
    ways.each(|machine| {
        same("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<f64>("out"), &[wanted]);
    });
}

pub(crate) fn arg_max_i32(ways: &Ways) {
    let recording = Recording::open("cub_reduce.arg_max_i32");
    // Few different values: the largest is there often, and the first place of it is wanted.
    let input = Numbers::new(125).integers(recording.count::<i32>("in"), 0, 3000);
    let largest = *input.iter().max().expect("elements");
    let place = input.iter().position(|x| *x == largest).expect("it is there") as i64;
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("largest", &after.read::<i32>("out"), &[largest]);
        same("place", &after.read::<i64>("place"), &[place]);
    });
}

/// The last tile is loaded in part, and the total of all of it published.
const PUBLISHES_THE_REST: Known = Known {
    check: Check::Initcheck,
    kinds: &["undefined-store"],
    kernel: "DeviceReduceByKeyKernel",
    instructions: &["st.relaxed.gpu.v2.u64"],
    only: |report| report.place.block == [3, 0, 0],
    why: "the last tile's items beyond the end are never loaded; the first of them is flagged as a head, so that they are in no \
          sum that is written out, but they are in the total of the tile, which is published as of every tile. No tile \
          comes after the last to read it",
};

pub(crate) fn sum_by_key(ways: &Ways) {
    let recording = Recording::open("cub_reduce.sum_by_key");
    let count = recording.count::<i32>("keys");
    let mut numbers = Numbers::new(126);
    let mut keys = vec![0i32];
    while keys.len() < count {
        let again = numbers.between(0, 4) > 0;
        let last = keys[keys.len() - 1];
        keys.push(if again { last } else { last + 1 });
    }
    let input = numbers.integers(count, -100, 100);
    let mut wanted: Vec<(i32, i32)> = Vec::new();
    for (key, x) in keys.iter().zip(&input) {
        match wanted.last_mut() {
            Some((last, sum)) if last == key => *sum += x,
            _ => wanted.push((*key, *x)),
        }
    }
    let (unique, sums): (Vec<i32>, Vec<i32>) = wanted.into_iter().unzip();
    ways.each_knowing(&[PUBLISHES_THE_REST], |machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("in", cast_slice(&input))]);
        same("runs", &after.read::<i32>("runs"), &[unique.len() as i32]);
        same("unique", &after.read::<i32>("unique")[..unique.len()], &unique);
        same("sums", &after.read::<i32>("sums")[..sums.len()], &sums);
    });
}

pub(crate) fn segmented_sum_i32(ways: &Ways) {
    let recording = Recording::open("cub_reduce.segmented_sum_i32");
    let input = Numbers::new(127).integers(recording.count::<i32>("in"), -1000, 1000);
    let offsets = [0i32, 5, 5, 6, 300, 4000, 4001, 9000, 9999, 10_000];
    let sum = |ends: &[i32]| input[ends[0] as usize..ends[1] as usize].iter().sum::<i32>();
    let wanted: Vec<i32> = offsets.windows(2).map(sum).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input)), ("offsets", cast_slice(&offsets))]);
        same("sums", &after.read::<i32>("out"), &wanted);
    });
}

pub(crate) fn merge_keys(ways: &Ways) {
    let recording = Recording::open("cub_reduce.merge_keys");
    let mut numbers = Numbers::new(128);
    let mut sorted = |buffer: &str, high: i64| {
        let mut keys = numbers.integers(recording.count::<i32>(buffer), 0, high);
        keys.sort_unstable();
        keys
    };
    let (a, b) = (sorted("a", 50_000), sorted("b", 30_000));
    let mut wanted = [a.clone(), b.clone()].concat();
    wanted.sort_unstable();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("a", cast_slice(&a)), ("b", cast_slice(&b))]);
        same("out", &after.read::<i32>("out"), &wanted);
    });
}
