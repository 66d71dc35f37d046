//! CUB's device-wide sorts.

use bytemuck::{Pod, cast_slice};
use warpweft_ptxvm::report::Check;

use crate::numbers::{Numbers, same};
use crate::recording::Recording;
use crate::vm::{Known, Ways};

fn keys<T: Pod + std::fmt::Debug>(ways: &Ways, case: &str, make: impl Fn(usize) -> Vec<T>, order: impl Fn(&mut [T])) {
    let recording = Recording::open(case);
    let input = make(recording.count::<T>("in"));
    let mut wanted = input.clone();
    order(&mut wanted);
    ways.each(|machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input))]);
        same("out", &after.read::<T>("out"), &wanted);
    });
}

pub(crate) fn radix_keys_u32_one_tile(ways: &Ways) {
    let make = |count| -> Vec<u32> {
        cast_slice(&Numbers::new(111).integers(count, i32::MIN.into(), i32::MAX.into())).to_vec()
    };
    keys(ways, "cub_sort.radix_keys_u32_one_tile", make, |x| x.sort_unstable());
}

/// Descending by CUB's order of floats: that of the numbers, whatever the sign. (It takes -0 and +0 as equal; none is here.)
pub(crate) fn radix_descending_f32(ways: &Ways) {
    let make = |count| {
        let mut x = Numbers::new(112).reals::<f32>(count, 1e6);
        (x[3], x[4], x[5], x[6]) = (f32::INFINITY, f32::NEG_INFINITY, 1e-42, -1e-42);
        x
    };
    keys(ways, "cub_sort.radix_descending_f32", make, |x| x.sort_by(|a, b| b.total_cmp(a)));
}

/// Only bits 0 to 39 are keys; elements with equal keys keep their order.
pub(crate) fn radix_keys_i64(ways: &Ways) {
    let make = |count| {
        let mut numbers = Numbers::new(113);
        (0..count).map(|_| numbers.bits() as i64 & 0x000f_00ff_ff0f_ffff).collect()
    };
    keys(ways, "cub_sort.radix_keys_i64", make, |x| x.sort_by_key(|x| x & 0xff_ffff_ffff));
}

/// Bits 0 to 23 are keys, of few different values: onesweep with its look-back, stable.
pub(crate) fn radix_pairs_u32(ways: &Ways) {
    let recording = Recording::open("cub_sort.radix_pairs_u32");
    let count = recording.count::<u32>("keys");
    let mut numbers = Numbers::new(114);
    let keys: Vec<u32> = (0..count).map(|_| numbers.bits() as u32 & 0xff83_0f07).collect();
    let values: Vec<u32> = (0..count as u32).collect();
    let mut order = values.clone();
    order.sort_by_key(|&at| keys[at as usize] & 0xff_ffff);
    let sorted: Vec<u32> = order.iter().map(|&at| keys[at as usize]).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("values", cast_slice(&values))]);
        same("keys", &after.read::<u32>("keys_out"), &sorted);
        same("values", &after.read::<u32>("values_out"), &order);
    });
}

/// A scan subtracts again what it added.
const SUBTRACTS_WHAT_IT_ADDED: Known = Known {
    check: Check::Initcheck,
    kinds: &["undefined-barrier", "undefined-address", "undefined-branch", "undefined-guard", "undefined-store"],
    kernel: "DeviceSegmentedRadixSortKernel",
    instructions: &[],
    only: |_| true,
    why: "threads beyond the digits bring a count that was never set to the scan; a raking lane makes its exclusive prefix as the \
          inclusive one minus its own items, some of which are such counts. In wrapping integers they cancel, and the result \
          is the exact one whatever they were; but initcheck looks at one instruction at a time, where a difference of two \
          unknown values is unknown, and so are the places of the keys that follow from it",
};

pub(crate) fn segmented_keys_u16(ways: &Ways) {
    let recording = Recording::open("cub_sort.segmented_keys_u16");
    let count = recording.count::<u16>("in");
    let mut numbers = Numbers::new(115);
    let input: Vec<u16> = (0..count).map(|_| numbers.bits() as u16).collect();
    // An empty segment, one of a single element, small and large ones.
    let offsets = [0i32, 0, 1, 100, 1500, 1501, 4000, count as i32];
    let mut wanted = input.clone();
    for ends in offsets.windows(2) {
        wanted[ends[0] as usize..ends[1] as usize].sort_unstable();
    }
    ways.each_knowing(&[SUBTRACTS_WHAT_IT_ADDED], |machine| {
        let after = recording.replay(machine, &[("in", cast_slice(&input)), ("offsets", cast_slice(&offsets))]);
        same("out", &after.read::<u16>("out"), &wanted);
    });
}

/// By the last decimal digit only: equal ones keep their order.
pub(crate) fn merge_pairs(ways: &Ways) {
    let recording = Recording::open("cub_sort.merge_pairs");
    let count = recording.count::<u32>("keys");
    let mut numbers = Numbers::new(116);
    let keys: Vec<u32> = (0..count).map(|_| numbers.bits() as u32).collect();
    let values: Vec<u32> = (0..count as u32).collect();
    let mut order = values.clone();
    order.sort_by_key(|&at| keys[at as usize] % 10);
    let sorted: Vec<u32> = order.iter().map(|&at| keys[at as usize]).collect();
    ways.each(|machine| {
        let after = recording.replay(machine, &[("keys", cast_slice(&keys)), ("values", cast_slice(&values))]);
        same("keys", &after.read::<u32>("keys"), &sorted);
        same("values", &after.read::<u32>("values"), &order);
    });
}
