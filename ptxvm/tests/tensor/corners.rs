//! Corners of the models with the results that the papers' rules give, worked out by hand, and specials among ordinary
//! elements.

use half::{bf16, f16};
use warpweft_ptxvm::numerics::TensorModel::{ExactSm80, ExactSm90, Native};

use crate::sums::{CASES, Case};

/// D of element (0, 0) where row 0 of A and column 0 of B hold these values.
fn element(case: &Case, model: warpweft_ptxvm::numerics::TensorModel, a: &[u32], b: &[u32], c: u32) -> u32 {
    let mut left = vec![vec![0; case.k]; 16];
    let mut right = vec![vec![0; 8]; case.k];
    for (at, (&x, &y)) in a.iter().zip(b).enumerate() {
        left[0][at] = x;
        right[at][0] = y;
    }
    let mut sum = [[0; 8]; 16];
    sum[0][0] = c;
    case.got(model, &left, &right, &sum)[0][0]
}

fn halves(values: &[f32]) -> Vec<u32> {
    values.iter().map(|&value| u32::from(f16::from_f32(value).to_bits())).collect()
}

fn brains(values: &[f32]) -> Vec<u32> {
    values.iter().map(|&value| u32::from(bf16::from_f32(value).to_bits())).collect()
}

const F16_F32: &Case = &CASES[0];
const BF16_F32: &Case = &CASES[1];
const F16_F16: &Case = &CASES[2];

#[test]
fn a_term_far_below_the_largest_is_cut_off() {
    // 1 + 2^-24 keeps the bit in the sum, which then truncates to 1; one and a half ulps survive as one.
    let one = 1f32.to_bits();
    let tiny = halves(&[2f32.powi(-12)]);
    assert_eq!(element(F16_F32, ExactSm80, &tiny, &tiny, one), one);
    // 2^-25 is cut on sm_80 before the sum, where sixteen of them would make 2^-21: nothing is left.
    let small = halves(&[2f32.powi(-13); 16]);
    let other = halves(&[2f32.powi(-12); 16]);
    assert_eq!(element(F16_F32, ExactSm80, &small, &other, one), one);
    // sm_90 keeps 25 fraction bits, so all of them count: 1 + 2^-21.
    assert_eq!(element(F16_F32, ExactSm90, &small, &other, one), (1.0 + 2f32.powi(-21)).to_bits());
    // In f32 to nearest each of them is half an ulp of nothing: lost one by one.
    assert_eq!(element(F16_F32, Native, &small, &other, one), one);
}

#[test]
fn truncation_is_toward_zero_for_either_sign() {
    // 1 - 2^-25: the term is cut on sm_80, kept on sm_90, where the result is the f32 just below 1.
    let (a, b) = (halves(&[-(2f32.powi(-13))]), halves(&[2f32.powi(-12)]));
    assert_eq!(element(F16_F32, ExactSm80, &a, &b, 1f32.to_bits()), 1f32.to_bits());
    assert_eq!(element(F16_F32, ExactSm90, &a, &b, 1f32.to_bits()), 1f32.to_bits() - 1);
    assert_eq!(element(F16_F32, ExactSm80, &a, &b, (-1f32).to_bits()), (-1f32).to_bits());
}

#[test]
fn an_exponent_counts_before_normalisation() {
    // 1.5 * 1.5 = 2.25 has exponent 0, not 1, so 2^-24 beside it is kept until the result is truncated.
    let (a, b) = (halves(&[1.5, 2f32.powi(-12), 2f32.powi(-12)]), halves(&[1.5, 2f32.powi(-12), 2f32.powi(-12)]));
    // 2.25 + 2 * 2^-24 = 2.25 + 2^-23; an ulp of 2.25 is 2^-22, so it truncates to 2.25; minus C = -2.25 shows it was kept.
    assert_eq!(element(F16_F32, ExactSm80, &a, &b, 0), 2.25f32.to_bits());
    assert_eq!(element(F16_F32, ExactSm80, &a, &b, (-2.25f32).to_bits()), 0f32.to_bits());
    // With C = -2.25 (exponent 1) the largest exponent is 1: 2^-24 is below 2^-23 and cut. With -1.125 twice it is not.
    let (a, b) = (halves(&[1.5, -1.5, 2f32.powi(-12)]), halves(&[1.5, 1.5, 2f32.powi(-12)]));
    assert_eq!(element(F16_F32, ExactSm80, &a, &b, 0), 2f32.powi(-24).to_bits());
}

#[test]
fn cancellation_leaves_what_alignment_kept() {
    // 2^15 * 2^15 - 2^15 * 2^15 + 1: the 1 is 30 binary places below and lost in either model.
    let (a, b) = (halves(&[32768.0, -32768.0, 1.0]), halves(&[32768.0, 32768.0, 1.0]));
    for model in [ExactSm80, ExactSm90] {
        assert_eq!(element(F16_F32, model, &a, &b, 0), 0);
    }
    assert_eq!(element(F16_F32, Native, &a, &b, 0), 1f32.to_bits());
    // The second step of sm_80 starts afresh: a 1 there survives; sm_90 takes all sixteen at once.
    let mut far = vec![32768.0, -32768.0];
    far.resize(8, 0.0);
    far.push(1.0);
    let mut other = far.clone();
    other[1] = 32768.0;
    assert_eq!(element(F16_F32, ExactSm80, &halves(&far), &halves(&other), 0), 1f32.to_bits());
    assert_eq!(element(F16_F32, ExactSm90, &halves(&far), &halves(&other), 0), 0);
}

#[test]
fn c_far_above_swallows_and_far_below_is_swallowed() {
    let one = halves(&[1.0]);
    for model in [ExactSm80, ExactSm90] {
        let huge = 1e30f32.to_bits();
        assert_eq!(element(F16_F32, model, &one, &one, huge), huge);
        assert_eq!(element(F16_F32, model, &one, &one, 1e-30f32.to_bits()), 1f32.to_bits());
        // A zero product takes no part: C stays as it is, to its last bit, and a subnormal C too.
        let zero = halves(&[0.0]);
        for c in [1e-30f32.to_bits(), 1, 0x007f_ffff, 0x8000_0001] {
            assert_eq!(element(F16_F32, model, &zero, &halves(&[65504.0]), c), c);
        }
    }
}

#[test]
fn subnormals_are_kept_on_both_sides() {
    let least = vec![1u32];
    for model in [ExactSm80, ExactSm90] {
        // The least f16, 2^-24, squared.
        assert_eq!(element(F16_F32, model, &least, &least, 0), 2f32.powi(-48).to_bits());
        // bf16 down to the least subnormal f32: 2^-100 * 2^-49 = 2^-149.
        let (a, b) = (brains(&[2f32.powi(-100)]), brains(&[2f32.powi(-49)]));
        assert_eq!(element(BF16_F32, model, &a, &b, 0), 1);
        // Half of that is truncated to zero, a positive one also from below.
        let (a, b) = (brains(&[-(2f32.powi(-100))]), brains(&[2f32.powi(-50)]));
        assert_eq!(element(BF16_F32, model, &a, &b, 0), 0);
        // f16 sums: 2^-24 is their least; a half of it is a tie and goes to even, zero; three halves go to 2.
        assert_eq!(element(F16_F16, model, &least, &halves(&[1.0]), 0), 1);
        assert_eq!(element(F16_F16, model, &least, &halves(&[0.5]), 0), 0);
        assert_eq!(element(F16_F16, model, &least, &halves(&[1.5]), 0), 2);
    }
}

#[test]
fn a_sum_beyond_f32_is_infinite_and_one_just_below_is_the_largest() {
    let big = brains(&[2f32.powi(64)]);
    let near = brains(&[2f32.powi(63) * 1.9921875]);
    for model in [ExactSm80, ExactSm90] {
        assert_eq!(element(BF16_F32, model, &big, &big, 0), f32::INFINITY.to_bits());
        // f32's largest plus less than an ulp truncates back to it, where rounding to nearest would overflow.
        let (a, b) = (brains(&[2f32.powi(103)]), brains(&[1.5]));
        let most = f32::MAX.to_bits();
        assert_eq!(element(BF16_F32, model, &a, &b, most), most);
        // 2^127 twice is 2^128.
        let half = brains(&[2f32.powi(63), 2f32.powi(63)]);
        let other = brains(&[2f32.powi(64), 2f32.powi(64)]);
        assert_eq!(element(BF16_F32, model, &half, &other, 0), f32::INFINITY.to_bits());
        // A product beyond f32 is no infinity while the sum of its step comes back.
        let (a, b) = (brains(&[2f32.powi(70), -(2f32.powi(70)), 1.0]), brains(&[2f32.powi(70), 2f32.powi(70), 0.0]));
        assert_eq!(element(BF16_F32, model, &a, &b, 0), 0);
        assert_eq!(element(BF16_F32, model, &near, &big, 0), (2f32.powi(127) * 1.9921875).to_bits());
    }
}

#[test]
fn f16_sums_round_to_nearest_even_once() {
    let ones = halves(&[1.0]);
    for model in [ExactSm80, ExactSm90] {
        // 2048 + 1 is a tie between 2048 and 2050: even is 2048. 2050 + 1 goes up to 2052.
        let at = |c: f32| element(F16_F16, model, &ones, &ones, u32::from(f16::from_f32(c).to_bits()));
        assert_eq!(at(2048.0), u32::from(f16::from_f32(2048.0).to_bits()));
        assert_eq!(at(2050.0), u32::from(f16::from_f32(2052.0).to_bits()));
        // 65504 + 16 is the tie that overflows; 65504 + 15 is not.
        let to = |x: f32| element(F16_F16, model, &halves(&[x]), &ones, u32::from(f16::MAX.to_bits()));
        assert_eq!(to(16.0), u32::from(f16::INFINITY.to_bits()));
        assert_eq!(to(15.0), u32::from(f16::MAX.to_bits()));
        assert_eq!(to(-131008.0_f32.min(65504.0)), to(-65504.0));
    }
}

#[test]
fn infinities_and_nan_follow_ieee_and_a_nan_is_canonical() {
    let (inf, nan, one, zero) = (0x7c00u32, 0x7e01u32, 0x3c00u32, 0u32);
    let negative = 0x8000u32;
    let f32_inf = f32::INFINITY.to_bits();
    for model in [ExactSm80, ExactSm90, Native] {
        let d = |a: &[u32], b: &[u32], c: u32| element(F16_F32, model, a, b, c);
        assert_eq!(d(&[inf], &[one], 0), f32_inf, "{model:?}");
        assert_eq!(d(&[inf], &[one | negative], 0), f32_inf | 1 << 31);
        assert_eq!(d(&[inf], &[inf | negative], 0), f32_inf | 1 << 31);
        assert_eq!(d(&[inf], &[zero], 0), 0x7fff_ffff);
        assert_eq!(d(&[inf, inf | negative], &[one, one], 0), 0x7fff_ffff);
        assert_eq!(d(&[inf], &[one], f32_inf | 1 << 31), 0x7fff_ffff);
        assert_eq!(d(&[nan], &[zero], 0), 0x7fff_ffff);
        assert_eq!(d(&[one], &[one], 0xffc0_0001), 0x7fff_ffff);
        assert_eq!(d(&[one], &[one], f32_inf), f32_inf);
        let half = |a: &[u32], b: &[u32], c: u32| element(F16_F16, model, a, b, c);
        assert_eq!(half(&[nan], &[one], 0), 0x7fff);
        assert_eq!(half(&[inf], &[one | negative], 0), 0xfc00);
    }
}

#[test]
fn a_special_element_leaves_its_neighbours_alone() {
    let case = F16_F32;
    let mut a = vec![vec![0x3c00u32; 16]; 16];
    let mut b = vec![vec![0x3c00u32; 8]; 16];
    let mut c = [[0x3f80_0000u32; 8]; 16];
    a[3][5] = 0x7e00;
    b[9][2] = 0x7c00;
    c[7][7] = 0xff80_0000;
    for model in [ExactSm80, ExactSm90] {
        assert_eq!(case.got(model, &a, &b, &c), case.wanted(model, &a, &b, &c));
        let d = case.got(model, &a, &b, &c);
        assert_eq!((d[0][0], d[3][0], d[0][2], d[7][7]), (17f32.to_bits(), 0x7fff_ffff, 0x7f80_0000, 0xff80_0000));
    }
}

#[test]
fn the_sum_of_negative_zeros_is_positive() {
    for model in [ExactSm80, ExactSm90] {
        assert_eq!(element(F16_F32, model, &[0x8000], &[0x3c00], 0x8000_0000), 0);
    }
}
