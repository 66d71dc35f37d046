//! memcheck: bounds, lifetime, alignment, spaces, read-only memory, peers.

use warpweft_ptxvm::report::Check::Memcheck;

use crate::case::{ALL, Case, Init};

/// Each lane's word of p0, at `address`.
const EACH: &str =
    "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n";

fn case(statements: &str) -> Case {
    Case::new(&format!("{EACH}{statements}"))
}

#[test]
fn a_store_past_the_end() {
    let report =
        case("st.global.u32 [%rd3], %r1;").words(&[0; 30]).fails(Memcheck, "out-of-bounds", "st.global", &[30, 31]);
    assert!(report.message.contains("write of 4 bytes"), "{}", report.message);
    assert!(report.allocation.as_ref().is_some_and(|near| near.contains("120 bytes")), "{report:#?}");
    assert!(report.address.is_some());
}

#[test]
fn a_load_before_the_beginning() {
    case("ld.global.u32 %r2, [%rd3+-4];").words(&[0; 32]).fails(Memcheck, "out-of-bounds", "ld.global", &[0]);
}

#[test]
fn a_null_pointer() {
    case("mov.u64 %rd4, 0;\nld.global.u32 %r2, [%rd4];").words(&[0; 32]).fails(
        Memcheck,
        "out-of-bounds",
        "ld.global",
        ALL,
    );
}

#[test]
fn a_vector_that_half_leaves_the_buffer() {
    case("and.b32 %r2, %r1, 1;\nmul.wide.u32 %rd2, %r2, 16;\nadd.s64 %rd3, %rd1, %rd2;\nld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd3];")
        .words(&[0; 6])
        .block(4)
        .fails(Memcheck, "out-of-bounds", "ld.global.v4", &[1, 3]);
}

#[test]
fn memory_that_was_freed() {
    case("ld.global.u32 %r2, [%rd3];").buffer(Init::Freed(128)).fails(Memcheck, "use-after-free", "ld.global", ALL);
}

#[test]
fn a_misaligned_load() {
    case("ld.global.u32 %r2, [%rd3+2];").words(&[0; 33]).fails(Memcheck, "misaligned", "ld.global", ALL);
}

#[test]
fn a_misaligned_shared_vector() {
    Case::new(".shared .align 16 .b8 s[64];\nmov.u32 %r1, s;\nst.shared.v2.u32 [%r1+4], {%r1, %r1};").block(1).fails(
        Memcheck,
        "misaligned",
        "st.shared",
        &[0],
    );
}

#[test]
fn a_write_to_memory_that_is_read_only() {
    let buffer = Init::ReadOnly(vec![0; 32]);
    case("st.global.u32 [%rd3], %r1;").buffer(buffer).fails(Memcheck, "read-only", "st.global", ALL);
}

#[test]
fn a_shared_access_beyond_the_block() {
    let text = ".shared .b8 s[128];\nmov.u32 %r1, %tid.x;\nshl.b32 %r2, %r1, 3;\nmov.u32 %r3, s;\n\
        add.u32 %r2, %r2, %r3;\nst.shared.u64 [%r2], %rd1;";
    Case::new(text).block(18).fails(Memcheck, "out-of-bounds", "st.shared", &[16, 17]);
}

#[test]
fn a_local_access_beyond_the_frame() {
    let text = ".local .align 8 .b8 l[64];\nmov.u64 %rd1, l;\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 1048576;\n\
        add.s64 %rd3, %rd1, %rd2;\nst.local.u32 [%rd3], %r1;";
    Case::new(text).block(2).fails(Memcheck, "out-of-bounds", "st.local", &[1]);
}

#[test]
fn a_shared_address_taken_for_a_global_one() {
    let text = ".shared .b8 s[128];\nmov.u64 %rd1, s;\ncvta.shared.u64 %rd2, %rd1;\nld.global.u32 %r1, [%rd2];";
    Case::new(text).fails(Memcheck, "wrong-space", "ld.global", ALL);
}

#[test]
fn memory_of_a_device_without_peer_access() {
    case("st.global.u32 [%rd3], %r1;").buffer(Init::Peer(128, false)).fails(
        Memcheck,
        "no-peer-access",
        "st.global",
        ALL,
    );
}

#[test]
fn an_atomic_past_the_end() {
    case("red.global.add.u32 [%rd3], 1;").words(&[0; 31]).fails(Memcheck, "out-of-bounds", "red.global", &[31]);
}

#[test]
fn an_asynchronous_copy_past_the_end() {
    let text = ".shared .align 16 .b8 s[512];\nmov.u32 %r2, s;\nmul.wide.u32 %rd2, %r1, 16;\nadd.s64 %rd3, %rd1, %rd2;\n\
        shl.b32 %r3, %r1, 4;\nadd.u32 %r2, %r2, %r3;\ncp.async.cg.shared.global [%r2], [%rd3], 16;\ncp.async.wait_all;";
    case(text).words(&[0; 124]).fails(Memcheck, "out-of-bounds", "cp.async.cg", &[31]);
}

#[test]
fn the_last_word_is_inside() {
    case("st.global.u32 [%rd3], %r1;").words(&[0; 32]).passes(Memcheck);
}

#[test]
fn lanes_that_a_guard_holds_back_access_nothing() {
    case("setp.lt.u32 %p1, %r1, 5;\n@%p1 st.global.u32 [%rd3], %r1;").words(&[0; 5]).passes(Memcheck);
}

#[test]
fn an_address_that_is_only_computed() {
    case("add.s64 %rd4, %rd3, 1000000;\nadd.s64 %rd4, %rd4, -1000000;\nld.global.u32 %r2, [%rd4];")
        .words(&[0; 32])
        .passes(Memcheck);
}

#[test]
fn a_copy_of_no_bytes_reads_nothing() {
    let text = ".shared .align 16 .b8 s[16];\nmov.u32 %r2, s;\nmov.u64 %rd4, 0;\nmov.u32 %r3, 0;\n\
        cp.async.cg.shared.global [%r2], [%rd4], 16, %r3;\ncp.async.wait_all;\nld.shared.u32 %r4, [%r2];";
    Case::new(text).block(1).passes(Memcheck);
}

#[test]
fn a_generic_address_may_be_of_any_space() {
    let text = ".shared .b8 s[128];\n.local .align 4 .b8 l[4];\nmov.u64 %rd4, s;\ncvta.shared.u64 %rd5, %rd4;\n\
        add.s64 %rd5, %rd5, %rd2;\nst.u32 [%rd5], %r1;\nld.u32 %r2, [%rd5];\nst.u32 [%rd3], %r2;\n\
        mov.u64 %rd6, l;\ncvta.local.u64 %rd6, %rd6;\nst.u32 [%rd6], %r1;";
    case(text).words(&[0; 32]).passes(Memcheck);
}

#[test]
fn dynamic_shared_memory_has_the_size_of_the_launch() {
    let text = ".extern .shared .align 16 .b8 d[];\n.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n{\n\
        .reg .b32 %r<4>;\nmov.u32 %r1, %tid.x;\nshl.b32 %r2, %r1, 4;\nmov.u32 %r3, d;\nadd.u32 %r3, %r3, %r2;\n\
        st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1};\nret;\n}\n";
    Case::module(text).shared(512).passes(Memcheck);
    Case::module(text).shared(496).fails(Memcheck, "out-of-bounds", "st.shared", &[31]);
}

#[test]
fn peers_with_access() {
    case("st.global.u32 [%rd3], %r1;").buffer(Init::Peer(128, true)).passes(Memcheck);
}

#[test]
fn bytes_may_lie_anywhere() {
    case("cvt.u64.u32 %rd4, %r1;\nadd.s64 %rd5, %rd1, %rd4;\nld.global.u8 %r2, [%rd5];\nst.global.u8 [%rd5], %r2;")
        .words(&[0; 8])
        .passes(Memcheck);
}
