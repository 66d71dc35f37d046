//! CUB's block-level and warp-level algorithms, each block on a tile of its own.

use bytemuck::cast_slice;

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::recording::Recording;
use crate::vm::Ways;

const THREADS: usize = 128;
const TILE: usize = THREADS * 7;

fn scan(ways: &Ways, case: &str) {
    let recording = Recording::open(case);
    let input = Numbers::new(151).integers(recording.count::<i32>("in"), i32::MIN.into(), i32::MAX.into());
    let mut wanted = input.clone();
    for tile in wanted.chunks_mut(TILE) {
        (1..tile.len()).for_each(|at| tile[at] = tile[at].wrapping_add(tile[at - 1]));
    }
    let totals: Vec<i32> = wanted.chunks(TILE).map(|tile| tile[TILE - 1]).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("out", &after.read::<i32>("out"), &wanted);
        same("totals", &after.read::<i32>("totals"), &totals);
    });
}

pub(crate) fn scan_raking(ways: &Ways) {
    scan(ways, "cub_block.scan_raking");
}

pub(crate) fn scan_raking_memoize(ways: &Ways) {
    scan(ways, "cub_block.scan_raking_memoize");
}

pub(crate) fn scan_warps(ways: &Ways) {
    scan(ways, "cub_block.scan_warps");
}

fn reduce(ways: &Ways, case: &str) {
    let recording = Recording::open(case);
    let input = Numbers::new(152).reals::<f32>(recording.count::<f32>("in"), 1.0);
    let sum = |tile: &[f32]| {
        let size: f64 = tile.iter().map(|x| x.f64().abs()).sum();
        Bounded { value: tile.iter().map(|x| x.f64()).sum(), error: size * tile.len() as f64 * F32 }
    };
    let wanted: Vec<Bounded> = input.chunks(TILE).map(sum).collect();
    ways.each(|machine| {
        close("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<f32>("out"), &wanted);
    });
}

pub(crate) fn reduce_raking(ways: &Ways) {
    reduce(ways, "cub_block.reduce_raking");
}

pub(crate) fn reduce_commutative(ways: &Ways) {
    reduce(ways, "cub_block.reduce_commutative");
}

pub(crate) fn reduce_warps(ways: &Ways) {
    reduce(ways, "cub_block.reduce_warps");
}

fn histogram(ways: &Ways, case: &str) {
    let recording = Recording::open(case);
    let mut numbers = Numbers::new(153);
    let input: Vec<u8> = (0..recording.count::<u8>("in")).map(|_| (numbers.bits() & numbers.bits()) as u8).collect();
    let mut wanted = vec![0u32; input.len() / TILE * 256];
    input.iter().enumerate().for_each(|(at, x)| wanted[at / TILE * 256 + usize::from(*x)] += 1);
    ways.each(|machine| same("bins", &recording.replay(machine, &[("in", &input)]).read::<u32>("bins"), &wanted));
}

pub(crate) fn histogram_atomic(ways: &Ways) {
    histogram(ways, "cub_block.histogram_atomic");
}

pub(crate) fn histogram_sort(ways: &Ways) {
    histogram(ways, "cub_block.histogram_sort");
}

pub(crate) fn radix_sort(ways: &Ways) {
    let recording = Recording::open("cub_block.radix_sort");
    let count = recording.count::<u32>("keys");
    let mut numbers = Numbers::new(154);
    let keys: Vec<u32> = (0..count).map(|_| numbers.bits() as u32 & 0xf00f_0033).collect();
    let values: Vec<i16> = (0..count).map(|at| at as i16).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&at| (at / TILE, keys[at]));
    let sorted: Vec<u32> = order.iter().map(|&at| keys[at]).collect();
    let carried: Vec<i16> = order.iter().map(|&at| values[at]).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("values", cast_slice(&values))]);
        same("keys", &after.read::<u32>("keys_out"), &sorted);
        same("values", &after.read::<i16>("values_out"), &carried);
    });
}

pub(crate) fn merge_sort(ways: &Ways) {
    let recording = Recording::open("cub_block.merge_sort");
    let input = Numbers::new(155).reals::<f64>(recording.count::<f64>("in"), 1.0);
    let mut wanted = input.clone();
    wanted.chunks_mut(TILE).for_each(|tile| tile.sort_by(|a, b| b.total_cmp(a)));
    ways.each(|machine| {
        same("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<f64>("out"), &wanted);
    });
}

/// Thread t held items 7t..7t+7; striped, it holds t, t+128, ...
pub(crate) fn exchange(ways: &Ways) {
    let recording = Recording::open("cub_block.exchange");
    let input = Numbers::new(156).integers(recording.count::<i32>("in"), 0, 1 << 30);
    let striped = |tile: &[i32]| -> Vec<i32> { (0..TILE).map(|at| tile[at % 7 * THREADS + at / 7]).collect() };
    let wanted_striped: Vec<i32> = input.chunks(TILE).flat_map(striped).collect();
    let wanted_reversed: Vec<i32> = input.chunks(TILE).flat_map(|tile| tile.iter().rev().copied()).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("striped", &after.read::<i32>("striped"), &wanted_striped);
        same("reversed", &after.read::<i32>("reversed"), &wanted_reversed);
    });
}

/// Flags of heads, differences, and a shift by one; the first item of a tile has no neighbour.
pub(crate) fn neighbours(ways: &Ways) {
    let recording = Recording::open("cub_block.neighbours");
    let input = Numbers::new(157).integers(recording.count::<i32>("in"), 0, 3);
    let before = |at: usize| (!at.is_multiple_of(TILE)).then(|| input[at - 1]);
    let each = |of: &dyn Fn(usize) -> i32| -> Vec<i32> { (0..input.len()).map(of).collect() };
    let heads = each(&|at| i32::from(before(at) != Some(input[at])));
    let differences = each(&|at| input[at] - before(at).unwrap_or(0));
    let shifted = each(&|at| before(at).unwrap_or(-1));
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("heads", &after.read::<i32>("heads"), &heads);
        same("differences", &after.read::<i32>("differences"), &differences);
        same("shifted", &after.read::<i32>("shifted"), &shifted);
    });
}

pub(crate) fn run_length_decode(ways: &Ways) {
    let recording = Recording::open("cub_block.run_length_decode");
    let (count, room) = (recording.count::<i32>("values"), THREADS * 16);
    let mut numbers = Numbers::new(158);
    let values = numbers.integers(count, 0, 1 << 30);
    let lengths = numbers.integers(count, 1, 16);
    let decoded: Vec<Vec<i32>> = values
        .chunks(THREADS)
        .zip(lengths.chunks(THREADS))
        .map(|(values, lengths)| values.iter().zip(lengths).flat_map(|(x, n)| vec![*x; *n as usize]).collect())
        .collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("values", cast_slice(&values)), ("lengths", cast_slice(&lengths))]);
        for (got, wanted) in after.read::<i32>("out").chunks(room).zip(&decoded) {
            same("decoded", &got[..wanted.len()], wanted);
        }
    });
}

pub(crate) fn warps(ways: &Ways) {
    let recording = Recording::open("cub_block.warps");
    let input = Numbers::new(159).integers(recording.count::<i32>("in"), -1000, 1000);
    let sums: Vec<i32> = input.chunks(8).map(|lanes| lanes.iter().sum()).collect();
    let mut scans = vec![0i32; input.len()];
    (0..input.len()).filter(|at| at % 16 > 0).for_each(|at| scans[at] = scans[at - 1] + input[at - 1]);
    // Of warp w of a block the first 5 + w lanes.
    let valid = |(warp, lanes): (usize, &[i32])| *lanes[..5 + warp % 4].iter().max().expect("lanes");
    let partial: Vec<i32> = input.chunks(32).enumerate().map(valid).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("sums", &after.read::<i32>("sums"), &sums);
        same("scans", &after.read::<i32>("scans"), &scans);
        same("partial", &after.read::<i32>("partial"), &partial);
    });
}

pub(crate) fn warp_merge_sort(ways: &Ways) {
    let recording = Recording::open("cub_block.warp_merge_sort");
    let input = Numbers::new(160).integers(recording.count::<i32>("in"), -50, 50);
    let mut wanted = input.clone();
    wanted.chunks_mut(64).for_each(<[i32]>::sort_unstable);
    ways.each(|machine| {
        same("out", &recording.replay(machine, &[("in", cast_slice(&input))]).read::<i32>("out"), &wanted);
    });
}
