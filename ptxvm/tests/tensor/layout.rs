//! Fragments, element by element, from the formulas of the PTX ISA's section on matrix fragments for `mma`. Each test
//! puts one 1 into A and one into B and looks where the product comes out.

use warpweft_ptxvm::numerics::TensorModel;

use crate::machine::run;

type Place = fn(lane: usize, v: usize) -> (usize, usize);

struct Shape {
    spelling: &'static str,
    k: usize,
    /// Bits of an element of A and B, and the bits of its one.
    bits: usize,
    one: u32,
    /// The ISA's formulas: A (row, k), B (k, column).
    a: Place,
    b: Place,
    /// Whether C and D are f16 (two to a register), and the bits of their one.
    packed_sum: bool,
    sum_one: u32,
}

const F16_ONE: u32 = 0x3c00;
const BF16_ONE: u32 = 0x3f80;
const F32_ONE: u32 = 0x3f80_0000;

fn a16(lane: usize, v: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let row = if v < 2 || (4..6).contains(&v) { group } else { group + 8 };
    let column = if v < 4 { thread * 2 + (v & 1) } else { thread * 2 + (v & 1) + 8 };
    (row, column)
}

fn b16(lane: usize, v: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    (if v < 2 { thread * 2 + (v & 1) } else { thread * 2 + (v & 1) + 8 }, group)
}

fn a8_16(lane: usize, v: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    (if v < 2 { group } else { group + 8 }, thread * 2 + (v & 1))
}

fn b8_16(lane: usize, v: usize) -> (usize, usize) {
    ((lane % 4) * 2 + (v & 1), lane >> 2)
}

fn a8_tf32(lane: usize, v: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    (if v == 0 || v == 2 { group } else { group + 8 }, if v < 2 { thread } else { thread + 4 })
}

fn b8_tf32(lane: usize, v: usize) -> (usize, usize) {
    (if v == 0 { lane % 4 } else { lane % 4 + 4 }, lane >> 2)
}

fn a4_tf32(lane: usize, v: usize) -> (usize, usize) {
    (if v == 0 { lane >> 2 } else { (lane >> 2) + 8 }, lane % 4)
}

fn b4_tf32(lane: usize, _: usize) -> (usize, usize) {
    (lane % 4, lane >> 2)
}

fn a32(lane: usize, v: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let row = if v < 4 || (8..12).contains(&v) { group } else { group + 8 };
    (row, thread * 4 + (v & 3) + if v < 8 { 0 } else { 16 })
}

fn b32(lane: usize, v: usize) -> (usize, usize) {
    ((lane % 4) * 4 + (v & 3) + if v < 4 { 0 } else { 16 }, lane >> 2)
}

fn a16_8bit(lane: usize, v: usize) -> (usize, usize) {
    (if v < 4 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 4 + (v & 3))
}

fn b16_8bit(lane: usize, v: usize) -> (usize, usize) {
    ((lane % 4) * 4 + (v & 3), lane >> 2)
}

/// C and D of every shape with 16 rows.
fn c(lane: usize, v: usize) -> (usize, usize) {
    (if v < 2 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 2 + (v & 1))
}

#[rustfmt::skip]
const SHAPES: [Shape; 11] = [
    Shape { spelling: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", k: 16, bits: 16, one: F16_ONE, a: a16, b: b16, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", k: 16, bits: 16, one: BF16_ONE, a: a16, b: b16, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", k: 16, bits: 16, one: F16_ONE, a: a16, b: b16, packed_sum: true, sum_one: F16_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", k: 8, bits: 16, one: F16_ONE, a: a8_16, b: b8_16, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", k: 8, bits: 16, one: F16_ONE, a: a8_16, b: b8_16, packed_sum: true, sum_one: F16_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", k: 8, bits: 16, one: BF16_ONE, a: a8_16, b: b8_16, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", k: 8, bits: 32, one: F32_ONE, a: a8_tf32, b: b8_tf32, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", k: 4, bits: 32, one: F32_ONE, a: a4_tf32, b: b4_tf32, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", k: 32, bits: 8, one: 0x38, a: a32, b: b32, packed_sum: false, sum_one: F32_ONE },
    Shape { spelling: "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", k: 32, bits: 8, one: 1, a: a32, b: b32, packed_sum: false, sum_one: 1 },
    Shape { spelling: "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32", k: 16, bits: 8, one: 1, a: a16_8bit, b: b16_8bit, packed_sum: false, sum_one: 1 },
];

impl Shape {
    fn registers(&self, elements: usize) -> usize {
        elements * self.bits / 32 / 32
    }

    /// Registers that hold `one` at the element that the formula places at (row, column), zero elsewhere.
    fn single(&self, count: usize, formula: Place, row: usize, column: usize) -> Vec<[u32; 32]> {
        let packed = 32 / self.bits;
        let mut registers = vec![[0u32; 32]; count];
        let mut found = 0;
        for (lane, v) in (0..32).flat_map(|lane| (0..count * packed).map(move |v| (lane, v))) {
            if formula(lane, v) == (row, column) {
                registers[v / packed][lane] |= self.one << (v % packed * self.bits);
                found += 1;
            }
        }
        assert_eq!(found, 1, "the formula gives ({row}, {column}) to one lane");
        registers
    }

    fn sum(&self, registers: &[[u32; 32]], lane: usize, v: usize) -> u32 {
        if self.packed_sum { registers[v / 2][lane] >> (16 * (v % 2)) & 0xffff } else { registers[v][lane] }
    }
}

#[test]
fn every_element_of_a_meets_every_element_of_b_at_its_place() {
    for shape in SHAPES {
        let (of_a, of_b) = (shape.registers(16 * shape.k), shape.registers(8 * shape.k));
        let of_c = if shape.packed_sum { 2 } else { 4 };
        let zeros = vec![[0u32; 32]; of_c];
        for at in 0..shape.k {
            for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
                let a = shape.single(of_a, shape.a, row, at);
                let b = shape.single(of_b, shape.b, at, column);
                let d = run(shape.spelling, TensorModel::ExactSm80, [&a, &b, &zeros], of_c);
                for (lane, v) in (0..32).flat_map(|lane| (0..4).map(move |v| (lane, v))) {
                    let wanted = if c(lane, v) == (row, column) { shape.sum_one } else { 0 };
                    let got = shape.sum(&d, lane, v);
                    assert_eq!(got, wanted, "{}: A({row},{at}) B({at},{column}) at lane {lane} v {v}", shape.spelling);
                }
            }
        }
    }
}

#[test]
fn c_passes_through_at_its_own_place() {
    for shape in SHAPES {
        let (of_a, of_b) = (shape.registers(16 * shape.k), shape.registers(8 * shape.k));
        let of_c = if shape.packed_sum { 2 } else { 4 };
        let (a, b) = (vec![[0u32; 32]; of_a], vec![[0u32; 32]; of_b]);
        // Exponents differ from element to element, so that no two are alike: 1 + the element's number, as integer bits.
        let c: Vec<[u32; 32]> = (0..of_c)
            .map(|register| {
                std::array::from_fn(|lane| {
                    let number = (register * 32 + lane) as u32;
                    if shape.packed_sum { 0x3c00_3c00 + number + ((number + 64) << 16) } else { shape.sum_one + number }
                })
            })
            .collect();
        for model in [TensorModel::ExactSm80, TensorModel::ExactSm90, TensorModel::Native] {
            // fp8 on sm_89 keeps 13 fraction bits of C: see `sums`.
            if !(shape.spelling.contains("e4m3") && model == TensorModel::ExactSm80) {
                assert_eq!(run(shape.spelling, model, [&a, &b, &c], of_c), c, "{} {model:?}", shape.spelling);
            }
        }
    }
}
