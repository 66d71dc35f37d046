//! `.sync` instructions whose members come at different times, or never.

use crate::machine::kernel;
use warpweft_ptxvm::exec::ExecError;

const STORE: &str = "add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";

fn kind(error: &ExecError) -> &str {
    match error {
        ExecError::Sync { kind, .. } => kind,
        _ => "none",
    }
}

#[test]
fn half_a_warp_exchanges() {
    let body = format!(
        "mov.u32 %r10, 7; setp.ge.u32 %p1, %r4, 16; @%p1 bra DONE;
        bar.warp.sync 0xffff;
        shfl.sync.bfly.b32 %r10, %r4, 1, 31, 0xffff;
        DONE: {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|n| if n < 16 { n ^ 1 } else { 7 }).collect();
    kernel(1, "", &body, 1, 32).expect(&[vec![0; 32]], &expected);
}

/// Legal since Volta: the sides of a branch meet at a barrier of the warp that stands in each of them.
#[test]
fn both_sides_come_to_a_warp_barrier() {
    let body = format!(
        "mul.wide.u32 %rd12, %r1, 4; mov.u64 %rd13, buffer; add.u64 %rd13, %rd13, %rd12;
        xor.b32 %r6, %r4, 31; mul.wide.u32 %rd14, %r6, 4; mov.u64 %rd15, buffer; add.u64 %rd14, %rd14, %rd15;
        setp.lt.u32 %p1, %r4, 11; @%p1 bra LOW;
        st.shared.u32 [%rd13], %r4; bar.warp.sync 0xffffffff; ld.shared.u32 %r10, [%rd14]; bra DONE;
        LOW: add.u32 %r7, %r4, 100; st.shared.u32 [%rd13], %r7; bar.warp.sync 0xffffffff; ld.shared.u32 %r10, [%rd14];
        DONE: {STORE}"
    );
    let value = |lane: u32| if lane < 11 { lane + 100 } else { lane };
    let expected: Vec<u32> = (0..32).map(|n| value(n ^ 31)).collect();
    kernel(1, ".shared .align 4 .b8 buffer[128];", &body, 1, 32).expect(&[vec![0; 32]], &expected);
}

/// The same exchange at two places, with other registers: the ISA asks for the same qualifiers, not the same place.
#[test]
fn an_exchange_at_two_places() {
    let body = format!(
        "add.u32 %r20, %r4, 500; add.u32 %r21, %r4, 900;
        setp.lt.u32 %p1, %r4, 16; @%p1 bra LOW;
        shfl.sync.bfly.b32 %r10, %r20, 16, 31, 0xffffffff; bra DONE;
        LOW: shfl.sync.bfly.b32 %r30, %r21, 16, 31, 0xffffffff; mov.u32 %r10, %r30;
        DONE: {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|n| if n < 16 { (n ^ 16) + 500 } else { (n ^ 16) + 900 }).collect();
    kernel(1, "", &body, 1, 32).expect(&[vec![0; 32]], &expected);
}

/// Groups found by `match` synchronise each for itself, with masks that differ from lane to lane.
#[test]
fn groups_with_masks_of_their_own() {
    let body = format!(
        "rem.u32 %r6, %r4, 5; match.any.sync.b32 %r7, %r6, 0xffffffff;
        bar.warp.sync %r7;
        redux.sync.add.u32 %r10, %r4, %r7;
        {STORE}"
    );
    let sum = |lane: u32| (0..32).filter(|other| other % 5 == lane % 5).sum();
    let expected: Vec<u32> = (0..64).map(|n| sum(n % 32)).collect();
    kernel(1, "", &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

#[test]
fn votes_after_divergence() {
    let body = format!(
        "setp.lt.u32 %p1, %r4, 20; mov.u32 %r12, 0;
        LOOP: setp.ge.u32 %p2, %r12, %r4; @%p2 bra OUT; add.u32 %r12, %r12, 1; bra LOOP;
        OUT: vote.sync.ballot.b32 %r10, %p1, 0xffffffff;
        vote.sync.any.pred %p3, %p1, 0xffffffff; vote.sync.all.pred %p4, %p1, 0xffffffff;
        @%p3 add.u32 %r10, %r10, 1; @%p4 add.u32 %r10, %r10, 2; {STORE}"
    );
    kernel(1, "", &body, 1, 32).expect(&[vec![0; 32]], &[0x000f_ffff + 1; 32]);
}

/// Lanes that have exited are not waited for; those that never were there neither.
#[test]
fn exited_members_are_not_waited_for() {
    let body = format!(
        "setp.ge.u32 %p1, %r4, 24; @%p1 exit;
        redux.sync.add.s32 %r10, 1, 0xffffffff; {STORE}"
    );
    let expected: Vec<u32> =
        (0..48).map(|n| [24, 16][n / 32]).zip(0..48).map(|(sum, n)| if n % 32 < 24 { sum } else { 9 }).collect();
    kernel(1, "", &body, 1, 48).expect(&[vec![9; 48]], &expected);
}

#[test]
fn a_lane_outside_its_own_mask() {
    let body = format!("shfl.sync.idx.b32 %r10, %r4, 0, 31, 0xff; {STORE}");
    kernel(1, "", &body, 1, 32).expect_failure(&[vec![0; 32]], |error| kind(error) == "mask-without-self");
}

#[test]
fn lanes_of_one_exchange_with_different_masks() {
    let body = format!(
        "setp.lt.u32 %p1, %r4, 16; mov.u32 %r6, 0x3fffffff; @%p1 mov.u32 %r6, 0xffffffff;
        setp.ge.u32 %p2, %r4, 30; @%p2 bra DONE;
        shfl.sync.idx.b32 %r10, %r4, 0, 31, %r6;
        DONE: bar.warp.sync 0xffffffff; {STORE}"
    );
    kernel(1, "", &body, 1, 32)
        .expect_failure(&[vec![0; 32]], |error| matches!(kind(error), "mask-mismatch" | "divergent-collective"));
}

#[test]
fn a_barrier_in_one_side_of_a_branch() {
    let body = format!(
        "mov.u32 %r10, 1; setp.lt.u32 %p1, %r4, 16; @%p1 bra LOW;
        bar.sync 0; bra DONE;
        LOW: bar.sync 0; add.u32 %r10, %r10, 1;
        DONE: {STORE}"
    );
    kernel(1, "", &body, 1, 64).expect_failure(&[vec![0; 64]], |error| kind(error) == "divergent-barrier");
    // Without `.aligned` it is as right as `bar.warp.sync`.
    let body = body.replace("bar.sync", "barrier.sync");
    let expected: Vec<u32> = (0..64).map(|n| if n % 32 < 16 { 2 } else { 1 }).collect();
    kernel(1, "", &body, 1, 64).expect(&[vec![0; 64]], &expected);
}
