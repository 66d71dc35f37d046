//! Matrix products of Triton: tensor cores of three kinds, tiles loaded by `cp.async`, and sums split over blocks.

use half::{bf16, f16};

use crate::numbers::{Bounded, F32, Numbers, Real, TF32, close, same, wide};
use crate::triton::Kernel;
use crate::vm::{Machine, Ways};

/// The factors' own error before they are multiplied, relative.
#[derive(Clone, Copy)]
enum Inputs {
    Exact,
    /// Cut to tf32 by the tensor core.
    Cut,
    /// Split into two tf32 parts each; the product of the two small parts is left out.
    Split,
}

impl Inputs {
    fn error(self) -> f64 {
        match self {
            Inputs::Exact => 0.0,
            Inputs::Cut => 2.0 * TF32 + TF32 * TF32,
            // Each small part is itself cut (2^-10 of at most 2^-10), and small times small is left out (2^-20).
            Inputs::Split => 4.0 * TF32 * TF32,
        }
    }
}

/// A sum of k products on a tensor core that adds `step` at once: each term of a step, and the accumulator, is cut to 24
/// bits under the largest of them, the result once more. All of these are below the sum of the absolute products,
/// so a step's error is below (step + 2) 2^-23 of that sum. The scalar path (one FMA an element) lies far inside.
fn accumulation(k: usize, step: usize) -> f64 {
    k.div_ceil(step) as f64 * (step + 2) as f64 * 2.0 * F32
}

struct Sizes {
    m: usize,
    n: usize,
    k: usize,
}

fn product(a: &[f64], b: &[f64], sizes: &Sizes, inputs: Inputs) -> Vec<Bounded> {
    let &Sizes { m, n, k } = sizes;
    let relative = inputs.error() + accumulation(k, 4) * (1.0 + inputs.error());
    let mut result = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let terms = (0..k).map(|i| a[row * k + i] * b[i * n + column]);
            let (value, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            result.push(Bounded { value, error: size * relative });
        }
    }
    result
}

/// The tiled kernel, at a size that leaves partial tiles, on reals within the bound and on small integers exactly.
fn tiled<I: Real, O: Real>(ways: &Ways, name: &str, sizes: Sizes, inputs: Inputs) {
    let kernel = Kernel::open(name);
    let tiles = |extent: usize, block: &str| extent.div_ceil(kernel.constant(block) as usize) as u32;
    let grid = [tiles(sizes.m, "BLOCK_M") * tiles(sizes.n, "BLOCK_N"), 1, 1];
    let run = |machine: &Machine, a: &[I], b: &[I]| -> Vec<O> {
        let (a, b) = (machine.upload(a), machine.upload(b));
        let c = machine.output::<O>(sizes.m * sizes.n);
        let [m, n, k] = [sizes.m, sizes.n, sizes.k].map(|x| x as i32);
        let arguments = [("m", m), ("n", n), ("k", k), ("stride_am", k), ("stride_bk", n), ("stride_cm", n)];
        kernel.on(machine).buffer("a", &a).buffer("b", &b).buffer("c", &c).integers(&arguments).launch(grid);
        machine.download(&c)
    };
    let mut numbers = Numbers::new(11);
    let (a, b) = (numbers.reals::<I>(sizes.m * sizes.k, 2.0), numbers.reals::<I>(sizes.k * sizes.n, 2.0));
    let wanted = product(&wide(&a), &wide(&b), &sizes, inputs);
    let (whole_a, whole_b) = (numbers.whole::<I>(sizes.m * sizes.k, 3), numbers.whole::<I>(sizes.k * sizes.n, 3));
    let exact = product(&wide(&whole_a), &wide(&whole_b), &sizes, Inputs::Exact);
    let exact: Vec<O> = exact.iter().map(|x| O::from_f64(x.value)).collect();
    ways.each(|machine| close("c", &run(machine, &a, &b), &wanted));
    ways.few(|machine| same("c of small integers", &run(machine, &whole_a, &whole_b), &exact));
}

pub(crate) fn tiled_bf16(ways: &Ways) {
    tiled::<bf16, bf16>(ways, "matmul_bf16", Sizes { m: 100, n: 80, k: 112 }, Inputs::Exact);
}

pub(crate) fn tiled_f16(ways: &Ways) {
    tiled::<f16, f16>(ways, "matmul_f16", Sizes { m: 70, n: 144, k: 96 }, Inputs::Exact);
}

pub(crate) fn tiled_tf32(ways: &Ways) {
    tiled::<f32, f32>(ways, "matmul_tf32", Sizes { m: 67, n: 80, k: 80 }, Inputs::Cut);
}

pub(crate) fn tiled_tf32x3(ways: &Ways) {
    tiled::<f32, f32>(ways, "matmul_tf32x3", Sizes { m: 65, n: 80, k: 64 }, Inputs::Split);
}

/// No tensor core: a chain of FMAs.
pub(crate) fn tiled_ieee(ways: &Ways) {
    tiled::<f32, f32>(ways, "matmul_ieee", Sizes { m: 33, n: 48, k: 48 }, Inputs::Exact);
}

/// Nothing is divisible by 16, so nothing is loaded by `cp.async` nor by vectors.
pub(crate) fn tiled_f16_odd(ways: &Ways) {
    tiled::<f16, f32>(ways, "matmul_f16_odd", Sizes { m: 35, n: 71, k: 77 }, Inputs::Exact);
}

/// 96 KiB of shared memory and four stages in flight.
pub(crate) fn tiled_bf16_large(ways: &Ways) {
    tiled::<bf16, f32>(ways, "matmul_bf16_large", Sizes { m: 130, n: 144, k: 320 }, Inputs::Exact);
}

pub(crate) fn tiled_f16_one_warp(ways: &Ways) {
    tiled::<f16, f32>(ways, "matmul_f16_one_warp", Sizes { m: 20, n: 48, k: 176 }, Inputs::Exact);
}

/// Blocks share a tile of c along k. `spin` is whether they do it in turns, behind a word each waits on.
fn split<I: Real>(ways: &Ways, name: &str, spin: bool) {
    let kernel = Kernel::open(name);
    let sizes = Sizes { m: 48, n: 64, k: 160 };
    let splits = kernel.constant("SPLITS") as u32;
    let mut numbers = Numbers::new(12);
    let (a, b) = (numbers.reals::<I>(sizes.m * sizes.k, 1.0), numbers.reals::<I>(sizes.k * sizes.n, 1.0));
    let wanted = product(&wide(&a), &wide(&b), &sizes, Inputs::Exact);
    // The parts are added in f32 as well.
    let wanted: Vec<Bounded> = wanted
        .iter()
        .enumerate()
        .map(|(at, x)| {
            let (row, column) = (at / sizes.n, at % sizes.n);
            let terms = (0..sizes.k).map(|i| (a[row * sizes.k + i].f64() * b[i * sizes.n + column].f64()).abs());
            Bounded { value: x.value, error: x.error + terms.sum::<f64>() * f64::from(splits) * F32 }
        })
        .collect();
    ways.each(|machine| {
        let (left, right) = (machine.upload(&a), machine.upload(&b));
        let [m, n, k] = [sizes.m, sizes.n, sizes.k].map(|x| x as i32);
        let grid = [m.unsigned_abs().div_ceil(32), n.unsigned_abs().div_ceil(32), splits];
        let c = if spin { machine.output::<f32>(sizes.m * sizes.n) } else { machine.zeros::<f32>(sizes.m * sizes.n) };
        let turns = machine.zeros::<i32>((grid[0] * grid[1]) as usize);
        let mut call = kernel.on(machine).buffer("a", &left).buffer("b", &right).buffer("c", &c);
        if spin {
            call = call.buffer("turns", &turns);
        }
        call.integers(&[("m", m), ("n", n), ("k", k)]).launch(grid);
        close("c", &machine.download::<f32>(&c), &wanted);
        if spin {
            let last = vec![splits as i32; (grid[0] * grid[1]) as usize];
            same("turns", &machine.download::<i32>(&turns), &last);
        }
    });
}

pub(crate) fn split_by_atomics(ways: &Ways) {
    split::<bf16>(ways, "matmul_atomic", false);
}

pub(crate) fn split_in_turns(ways: &Ways) {
    split::<f16>(ways, "matmul_turns", true);
}

/// Weights of 4 bits, two to a byte, unpacked to f16 in the kernel: its products are exact, the scale comes last.
pub(crate) fn dequantized(ways: &Ways) {
    let kernel = Kernel::open("dequantized_matmul");
    let sizes = Sizes { m: 37, n: 48, k: 96 };
    let mut numbers = Numbers::new(13);
    let x = numbers.reals::<f16>(sizes.m * sizes.k, 2.0);
    let scales = numbers.reals::<f32>(sizes.n, 0.5);
    let packed: Vec<u8> = (0..sizes.k / 2 * sizes.n).map(|_| numbers.bits() as u8).collect();
    let weight = |i: usize, column: usize| f64::from((packed[i / 2 * sizes.n + column] >> (4 * (i % 2))) & 15) - 8.0;
    let weights: Vec<f64> = (0..sizes.k * sizes.n).map(|at| weight(at / sizes.n, at % sizes.n)).collect();
    let wanted: Vec<Bounded> = product(&wide(&x), &weights, &sizes, Inputs::Exact)
        .iter()
        .enumerate()
        .map(|(at, sum)| {
            let scale = scales[at % sizes.n].f64();
            Bounded { value: sum.value * scale, error: sum.error * scale.abs() }
        })
        .collect();
    ways.each(|machine| {
        let (input, weights, scale) = (machine.upload(&x), machine.upload(&packed), machine.upload(&scales));
        let out = machine.output::<f32>(sizes.m * sizes.n);
        let [m, n, k] = [sizes.m, sizes.n, sizes.k].map(|x| x as i32);
        let call = kernel.on(machine).buffer("x", &input).buffer("packed", &weights).buffer("scales", &scale);
        call.buffer("out", &out).integers(&[("m", m), ("n", n), ("k", k)]).launch([2, 2, 1]);
        close("out", &machine.download::<f32>(&out), &wanted);
    });
}
