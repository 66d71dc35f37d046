//! CUB's device-wide selection, partition, run lengths, histograms, differences and element-wise work.

use bytemuck::{Pod, cast_slice};
use warpweft_ptxvm::report::Check;

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::recording::{After, Recording};
use crate::vm::{Known, Ways};

/// The buffer's beginning is `wanted`, and the counter says how much that is.
fn prefix<T: Pod + std::fmt::Debug>(after: &After<'_>, buffer: &str, counter: (&str, usize), wanted: &[T]) {
    assert_eq!(after.read::<i32>(counter.0)[counter.1], wanted.len() as i32, "{}", counter.0);
    same(buffer, &after.read::<T>(buffer)[..wanted.len()], wanted);
}

/// Values that repeat: runs of 1 to 12, now and then hundreds.
fn runs(numbers: &mut Numbers, count: usize, values: i64) -> Vec<i32> {
    let mut result = Vec::new();
    while result.len() < count {
        let long = numbers.between(0, 50) == 0;
        let length = if long { numbers.between(100, 900) } else { numbers.between(1, 13) };
        let value = numbers.between(0, values) as i32;
        result.extend(vec![value; (length as usize).min(count - result.len())]);
    }
    result
}

pub(crate) fn select_if(ways: &Ways) {
    let recording = Recording::open("cub_select.select_if");
    let input = Numbers::new(131).integers(recording.count::<i32>("in"), 0, 100);
    let wanted: Vec<i32> = input.iter().copied().filter(|x| *x < 40).collect();
    ways.each(|machine| {
        prefix(&recording.replay(machine, &[("in", cast_slice(&input))]), "out", ("count", 0), &wanted)
    });
}

pub(crate) fn select_flagged(ways: &Ways) {
    let recording = Recording::open("cub_select.select_flagged");
    let mut numbers = Numbers::new(132);
    let input = numbers.reals::<f64>(recording.count::<f64>("in"), 1.0);
    let flags: Vec<u8> = input.iter().map(|_| u8::from(numbers.between(0, 3) == 0)).collect();
    let wanted: Vec<f64> = input.iter().zip(&flags).filter(|(_, flag)| **flag != 0).map(|(x, _)| *x).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input)), ("flags", &flags)]);
        prefix(&after, "out", ("count", 0), &wanted);
    });
}

pub(crate) fn select_unique(ways: &Ways) {
    let recording = Recording::open("cub_select.select_unique");
    let values = runs(&mut Numbers::new(133), recording.count::<i16>("in"), 30_000);
    let input: Vec<i16> = values.iter().map(|&x| x as i16).collect();
    let mut wanted = input.clone();
    wanted.dedup();
    ways.each(|machine| {
        prefix(&recording.replay(machine, &[("in", cast_slice(&input))]), "out", ("count", 0), &wanted)
    });
}

/// Of each run of equal keys the first pair.
pub(crate) fn unique_by_key(ways: &Ways) {
    let recording = Recording::open("cub_select.unique_by_key");
    let count = recording.count::<i32>("keys");
    let mut numbers = Numbers::new(134);
    let keys = runs(&mut numbers, count, 1000);
    let values = numbers.reals::<f32>(count, 1.0);
    let heads: Vec<usize> = (0..count).filter(|&at| at == 0 || keys[at] != keys[at - 1]).collect();
    let wanted_keys: Vec<i32> = heads.iter().map(|&at| keys[at]).collect();
    let wanted_values: Vec<f32> = heads.iter().map(|&at| values[at]).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("values", cast_slice(&values))]);
        prefix(&after, "keys_out", ("count", 0), &wanted_keys);
        prefix(&after, "values_out", ("count", 0), &wanted_values);
    });
}

pub(crate) fn partition_three(ways: &Ways) {
    let recording = Recording::open("cub_select.partition_three");
    let input = Numbers::new(135).integers(recording.count::<i32>("in"), 0, 100);
    let part =
        |low: i32, high: i32| -> Vec<i32> { input.iter().copied().filter(|x| (low..high).contains(x)).collect() };
    let (low, middle, rest) = (part(0, 20), part(20, 70), part(70, 100));
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        prefix(&after, "low", ("counts", 0), &low);
        prefix(&after, "middle", ("counts", 1), &middle);
        same("rest", &after.read::<i32>("rest")[..rest.len()], &rest);
    });
}

pub(crate) fn run_length_encode(ways: &Ways) {
    let recording = Recording::open("cub_select.run_length_encode");
    let input = runs(&mut Numbers::new(136), recording.count::<i32>("in"), 1 << 30);
    let chunks: Vec<&[i32]> = input.chunk_by(|a, b| a == b).collect();
    let values: Vec<i32> = chunks.iter().map(|run| run[0]).collect();
    let lengths: Vec<i32> = chunks.iter().map(|run| run.len() as i32).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        prefix(&after, "values", ("runs", 0), &values);
        prefix(&after, "lengths", ("runs", 0), &lengths);
    });
}

/// Items that begin no run go to one slot beyond those that are read.
const DISCARDS_INTO_ONE_SLOT: Known = Known {
    check: Check::Racecheck,
    kinds: &["one-instruction-writes", "write-after-write"],
    kernel: "DeviceRleSweepKernel",
    instructions: &["st.shared.u32"],
    only: |report| report.address.is_some_and(|address| address % (481 * 4) == 480 * 4),
    why: "lanes whose item is discarded write it to slot 480 of the 481 of their warp's exchange, one past the last that any lane \
          reads, in one instruction and from item to item: which of the values stays is left open by the ISA, and nobody looks",
};

/// Only runs of two and more count, by where they begin.
pub(crate) fn run_length_non_trivial(ways: &Ways) {
    let recording = Recording::open("cub_select.run_length_non_trivial");
    let input = runs(&mut Numbers::new(137), recording.count::<i32>("in"), 1 << 30);
    let (mut offsets, mut lengths, mut start) = (Vec::new(), Vec::new(), 0);
    for run in input.chunk_by(|a, b| a == b) {
        if run.len() > 1 {
            offsets.push(start);
            lengths.push(run.len() as i32);
        }
        start += run.len() as i32;
    }
    ways.each_knowing(&[DISCARDS_INTO_ONE_SLOT], |machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        prefix(&after, "offsets", ("runs", 0), &offsets);
        prefix(&after, "lengths", ("runs", 0), &lengths);
    });
}

/// 64 bins over [-8, 8): a width of 1/4, exact in f32. What is outside counts nowhere.
pub(crate) fn histogram_even(ways: &Ways) {
    let recording = Recording::open("cub_select.histogram_even");
    let mut numbers = Numbers::new(138);
    let mut input: Vec<f32> =
        (0..recording.count::<f32>("in")).map(|_| (numbers.real(3.0) * numbers.real(3.0)) as f32).collect();
    (input[0], input[1], input[2], input[3]) = (-8.0, 8.0, 7.999_999, -8.5);
    let mut wanted = vec![0i32; 64];
    for x in input.iter().filter(|x| (-8.0..8.0).contains(*x)) {
        wanted[((x.f64() + 8.0) * 4.0) as usize] += 1;
    }
    ways.each(|machine| {
        same("bins", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<i32>("bins"), &wanted);
    });
}

/// Pixels of four bytes, of which three are counted.
pub(crate) fn histogram_u8_channels(ways: &Ways) {
    let recording = Recording::open("cub_select.histogram_u8_channels");
    let mut numbers = Numbers::new(139);
    let input: Vec<u8> = (0..recording.count::<u8>("in")).map(|_| (numbers.bits() & numbers.bits()) as u8).collect();
    let mut wanted = vec![0i32; 3 * 256];
    for pixel in input.chunks(4) {
        (0..3).for_each(|channel| wanted[channel * 256 + usize::from(pixel[channel])] += 1);
    }
    ways.each(|machine| same("bins", &recording.replay(machine, &[("in", &input)]).read::<i32>("bins"), &wanted));
}

pub(crate) fn adjacent_difference(ways: &Ways) {
    let recording = Recording::open("cub_select.adjacent_difference");
    let input = Numbers::new(140).integers(recording.count::<i32>("in"), -1000, 1000);
    let difference = |at: usize| if at == 0 { input[0] } else { input[at] - input[at - 1] };
    let wanted: Vec<i32> = (0..input.len()).map(difference).collect();
    ways.each(|machine| {
        same("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<i32>("out"), &wanted);
    });
}

pub(crate) fn transform(ways: &Ways) {
    let recording = Recording::open("cub_select.transform");
    let count = recording.count::<f32>("x");
    let mut numbers = Numbers::new(141);
    let (x, y) = (numbers.reals::<f32>(count, 10.0), numbers.integers(count, -100, 100));
    // One FMA, or a product and a sum.
    let wanted: Vec<Bounded> = x
        .iter()
        .zip(&y)
        .map(|(x, &y)| {
            let product = x.f64() * 0.75;
            Bounded { value: product + f64::from(y), error: F32 * product.abs() }
        })
        .collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("x", cast_slice(&x)), ("y", cast_slice(&y))]);
        close("out", &after.read::<f32>("out"), &wanted);
    });
}

/// Every index once: index i adds itself to counter i % 5.
pub(crate) fn for_bulk(ways: &Ways) {
    let recording = Recording::open("cub_select.for_bulk");
    let wanted: Vec<i32> = (0..5).map(|rest| (0..5000).filter(|i| i % 5 == rest).sum()).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("counters", cast_slice(&[0i32; 5]))]);
        same("counters", &after.read::<i32>("counters"), &wanted);
    });
}
