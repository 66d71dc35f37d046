//! Functions: calls in calls, recursion, calls of some lanes, results and arguments of every size.

use crate::machine::{kernel, options};
use warpweft_ptxvm::exec::ExecError;

const STORE: &str = "add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";

const FACTORIAL: &str = "
    .func (.param .b32 result) factorial(.param .b32 n) {
        .reg .pred %p; .reg .b32 %r<9>;
        ld.param.u32 %r1, [n]; setp.gt.u32 %p, %r1, 1; @%p bra MORE;
        st.param.b32 [result], 1; ret;
        MORE: sub.u32 %r2, %r1, 1;
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), factorial, (a); ld.param.b32 %r3, [b]; }
        mul.lo.u32 %r4, %r3, %r1; st.param.b32 [result], %r4; ret;
    }";

fn call(function: &str, argument: &str) -> String {
    format!(
        "{{ .param .b32 a; .param .b32 b; st.param.b32 [a], {argument}; call (b), {function}, (a); ld.param.b32 %r10, [b]; }}"
    )
}

#[test]
fn lanes_recurse_to_different_depths() {
    let body = format!("and.b32 %r6, %r4, 7; {} {STORE}", call("factorial", "%r6"));
    let expected: Vec<u32> = (0..64).map(|n| (1..=n % 8).product()).collect();
    kernel(1, FACTORIAL, &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

#[test]
fn some_lanes_call() {
    let body = format!(
        "mov.u32 %r10, 0; setp.lt.u32 %p1, %r4, 10; @!%p1 bra DONE; {} DONE: {STORE}",
        call("factorial", "%r4")
    );
    let expected: Vec<u32> = (0..32).map(|n| if n < 10 { (1..=n).product() } else { 0 }).collect();
    kernel(1, FACTORIAL, &body, 1, 32).expect(&[vec![0; 32]], &expected);
    // And with a guard on the call itself.
    let body = format!(
        "mov.u32 %r10, 3; setp.lt.u32 %p1, %r4, 10;
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r4; @%p1 call (b), factorial, (a);
        @%p1 ld.param.b32 %r10, [b]; }} {STORE}"
    );
    let expected: Vec<u32> = (0..32).map(|n| if n < 10 { (1..=n).product() } else { 3 }).collect();
    kernel(1, FACTORIAL, &body, 1, 32).expect(&[vec![0; 32]], &expected);
}

/// Lanes in one function and lanes in another exchange with a barrier of the warp in each of them.
#[test]
fn lanes_in_different_functions_meet() {
    let declarations = "
        .func (.param .b32 r) low(.param .b32 n) { .reg .b32 %x<9>; ld.param.u32 %x1, [n];
            shfl.sync.bfly.b32 %x2, %x1, 16, 31, 0xffffffff; st.param.b32 [r], %x2; ret; }
        .func (.param .b32 r) high(.param .b32 n) { .reg .b32 %x<9>; ld.param.u32 %x4, [n]; add.u32 %x5, %x4, 1000;
            shfl.sync.bfly.b32 %x6, %x5, 16, 31, 0xffffffff; add.u32 %x6, %x6, 1; st.param.b32 [r], %x6; ret; }";
    let body = format!(
        "setp.lt.u32 %p1, %r4, 16; @%p1 bra LOW; {} bra DONE; LOW: {} DONE: {STORE}",
        call("high", "%r4"),
        call("low", "%r4")
    );
    let expected: Vec<u32> = (0..32).map(|n| if n < 16 { (n ^ 16) + 1000 } else { (n ^ 16) + 1 }).collect();
    kernel(1, declarations, &body, 1, 32).expect(&[vec![0; 32]], &expected);
}

/// A barrier of the block in each of two functions whose registers lie differently: without `.aligned` it is one arrival.
#[test]
fn lanes_in_different_functions_come_to_one_barrier() {
    let declarations = "
        .func (.param .b32 r) low(.param .b32 n) { .reg .pred %q; .reg .b32 %x<9>; ld.param.u32 %x1, [n];
            setp.lt.u32 %q, %x1, 4; barrier.red.popc.u32 %x2, 3, %q; st.param.b32 [r], %x2; ret; }
        .func (.param .b32 r) high(.param .b32 n) { .reg .pred %q<4>; .reg .b32 %x<40>; ld.param.u32 %x31, [n];
            add.u32 %x32, %x31, 1; add.u32 %x33, %x32, %x31; setp.eq.u32 %q3, %x33, 61;
            barrier.red.popc.u32 %x34, 3, %q3; add.u32 %x34, %x34, 100; st.param.b32 [r], %x34; ret; }";
    let body = format!(
        "setp.lt.u32 %p1, %r4, 16; @%p1 bra LOW; {} bra DONE; LOW: {} DONE: {STORE}",
        call("high", "%r4"),
        call("low", "%r4")
    );
    // Lanes 0 to 3 and lane 30 of two warps.
    let expected: Vec<u32> = (0..64).map(|n| if n % 32 < 16 { 10 } else { 110 }).collect();
    kernel(1, declarations, &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

/// A returning guard in a callee: some lanes return early, all meet behind the call.
#[test]
fn some_lanes_return_early() {
    let declarations = "
        .func (.param .b32 r) f(.param .b32 n) { .reg .pred %p<3>; .reg .b32 %x<9>; ld.param.u32 %x1, [n];
            st.param.b32 [r], 5; setp.lt.u32 %p1, %x1, 9; @%p1 ret;
            add.u32 %x2, %x1, 100; st.param.b32 [r], %x2; ret; }";
    let body = format!("{} bar.warp.sync 0xffffffff; bar.sync 0; {STORE}", call("f", "%r4"));
    let expected: Vec<u32> = (0..64).map(|n| if n % 32 < 9 { 5 } else { n % 32 + 100 }).collect();
    kernel(1, declarations, &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

/// Arguments and results of several sizes, an array on the stack of each function, and its address as an argument.
#[test]
fn arguments_results_and_local_arrays() {
    let declarations = "
        .func (.param .align 16 .b8 r[16]) f(.param .b64 p, .param .b8 c, .param .align 8 .b8 s[16]) {
            .local .align 8 .b8 depot[32]; .reg .b32 %x<9>; .reg .b64 %y<9>; .reg .b16 %h<3>;
            ld.param.u64 %y1, [p]; ld.u32 %x1, [%y1+4]; st.u32 [%y1+4], 9;
            ld.param.u8 %h1, [c]; cvt.u32.u16 %x2, %h1; ld.param.u64 %y2, [s+8]; cvt.u32.u64 %x3, %y2;
            mov.u64 %y3, depot; st.local.u32 [%y3+8], %x1; st.local.u32 [depot+12], %x2;
            ld.local.v2.u32 {%x4, %x5}, [%y3+8]; add.u32 %x6, %x4, %x5; add.u32 %x6, %x6, %x3;
            st.param.v2.b32 [r+8], {%x6, %x2}; ret; }";
    let body = format!(
        ".local .align 8 .b8 mine[16]; .reg .b64 %SP; mov.u64 %SP, mine; cvta.local.u64 %rd30, %SP;
        add.u32 %r6, %r4, 40; st.local.u32 [%SP+4], %r6; cvt.u64.u32 %rd31, %r1;
        {{ .param .b64 a; .param .b8 b; .param .align 8 .b8 c[16]; .param .align 16 .b8 d[16];
        st.param.b64 [a], %rd30; mov.u16 %h1, 200; st.param.b8 [b], %h1; st.param.b64 [c+8], %rd31;
        call.uni (d), f, (a, b, c); ld.param.v2.b32 {{%r7, %r8}}, [d+8]; }}
        ld.local.u32 %r9, [mine+4]; add.u32 %r10, %r7, %r8; mad.lo.u32 %r10, %r9, 10000, %r10; {STORE}"
    );
    let expected: Vec<u32> = (0..64).map(|n| 90_000 + (n % 32 + 40) + 200 + n + 200).collect();
    kernel(1, declarations, &body, 1, 64).expect(&[vec![0; 64]], &expected);
}

#[test]
fn recursion_without_end_stops() {
    let endless = FACTORIAL.replace("@%p bra MORE;", "bra MORE;");
    let body = format!("{} {STORE}", call("factorial", "%r4"));
    let error = kernel(1, &endless, &body, 1, 32).run(&mut [vec![0; 32]], &options()).expect_err("no end");
    assert!(matches!(error, ExecError::Stack { .. }), "{error}");
}
