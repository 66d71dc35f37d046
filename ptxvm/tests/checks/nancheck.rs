//! nancheck: NaNs that a kernel makes, and that matter.

use warpweft_ptxvm::report::Check::Nancheck;
use warpweft_ptxvm::report::Severity;

use crate::case::{ALL, Case};

/// %f1 is each lane's word of p0 as a float, %rd6 the lane's word of p1.
const EACH: &str = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd4, [p1];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n\
    add.s64 %rd3, %rd1, %rd2;\nadd.s64 %rd6, %rd4, %rd2;\nld.global.f32 %f1, [%rd3];\n";

const OUT: [u32; 32] = [0; 32];

/// Lane i's input is i - 4.
fn case(statements: &str) -> Case {
    let input: Vec<u32> = (0..32).map(|lane| (lane as f32 - 4.0).to_bits()).collect();
    Case::new(&format!("{EACH}{statements}")).words(&input).words(&OUT)
}

const BELOW: &[u32] = &[0, 1, 2, 3];

#[test]
fn the_root_of_a_negative_number_is_stored() {
    let report = case("sqrt.rn.f32 %f2, %f1;\nst.global.f32 [%rd6], %f2;").fails(Nancheck, "nan-stored", "sqrt", BELOW);
    assert!(report.related[0].1.instruction.starts_with("st.global"), "{report:#?}");
    assert_eq!(report.related[0].1.lanes, BELOW);
}

#[test]
fn zero_by_zero_in_one_lane() {
    case(
        "sub.f32 %f2, %f1, %f1;\ndiv.rn.f32 %f3, %f2, %f1;\nadd.f32 %f4, %f3, 0f3F800000;\nst.global.f32 [%rd6], %f4;",
    )
    .fails(Nancheck, "nan-stored", "div.rn", &[4]);
}

#[test]
fn infinity_less_infinity() {
    case(
        "mov.f32 %f2, 0f7F800000;\nsetp.gt.f32 %p1, %f1, 0f00000000;\nselp.f32 %f3, %f2, %f1, %p1;\nsub.f32 %f4, %f3, %f2;\n\
         add.f32 %f5, %f4, %f1;\nst.global.f32 [%rd6], %f5;",
    )
    .fails(Nancheck, "nan-stored", "sub.f32", &ALL[5..]);
}

#[test]
fn a_branch_on_a_comparison_with_one() {
    case("sqrt.rn.f32 %f2, %f1;\nsetp.gt.f32 %p1, %f2, 0f40000000;\n@%p1 bra L;\nst.global.f32 [%rd6], %f1;\nL:")
        .fails(Nancheck, "nan-branch", "sqrt", BELOW);
}

#[test]
fn through_shared_memory_to_another_lane() {
    let report = case(
        ".shared .b32 s[32];\nsqrt.rn.f32 %f2, %f1;\nmov.u32 %r2, s;\nshl.b32 %r3, %r1, 2;\nadd.u32 %r4, %r2, %r3;\n\
         st.shared.f32 [%r4], %f2;\nbar.sync 0;\nsub.u32 %r5, 124, %r3;\nadd.u32 %r5, %r5, %r2;\nld.shared.f32 %f3, [%r5];\n\
         st.global.f32 [%rd6], %f3;",
    )
    .fails(Nancheck, "nan-stored", "sqrt", BELOW);
    assert_eq!(report.related[0].1.lanes, [28, 29, 30, 31]);
}

#[test]
fn through_a_shuffle_as_bits() {
    let report = case(
        "sqrt.rn.f32 %f2, %f1;\nmov.b32 %r2, %f2;\nshfl.sync.down.b32 %r3, %r2, 2, 31, -1;\nst.global.b32 [%rd6], %r3;",
    )
    .fails(Nancheck, "nan-stored", "sqrt", BELOW);
    assert_eq!(report.related[0].1.lanes, [0, 1]);
}

#[test]
fn in_double_precision_and_local_memory() {
    case(
        ".local .align 8 .b8 l[8];\ncvt.f64.f32 %d1, %f1;\nsqrt.rn.f64 %d2, %d1;\nst.local.f64 [l], %d2;\n\
         ld.local.v2.u32 {%r2, %r3}, [l];\nmov.b64 %d3, {%r2, %r3};\ncvt.rn.f32.f64 %f3, %d3;\nst.global.f32 [%rd6], %f3;",
    )
    .fails(Nancheck, "nan-stored", "sqrt.rn.f64", BELOW);
}

#[test]
fn in_half_of_a_packed_register() {
    // 65504 times 2 is infinite, and infinity times 0 is none.
    case(
        "mov.b32 %r2, 0x7BFF3C00;\nmov.b32 %r3, 0x40003C00;\nmul.f16x2 %r4, %r2, %r3;\nmov.b32 %r5, 0;\n\
         mul.f16x2 %r6, %r4, %r5;\nmov.b32 {%h1, %h2}, %r6;\nst.global.b16 [%rd6], %h2;",
    )
    .fails(Nancheck, "nan-stored", "mul.f16x2 %r6", ALL);
}

#[test]
fn in_a_tensor_core() {
    // Row 0 of A is infinite, column 0 of B is zero.
    case(
        "setp.lt.u32 %p1, %r1, 4;\nselp.b32 %r2, 0x7F807F80, 0x3F803F80, %p1;\nmov.b32 %r3, 0x3F803F80;\n\
         selp.b32 %r4, 0, 0x3F803F80, %p1;\nmov.f32 %f2, 0.0;\n\
         mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f4,%f5,%f6,%f7}, {%r2,%r3,%r3,%r3}, {%r4,%r4}, {%f2,%f2,%f2,%f2};\n\
         st.global.f32 [%rd6], %f4;",
    )
    .fails(Nancheck, "nan-stored", "mma.sync", &[0]);
}

#[test]
fn into_an_atomic() {
    case("sqrt.rn.f32 %f2, %f1;\nred.global.add.f32 [%rd4], %f2;").fails(Nancheck, "nan-stored", "sqrt", BELOW);
}

#[test]
fn a_sum_that_overwrites_its_operand() {
    case("mov.f32 %f2, 0fFF800000;\nadd.f32 %f3, %f1, 0f7F800000;\nadd.f32 %f2, %f2, %f3;\nst.global.f32 [%rd6], %f2;")
        .fails(Nancheck, "nan-stored", "add.f32 %f2", ALL);
}

#[test]
fn a_nan_that_came_in_goes_out() {
    let input: Vec<u32> = (0..32).map(|_| f32::NAN.to_bits()).collect();
    Case::new(&format!("{EACH}mul.f32 %f2, %f1, %f1;\nst.global.f32 [%rd6], %f2;"))
        .words(&input)
        .words(&OUT)
        .passes(Nancheck);
}

#[test]
fn a_select_throws_it_away() {
    case(
        "sqrt.rn.f32 %f2, %f1;\nsetp.lt.f32 %p1, %f1, 0f00000000;\nselp.f32 %f3, 0f00000000, %f2, %p1;\n\
         st.global.f32 [%rd6], %f3;",
    )
    .passes(Nancheck);
}

#[test]
fn a_maximum_throws_it_away() {
    case("sqrt.rn.f32 %f2, %f1;\nmax.f32 %f3, %f2, 0f00000000;\nst.global.f32 [%rd6], %f3;").passes(Nancheck);
}

#[test]
fn a_maximum_by_comparison_and_select() {
    case(
        "sqrt.rn.f32 %f2, %f1;\nsetp.gt.f32 %p1, %f2, 0f3F800000;\nselp.f32 %f3, %f2, 0f3F800000, %p1;\n\
         st.global.f32 [%rd6], %f3;",
    )
    .passes(Nancheck);
}

#[test]
fn asking_whether_it_is_one() {
    case(
        "sqrt.rn.f32 %f2, %f1;\nsetp.nan.f32 %p1, %f2, %f2;\n@%p1 bra L;\nst.global.f32 [%rd6], %f2;\nL:\n\
         setp.neu.f32 %p2, %f2, %f2;\n@%p2 bra M;\nst.global.f32 [%rd6], %f2;\nM:",
    )
    .passes(Nancheck);
}

#[test]
fn lanes_that_do_not_store() {
    case("sqrt.rn.f32 %f2, %f1;\nsetp.ge.f32 %p1, %f1, 0f00000000;\n@%p1 st.global.f32 [%rd6], %f2;").passes(Nancheck);
}

#[test]
fn shared_memory_that_is_written_again() {
    case(
        ".shared .b32 s[32];\nsqrt.rn.f32 %f2, %f1;\nmov.u32 %r2, s;\nshl.b32 %r3, %r1, 2;\nadd.u32 %r4, %r2, %r3;\n\
         st.shared.f32 [%r4], %f2;\nst.shared.f32 [%r4], %f1;\nld.shared.f32 %f3, [%r4];\nst.global.f32 [%rd6], %f3;",
    )
    .passes(Nancheck);
}

#[test]
fn bits_that_only_look_like_one() {
    case(
        "mov.b32 %r2, -1;\nmov.b32 %f2, %r2;\nst.global.f32 [%rd6], %f2;\nmul.lo.s32 %r3, %r1, -1;\n\
         add.s32 %r4, %r3, %r2;\nst.global.u32 [%rd6], %r4;",
    )
    .passes(Nancheck);
}

#[test]
fn a_register_used_again_for_numbers() {
    case(
        "sqrt.rn.f32 %f2, %f1;\nmov.b32 %r2, %f2;\nand.b32 %r2, %r2, 65535;\nst.global.b32 [%rd6], %r2;\n\
         mul.f32 %f2, %f1, %f1;\nst.global.f32 [%rd6], %f2;",
    )
    .passes(Nancheck);
}

#[test]
fn an_infinity_is_a_note() {
    let notes =
        case("lg2.approx.f32 %f2, 0f00000000;\nex2.approx.f32 %f3, %f2;\nst.global.f32 [%rd6], %f3;").passes(Nancheck);
    let [note] = notes.as_slice() else { panic!("{notes:#?}") };
    assert_eq!((note.severity, note.kind), (Severity::Note, "infinity"));
    assert!(note.place.instruction.starts_with("lg2"), "{note:#?}");
    let none = case("mov.f32 %f2, 0f7F800000;\nadd.f32 %f3, %f2, %f1;\nst.global.f32 [%rd6], %f3;").passes(Nancheck);
    assert!(none.is_empty(), "an infinity that was given: {none:#?}");
}
