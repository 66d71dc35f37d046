//! Lanes that go different ways, and meet again.

use crate::machine::{every_mode, kernel, options};
use warpweft_ptxvm::exec::{Divergence, Options};

const STORE: &str = "add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";

#[test]
fn both_sides_of_a_branch() {
    let body = format!(
        "and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0;
        @%p1 bra EVEN;
        mul.lo.u32 %r10, %r3, 3; bra DONE;
        EVEN: add.u32 %r10, %r3, 1000;
        DONE: add.u32 %r10, %r10, 1; {STORE}"
    );
    let expected: Vec<u32> = (0..100).map(|n| if n % 2 == 0 { n + 1001 } else { n * 3 + 1 }).collect();
    kernel(1, "", &body, 2, 50).expect(&[vec![0; 100]], &expected);
}

/// Loops in loops, left at different times by each lane; and the joins do not pile up.
#[test]
fn nested_loops() {
    let body = format!(
        "mov.u32 %r10, 0; mov.u32 %r11, 0;
        OUTER: setp.ge.u32 %p1, %r11, %r4; @%p1 bra DONE;
        mov.u32 %r12, 0;
        INNER: setp.gt.u32 %p2, %r12, %r11; @%p2 bra NEXT;
        and.b32 %r13, %r12, 1; setp.eq.u32 %p3, %r13, 1; @%p3 bra SKIP;
        add.u32 %r10, %r10, %r12;
        SKIP: add.u32 %r12, %r12, 1; bra INNER;
        NEXT: add.u32 %r11, %r11, 1; bra OUTER;
        DONE: {STORE}"
    );
    let sum = |lane: u32| (0..lane).flat_map(|outer| (0..=outer).filter(|inner| inner % 2 == 0)).sum::<u32>();
    let expected: Vec<u32> = (0..64).map(|n| sum(n % 32)).collect();
    kernel(1, "", &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

#[test]
fn reconverging_lanes_share_what_follows() {
    // After an if, 50 instructions: run once by the warp, not once by each side.
    let tail = "add.u32 %r10, %r10, 1;".repeat(50);
    let body = format!(
        "mov.u32 %r10, 0; setp.lt.u32 %p1, %r4, 7; @%p1 bra LOW; add.u32 %r10, %r10, 5; bra DONE;
        LOW: add.u32 %r10, %r10, 9; DONE: {tail} {STORE}"
    );
    let machine = kernel(1, "", &body, 1, 32);
    let mut buffers = [vec![0; 32]];
    let outcome = machine.run(&mut buffers, &options()).expect("it runs");
    assert!(outcome.warp_instructions < 75, "{outcome:?}");
    assert_eq!((buffers[0][0], buffers[0][7]), (59, 55));
}

#[test]
fn lanes_exit_early() {
    let body = format!(
        "setp.lt.u32 %p1, %r4, 5; @%p1 exit;
        setp.lt.u32 %p2, %r4, 9; @%p2 bra OUT;
        bar.sync 0; mov.u32 %r10, %r3; {STORE}
        OUT: ret;"
    );
    let expected: Vec<u32> = (0..96).map(|n| if n % 32 < 9 { 77 } else { n }).collect();
    kernel(1, "", &body, 1, 96).expect(&[vec![77; 96]], &expected);
}

#[test]
fn an_indexed_branch_sends_each_lane_its_way() {
    let body = format!(
        "rem.u32 %r6, %r4, 3; mov.u32 %r10, 0;
        TS: .branchtargets A, B, C;
        brx.idx %r6, TS;
        A: mov.u32 %r10, 11; bra DONE;
        B: mov.u32 %r10, 22; bra DONE;
        C: mov.u32 %r10, 33;
        DONE: {STORE}"
    );
    let expected: Vec<u32> = (0..40).map(|n| (n % 32 % 3 + 1) * 11).collect();
    kernel(1, "", &body, 1, 40).expect(&[vec![0; 40]], &expected);
}

/// Each lane takes a lock that another lane of its warp may hold: only lanes that do not wait for each other get on.
#[test]
fn a_spin_lock_between_lanes() {
    let body = "
        TRY: atom.global.cas.b32 %r6, [%rd1], 0, 1;
        setp.ne.u32 %p1, %r6, 0; @%p1 bra TRY;
        membar.gl;
        ld.volatile.global.u32 %r7, [%rd2]; add.u32 %r7, %r7, 1; st.volatile.global.u32 [%rd2], %r7;
        membar.gl;
        atom.global.exch.b32 %r8, [%rd1], 0;
        ret;";
    kernel(2, "", body, 2, 48).expect(&[vec![0], vec![5]], &[5 + 2 * 48]);
}

/// The lock of textbooks: the critical section is inside the loop.
#[test]
fn a_lock_taken_inside_the_loop() {
    let body = "
        mov.u32 %r9, 0;
        TRY: atom.shared.cas.b32 %r6, [lock], 0, 1;
        setp.ne.u32 %p1, %r6, 0; @%p1 bra AGAIN;
        ld.volatile.shared.u32 %r7, [lock+4]; add.u32 %r7, %r7, 1; st.volatile.shared.u32 [lock+4], %r7;
        mov.u32 %r9, 1;
        atom.shared.exch.b32 %r8, [lock], 0;
        AGAIN: setp.eq.u32 %p2, %r9, 0; @%p2 bra TRY;
        bar.sync 0;
        ld.shared.u32 %r10, [lock+4]; add.u64 %rd20, %rd1, %rd10; st.global.u32 [%rd20], %r10; ret;";
    let init = "setp.eq.u32 %p9, %r1, 0; @%p9 st.shared.u32 [lock], 0; @%p9 st.shared.u32 [lock+4], 0; bar.sync 0;";
    kernel(1, ".shared .align 4 .b8 lock[8];", &format!("{init}{body}"), 1, 64).expect(&[vec![0; 64]], &[64; 64]);
}

/// Lane 0 waits for lane 1 of its own warp, through memory.
#[test]
fn lanes_signal_each_other() {
    let body = "
        setp.eq.u32 %p1, %r4, 0; @!%p1 bra OTHER;
        WAIT: ld.acquire.gpu.global.u32 %r6, [%rd1]; setp.eq.u32 %p2, %r6, 0; @%p2 bra WAIT;
        st.global.u32 [%rd2], %r6; ret;
        OTHER: setp.eq.u32 %p3, %r4, 1; @%p3 st.release.gpu.global.u32 [%rd1], 42; ret;";
    kernel(2, "", body, 1, 32).expect(&[vec![0], vec![0]], &[42]);
}

#[test]
fn runs_are_repeated_by_their_seed() {
    // What each lane gets from one counter tells the order of everything.
    let body = format!(
        "mov.u32 %r12, 0;
        LOOP: atom.global.add.u32 %r10, [%rd2], 1;
        and.b32 %r6, %r10, 3; setp.eq.u32 %p1, %r6, 0; @%p1 bra SKIP;
        add.u32 %r12, %r12, 1;
        SKIP: add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, 9; @%p2 bra LOOP; {STORE}"
    );
    let machine = kernel(2, "", &body, 4, 64);
    let run = |options: &Options| {
        let mut buffers = [vec![0; 256], vec![0]];
        let outcome = machine.run(&mut buffers, options).expect("it runs");
        (buffers[0].clone(), outcome.warp_instructions)
    };
    let mut different = std::collections::HashSet::new();
    for mode in every_mode().into_iter().filter(|mode| mode.workers == 1) {
        for seed in 1..4 {
            let options = Options { seed, ..mode };
            let first = run(&options);
            assert_eq!(first, run(&options), "{options:?}");
            different.insert(first);
        }
    }
    assert!(different.len() > 9, "{} different runs: the seed decides nothing", different.len());
    let independent = Options { divergence: Divergence::Independent, ..options() };
    assert_eq!(run(&independent), run(&independent));
}
