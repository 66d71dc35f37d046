//! Copies that are used in time.

use crate::ways::kernel;

#[test]
fn wait_all_covers_what_was_not_committed() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.wait_all;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn the_older_group_is_read_while_the_newer_is_under_way() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.ca.shared.global [%r6+256], [%rd4], 4;
         cp.async.commit_group;
         cp.async.wait_group 1;
         ld.shared.u32 %r10, [%r6];
         cp.async.wait_group 0;
         ld.shared.u32 %r11, [%r6+256];
         add.u32 %r10, %r10, %r11;
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn empty_groups_count() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.commit_group;
         cp.async.wait_group 1;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn others_read_after_wait_and_barrier() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.wait_group 0;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10];
         st.global.u32 [%rd4], %r11;",
    )
    .passes();
}

#[test]
fn a_warp_reads_after_wait_and_warp_barrier() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.wait_group 0;
         bar.warp.sync 0xffffffff;
         xor.b32 %r10, %r6, 4;
         ld.shared.u32 %r11, [%r10];
         st.global.u32 [%rd4], %r11;",
    )
    .passes();
}

#[test]
fn other_shared_memory_is_free_meanwhile() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         st.shared.u32 [%r6+256], %r1;
         ld.shared.u32 %r10, [%r6+256];
         st.global.u32 [%rd4], %r10;
         cp.async.wait_all;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4+1024], %r10;",
    )
    .passes();
}

#[test]
fn the_source_changes_after_the_wait() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.wait_all;
         st.global.u32 [%rd3], %r1;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn lanes_that_copy_nothing_have_nothing_to_wait_for() {
    kernel(
        "setp.lt.u32 %p1, %r3, 16;
         @%p1 cp.async.ca.shared.global [%r6], [%rd3], 4;
         @%p1 cp.async.wait_all;
         @!%p1 st.shared.u32 [%r6], %r1;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn a_copy_that_only_fills_with_zeros() {
    kernel(
        "mov.u32 %r12, 0;
         cp.async.ca.shared.global [%r6], [%rd3], 4, %r12;
         st.global.u32 [%rd3], %r1;
         cp.async.wait_all;
         ld.shared.u32 %r10, [%r6];
         st.global.u32 [%rd4], %r10;",
    )
    .passes();
}

#[test]
fn one_thread_copies_for_all() {
    kernel(
        "setp.ne.u32 %p1, %r1, 0;
         @%p1 bra COPIED;
         cp.async.cg.shared.global [%r5], [%rd1], 16;
         cp.async.cg.shared.global [%r5+16], [%rd1+16], 16;
         cp.async.commit_group;
         cp.async.wait_group 0;
         COPIED:
         bar.sync 0;
         and.b32 %r10, %r1, 7;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10];
         st.global.u32 [%rd4], %r11;",
    )
    .passes();
}
