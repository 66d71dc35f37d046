//! Barriers and `.sync` instructions, used wrongly and rightly.

use warpweft_ptxvm::report::Check::Synccheck;

use crate::ways::{ALL, kernel};

#[test]
fn a_count_that_is_no_multiple_of_the_warp_size() {
    // An immediate count is refused by the checker, as ptxas refuses it.
    kernel("mov.u32 %r10, 48;\nbar.sync 1, %r10; // @bar").fails(Synccheck, "barrier-count", "@bar", ALL);
}

#[test]
fn a_barrier_of_no_threads() {
    kernel("mov.u32 %r10, 0;\nbar.sync 1, %r10; // @bar").fails(Synccheck, "barrier-count", "@bar", ALL);
}

#[test]
fn a_barrier_of_more_threads_than_the_block_has() {
    kernel("bar.sync 1, 128; // @bar").fails(Synccheck, "barrier-count", "@bar", ALL);
}

#[test]
fn a_barrier_that_does_not_exist() {
    kernel("mov.u32 %r10, 16;\nbar.sync %r10; // @bar").fails(Synccheck, "barrier-id", "@bar", ALL);
}

#[test]
fn half_a_warp_at_an_aligned_barrier() {
    kernel(
        "setp.ge.u32 %p1, %r3, 16;
         @%p1 bra APART;
         bar.sync 0; // @bar
         bra DONE;
         APART:
         bar.sync 1;
         DONE:",
    )
    .threads(32)
    .fails(Synccheck, "divergent-barrier", "@bar", 0xffff);
}

#[test]
fn lanes_that_are_not_there_for_a_shuffle() {
    kernel(
        "setp.ge.u32 %p1, %r3, 16;
         @%p1 bra APART;
         shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xffffffff; // @shfl
         st.global.u32 [%rd3], %r10;
         bra DONE;
         APART:
         bar.warp.sync 0xffff0000;
         AROUND:
         bar.warp.sync 0xffffffff;
         DONE:",
    )
    .threads(32)
    .fails(Synccheck, "divergent-collective", "@shfl", 0xffff);
}

#[test]
fn a_mask_without_the_lane_itself() {
    kernel("shfl.sync.idx.b32 %r10, %r1, 0, 31, 0xfffffffe; // @shfl\nst.global.u32 [%rd3], %r10;").threads(32).fails(
        Synccheck,
        "mask-without-self",
        "@shfl",
        1,
    );
}

#[test]
fn a_mask_with_lanes_that_have_exited() {
    kernel(
        "setp.ge.u32 %p1, %r3, 24;
         @%p1 exit;
         shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xffffffff; // @shfl
         st.global.u32 [%rd3], %r10;",
    )
    .threads(32)
    .fails(Synccheck, "mask-exited-lane", "@shfl", 0xff_ffff);
}

#[test]
fn warps_with_different_counts_at_one_barrier() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra SECOND;
         bar.sync 1, 64; // @first
         bra DONE;
         SECOND:
         bar.sync 1, 96;
         DONE:",
    )
    .threads(96)
    .reported(Synccheck, "barrier-count");
}

#[test]
fn a_reduction_and_an_ordinary_barrier_at_once() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra SECOND;
         bar.sync 0;
         bra DONE;
         SECOND:
         bar.red.and.pred %p2, 0, %p1;
         DONE:",
    )
    .reported(Synccheck, "barrier-count");
}

#[test]
fn an_arrival_that_nobody_waits_for() {
    kernel("setp.ne.u32 %p1, %r4, 0;\n@%p1 bra DONE;\nbar.arrive 3, 64; // @arrive\nDONE:").fails(
        Synccheck,
        "arrive-without-sync",
        "@arrive",
        ALL,
    );
}

#[test]
fn barriers_in_branches_that_a_warp_takes_as_one() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra SECOND;
         bar.sync 0;
         bra DONE;
         SECOND:
         bar.sync 0;
         DONE:
         st.global.u32 [%rd3], %r1;",
    )
    .passes();
}

#[test]
fn an_unaligned_barrier_in_both_branches_of_a_warp() {
    kernel(
        "setp.ge.u32 %p1, %r3, 16;
         @%p1 bra SECOND;
         barrier.sync 0;
         bra DONE;
         SECOND:
         barrier.sync 0;
         DONE:
         st.global.u32 [%rd3], %r1;",
    )
    .passes();
}

#[test]
fn a_divided_warp_meets_before_the_barrier() {
    kernel(
        "mov.u32 %r10, 0;
         setp.ge.u32 %p1, %r3, 7;
         @%p1 bra OTHER;
         add.u32 %r10, %r1, 1;
         bra MEET;
         OTHER:
         mul.lo.u32 %r10, %r1, 3;
         MEET:
         bar.sync 0;
         st.global.u32 [%rd3], %r10;",
    )
    .passes();
}

#[test]
fn masks_of_those_that_are_there() {
    kernel(
        "setp.ge.u32 %p1, %r3, 16;
         @%p1 bra SECOND;
         shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xffff;
         bra DONE;
         SECOND:
         shfl.sync.bfly.b32 %r10, %r1, 2, 31, 0xffff0000;
         DONE:
         st.global.u32 [%rd3], %r10;",
    )
    .passes();
}

#[test]
fn a_mask_made_by_a_vote() {
    kernel(
        "setp.lt.u32 %p1, %r3, 20;
         vote.sync.ballot.b32 %r11, %p1, 0xffffffff;
         @!%p1 bra DONE;
         shfl.sync.idx.b32 %r10, %r1, 3, 31, %r11;
         redux.sync.add.s32 %r12, %r10, %r11;
         st.global.u32 [%rd3], %r12;
         DONE:",
    )
    .passes();
}

#[test]
fn arrivals_that_are_waited_for() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra WAITS;
         bar.arrive 2, 64;
         bra DONE;
         WAITS:
         bar.sync 2, 64;
         DONE:
         bar.sync 0;",
    )
    .passes();
}

#[test]
fn a_block_of_no_whole_number_of_warps() {
    kernel("bar.sync 0;\nbar.sync 1, 64;\nst.global.u32 [%rd3], %r1;").threads(48).passes();
}

#[test]
fn warps_leave_one_after_the_other() {
    kernel(
        "mov.u32 %r10, 0;
         AGAIN:
         bar.sync 0;
         add.u32 %r10, %r10, 1;
         setp.le.u32 %p1, %r10, %r4;
         @%p1 bra AGAIN;",
    )
    .threads(128)
    .passes();
}
