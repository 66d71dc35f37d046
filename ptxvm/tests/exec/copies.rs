//! `cp.async`: landing early, late, or by chance; groups, zero fill, and what is not waited for.

use crate::machine::{kernel, options};
use warpweft_ptxvm::exec::{Asynchrony, ExecError, Options};

const SHARED: &str = ".shared .align 16 .b8 buffer[8192];";
const PLACES: &str = "mov.u64 %rd12, buffer; mul.wide.u32 %rd13, %r1, 16; add.u64 %rd14, %rd12, %rd13;
    mul.wide.u32 %rd15, %r3, 16; add.u64 %rd16, %rd1, %rd15;";
const STORE: &str = "add.u64 %rd20, %rd2, %rd11; st.global.u32 [%rd20], %r10; ret;";

fn words(count: u32) -> Vec<u32> {
    (0..count).map(|n| n.wrapping_mul(2_654_435_761)).collect()
}

/// A pipeline of two stages: while one is summed, the next is on its way.
#[test]
fn a_double_buffered_pipeline() {
    let body = format!(
        "mov.u32 %r10, 0; mov.u64 %rd12, buffer; mul.wide.u32 %rd13, %r1, 4; add.u64 %rd14, %rd12, %rd13;
        add.u64 %rd16, %rd1, %rd13; xor.b32 %r6, %r1, 33; mul.wide.u32 %rd17, %r6, 4; add.u64 %rd17, %rd12, %rd17;
        cp.async.ca.shared.global [%rd14], [%rd16], 4; cp.async.commit_group;
        mov.u32 %r12, 0;
        LOOP: add.u32 %r13, %r12, 1; setp.ge.u32 %p1, %r13, 6; @%p1 bra LAST;
        mul.wide.u32 %rd21, %r13, 256; add.u64 %rd22, %rd16, %rd21;
        and.b32 %r14, %r13, 1; mul.wide.u32 %rd23, %r14, 256; add.u64 %rd24, %rd14, %rd23;
        cp.async.ca.shared.global [%rd24], [%rd22], 4;
        LAST: cp.async.commit_group;
        cp.async.wait_group 1; bar.sync 0;
        and.b32 %r15, %r12, 1; mul.wide.u32 %rd25, %r15, 256; add.u64 %rd26, %rd17, %rd25;
        ld.shared.u32 %r16, [%rd26]; mad.lo.u32 %r10, %r10, 3, %r16;
        bar.sync 0;
        mov.u32 %r12, %r13; setp.lt.u32 %p2, %r12, 6; @%p2 bra LOOP; {STORE}"
    );
    let input = words(64 * 6);
    let sum = |n: usize| (0..6).fold(0u32, |sum, stage| sum.wrapping_mul(3).wrapping_add(input[stage * 64 + (n ^ 33)]));
    let expected: Vec<u32> = (0..64).map(sum).collect();
    kernel(2, SHARED, &body, 1, 64).expect(&[input.clone(), vec![0; 64]], &expected);
}

#[test]
fn bytes_beyond_the_source_size_are_zero() {
    let body = format!(
        "{PLACES} st.shared.v4.u32 [%rd14], {{%r5, %r5, %r5, %r5}};
        and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 1;
        cp.async.cg.shared.global [%rd14], [%rd16], 16, %r6; cp.async.wait_all;
        ld.shared.v4.u32 {{%r11, %r12, %r13, %r14}}, [%rd14];
        xor.b32 %r10, %r11, %r12; xor.b32 %r10, %r10, %r13; xor.b32 %r10, %r10, %r14; {STORE}"
    );
    let input = words(64 * 4);
    let expected: Vec<u32> = (0..64)
        .map(|n| {
            let bytes: Vec<u8> = input[n * 4..n * 4 + 4].iter().flat_map(|word| word.to_le_bytes()).collect();
            let kept = n % 8 * 2;
            let word = |at: usize| {
                (0..4).map(|b| if at * 4 + b < kept { u32::from(bytes[at * 4 + b]) << (8 * b) } else { 0 }).sum::<u32>()
            };
            (0..4).fold(0, |all, at| all ^ word(at))
        })
        .collect();
    kernel(2, SHARED, &body, 1, 64).expect(&[input, vec![0; 64]], &expected);
}

/// Where nothing is read, the source may be anywhere.
#[test]
fn a_source_of_no_bytes_is_not_read() {
    let body = format!(
        "{PLACES} mov.u32 %r6, 0; cp.async.ca.shared.global [%rd14], [%rd16+1048576], 16, %r6; cp.async.wait_all;
        ld.shared.u32 %r10, [%rd14+12]; {STORE}"
    );
    kernel(2, SHARED, &body, 1, 32).expect(&[vec![1; 4], vec![7; 32]], &[0; 32]);
    let outside = body.replace("mov.u32 %r6, 0;", "mov.u32 %r6, 16;");
    kernel(2, SHARED, &outside, 1, 32)
        .expect_failure(&[vec![1; 4], vec![7; 32]], |error| matches!(error, ExecError::Fault { .. }));
}

/// A missing wait: right by luck when copies land early, wrong when they land late.
#[test]
fn a_missing_wait_shows_when_copies_land_late() {
    let body = format!(
        "{PLACES} st.shared.u32 [%rd14], 0; cp.async.ca.shared.global [%rd14], [%rd16], 4; cp.async.commit_group;
        ld.shared.u32 %r10, [%rd14]; cp.async.wait_all; {STORE}"
    );
    let machine = kernel(2, SHARED, &body, 1, 32);
    let run = |asynchrony: Asynchrony| {
        let mut buffers = [vec![5; 128], vec![9; 32]];
        machine.run(&mut buffers, &Options { asynchrony, ..options() }).expect("it runs");
        buffers[1].clone()
    };
    assert_eq!(run(Asynchrony::Eager), [5; 32]);
    assert_eq!(run(Asynchrony::Latest), [0; 32]);
}

/// Groups are each lane's own: half the warp commits twice as often.
#[test]
fn groups_belong_to_lanes() {
    let body = format!(
        "{PLACES} setp.lt.u32 %p1, %r4, 16;
        cp.async.ca.shared.global [%rd14], [%rd16], 4; cp.async.commit_group;
        @%p1 cp.async.commit_group;
        cp.async.ca.shared.global [%rd14+4], [%rd16+4], 4; cp.async.commit_group;
        cp.async.wait_group 1;
        ld.shared.u32 %r10, [%rd14]; {STORE}"
    );
    let input = words(128);
    let expected: Vec<u32> = (0..32).map(|n| input[n * 4]).collect();
    kernel(2, SHARED, &body, 1, 32).expect(&[input, vec![0; 32]], &expected);
}

#[test]
fn a_misaligned_copy_is_an_error() {
    let body = "mov.u64 %rd12, buffer; cp.async.ca.shared.global [%rd12+4], [%rd1], 8; ret;";
    kernel(2, SHARED, body, 1, 1).expect_failure(
        &[vec![1; 4], vec![]],
        |error| matches!(error, ExecError::Fault { fault, .. } if fault.kind.word() == "misaligned"),
    );
}
