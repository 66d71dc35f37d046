//! Random tiles of every shape and both models against the rule in whole numbers, bit for bit.

use warpweft_ptxvm::numerics::TensorModel;

use crate::machine::{Draw, run};
use crate::rule::{BF16, E4M3, E5M2, F16, Format, Out, Rule, TF32, dot};

pub(crate) struct Case {
    pub(crate) spelling: &'static str,
    pub(crate) k: usize,
    pub(crate) input: Format,
    pub(crate) half_sum: bool,
}

pub(crate) const CASES: [Case; 10] = [
    Case { spelling: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", k: 16, input: F16, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", k: 16, input: BF16, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", k: 16, input: F16, half_sum: true },
    Case { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", k: 8, input: F16, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", k: 8, input: F16, half_sum: true },
    Case { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", k: 8, input: BF16, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", k: 8, input: TF32, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", k: 4, input: TF32, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", k: 32, input: E4M3, half_sum: false },
    Case { spelling: "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", k: 32, input: E5M2, half_sum: false },
];

impl Case {
    /// The published parameters (see the sources named in `numerics/tensor`).
    pub(crate) fn rule(&self, model: TensorModel) -> (Rule, Out) {
        let eight_bit = self.input.bits() == 8;
        let (sm90, least) = (model == TensorModel::ExactSm90, if self.half_sum { -20 } else { -132 });
        let rule = match (sm90, self.input.bits()) {
            (true, _) => Rule { step: self.k, kept: 25, least: least - 1 },
            (false, 8) => Rule { step: 16, kept: 13, least },
            (false, 16) => Rule { step: 8, kept: 24, least },
            (false, _) => Rule { step: 4, kept: 24, least },
        };
        let fraction = if !sm90 && eight_bit { 13 } else { 23 };
        (rule, if self.half_sum { Out::F16 } else { Out::F32 { fraction } })
    }

    /// D of every element for matrices of bits, as the rule gives it.
    pub(crate) fn wanted(
        &self,
        model: TensorModel,
        a: &[Vec<u32>],
        b: &[Vec<u32>],
        c: &[[u32; 8]; 16],
    ) -> [[u32; 8]; 16] {
        let (rule, out) = self.rule(model);
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let right: Vec<u32> = b.iter().map(|line| line[column]).collect();
                dot(rule, self.input, out, &a[row], &right, c[row][column])
            })
        })
    }

    /// D of every element, from the machine. The layout is proven in `layout`; here its formula is the table of the ISA.
    pub(crate) fn got(&self, model: TensorModel, a: &[Vec<u32>], b: &[Vec<u32>], c: &[[u32; 8]; 16]) -> [[u32; 8]; 16] {
        let bits = if self.input.bits() == 19 { 32 } else { self.input.bits() as usize };
        let packed = 32 / bits;
        // tf32 inputs lie in the high 19 bits; the unit ignores the others, so set them.
        let word = |value: u32| if bits == 32 { value << 13 | 0x1555 } else { value };
        let pack = |count: usize, at: &dyn Fn(usize, usize) -> u32| -> Vec<[u32; 32]> {
            let register = |register: usize| {
                std::array::from_fn(|lane| {
                    (0..packed).fold(0, |all, within| all | at(lane, register * packed + within) << (within * bits))
                })
            };
            (0..count).map(register).collect()
        };
        let span = 4 * packed;
        let a = pack(16 * self.k / 32 / packed, &|lane, v| {
            let (register, within) = (v / packed, v % packed);
            word(a[lane / 4 + 8 * (register % 2)][lane % 4 * packed + within + span * (register / 2)])
        });
        let b = pack(8 * self.k / 32 / packed, &|lane, v| {
            let (register, within) = (v / packed, v % packed);
            word(b[lane % 4 * packed + within + span * register][lane / 4])
        });
        let element = |lane: usize, v: usize| c[lane / 4 + 8 * (v / 2)][2 * (lane % 4) + v % 2];
        let c: Vec<[u32; 32]> = if self.half_sum {
            let pair = |register: usize, lane| element(lane, 2 * register) | element(lane, 2 * register + 1) << 16;
            (0..2).map(|register| std::array::from_fn(|lane| pair(register, lane))).collect()
        } else {
            (0..4).map(|v| std::array::from_fn(|lane| element(lane, v))).collect()
        };
        let d = run(self.spelling, model, [&a, &b, &c], c.len());
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let (lane, v) = (row % 8 * 4 + column / 2, row / 8 * 2 + column % 2);
                if self.half_sum { d[v / 2][lane] >> (16 * (v % 2)) & 0xffff } else { d[v][lane] }
            })
        })
    }
}

/// Bits of a value whose exponent lies within `spread` of a centre, now and then zero or subnormal.
fn value(draw: &mut Draw, format: Format, spread: u64) -> u32 {
    let top = (1u64 << format.exponent_bits) - 1;
    let centre = top / 2 + 1;
    let field = match draw.below(16) {
        0 => 0,
        _ => (centre + draw.below(2 * spread + 1)).saturating_sub(spread).clamp(1, top - 1),
    };
    let fraction = match draw.below(16) {
        0 | 1 => 0,
        2 => (1 << format.fraction) - 1,
        _ => draw.below(1 << format.fraction),
    };
    let fraction = if format.finite && field == top && fraction == (1 << format.fraction) - 1 { 0 } else { fraction };
    (draw.below(2) << (format.bits() - 1) | field << format.fraction | fraction) as u32
}

#[test]
fn random_tiles_of_every_shape_follow_the_rule_to_the_bit() {
    let mut draw = Draw(1);
    for case in &CASES {
        let sum = if case.half_sum { F16 } else { crate::rule::F32 };
        for model in [TensorModel::ExactSm80, TensorModel::ExactSm90] {
            for spread in [1, 4, 12, 40, 120] {
                for _ in 0..6 {
                    let a: Vec<Vec<u32>> =
                        (0..16).map(|_| (0..case.k).map(|_| value(&mut draw, case.input, spread)).collect()).collect();
                    let b: Vec<Vec<u32>> =
                        (0..case.k).map(|_| (0..8).map(|_| value(&mut draw, case.input, spread)).collect()).collect();
                    let c = std::array::from_fn(|_| std::array::from_fn(|_| value(&mut draw, sum, spread)));
                    let (got, wanted) = (case.got(model, &a, &b, &c), case.wanted(model, &a, &b, &c));
                    for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
                        assert_eq!(
                            got[row][column], wanted[row][column],
                            "{} {model:?} spread {spread} ({row},{column}): {:#x} is not {:#x}",
                            case.spelling, got[row][column], wanted[row][column]
                        );
                    }
                }
            }
        }
    }
}
