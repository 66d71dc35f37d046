//! Warps of a block that meet at barriers.

use crate::machine::kernel;
use warpweft_ptxvm::exec::ExecError;

const STORE: &str = "add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";
const SHARED: &str = ".shared .align 16 .b8 buffer[4096];";

/// A tree in shared memory, a barrier after each step.
#[test]
fn a_tree_of_sums() {
    let body = format!(
        "mov.u64 %rd12, buffer; add.u64 %rd13, %rd12, %rd10; st.shared.u32 [%rd13], %r3;
        mov.u32 %r6, 64;
        STEP: bar.sync 0;
        setp.ge.u32 %p1, %r1, %r6; @%p1 bra SKIP;
        mul.wide.u32 %rd14, %r6, 4; add.u64 %rd15, %rd13, %rd14;
        ld.shared.u32 %r7, [%rd15]; ld.shared.u32 %r8, [%rd13]; add.u32 %r7, %r7, %r8; st.shared.u32 [%rd13], %r7;
        SKIP: shr.u32 %r6, %r6, 1; setp.ne.u32 %p2, %r6, 0; @%p2 bra STEP;
        bar.sync 0; ld.shared.u32 %r10, [buffer]; {STORE}"
    );
    let sum = |block: u32| (block * 128..block * 128 + 128).sum::<u32>();
    let expected: Vec<u32> = (0..1280).map(|n| sum(n / 128)).collect();
    kernel(1, SHARED, &body, 10, 128).expect(&[vec![0; 1280]], &expected);
}

/// Two warps produce, two consume, on named barriers with thread counts (the ISA's own example).
#[test]
fn producers_and_consumers_on_named_barriers() {
    let body = format!(
        "mov.u32 %r10, 0; mov.u32 %r20, 0; mov.u64 %rd12, buffer;
        and.b32 %r6, %r1, 63; mul.wide.u32 %rd13, %r6, 4; add.u64 %rd13, %rd12, %rd13;
        setp.ge.u32 %p1, %r1, 64; @%p1 bra CONSUME;
        PRODUCE: bar.sync 2, 128;
        mad.lo.u32 %r7, %r20, 1000, %r6; st.shared.u32 [%rd13], %r7;
        bar.arrive 1, 128;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 5; @%p2 bra PRODUCE;
        bra DONE;
        CONSUME: bar.arrive 2, 128;
        bar.sync 1, 128;
        ld.shared.u32 %r7, [%rd13]; add.u32 %r10, %r10, %r7;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 5; @%p2 bra CONSUME;
        DONE: {STORE}"
    );
    let expected: Vec<u32> = (0..128).map(|n| if n < 64 { 0 } else { 10_000 + 5 * (n - 64) }).collect();
    kernel(1, SHARED, &body, 1, 128).expect(&[vec![0; 128]], &expected);
}

#[test]
fn barriers_reduce_predicates() {
    let body = format!(
        "rem.u32 %r6, %r1, 3; setp.eq.u32 %p1, %r6, 0; setp.lt.u32 %p2, %r1, 1000; setp.eq.u32 %p3, %r1, 77;
        bar.red.popc.u32 %r10, 0, %p1;
        bar.red.and.pred %p4, 1, %p2; bar.red.or.pred %p5, 2, %p3; bar.red.and.pred %p6, 0, %p1;
        barrier.red.or.pred %p7, 3, 96, !%p2;
        @%p4 add.u32 %r10, %r10, 1000; @%p5 add.u32 %r10, %r10, 2000; @%p6 add.u32 %r10, %r10, 4000;
        @%p7 add.u32 %r10, %r10, 8000; {STORE}"
    );
    kernel(1, "", &body, 2, 96).expect(&[vec![0; 192]], &[3032; 192]);
}

/// A block whose last warp is not full, and of which some warps leave first.
#[test]
fn warps_that_have_left_are_not_waited_for() {
    let body = format!(
        "setp.ge.u32 %p1, %r1, 64; @%p1 bra STAY; ret;
        STAY: bar.sync 0; mov.u32 %r10, %r1; bar.sync 0; {STORE}"
    );
    let expected: Vec<u32> = (0..140).map(|n| if n < 64 { 5 } else { n }).collect();
    kernel(1, "", &body, 1, 140).expect(&[vec![5; 140]], &expected);
}

#[test]
fn a_barrier_for_other_counts_or_too_many() {
    let sync = |error: &ExecError| matches!(error, ExecError::Sync { kind: "barrier-count", .. });
    let body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 64; ret; A: bar.sync 1, 96; ret;";
    // If the two for 64 come first they go, and the one for 96 waits for ever.
    kernel(0, "", body, 1, 96).expect_failure(&[], |error| sync(error) || matches!(error, ExecError::Deadlock { .. }));
    kernel(0, "", "bar.sync 1, 256; ret;", 1, 96).expect_failure(&[], sync);
    let id = |error: &ExecError| matches!(error, ExecError::Sync { kind: "barrier-id", .. });
    kernel(0, "", "add.u32 %r6, %r5, 0; bar.sync %r6; ret;", 1, 96).expect_failure(&[], id);
}

#[test]
fn warps_that_wait_for_each_other_for_ever() {
    let body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 96; ret; A: bar.sync 2, 96; ret;";
    kernel(0, "", body, 1, 96).expect_failure(&[], |error| {
        let words = error.to_string();
        let says = words.contains("barrier 2: 32 of 96 threads have come") && words.contains("barrier 1: 64 of 96");
        matches!(error, ExecError::Deadlock { waiting } if waiting.len() == 3) && says
    });
}
