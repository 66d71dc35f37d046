//! Nothing can run any more: who waits for what.

use warpweft_ptxvm::report::{Check::Deadlock, Severity};

use crate::ways::{Kernel, Way, kernel};

/// Every run ends in a deadlock in which these lines' words wait, with so many fragments in all at the most.
#[track_caller]
fn stuck(kernel: &Kernel, words: &[&str]) {
    let mut lines: Vec<u32> = words.iter().map(|word| kernel.line(word)).collect();
    lines.sort_unstable();
    for way in Way::all() {
        let reports = kernel.run(way);
        let errors: Vec<_> = reports.iter().filter(|report| report.severity == Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{way:?}: {errors:?}");
        assert_eq!((errors[0].check, errors[0].kind), (Deadlock, "deadlock"), "{way:?}");
        let mut waiting: Vec<u32> = errors[0].related.iter().map(|(_, place)| place.line).collect();
        waiting.sort_unstable();
        waiting.dedup();
        assert_eq!(waiting, lines, "{way:?}: {errors:?}");
        assert!(errors[0].related.iter().all(|(what, _)| !what.is_empty()));
    }
}

#[test]
fn warps_at_different_barriers() {
    let crossing = kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra SECOND;
         bar.sync 1, 64; // @one
         bra DONE;
         SECOND:
         bar.sync 2, 64; // @two
         DONE:",
    );
    stuck(&crossing, &["@one", "@two"]);
}

#[test]
fn a_barrier_of_a_warp_that_has_left() {
    let left = kernel("setp.eq.u32 %p1, %r4, 1;\n@%p1 exit;\nbar.sync 1, 64; // @bar");
    stuck(&left, &["@bar"]);
}

#[test]
fn a_consumer_without_a_producer() {
    let alone = kernel(
        "setp.eq.u32 %p1, %r4, 0;
         @%p1 bra DONE;
         bar.sync 1, 64; // @wait
         DONE:
         bar.sync 0; // @done",
    );
    stuck(&alone, &["@wait", "@done"]);
}

#[test]
fn the_order_of_two_barriers_is_exchanged() {
    let exchanged = kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra SECOND;
         bar.sync 1, 64; // @a
         bar.sync 2, 64;
         bra DONE;
         SECOND:
         bar.sync 2, 64; // @b
         bar.sync 1, 64;
         DONE:",
    );
    stuck(&exchanged, &["@a", "@b"]);
}

#[test]
fn one_turn_more_than_the_others() {
    let more = kernel(
        "mov.u32 %r10, 0;
         add.u32 %r11, %r4, 2;
         AGAIN:
         bar.sync 1, 64; // @turn
         add.u32 %r10, %r10, 1;
         setp.lt.u32 %p1, %r10, %r11;
         @%p1 bra AGAIN;",
    );
    stuck(&more, &["@turn"]);
}

#[test]
fn three_of_four_warps() {
    let three = kernel(
        "setp.eq.u32 %p1, %r4, 3;
         @%p1 bra DONE;
         bar.sync 1, 128; // @bar
         DONE:
         bar.sync 0; // @end",
    )
    .threads(128);
    stuck(&three, &["@bar", "@end"]);
}

#[test]
fn a_ring_of_warps() {
    let ring = kernel(
        "add.u32 %r10, %r4, 1;
         add.u32 %r11, %r4, 1;
         rem.u32 %r11, %r11, 3;
         add.u32 %r11, %r11, 1;
         bar.sync %r10, 64; // @ring
         bar.sync %r11, 64;",
    )
    .threads(96);
    stuck(&ring, &["@ring"]);
}

#[test]
fn one_block_of_two_is_stuck() {
    let second = kernel(
        "setp.eq.u32 %p1, %r2, 0;
         @%p1 bra DONE;
         setp.eq.u32 %p2, %r4, 0;
         @%p2 bra DONE;
         bar.sync 5, 64; // @bar
         DONE:
         st.global.u32 [%rd3], 1;",
    )
    .blocks(2)
    .without_races();
    stuck(&second, &["@bar"]);
    let report = second.run(Way::PLAIN).pop().expect("a report");
    assert_eq!((report.place.block, report.place.warp, report.place.lanes.len()), ([1, 0, 0], 1, 32));
}

#[test]
fn a_producer_that_waits_once_too_often() {
    let once = kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         bar.arrive 1, 64;
         bar.sync 2, 64;
         bar.sync 2, 64; // @empty
         bra DONE;
         CONSUMER:
         bar.sync 1, 64;
         bar.arrive 2, 64;
         DONE:",
    );
    stuck(&once, &["@empty"]);
}

#[test]
fn waiting_that_ends() {
    // Blocks that spin on each other, warps that leave, barriers in turns.
    kernel(
        "setp.ne.u32 %p1, %r1, 0;
         @%p1 bra MET;
         red.global.add.u32 [%rd2], 1;
         SPIN:
         ld.volatile.global.u32 %r10, [%rd2];
         setp.lt.u32 %p2, %r10, 8;
         @%p2 bra SPIN;
         MET:
         bar.sync 0;",
    )
    .blocks(8)
    .passes();
    kernel("setp.eq.u32 %p1, %r4, 1;\n@%p1 exit;\nbar.sync 0;").passes();
    kernel(
        "setp.eq.u32 %p1, %r4, 1;\n@%p1 bra TWO;\nbar.sync 1, 32;\nbra END;\nTWO:\nbar.sync 2, 32;\nEND:\nbar.sync 0;",
    )
    .passes();
}

#[test]
fn lanes_of_a_warp_take_a_lock_in_turn() {
    kernel(
        "SPIN:
         atom.shared.acquire.cta.cas.b32 %r10, [%r5], 0, 1;
         setp.ne.u32 %p1, %r10, 0;
         @%p1 bra SPIN;
         ld.shared.u32 %r11, [%r5+4];
         add.u32 %r11, %r11, 1;
         st.shared.u32 [%r5+4], %r11;
         atom.shared.release.cta.exch.b32 %r10, [%r5], 0;
         st.global.u32 [%rd3], %r11;"
            .replace("SPIN:\n", "setp.lt.u32 %p2, %r1, 2;\n@%p2 st.shared.u32 [%r6], 0;\nbar.sync 0;\nSPIN:\n")
            .as_str(),
    )
    .passes();
}

#[test]
fn a_producer_and_a_consumer_take_turns() {
    kernel(
        "mov.u32 %r10, 0;
         setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         PRODUCE:
         st.shared.u32 [%r6], %r10;
         bar.arrive 1, 64;
         bar.sync 2, 64;
         add.u32 %r10, %r10, 1;
         setp.lt.u32 %p2, %r10, 4;
         @%p2 bra PRODUCE;
         bra DONE;
         CONSUMER:
         bar.sync 1, 64;
         ld.shared.u32 %r11, [%r6+-128];
         bar.arrive 2, 64;
         add.u32 %r10, %r10, 1;
         setp.lt.u32 %p2, %r10, 4;
         @%p2 bra CONSUMER;
         DONE:",
    )
    .passes();
}

#[test]
fn each_block_waits_for_the_one_before_it() {
    // A chain as in look-back scans: the last block spins through the turns of all the others.
    kernel(
        "setp.ne.u32 %p1, %r1, 0;
         @%p1 bra DONE;
         setp.eq.u32 %p2, %r2, 0;
         mul.wide.u32 %rd10, %r2, 4;
         add.u64 %rd11, %rd2, %rd10;
         mov.u32 %r11, 0;
         @%p2 bra FIRST;
         SPIN:
         nanosleep.u32 20;
         ld.acquire.gpu.global.u32 %r11, [%rd11+-4];
         setp.eq.u32 %p3, %r11, 0;
         @%p3 bra SPIN;
         FIRST:
         add.u32 %r11, %r11, 1;
         st.release.gpu.global.u32 [%rd11], %r11;
         DONE:",
    )
    .blocks(12)
    .passes();
}

#[test]
fn neighbours_in_a_ring_meet_in_two_turns() {
    // Pairs of even and odd warps, then of odd and even ones: no warp waits for one that waits for it.
    kernel(
        "shr.u32 %r10, %r4, 1;
         add.u32 %r10, %r10, 1;
         bar.sync %r10, 64;
         add.u32 %r11, %r4, 1;
         and.b32 %r11, %r11, 3;
         shr.u32 %r11, %r11, 1;
         add.u32 %r11, %r11, 3;
         bar.sync %r11, 64;",
    )
    .threads(128)
    .passes();
}

#[test]
fn a_warp_spins_on_one_that_comes_later() {
    // Warp 0 looks until the last warp, which first passes a barrier with the others, has written.
    kernel(
        "setp.eq.u32 %p1, %r4, 0;
         @%p1 bra LOOK;
         bar.sync 1, 96;
         setp.ne.u32 %p2, %r1, 127;
         @%p2 bra DONE;
         st.release.cta.global.u32 [%rd2], 1;
         bra DONE;
         LOOK:
         ld.acquire.cta.global.u32 %r10, [%rd2];
         setp.eq.u32 %p3, %r10, 0;
         @%p3 bra LOOK;
         DONE:
         bar.sync 0;",
    )
    .threads(128)
    .passes();
}

#[test]
fn a_block_takes_the_ticket_of_the_last_and_leaves() {
    // Whoever is not last exits while the others still wait at barriers of their own.
    kernel(
        "setp.ne.u32 %p1, %r1, 0;
         @%p1 bra MEET;
         atom.global.acq_rel.gpu.add.u32 %r10, [%rd2], 1;
         st.shared.u32 [%r5], %r10;
         MEET:
         bar.sync 0;
         ld.shared.u32 %r10, [%r5];
         setp.ne.u32 %p2, %r10, 4;
         @%p2 exit;
         bar.sync 0;
         st.global.u32 [%rd3], %r10;
         bar.sync 0;",
    )
    .blocks(5)
    .passes();
}

#[test]
fn lanes_wait_for_a_lane_of_their_own_warp() {
    // Volta and later promise that the lane which writes gets its turn while the others look.
    kernel(
        "setp.eq.u32 %p1, %r3, 31;
         @%p1 bra WRITE;
         LOOK:
         ld.acquire.cta.global.u32 %r10, [%rd2];
         setp.eq.u32 %p2, %r10, 0;
         @%p2 bra LOOK;
         bra MEET;
         WRITE:
         st.release.cta.global.u32 [%rd2], 1;
         MEET:
         bar.warp.sync -1;
         bar.sync 0;",
    )
    .threads(32)
    .passes();
}
