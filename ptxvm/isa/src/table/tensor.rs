//! `mma`: rows of the tensor cores, and the way between fragments in registers and tiles.

use half::f16;

use super::{Form, Mods, collective};
use crate::lanes::vectorised;
use crate::numerics::Settings;
use crate::numerics::tensor::{Fragment, Input, Matrix, Sum, Tile, multiply_integers};
use crate::program::LaneFn;
use crate::registers::{LANES, Narrow, Operands, Registers, Wide};

/// The rows of `mma`.
pub(super) fn rows(out: &mut Vec<Form>) {
    let half = |text, operands, choose: fn(&Mods) -> LaneFn| collective(text, operands, choose).since(6, 5, 75);
    let ampere = |text, operands, choose: fn(&Mods) -> LaneFn| collective(text, operands, choose).since(7, 0, 80);
    let ada = |text, operands, choose: fn(&Mods) -> LaneFn| collective(text, operands, choose).since(8, 4, 89);
    out.extend([
        half("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "d:f32*4 a:f16x2*2 b:f16x2*1 c:f32*4", |_| {
            float::<8, 2, 1, F16, SumF32>
        }),
        half("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", "d:f16x2*2 a:f16x2*2 b:f16x2*1 c:f16x2*2", |_| {
            float::<8, 2, 1, F16, SumF16>
        }),
        ampere("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "d:f32*4 a:f16x2*4 b:f16x2*2 c:f32*4", |_| {
            float::<16, 4, 2, F16, SumF32>
        }),
        ampere("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", "d:f16x2*2 a:f16x2*4 b:f16x2*2 c:f16x2*2", |_| {
            float::<16, 4, 2, F16, SumF16>
        }),
        ampere("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", "d:f32*4 a:bf16x2*2 b:bf16x2*1 c:f32*4", |_| {
            float::<8, 2, 1, Bf16, SumF32>
        }),
        ampere("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "d:f32*4 a:bf16x2*4 b:bf16x2*2 c:f32*4", |_| {
            float::<16, 4, 2, Bf16, SumF32>
        }),
        ampere("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", "d:f32*4 a:tf32*2 b:tf32*1 c:f32*4", |_| {
            float::<4, 2, 1, Tf32, SumF32>
        }),
        ampere("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "d:f32*4 a:tf32*4 b:tf32*2 c:f32*4", |_| {
            float::<8, 4, 2, Tf32, SumF32>
        }),
        ampere("mma.sync.aligned.m8n8k4.row.col{.rn}.f64.f64.f64.f64", "d:f64*2 a:f64*1 b:f64*1 c:f64*2", |_| double),
        ada("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "d:f32*4 a:b32*4 b:b32*2 c:f32*4", |_| {
            float::<32, 4, 2, E4m3, SumF32>
        }),
        ada("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", "d:f32*4 a:b32*4 b:b32*2 c:f32*4", |_| {
            float::<32, 4, 2, E5m2, SumF32>
        }),
    ]);
    for (text, operands, choose) in INTEGER {
        out.push(collective(text, operands, choose).since(7, 0, 80));
    }
    for (text, operands, choose) in SMALL_INTEGER {
        out.push(collective(text, operands, choose).since(6, 5, 75));
    }
}

type Row = (&'static str, &'static str, fn(&Mods) -> LaneFn);

const WIDE: &str = "d:s32*4 a:b32*4 b:b32*2 c:s32*4";
const HALF: &str = "d:s32*4 a:b32*2 b:b32*1 c:s32*4";
const SMALL: &str = "d:s32*2 a:b32*1 b:b32*1 c:s32*2";

const INTEGER: [Row; 8] = [
    ("mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.s8.s8.s32", WIDE, integer::<16, 32, true, true>),
    ("mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.s8.u8.s32", WIDE, integer::<16, 32, true, false>),
    ("mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.u8.s8.s32", WIDE, integer::<16, 32, false, true>),
    ("mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.u8.u8.s32", WIDE, integer::<16, 32, false, false>),
    ("mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.s8.s8.s32", HALF, integer::<16, 16, true, true>),
    ("mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.s8.u8.s32", HALF, integer::<16, 16, true, false>),
    ("mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.u8.s8.s32", HALF, integer::<16, 16, false, true>),
    ("mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.u8.u8.s32", HALF, integer::<16, 16, false, false>),
];

const SMALL_INTEGER: [Row; 4] = [
    ("mma.sync.aligned.m8n8k16.row.col{.satfinite}.s32.s8.s8.s32", SMALL, integer::<8, 16, true, true>),
    ("mma.sync.aligned.m8n8k16.row.col{.satfinite}.s32.s8.u8.s32", SMALL, integer::<8, 16, true, false>),
    ("mma.sync.aligned.m8n8k16.row.col{.satfinite}.s32.u8.s8.s32", SMALL, integer::<8, 16, false, true>),
    ("mma.sync.aligned.m8n8k16.row.col{.satfinite}.s32.u8.u8.s32", SMALL, integer::<8, 16, false, false>),
];

/// An input format: how a register holds it.
trait Format {
    const INPUT: Input;
    const BITS: u32;
    /// The value in the low [`Self::BITS`] bits, widened exactly.
    fn widen(bits: u32) -> f32;
}

struct F16;
struct Bf16;
struct Tf32;
struct E4m3;
struct E5m2;

impl Format for F16 {
    const INPUT: Input = Input::F16;
    const BITS: u32 = 16;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        // The exponent is moved by a multiplication, which normalises subnormals; an infinity or NaN is put right after.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }
}

impl Format for Bf16 {
    const INPUT: Input = Input::Bf16;
    const BITS: u32 = 16;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }
}

impl Format for Tf32 {
    const INPUT: Input = Input::Tf32;
    const BITS: u32 = 32;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        // The unit reads 19 bits; a NaN that lies in the others alone becomes an infinity (PTX ISA: undefined).
        f32::from_bits(bits & !0x1fff)
    }
}

impl Format for E4m3 {
    const INPUT: Input = Input::E4m3;
    const BITS: u32 = 8;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        let magnitude = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
        let special = if bits & 0x7f == 0x7f { 0x7fff_ffff } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x80) << 24)
    }
}

impl Format for E5m2 {
    const INPUT: Input = Input::E5m2;
    const BITS: u32 = 8;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        F16::widen((bits & 0xff) << 8)
    }
}

/// A format of C and D.
trait SumFormat {
    const SUM: Sum;
    /// Elements in a register.
    const PACKED: u32;
    fn widen(bits: u32) -> f32;
    fn narrow(value: f32) -> u32;
}

struct SumF32;
struct SumF16;

impl SumFormat for SumF32 {
    const SUM: Sum = Sum::F32;
    const PACKED: u32 = 1;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        value.to_bits()
    }
}

impl SumFormat for SumF16 {
    const SUM: Sum = Sum::F16;
    const PACKED: u32 = 2;
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        F16::widen(bits & 0xffff)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        u32::from(f16::from_f32(value).to_bits())
    }
}

/// `mma` of a floating-point shape m16n8kK with `A` and `B` registers of the inputs.
fn float<const K: usize, const A: usize, const B: usize, I: Format, S: SumFormat>(
    registers: &mut Registers,
    operands: &Operands,
    mask: u32,
    settings: &Settings,
) {
    let mut tile = Tile::<K>::zeros();
    vectorised(
        #[inline(always)]
        || load::<K, A, B, I, S>(registers, operands, &mut tile),
    );
    tile.multiply(I::INPUT, S::SUM, settings.tensor);
    vectorised(
        #[inline(always)]
        || store::<K, S>(registers, operands, mask, &tile),
    );
}

/// Registers to matrices.
#[inline(always)]
fn load<const K: usize, const A: usize, const B: usize, I: Format, S: SumFormat>(
    registers: &Registers,
    operands: &Operands,
    tile: &mut Tile<K>,
) {
    let sums = 4 / S::PACKED as usize;
    let (a, b, c) = (sums, sums + A, sums + A + B);
    let packed = 32 / I::BITS;
    let fragment = |matrix| Fragment { matrix, m: 16, k: K as u32, bits: I::BITS };
    for register in 0..A {
        let words: &Narrow = registers.narrow(operands[a + register]);
        let (row, k) = fragment(Matrix::A).place(0, register as u32 * packed);
        for (group, words) in words.chunks_exact(4).enumerate() {
            for (thread, &word) in words.iter().enumerate() {
                for within in 0..packed {
                    let at = k as usize + thread * packed as usize + within as usize;
                    tile.a[row as usize + group][at] = I::widen(element(word, within, I::BITS));
                }
            }
        }
    }
    for register in 0..B {
        let words: &Narrow = registers.narrow(operands[b + register]);
        let (k, _) = fragment(Matrix::B).place(0, register as u32 * packed);
        for (column, words) in words.chunks_exact(4).enumerate() {
            for (thread, &word) in words.iter().enumerate() {
                for within in 0..packed {
                    let at = k as usize + thread * packed as usize + within as usize;
                    tile.b[at][column] = I::widen(element(word, within, I::BITS));
                }
            }
        }
    }
    for register in 0..sums {
        let words: &Narrow = registers.narrow(operands[c + register]);
        let (row, column) = fragment(Matrix::C).place(0, register as u32 * S::PACKED);
        for (group, words) in words.chunks_exact(4).enumerate() {
            for (thread, &word) in words.iter().enumerate() {
                for within in 0..S::PACKED {
                    let at = column as usize + thread * 2 + within as usize;
                    tile.c[row as usize + group][at] = S::widen(word >> (16 * within));
                }
            }
        }
    }
}

/// The sums back to registers.
#[inline(always)]
fn store<const K: usize, S: SumFormat>(registers: &mut Registers, operands: &Operands, mask: u32, tile: &Tile<K>) {
    for register in 0..4 / S::PACKED as usize {
        let place = Fragment { matrix: Matrix::C, m: 16, k: K as u32, bits: 32 }.place(0, register as u32 * S::PACKED);
        let (row, column) = (place.0 as usize, place.1 as usize);
        let mut words: Narrow = [0; LANES];
        for (group, words) in words.chunks_exact_mut(4).enumerate() {
            for (thread, word) in words.iter_mut().enumerate() {
                for within in 0..S::PACKED {
                    let value = tile.c[row + group][column + thread * 2 + within as usize];
                    *word |= S::narrow(value) << (16 * within);
                }
            }
        }
        registers.set_narrow(operands[register], mask, &words);
    }
}

/// Element `within` of a register's word.
#[inline(always)]
fn element(word: u32, within: u32, bits: u32) -> u32 {
    if bits == 32 { word } else { word >> (bits * within) & ((1 << bits) - 1) }
}

/// `mma.m8n8k4.f64`: a chain of fused multiply-adds in the order of k, each rounded to nearest (MMA-Sim).
fn double(registers: &mut Registers, operands: &Operands, mask: u32, _: &Settings) {
    let (a, b): (&Wide, &Wide) = (registers.wide(operands[2]), registers.wide(operands[3]));
    let (c0, c1): (&Wide, &Wide) = (registers.wide(operands[4]), registers.wide(operands[5]));
    let value = |bits: u64| f64::from_bits(bits);
    let mut out = [[0u64; LANES]; 2];
    for lane in 0..LANES {
        let (row, t) = (lane / 4, lane % 4);
        for (v, c) in [c0, c1].into_iter().enumerate() {
            let column = 2 * t + v;
            let step = |sum: f64, k: usize| value(a[row * 4 + k]).mul_add(value(b[column * 4 + k]), sum);
            out[v][lane] = (0..4).fold(value(c[lane]), step).to_bits();
        }
    }
    registers.set_wide(operands[0], mask, &out[0]);
    registers.set_wide(operands[1], mask, &out[1]);
}

fn integer<const M: u32, const K: u32, const A_SIGNED: bool, const B_SIGNED: bool>(mods: &Mods) -> LaneFn {
    if mods.has("satfinite") {
        bytes::<M, K, A_SIGNED, B_SIGNED, true>
    } else {
        bytes::<M, K, A_SIGNED, B_SIGNED, false>
    }
}

/// `mma` of 8-bit integers, shape mMn8kK.
fn bytes<const M: u32, const K: u32, const A_SIGNED: bool, const B_SIGNED: bool, const SATURATE: bool>(
    registers: &mut Registers,
    operands: &Operands,
    mask: u32,
    _: &Settings,
) {
    let fragment = |matrix| Fragment { matrix, m: M, k: K, bits: 8 };
    let [in_a, in_b, in_c] = [Matrix::A, Matrix::B, Matrix::C].map(|matrix| fragment(matrix).elements());
    let (a, b, c) = (in_c as usize, (in_c + in_a / 4) as usize, (in_c + in_a / 4 + in_b / 4) as usize);
    let mut left = [[0i64; 32]; 16];
    let mut right = [[0i64; 32]; 8];
    let read = |word: u32, within: u32, signed: bool| {
        let byte = element(word, within, 8) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    for lane in 0..32 {
        for v in 0..in_a {
            let (row, k) = fragment(Matrix::A).place(lane, v);
            let word = registers.narrow(operands[a + (v / 4) as usize])[lane as usize];
            left[row as usize][k as usize] = read(word, v % 4, A_SIGNED);
        }
        for v in 0..in_b {
            let (k, column) = fragment(Matrix::B).place(lane, v);
            let word = registers.narrow(operands[b + (v / 4) as usize])[lane as usize];
            right[column as usize][k as usize] = read(word, v % 4, B_SIGNED);
        }
    }
    for v in 0..in_c {
        let mut words: Narrow = [0; LANES];
        for (lane, word) in words.iter_mut().enumerate() {
            let (row, column) = fragment(Matrix::C).place(lane as u32, v);
            let sum = registers.narrow(operands[c + v as usize])[lane] as i32;
            let (row, column) = (left[row as usize].iter(), right[column as usize].iter());
            *word = multiply_integers(row.copied(), column.copied(), sum, SATURATE) as u32;
        }
        registers.set_narrow(operands[v as usize], mask, &words);
    }
}
