//! Copies that are used before they have been waited for.

use warpweft_ptxvm::report::Check;

use crate::ways::{ALL, kernel};

#[test]
fn read_without_a_wait() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         ld.shared.u32 %r10, [%r6]; // @read
         st.global.u32 [%rd4], %r10;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL);
}

#[test]
fn a_commit_is_no_wait() {
    kernel(
        "cp.async.cg.shared.global [%r6], [%rd3], 16;
         cp.async.commit_group;
         bar.sync 0;
         ld.shared.u32 %r10, [%r6]; // @read
         st.global.u32 [%rd4], %r10;",
    )
    .with("[%r6], [%rd3]", "[%r12], [%rd10]")
    .with("cp.async.cg", "shl.b32 %r12, %r1, 4;\nadd.u32 %r12, %r12, %r5;\nmul.wide.u32 %rd10, %r1, 16;\nadd.u64 %rd10, %rd10, %rd1;\ncp.async.cg")
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL);
}

#[test]
fn the_wait_leaves_one_group_too_many() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.ca.shared.global [%r6+256], [%rd4], 4;
         cp.async.commit_group;
         cp.async.wait_group 1;
         ld.shared.u32 %r10, [%r6];
         ld.shared.u32 %r11, [%r6+256]; // @read
         add.u32 %r10, %r10, %r11;
         st.global.u32 [%rd4], %r10;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL);
}

#[test]
fn a_wait_for_groups_does_not_cover_what_was_not_committed() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.wait_group 0;
         ld.shared.u32 %r10, [%r6]; // @read
         cp.async.wait_all;
         st.global.u32 [%rd4], %r10;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL);
}

#[test]
fn others_read_what_the_issuer_never_waited_for() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd4], %r11;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL);
}

#[test]
fn only_one_lane_waits() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         setp.eq.u32 %p1, %r3, 0;
         @%p1 cp.async.wait_group 0;
         bar.warp.sync 0xffffffff;
         ld.shared.u32 %r10, [%r6]; // @read
         st.global.u32 [%rd4], %r10;",
    )
    .threads(32)
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "read-before-wait", "@read", ALL & !1);
}

#[test]
fn a_store_under_a_copy() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         st.shared.u32 [%r6], 0; // @store
         cp.async.wait_all;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "write-before-wait", "@store", ALL);
}

#[test]
fn an_atomic_under_a_copy() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         red.shared.add.u32 [%r6], 1; // @add
         cp.async.wait_all;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "write-before-wait", "@add", ALL);
}

#[test]
fn two_copies_to_one_place() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.ca.shared.global [%r6], [%rd4], 4; // @second
         cp.async.commit_group;
         cp.async.wait_group 0;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "copy-over-copy", "@second", ALL);
}

#[test]
fn the_source_changes_under_way() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         st.global.u32 [%rd3], %r1; // @store
         cp.async.wait_group 0;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "source-overwritten", "@store", ALL);
}

#[test]
fn another_thread_changes_the_source() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         mul.wide.u32 %rd10, %r10, 4;
         add.u64 %rd10, %rd10, %rd1;
         st.global.u32 [%rd10], %r1; // @store
         bar.sync 0;
         cp.async.wait_group 0;",
    )
    .only(Check::Asynccheck)
    .fails(Check::Asynccheck, "source-overwritten", "@store", ALL);
}

#[test]
fn a_pipeline_that_waits_for_the_stage_before() {
    // Three stages, and the wait leaves two under way instead of one.
    let body = "mov.u32 %r20, 0;
         FILL:
         mad.lo.u32 %r23, %r20, 256, %r6;
         mul.wide.u32 %rd10, %r20, 256;
         add.u64 %rd10, %rd10, %rd3;
         cp.async.ca.shared.global [%r23], [%rd10], 4;
         cp.async.commit_group;
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p1, %r20, 2;
         @%p1 bra FILL;
         mov.u32 %r20, 0;
         AGAIN:
         cp.async.wait_group LEFT;
         bar.sync 0;
         rem.u32 %r22, %r20, 3;
         mad.lo.u32 %r10, %r22, 256, %r6;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd4], %r11;
         add.u32 %r21, %r20, 2;
         rem.u32 %r22, %r21, 3;
         mad.lo.u32 %r23, %r22, 256, %r6;
         mul.wide.u32 %rd10, %r21, 256;
         add.u64 %rd10, %rd10, %rd3;
         cp.async.ca.shared.global [%r23], [%rd10], 4;
         cp.async.commit_group;
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p2, %r20, 6;
         @%p2 bra AGAIN;
         cp.async.wait_all;";
    kernel(&body.replace("LEFT", "2")).only(Check::Asynccheck).fails(
        Check::Asynccheck,
        "read-before-wait",
        "@read",
        ALL,
    );
    kernel(&body.replace("LEFT", "1")).passes();
}

#[test]
fn a_copy_that_nobody_waits_for() {
    kernel("cp.async.ca.shared.global [%r6], [%rd3], 4; // @copy").passes_with_notes(&["pending-at-exit"]);
    let reports = kernel("cp.async.ca.shared.global [%r6], [%rd3], 4; // @copy").run(crate::ways::Way::PLAIN);
    assert_eq!((reports.len(), reports[0].kind, reports[0].place.lanes.len()), (1, "pending-at-exit", 32));
}
