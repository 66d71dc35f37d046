//! Blocks that wait for each other by looking at memory.

use crate::machine::{every_mode, kernel, module, options};
use warpweft_ptxvm::exec::{Options, Schedule};

/// Every block adds to a counter under a lock that spins.
#[test]
fn a_spin_lock_between_blocks() {
    let body = "
        setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
        TRY: atom.acquire.gpu.global.cas.b32 %r6, [%rd1], 0, 1; setp.ne.u32 %p2, %r6, 0; @%p2 bra TRY;
        ld.global.u32 %r7, [%rd2]; add.u32 %r7, %r7, %r2; st.global.u32 [%rd2], %r7;
        atom.release.gpu.global.exch.b32 %r6, [%rd1], 0;
        DONE: ret;";
    kernel(2, "", body, 70, 64).expect(&[vec![0], vec![0]], &[(0..70).sum()]);
}

/// The decoupled look-back scan (Merrill and Garland, 2016): each block publishes its sum, then its prefix, as one
/// 64-bit word (state, value), and looks back over its predecessors.
#[test]
fn a_decoupled_look_back_scan() {
    let body = "
        add.u64 %rd20, %rd1, %rd11; ld.global.u32 %r10, [%rd20];
        redux.sync.add.u32 %r11, %r10, 0xffffffff;
        mul.wide.u32 %rd21, %r2, 8; add.u64 %rd22, %rd2, %rd21;
        mov.u32 %r12, 0;
        setp.ne.u32 %p1, %r4, 0; @%p1 bra SCAN;
        mov.u32 %r13, 1; setp.eq.u32 %p2, %r2, 0; @%p2 mov.u32 %r13, 2;
        mov.b64 %rd23, {%r11, %r13}; st.relaxed.gpu.global.u64 [%rd22], %rd23;
        @%p2 bra SCAN;
        mov.u64 %rd24, %rd22;
        BACK: sub.u64 %rd24, %rd24, 8;
        LOOK: ld.relaxed.gpu.global.u64 %rd25, [%rd24]; mov.b64 {%r14, %r15}, %rd25;
        setp.eq.u32 %p3, %r15, 0; @%p3 bra LOOK;
        add.u32 %r12, %r12, %r14;
        setp.eq.u32 %p4, %r15, 1; @%p4 bra BACK;
        add.u32 %r16, %r12, %r11; mov.u32 %r17, 2; mov.b64 %rd26, {%r16, %r17};
        st.relaxed.gpu.global.u64 [%rd22], %rd26;
        SCAN: shfl.sync.idx.b32 %r12, %r12, 0, 31, 0xffffffff;
        mov.u32 %r18, 1;
        STEP: shfl.sync.up.b32 %r19|%p5, %r10, %r18, 0, 0xffffffff; @%p5 add.u32 %r10, %r10, %r19;
        shl.b32 %r18, %r18, 1; setp.lt.u32 %p6, %r18, 32; @%p6 bra STEP;
        add.u32 %r10, %r10, %r12;
        add.u64 %rd27, %rd3, %rd11; st.global.u32 [%rd27], %r10; ret;";
    let input: Vec<u32> = (0..32 * 150u32).map(|n| n.wrapping_mul(2_654_435_761) >> 20).collect();
    let mut sum = 0;
    let expected: Vec<u32> = input
        .iter()
        .map(|value| {
            sum += value;
            sum
        })
        .collect();
    let blank = vec![0; input.len()];
    kernel(3, "", body, 150, 32).expect(&[input, vec![0; 300], blank], &expected);
}

/// A barrier of the whole grid: the first blocks wait for the last ones, which must become resident meanwhile.
#[test]
fn a_barrier_of_the_grid() {
    let body = "
        setp.ne.u32 %p1, %r1, 0; @%p1 bra JOIN;
        red.release.gpu.global.add.u32 [%rd1], 1;
        WAIT: ld.acquire.gpu.global.u32 %r6, [%rd1]; setp.lt.u32 %p2, %r6, 60; @%p2 bra WAIT;
        JOIN: bar.sync 0;
        ld.relaxed.gpu.global.u32 %r10, [%rd1]; add.u64 %rd20, %rd2, %rd11; st.global.u32 [%rd20], %r10; ret;";
    kernel(2, "", body, 60, 64).expect(&[vec![0], vec![0; 60 * 64]], &[60; 60 * 64]);
}

/// Strong vectors of two 64-bit words are written and read as a whole.
#[test]
fn two_words_are_never_torn() {
    let body = "
        cvt.u64.u32 %rd30, %r2; mov.u32 %r12, 0;
        LOOP: add.u64 %rd30, %rd30, 1000;
        st.relaxed.gpu.global.v2.u64 [%rd1], {%rd30, %rd30};
        ld.relaxed.gpu.global.v2.u64 {%rd31, %rd32}, [%rd1];
        setp.ne.u64 %p1, %rd31, %rd32; @%p1 red.global.add.u32 [%rd2], 1;
        add.u32 %r12, %r12, 1; setp.lt.u32 %p2, %r12, 300; @%p2 bra LOOP; ret;";
    for workers in [1, 2] {
        let mut buffers = [vec![0; 4], vec![0]];
        let options = Options { workers, ..options() };
        kernel(2, "", body, 4, 1).run(&mut buffers, &options).expect("it runs");
        assert_eq!(buffers[1], [0], "{workers} workers");
    }
}

/// New blocks begin in the order of their numbers, whatever the schedule.
#[test]
fn blocks_begin_in_order() {
    let body = "
        setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
        setp.eq.u32 %p2, %r2, 0; @%p2 bra FIRST;
        sub.u32 %r7, %r2, 1; mul.wide.u32 %rd20, %r7, 4; add.u64 %rd21, %rd1, %rd20;
        WAIT: ld.acquire.gpu.global.u32 %r6, [%rd21]; setp.eq.u32 %p3, %r6, 0; @%p3 bra WAIT;
        FIRST: mul.wide.u32 %rd22, %r2, 4; add.u64 %rd23, %rd1, %rd22; st.release.gpu.global.u32 [%rd23], 1;
        DONE: ret;";
    kernel(1, "", body, 120, 32).expect(&[vec![0; 120]], &[1; 120]);
}

#[test]
fn coordinates_of_threads_and_blocks() {
    let text = "
        .visible .entry test(.param .u64 out) {
            .reg .b32 %r<20>; .reg .b64 %rd<9>;
            ld.param.u64 %rd1, [out];
            mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
            mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;
            mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;
            mul.wide.u32 %rd2, %r6, 4; add.u64 %rd3, %rd1, %rd2;
            mov.u32 %r7, %warpid; mad.lo.u32 %r8, %r3, 100, %r2; mad.lo.u32 %r8, %r8, 100, %r1;
            mad.lo.u32 %r8, %r7, 1000000, %r8;
            st.global.u32 [%rd3], %r8; ret;
        }";
    let mut machine = module(text, 1, 1);
    machine.block = [7, 5, 3];
    let thread = |n: u32| (n / 32) * 1_000_000 + (n / 35) * 10_000 + (n / 7 % 5) * 100 + n % 7;
    machine.expect(&[vec![0; 105]], &(0..105).map(thread).collect::<Vec<_>>());
}

#[test]
fn two_workers_give_the_same_bytes_as_one() {
    let body = "
        mov.u32 %r12, 0; mov.u32 %r10, %r3;
        LOOP: mad.lo.u32 %r10, %r10, 1664525, 1013904223; add.u32 %r12, %r12, 1;
        setp.lt.u32 %p1, %r12, 100; @%p1 bra LOOP;
        add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; red.global.add.u32 [%rd2], %r10; ret;";
    let machine = kernel(2, "", body, 200, 96);
    let run = |options: &Options| {
        let mut buffers = vec![vec![0; 200 * 96], vec![0]];
        let outcome = machine.run(&mut buffers, options).expect("it runs");
        (buffers, outcome.warp_instructions)
    };
    let one = run(&options());
    for options in every_mode().into_iter().filter(|mode| mode.schedule != Schedule::Reverse) {
        let (buffers, instructions) = run(&Options { workers: 2, ..options });
        assert_eq!((&buffers, instructions), (&one.0, one.1), "{options:?}");
    }
}
