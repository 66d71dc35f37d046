//! Races within a block.

use warpweft_ptxvm::report::Severity;

use crate::ways::{ALL, Way, kernel};

#[test]
fn a_barrier_is_missing() {
    kernel(
        "st.shared.u32 [%r6], %r1; // @write
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd3], %r11;",
    )
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn lanes_of_a_warp_exchange_without_a_warp_barrier() {
    kernel(
        "st.shared.u32 [%r6], %r1; // @write
         xor.b32 %r10, %r6, 4;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd3], %r11;",
    )
    .threads(32)
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_shuffle_is_no_barrier() {
    kernel(
        "st.shared.u32 [%r6], %r1; // @write
         shfl.sync.bfly.b32 %r10, %r1, 1, 31, 0xffffffff;
         vote.sync.all.pred %p1, %p0, 0xffffffff;
         xor.b32 %r11, %r6, 4;
         ld.shared.u32 %r12, [%r11]; // @read
         add.u32 %r12, %r12, %r10;
         st.global.u32 [%rd3], %r12;"
            .replace("vote.sync.all.pred %p1, %p0", "setp.eq.u32 %p0, %r1, 0;\nvote.sync.all.pred %p1, %p0")
            .as_str(),
    )
    .threads(32)
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_warp_barrier_of_half_the_warp() {
    kernel(
        "st.shared.u32 [%r6], %r1; // @write
         setp.ge.u32 %p1, %r1, 16;
         @%p1 bra APART;
         bar.warp.sync 0xffff;
         APART:
         xor.b32 %r10, %r6, 4;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd3], %r11;",
    )
    .threads(32)
    .races(("@write", 0xffff_0000), ("@read", 0xffff_0000));
}

#[test]
fn the_second_barrier_of_a_reused_buffer_is_missing() {
    kernel(
        "mov.u32 %r20, 0;
         AGAIN:
         st.shared.u32 [%r6], %r1; // @write
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10]; // @read
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p1, %r20, 4;
         @%p1 bra AGAIN;
         st.global.u32 [%rd3], %r11;",
    )
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_reduction_without_barriers_in_its_last_warp() {
    kernel(
        "st.shared.u32 [%r6], %r1;
         bar.sync 0;
         setp.ge.u32 %p1, %r1, 32;
         @%p1 bra DONE;
         ld.shared.u32 %r10, [%r6];
         ld.shared.u32 %r11, [%r6+128];
         add.u32 %r10, %r10, %r11;
         st.shared.u32 [%r6], %r10; // @write
         setp.ge.u32 %p2, %r1, 16;
         @%p2 bra DONE;
         ld.shared.u32 %r12, [%r6+64]; // @read
         add.u32 %r10, %r10, %r12;
         st.global.u32 [%rd3], %r10;
         DONE:",
    )
    .races(("@write", ALL), ("@read", 0xffff));
}

#[test]
fn one_thread_reads_what_all_have_written() {
    kernel(
        "st.shared.u32 [%r6], %r1; // @write
         setp.ne.u32 %p1, %r1, 0;
         @%p1 bra DONE;
         ld.shared.u32 %r10, [%r5+252]; // @read
         st.global.u32 [%rd1], %r10;
         DONE:",
    )
    .races(("@write", 1 << 31), ("@read", 1));
}

#[test]
fn a_named_barrier_leaves_out_the_warp_that_reads() {
    kernel(
        "setp.eq.u32 %p1, %r4, 2;
         @%p1 bra READER;
         st.shared.u32 [%r6], %r1; // @write
         bar.sync 1, 64;
         bra DONE;
         READER:
         ld.shared.u32 %r10, [%r6+-256]; // @read
         st.global.u32 [%rd3], %r10;
         DONE:",
    )
    .threads(96)
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_producer_arrives_before_it_has_produced() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         bar.arrive 1, 64;
         st.shared.u32 [%r6], %r1; // @write
         bra DONE;
         CONSUMER:
         bar.sync 1, 64;
         ld.shared.u32 %r10, [%r6+-128]; // @read
         st.global.u32 [%rd3], %r10;
         DONE:",
    )
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_consumer_gives_a_buffer_back_before_it_has_read() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         st.shared.u32 [%r6], %r1;
         bar.arrive 1, 64;
         bar.sync 2, 64;
         st.shared.u32 [%r6], 77; // @write
         bra DONE;
         CONSUMER:
         bar.sync 1, 64;
         bar.arrive 2, 64;
         ld.shared.u32 %r10, [%r6+-128]; // @read
         st.global.u32 [%rd3], %r10;
         DONE:",
    )
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn an_atomic_and_an_ordinary_read() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra READER;
         red.shared.add.u32 [%r5], 1; // @add
         bra DONE;
         READER:
         ld.shared.u32 %r10, [%r5]; // @read
         st.global.u32 [%rd3], %r10;
         DONE:",
    )
    .races(("@add", ALL), ("@read", ALL));
}

#[test]
fn a_histogram_is_read_before_the_barrier() {
    kernel(
        "and.b32 %r10, %r1, 7;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         red.shared.add.u32 [%r10], 1; // @add
         xor.b32 %r11, %r1, 32;
         and.b32 %r11, %r11, 7;
         xor.b32 %r11, %r11, 1;
         shl.b32 %r11, %r11, 2;
         add.u32 %r11, %r11, %r5;
         ld.shared.u32 %r12, [%r11]; // @read
         st.global.u32 [%rd3], %r12;",
    )
    .races(("@add", ALL), ("@read", ALL));
}

#[test]
fn bytes_under_a_word() {
    kernel(
        "add.u32 %r10, %r5, %r1;
         st.shared.u8 [%r10], %r1; // @byte
         setp.ne.u32 %p1, %r1, 63;
         @%p1 bra DONE;
         st.shared.u32 [%r5+16], %r1; // @word
         DONE:",
    )
    .races(("@byte", 0xf_0000), ("@word", 1 << 31));
}

#[test]
fn a_flag_without_a_fence() {
    kernel(
        "setp.eq.u32 %p4, %r1, 0;
         @%p4 st.shared.u32 [%r5+256], 0;
         bar.sync 0;
         setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         st.shared.u32 [%r6], %r1; // @write
         setp.ne.u32 %p2, %r3, 0;
         @%p2 bra DONE;
         st.volatile.shared.u32 [%r5+256], 1;
         bra DONE;
         CONSUMER:
         SPIN:
         ld.volatile.shared.u32 %r10, [%r5+256];
         setp.eq.u32 %p3, %r10, 0;
         @%p3 bra SPIN;
         membar.cta;
         ld.shared.u32 %r11, [%r6+-128]; // @read
         st.global.u32 [%rd3], %r11;
         DONE:",
    )
    .races(("@write", ALL), ("@read", ALL));
}

#[test]
fn a_fenced_flag_speaks_for_its_own_lane_only() {
    kernel(
        "setp.eq.u32 %p4, %r1, 0;
         @%p4 st.shared.u32 [%r5+256], 0;
         bar.sync 0;
         setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         st.shared.u32 [%r6], %r1; // @write
         setp.ne.u32 %p2, %r3, 0;
         @%p2 bra DONE;
         membar.cta;
         st.volatile.shared.u32 [%r5+256], 1;
         bra DONE;
         CONSUMER:
         SPIN:
         ld.volatile.shared.u32 %r10, [%r5+256];
         setp.eq.u32 %p3, %r10, 0;
         @%p3 bra SPIN;
         membar.cta;
         ld.shared.u32 %r11, [%r6+-128]; // @read
         st.global.u32 [%rd3], %r11;
         DONE:",
    )
    .races(("@write", ALL & !1), ("@read", ALL & !1));
}

#[test]
fn different_values_at_one_place_in_one_instruction() {
    let one = kernel("st.shared.u32 [%r5], %r1; // @write").threads(32);
    for way in Way::all() {
        let reports = one.run(way);
        assert_eq!(reports.len(), 1, "{way:?}");
        let report = &reports[0];
        assert_eq!((report.kind, report.severity), ("one-instruction-writes", Severity::Error));
        assert_eq!((report.place.line, report.place.lanes.len()), (one.line("@write"), 31));
    }
}

#[test]
fn a_copy_into_a_buffer_that_others_still_read() {
    kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         cp.async.wait_group 0;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10]; // @read
         cp.async.ca.shared.global [%r6], [%rd4], 4; // @copy
         cp.async.commit_group;
         cp.async.wait_group 0;
         st.global.u32 [%rd3+1024], %r11;",
    )
    .races(("@read", ALL), ("@copy", ALL));
}

#[test]
fn a_copy_is_waited_for_after_the_barrier() {
    let late = kernel(
        "cp.async.ca.shared.global [%r6], [%rd3], 4; // @copy
         cp.async.commit_group;
         bar.sync 0;
         cp.async.wait_group 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10]; // @read
         st.global.u32 [%rd3+1024], %r11;",
    )
    .without_initcheck();
    // Whether the other warp has waited by then is chance: either check finds it.
    for way in Way::all() {
        let reports = late.run(way);
        assert!(!reports.is_empty(), "{way:?}");
        for report in reports {
            assert!(["read-after-write", "read-before-wait"].contains(&report.kind), "{way:?}: {}", report.kind);
            assert_eq!(report.place.line, late.line("@read"));
            assert_eq!(report.related[0].1.line, late.line("@copy"));
        }
    }
}
