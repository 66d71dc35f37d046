//! Philox of Triton, against the published generator and its published test vectors.

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::triton::Kernel;
use crate::vm::Ways;

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let halves = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = halves(0xd251_1f53, counter[0]);
        let (high1, low1) = halves(0xcd9e_8d57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// The vectors that the paper's authors publish with their library: the reference itself is right.
fn published() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let (counter, key) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
    assert_eq!(philox(counter, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

/// Triton's counter is the position alone; its key is the seed.
fn words(seed: u64, position: u32) -> [u32; 4] {
    philox([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// Triton's uniform number of a word: the magnitude of the signed word, scaled to stay below one; a single f32 product.
fn uniform(word: u32) -> f32 {
    let signed = word as i32;
    let magnitude = if signed < 0 { -(signed + 1) } else { signed };
    magnitude as f32 * 4.656_612_7e-10
}

pub(crate) fn integers(ways: &Ways) {
    published();
    let kernel = Kernel::open("random_integers");
    let (count, seed) = (700usize, 0x0123_4567_89ab_cdefu64);
    let each: Vec<[u32; 4]> = (0..count as u32).map(|at| words(seed, at)).collect();
    let wanted: Vec<u32> = (0..4).flat_map(|word| each.iter().map(move |words| words[word])).collect();
    ways.each(|machine| {
        let out = machine.output::<u32>(4 * count);
        let call = kernel.on(machine).buffer("out", &out).integers(&[("count", count as i32)]);
        call.long("seed", seed as i64).launch([3, 1, 1]);
        same("words", &machine.download::<u32>(&out), &wanted);
    });
}

pub(crate) fn dropout(ways: &Ways) {
    let kernel = Kernel::open("dropout");
    let (count, seed, keep) = (2500usize, 1234i32, 0.8125f32);
    let x = Numbers::new(51).reals::<f32>(count, 3.0);
    let kept: Vec<bool> = (0..count as u32).map(|at| uniform(words(seed as u64, at)[0]) < keep).collect();
    let share = kept.iter().filter(|kept| **kept).count() as f64 / count as f64;
    assert!((share - keep.f64()).abs() < 0.05, "the reference keeps {share}");
    // Division of floats is within 2 units in the last place: the mask is exact, the kept values are near.
    let wanted: Vec<Bounded> = x
        .iter()
        .zip(&kept)
        .map(|(x, &kept)| {
            let value = if kept { x.f64() / keep.f64() } else { 0.0 };
            Bounded { value, error: 4.0 * F32 * value.abs() }
        })
        .collect();
    ways.each(|machine| {
        let (input, out) = (machine.upload(&x), machine.output::<f32>(count));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &input);
        call.integers(&[("count", count as i32), ("seed", seed)]).floats(&[("keep", keep)]).launch([3, 1, 1]);
        let got = machine.download::<f32>(&out);
        close("out", &got, &wanted);
        let mask: Vec<bool> = got.iter().zip(&x).map(|(y, x)| *y != 0.0 || *x == 0.0).collect();
        assert_eq!(mask, kept, "the mask");
    });
}

pub(crate) fn normal(ways: &Ways) {
    let kernel = Kernel::open("random_normal");
    let (count, seed) = (600usize, 99i32);
    let wanted: Vec<Bounded> = (0..count as u32)
        .map(|at| {
            let [a, b, ..] = words(seed as u64, at);
            let (u, v) = (uniform(a).max(1e-7).f64(), uniform(b).f64());
            let (radius, angle) = ((-2.0 * u.ln()).sqrt(), std::f64::consts::TAU * v);
            // libdevice's log is within 1 unit in the last place and its cos within 2 (CUDA's table of function accuracies), the
            // square root is approximate within 2^-23; the angle is a product of two rounded factors.
            Bounded { value: radius * angle.cos(), error: radius * F32 * (14.0 + 3.0 * angle) }
        })
        .collect();
    ways.each(|machine| {
        let out = machine.output::<f32>(count);
        let call = kernel.on(machine).buffer("out", &out);
        call.integers(&[("count", count as i32), ("seed", seed)]).launch([3, 1, 1]);
        close("out", &machine.download::<f32>(&out), &wanted);
    });
}
