//! What only looks like a race within a block.

use crate::ways::kernel;

#[test]
fn a_block_barrier() {
    kernel(
        "mov.u32 %r20, 0;
         AGAIN:
         st.shared.u32 [%r6], %r20;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10];
         bar.sync 0;
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p1, %r20, 4;
         @%p1 bra AGAIN;
         st.global.u32 [%rd3], %r11;",
    )
    .threads(128)
    .passes();
}

#[test]
fn two_buffers_and_one_barrier_a_turn() {
    kernel(
        "mov.u32 %r20, 0;
         AGAIN:
         and.b32 %r21, %r20, 1;
         mad.lo.u32 %r22, %r21, 256, %r6;
         st.shared.u32 [%r22], %r20;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         mad.lo.u32 %r10, %r21, 256, %r10;
         ld.shared.u32 %r11, [%r10];
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p1, %r20, 5;
         @%p1 bra AGAIN;
         st.global.u32 [%rd3], %r11;",
    )
    .passes();
}

#[test]
fn a_warp_exchanges_with_a_warp_barrier() {
    kernel(
        "st.shared.u32 [%r6], %r1;
         bar.warp.sync 0xffffffff;
         xor.b32 %r10, %r6, 4;
         ld.shared.u32 %r11, [%r10];
         bar.warp.sync 0xffffffff;
         st.shared.u32 [%r6], %r11;
         st.global.u32 [%rd3], %r11;",
    )
    .passes();
}

#[test]
fn a_part_of_a_warp_exchanges() {
    // The other lanes do something else meanwhile, with a barrier of their own.
    kernel(
        "setp.ge.u32 %p1, %r3, 16;
         st.shared.u32 [%r6], %r1;
         @%p1 bra UPPER;
         bar.warp.sync 0xffff;
         xor.b32 %r10, %r6, 4;
         ld.shared.u32 %r11, [%r10];
         bra MEET;
         UPPER:
         bar.warp.sync 0xffff0000;
         xor.b32 %r10, %r6, 8;
         ld.shared.u32 %r11, [%r10];
         MEET:
         bar.warp.sync 0xffffffff;
         st.shared.u32 [%r6], %r11;
         st.global.u32 [%rd3], %r11;",
    )
    .passes();
}

#[test]
fn neighbours_in_one_word() {
    kernel(
        "add.u32 %r10, %r5, %r1;
         st.shared.u8 [%r10], %r1;
         shl.b32 %r11, %r1, 1;
         add.u32 %r11, %r11, %r5;
         st.shared.u16 [%r11+256], %h0;
         add.u64 %rd10, %rd1, 0;
         cvt.u64.u32 %rd11, %r1;
         add.u64 %rd10, %rd10, %rd11;
         st.global.u8 [%rd10], %r1;
         bar.sync 0;
         ld.shared.u32 %r12, [%r5+16];
         ld.global.u8 %r13, [%rd1+63];
         st.global.u32 [%rd4], %r12;
         st.global.u32 [%rd4+1024], %r13;"
            .replace("st.shared.u16", "mov.u16 %h0, 3;\nst.shared.u16")
            .as_str(),
    )
    .passes();
}

#[test]
fn the_same_value_by_many() {
    kernel(
        "mov.u32 %r10, 1;
         st.shared.u32 [%r5], %r10;
         ld.shared.u32 %r11, [%r5];
         bar.sync 0;
         ld.shared.u32 %r12, [%r5];
         add.u32 %r11, %r11, %r12;
         st.global.u32 [%rd3], %r11;
         st.global.u32 [%rd2], %r10;",
    )
    .passes_with_notes(&["same-value-write"]);
}

#[test]
fn a_histogram() {
    kernel(
        "setp.ge.u32 %p1, %r1, 8;
         @!%p1 st.shared.u32 [%r6], 0;
         bar.sync 0;
         and.b32 %r10, %r1, 7;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         red.shared.add.u32 [%r10], 1;
         atom.shared.add.u32 %r11, [%r10], 1;
         bar.sync 0;
         @!%p1 ld.shared.u32 %r12, [%r6];
         @!%p1 red.global.add.u32 [%rd3], %r12;",
    )
    .blocks(2)
    .passes();
}

#[test]
fn shuffle_then_shared_then_barrier() {
    kernel(
        "mov.u32 %r10, %r1;
         shfl.sync.bfly.b32 %r11, %r10, 16, 31, 0xffffffff;
         add.u32 %r10, %r10, %r11;
         shfl.sync.bfly.b32 %r11, %r10, 8, 31, 0xffffffff;
         add.u32 %r10, %r10, %r11;
         setp.ne.u32 %p1, %r3, 0;
         shl.b32 %r12, %r4, 2;
         add.u32 %r12, %r12, %r5;
         @!%p1 st.shared.u32 [%r12], %r10;
         bar.sync 0;
         setp.ge.u32 %p2, %r1, 4;
         @%p2 bra DONE;
         ld.shared.u32 %r13, [%r6];
         st.global.u32 [%rd3], %r13;
         DONE:",
    )
    .threads(128)
    .passes();
}

#[test]
fn producers_and_consumers_with_named_barriers() {
    // Warp 0 fills, warp 1 empties, two stages: full is 1 and 2, empty is 3 and 4.
    kernel(
        "mov.u32 %r20, 0;
         setp.eq.u32 %p1, %r4, 1;
         and.b32 %r26, %r6, 0x7f;
         shl.b32 %r26, %r3, 2;
         add.u32 %r26, %r26, %r5;
         @%p1 bra CONSUMER;
         PRODUCER:
         and.b32 %r21, %r20, 1;
         add.u32 %r22, %r21, 1;
         add.u32 %r23, %r21, 3;
         setp.lt.u32 %p2, %r20, 2;
         @%p2 bra FREE;
         bar.sync %r23, 64;
         FREE:
         mad.lo.u32 %r24, %r21, 128, %r26;
         st.shared.u32 [%r24], %r20;
         bar.arrive %r22, 64;
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p3, %r20, 6;
         @%p3 bra PRODUCER;
         bra DONE;
         CONSUMER:
         and.b32 %r21, %r20, 1;
         add.u32 %r22, %r21, 1;
         add.u32 %r23, %r21, 3;
         bar.sync %r22, 64;
         xor.b32 %r25, %r26, 4;
         mad.lo.u32 %r24, %r21, 128, %r25;
         ld.shared.u32 %r10, [%r24];
         setp.ge.u32 %p2, %r20, 4;
         @%p2 bra KEPT;
         bar.arrive %r23, 64;
         KEPT:
         st.global.u32 [%rd3], %r10;
         add.u32 %r20, %r20, 1;
         setp.lt.u32 %p3, %r20, 6;
         @%p3 bra CONSUMER;
         DONE:",
    )
    .passes();
}

#[test]
fn warps_that_meet_in_pairs() {
    kernel(
        "shr.u32 %r10, %r4, 1;
         add.u32 %r11, %r10, 1;
         st.shared.u32 [%r6], %r1;
         bar.sync %r11, 64;
         xor.b32 %r12, %r1, 32;
         shl.b32 %r12, %r12, 2;
         add.u32 %r12, %r12, %r5;
         ld.shared.u32 %r13, [%r12];
         st.global.u32 [%rd3], %r13;
         bar.sync 0;
         xor.b32 %r12, %r1, 64;
         shl.b32 %r12, %r12, 2;
         add.u32 %r12, %r12, %r5;
         ld.shared.u32 %r13, [%r12];
         st.global.u32 [%rd4], %r13;",
    )
    .threads(128)
    .passes();
}

#[test]
fn a_flag_that_a_warp_waits_for() {
    kernel(
        "setp.eq.u32 %p1, %r4, 1;
         @%p1 bra CONSUMER;
         st.shared.u32 [%r6], %r1;
         bar.warp.sync 0xffffffff;
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
         ld.shared.u32 %r11, [%r6+-128];
         st.global.u32 [%rd3], %r11;
         DONE:"
            .replace(
                "setp.eq.u32 %p1",
                "setp.eq.u32 %p5, %r1, 0;\n@%p5 st.shared.u32 [%r5+256], 0;\nbar.sync 0;\nsetp.eq.u32 %p1",
            )
            .as_str(),
    )
    .passes();
}

#[test]
fn volatile_reductions_as_they_once_were() {
    // Strong accesses do not race, whatever one thinks of the algorithm.
    kernel(
        "st.volatile.shared.u32 [%r6], %r1;
         bar.sync 0;
         setp.ge.u32 %p1, %r1, 32;
         @%p1 bra DONE;
         ld.volatile.shared.u32 %r10, [%r6+128];
         ld.volatile.shared.u32 %r11, [%r6];
         add.u32 %r10, %r10, %r11;
         st.volatile.shared.u32 [%r6], %r10;
         ld.volatile.shared.u32 %r11, [%r6+64];
         st.global.u32 [%rd3], %r11;
         DONE:",
    )
    .passes();
}

#[test]
fn generic_addresses() {
    kernel(
        "cvt.u64.u32 %rd10, %r6;
         cvta.shared.u64 %rd11, %rd10;
         st.u32 [%rd11], %r1;
         bar.sync 0;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         ld.shared.u32 %r11, [%r10];
         cvta.global.u64 %rd12, %rd3;
         st.u32 [%rd12], %r11;",
    )
    .passes();
}

#[test]
fn threads_that_have_left_do_not_hold_up_the_others() {
    kernel(
        "st.shared.u32 [%r6], %r1;
         setp.ge.u32 %p1, %r1, 32;
         @%p1 ret;
         bar.sync 0;
         ld.shared.u32 %r10, [%r6+128];
         st.global.u32 [%rd3], %r10;",
    )
    .passes();
}

#[test]
fn a_block_agrees_by_a_reducing_barrier() {
    kernel(
        "st.shared.u32 [%r6], %r1;
         setp.lt.u32 %p1, %r1, 40;
         bar.red.popc.u32 %r10, 0, %p1;
         xor.b32 %r12, %r1, 32;
         shl.b32 %r12, %r12, 2;
         add.u32 %r12, %r12, %r5;
         ld.shared.u32 %r13, [%r12];
         add.u32 %r13, %r13, %r10;
         st.global.u32 [%rd3], %r13;",
    )
    .passes();
}

#[test]
fn copies_in_two_stages() {
    // Stage s+1 is under way while stage s is read: the pipeline of every GEMM.
    kernel(
        "mov.u32 %r20, 0;
         cp.async.ca.shared.global [%r6], [%rd3], 4;
         cp.async.commit_group;
         AGAIN:
         add.u32 %r21, %r20, 1;
         and.b32 %r22, %r21, 1;
         mad.lo.u32 %r23, %r22, 256, %r6;
         mul.wide.u32 %rd10, %r21, 256;
         add.u64 %rd10, %rd10, %rd3;
         setp.ge.u32 %p1, %r21, 6;
         @%p1 bra LAST;
         cp.async.ca.shared.global [%r23], [%rd10], 4;
         LAST:
         cp.async.commit_group;
         cp.async.wait_group 1;
         bar.sync 0;
         and.b32 %r22, %r20, 1;
         xor.b32 %r10, %r1, 32;
         shl.b32 %r10, %r10, 2;
         add.u32 %r10, %r10, %r5;
         mad.lo.u32 %r10, %r22, 256, %r10;
         ld.shared.u32 %r11, [%r10];
         st.global.u32 [%rd4], %r11;
         bar.sync 0;
         mov.u32 %r20, %r21;
         setp.lt.u32 %p2, %r20, 6;
         @%p2 bra AGAIN;",
    )
    .passes();
}

#[test]
fn a_matrix_goes_through_ldmatrix() {
    kernel(
        "mov.u32 %r10, 0;
         shl.b32 %r11, %r3, 4;
         add.u32 %r11, %r11, %r5;
         mad.lo.u32 %r11, %r4, 512, %r11;
         st.shared.v4.u32 [%r11], {%r1, %r3, %r1, %r3};
         bar.warp.sync 0xffffffff;
         ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r11];
         bar.warp.sync 0xffffffff;
         st.shared.v4.u32 [%r11], {%r20, %r21, %r22, %r23};
         st.global.u32 [%rd3], %r20;",
    )
    .passes();
}
