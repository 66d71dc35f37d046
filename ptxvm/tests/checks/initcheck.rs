//! initcheck: bytes without a value, from where they were left out to where they matter.

use warpweft_ptxvm::report::Check::Initcheck;

use crate::case::{ALL, Case, Init};

/// %rd3 is each lane's word of p0, %rd6 of p1.
const EACH: &str = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd4, [p1];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n\
    add.s64 %rd3, %rd1, %rd2;\nadd.s64 %rd6, %rd4, %rd2;\n";

fn case(statements: &str) -> Case {
    Case::new(&format!("{EACH}{statements}"))
}

const OUT: [u32; 32] = [0; 32];

#[test]
fn a_register_that_was_never_written_is_stored() {
    let report = case("st.global.u32 [%rd3], %r9;").words(&OUT).fails(Initcheck, "undefined-store", "st.global", ALL);
    assert!(report.message.contains("never written") && report.address.is_some(), "{report:#?}");
}

#[test]
fn memory_that_was_never_written_is_copied_on() {
    let report = case("ld.global.u32 %r2, [%rd6];\nadd.u32 %r3, %r2, 1;\nst.global.u32 [%rd3], %r3;")
        .words(&OUT)
        .buffer(Init::Undefined(128))
        .fails(Initcheck, "undefined-store", "st.global", ALL);
    assert_eq!(report.related.len(), 1);
    assert!(report.related[0].1.instruction.starts_with("ld.global.u32"), "{report:#?}");
}

#[test]
fn a_register_that_one_path_leaves_out() {
    case("setp.lt.u32 %p1, %r1, 20;\n@!%p1 bra L;\nmov.u32 %r2, 5;\nL:\nst.global.u32 [%rd3], %r2;").words(&OUT).fails(
        Initcheck,
        "undefined-store",
        "st.global",
        &[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31],
    );
}

#[test]
fn an_undefined_address() {
    case("mad.wide.u32 %rd7, %r9, 4, %rd1;\nand.b64 %rd7, %rd7, %rd1;\nand.b64 %rd7, %rd7, -256;\nld.global.u32 %r2, [%rd7];")
        .words(&OUT)
        .fails(Initcheck, "undefined-address", "ld.global.u32 %r2", ALL);
}

#[test]
fn an_undefined_branch() {
    case("ld.global.u32 %r2, [%rd6];\nsetp.eq.u32 %p1, %r2, 7;\n@%p1 bra L;\nmov.u32 %r3, 1;\nL:")
        .words(&OUT)
        .buffer(Init::Undefined(128))
        .fails(Initcheck, "undefined-branch", "@%p1 bra", ALL);
}

#[test]
fn an_undefined_guard_that_happens_to_hold() {
    case("@!%p7 st.global.u32 [%rd3], %r1;").words(&OUT).fails(Initcheck, "undefined-guard", "@!%p7 st", ALL);
}

#[test]
fn an_undefined_operand_of_an_atomic() {
    case("atom.global.add.u32 %r2, [%rd1], %r9;").words(&OUT).fails(Initcheck, "undefined-atomic", "atom", ALL);
}

#[test]
fn a_counter_that_nobody_cleared() {
    case("atom.global.add.u32 %r2, [%rd1], 1;").buffer(Init::Undefined(4)).block(1).fails(
        Initcheck,
        "undefined-atomic",
        "atom",
        &[0],
    );
}

#[test]
fn shared_memory_that_one_thread_left_out() {
    case(
        ".shared .b32 s[32];\nmov.u32 %r2, s;\nshl.b32 %r3, %r1, 2;\nadd.u32 %r2, %r2, %r3;\nsetp.ne.u32 %p1, %r1, 9;\n\
         @%p1 st.shared.u32 [%r2], %r1;\nbar.sync 0;\nmov.u32 %r5, s;\nsub.u32 %r4, 124, %r3;\nadd.u32 %r5, %r5, %r4;\n\
         ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd3], %r6;",
    )
    .words(&OUT)
    .fails(Initcheck, "undefined-store", "st.global", &[22]);
}

#[test]
fn one_undefined_byte_of_a_word() {
    case(
        ".local .align 4 .b8 l[4];\nst.local.u8 [l], %r1;\nst.local.u8 [l+1], %r1;\nst.local.u8 [l+3], %r1;\n\
         ld.local.u32 %r2, [l];\nst.global.u32 [%rd3], %r2;",
    )
    .words(&OUT)
    .fails(Initcheck, "undefined-store", "st.global", ALL);
}

#[test]
fn an_undefined_number_of_a_barrier() {
    case("and.b32 %r2, %r9, 1;\nbar.sync %r2;").words(&OUT).fails(Initcheck, "undefined-barrier", "bar.sync", ALL);
}

#[test]
fn a_lane_that_receives_what_another_never_had() {
    case(
        "setp.ne.u32 %p1, %r1, 3;\n@%p1 mov.u32 %r2, %r1;\nshfl.sync.down.b32 %r3, %r2, 1, 31, -1;\n\
         st.global.u32 [%rd3], %r3;",
    )
    .words(&OUT)
    .fails(Initcheck, "undefined-store", "st.global", &[2]);
}

#[test]
fn a_copy_brings_undefined_bytes_when_it_lands() {
    case(
        ".shared .align 16 .b8 s[128];\nmov.u32 %r2, s;\nshl.b32 %r3, %r1, 2;\nadd.u32 %r2, %r2, %r3;\n\
         cp.async.ca.shared.global [%r2], [%rd6], 4;\ncp.async.wait_all;\nbar.sync 0;\nld.shared.u32 %r4, [%r2];\n\
         st.global.u32 [%rd3], %r4;",
    )
    .words(&OUT)
    .buffer(Init::Undefined(128))
    .fails(Initcheck, "undefined-store", "st.global", ALL);
}

#[test]
fn an_undefined_row_of_a_matrix_spoils_its_row_of_the_product() {
    // Row 3 of A: lanes 12 to 15 of the first register.
    case(
        "mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0; mov.b32 %r13, 0; mov.b32 %r14, 0;\n\
         shr.u32 %r2, %r1, 2;\nsetp.ne.u32 %p1, %r2, 3;\n@%p1 mov.b32 %r15, 0;\n\
         mov.f32 %f1, 0.0;\n\
         mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2,%f3,%f4,%f5}, {%r15,%r11,%r12,%r13}, {%r14,%r14}, {%f1,%f1,%f1,%f1};\n\
         st.global.f32 [%rd6], %f4;\nst.global.f32 [%rd3], %f2;",
    )
    .words(&OUT)
    .words(&OUT)
    .fails(Initcheck, "undefined-store", "[%rd3], %f2", &[12, 13, 14, 15]);
}

#[test]
fn undefined_bytes_may_be_loaded_and_thrown_away() {
    case("ld.global.u32 %r2, [%rd6];\nadd.u32 %r3, %r2, 1;\nmov.u32 %r3, 4;\nst.global.u32 [%rd3], %r3;")
        .words(&OUT)
        .buffer(Init::Undefined(128))
        .passes(Initcheck);
}

#[test]
fn a_select_that_does_not_choose_them() {
    case(
        "setp.lt.u32 %p1, %r1, 10;\nld.global.u32 %r2, [%rd6];\nselp.b32 %r3, %r2, 0, %p1;\nst.global.u32 [%rd3], %r3;",
    )
    .words(&OUT)
    .buffer(Init::Words((0..10).collect()))
    .block(10)
    .passes(Initcheck);
    case(
        "setp.lt.u32 %p1, %r1, 0;\nld.global.u32 %r2, [%rd6];\nselp.b32 %r3, %r2, 0, %p1;\nst.global.u32 [%rd3], %r3;",
    )
    .words(&OUT)
    .buffer(Init::Undefined(128))
    .passes(Initcheck);
}

#[test]
fn padding_that_is_masked_off() {
    // Two bytes of four are written; the others are cut away in four ways.
    case(
        ".local .align 4 .b8 l[4];\nst.local.u16 [l], %r1;\nld.local.u32 %r2, [l];\nand.b32 %r3, %r2, 65535;\n\
         st.global.u32 [%rd3], %r3;\nshl.b32 %r4, %r2, 16;\nst.global.u32 [%rd3], %r4;\nprmt.b32 %r5, %r2, 0, 0x4410;\n\
         st.global.u32 [%rd3], %r5;\nbfe.u32 %r6, %r2, 0, 16;\nst.global.u32 [%rd3], %r6;\nmov.b32 {%h1, %h2}, %r2;\n\
         st.global.u16 [%rd3], %h1;\ncvt.u16.u32 %h3, %r2;\ncvt.u32.u16 %r7, %h3;\nst.global.u32 [%rd3], %r7;",
    )
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn a_register_without_a_value_that_cancels_itself() {
    case("xor.b32 %r2, %r9, %r9;\nand.b32 %r3, %r9, 0;\nor.b32 %r4, %r9, -1;\nadd.u32 %r5, %r2, %r3;\nadd.u32 %r5, %r5, %r4;\n\
        st.global.u32 [%rd3], %r5;")
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn half_a_packed_register() {
    // One half of a pair is padding all along, and is not stored.
    case(
        "cvt.u16.u32 %h1, %r1;\nmov.b32 %r2, {%h1, %h9};\nfma.rn.f16x2 %r3, %r2, %r2, %r2;\nmov.b32 {%h3, %h4}, %r3;\n\
         st.global.u16 [%rd3], %h3;",
    )
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn a_structure_copied_with_its_holes() {
    // Bytes 4 to 7 of each 8 are a hole; shared and local memory may hold it.
    case(
        ".local .align 8 .b8 l[8];\n.shared .align 8 .b8 s[256];\nst.local.u32 [l], %r1;\nld.local.u64 %rd7, [l];\n\
         mov.u32 %r2, s;\nshl.b32 %r3, %r1, 3;\nadd.u32 %r2, %r2, %r3;\nst.shared.u64 [%r2], %rd7;\nbar.warp.sync -1;\n\
         ld.shared.v2.u32 {%r4, %r5}, [%r2];\nst.global.u32 [%rd3], %r4;",
    )
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn all_bytes_written_one_by_one() {
    case(
        ".local .align 4 .b8 l[4];\nst.local.u8 [l+2], %r1;\nst.local.u8 [l], %r1;\nst.local.u8 [l+3], %r1;\n\
         st.local.u8 [l+1], %r1;\nld.local.u32 %r2, [l];\nst.global.u32 [%rd3], %r2;\nld.global.u32 %r3, [%rd3];\n\
         setp.eq.u32 %p1, %r3, 0;\n@%p1 bra L;\nL:",
    )
    .buffer(Init::Undefined(128))
    .passes(Initcheck);
}

#[test]
fn what_a_kernel_stored_has_a_value() {
    case(
        "st.global.u32 [%rd3], %r1;\nmembar.gl;\nld.global.u32 %r2, [%rd3];\nadd.s64 %rd7, %rd1, %rd2;\n\
         atom.global.add.u32 %r3, [%rd3], %r2;\nst.global.u32 [%rd6], %r3;",
    )
    .buffer(Init::Undefined(128))
    .buffer(Init::Undefined(128))
    .passes(Initcheck);
}

#[test]
fn an_exchange_defines_its_place() {
    case("atom.global.exch.b32 %r2, [%rd3], 5;\natom.global.add.u32 %r3, [%rd3], 1;\nst.global.u32 [%rd6], %r3;")
        .buffer(Init::Undefined(128))
        .words(&OUT)
        .passes(Initcheck);
}

#[test]
fn a_copy_that_is_filled_with_zeros() {
    case(
        ".shared .align 16 .b8 s[512];\nmov.u32 %r2, s;\nshl.b32 %r3, %r1, 4;\nadd.u32 %r2, %r2, %r3;\nmov.u32 %r5, 4;\n\
         cp.async.ca.shared.global [%r2], [%rd6], 4, %r5;\nmov.u32 %r6, 0;\n\
         cp.async.ca.shared.global [%r2+4], [%rd6], 4, %r6;\ncp.async.wait_all;\nbar.sync 0;\n\
         ld.shared.v2.u32 {%r7, %r8}, [%r2];\nadd.u32 %r7, %r7, %r8;\nst.global.u32 [%rd3], %r7;",
    )
    .words(&OUT)
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn rows_of_a_product_whose_rows_are_all_there() {
    // Rows 8 to 15 of A are undefined, and their rows of the product are not stored.
    case(
        "mov.b32 %r10, 0; mov.b32 %r12, 0; mov.b32 %r14, 0;\nmov.f32 %f1, 0.0;\n\
         mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2,%f3,%f4,%f5}, {%r10,%r20,%r12,%r21}, {%r14,%r14}, {%f1,%f1,%f1,%f1};\n\
         st.global.f32 [%rd6], %f2;\nst.global.f32 [%rd3], %f3;",
    )
    .words(&OUT)
    .words(&OUT)
    .passes(Initcheck);
}

#[test]
fn a_guard_that_writes_all_lanes_in_two_steps() {
    case(
        "setp.lt.u32 %p1, %r1, 16;\n@%p1 mov.u32 %r2, 1;\n@!%p1 mov.u32 %r2, 2;\nst.global.u32 [%rd3], %r2;\n\
         mov.pred %p2, %p1;\n@%p2 st.global.u32 [%rd3], %r2;",
    )
    .words(&OUT)
    .passes(Initcheck);
}
