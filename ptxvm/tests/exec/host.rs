//! Functions of the host: `printf`, `assert`, `malloc`, and those of a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::machine::{kernel, options};
use warpweft_ptxvm::exec::{ExecError, Flow, HostCall, Options};

const VPRINTF: &str = ".extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);";

/// A module-scope string.
fn string(name: &str, text: &str) -> String {
    let bytes: Vec<String> = text.bytes().chain([0]).map(|byte| byte.to_string()).collect();
    format!(".global .align 1 .b8 {name}[{}] = {{{}}};", bytes.len(), bytes.join(", "))
}

fn printed(format: &str, arguments: &str) -> String {
    let declarations = format!("{VPRINTF} {} {}", string("text", format), string("word", "warp"));
    let body = format!(
        ".local .align 8 .b8 depot[64]; mov.u64 %rd30, depot; cvta.local.u64 %rd31, %rd30;
        mov.u64 %rd32, text; cvta.global.u64 %rd33, %rd32; mov.u64 %rd34, word; cvta.global.u64 %rd35, %rd34;
        {arguments}
        {{ .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd33; st.param.b64 [b], %rd31;
        call.uni (c), vprintf, (a, b); ld.param.b32 %r10, [c]; }} ret;"
    );
    let outcome = kernel(0, &declarations, &body, 1, 1).run(&mut [], &options()).expect("it runs");
    String::from_utf8(outcome.output).expect("text")
}

/// What glibc's printf gives for the same.
#[test]
fn printf_prints_as_c_does() {
    let integers = "st.local.u32 [depot], -7; st.local.u32 [depot+4], 255; st.local.u64 [depot+8], -1;";
    assert_eq!(printed("%d|%x|%llu\n", integers), "-7|ff|18446744073709551615\n");
    assert_eq!(printed("[%5d|%-5x|%lld]", integers), "[   -7|ff   |-1]");
    assert_eq!(printed("[%05d|%#06X|%+lld] 100%%", integers), "[-0007|0X00FF|-1] 100%");
    assert_eq!(printed("[%.3d|%o|%#llx]", integers), "[-007|377|0xffffffffffffffff]");
    let doubles = "st.local.b64 [depot], 0d3FF8000000000000; st.local.b64 [depot+8], 0dC0934A456D5CFAAD;";
    assert_eq!(printed("%f %e", doubles), "1.500000 -1.234568e+03");
    assert_eq!(printed("%.2f|%10.3f|%g", doubles), "1.50| -1234.568|(null)".replace("(null)", "0"));
    assert_eq!(printed("%g %G %a", doubles), "1.5 -1234.57 0x0p+0");
    assert_eq!(printed("%+.0e|%010.1f|", doubles), "+2e+00|-0001234.6|");
    let text = "st.local.b64 [depot], %rd35; st.local.u32 [depot+8], 33; st.local.u32 [depot+12], 9;";
    assert_eq!(printed("<%s%c%6d>", text), "<warp!     9>");
    assert_eq!(printed("<%6s|%-4c|%.0d>", text), "<  warp|!   |9>");
}

/// A format or arguments at addresses that are none: an error, whatever the number.
#[test]
fn printf_of_wild_addresses_is_a_fault() {
    for address in ["0", "-1", "0xfffffffffffffffd", "0x7f0000000000"] {
        let declarations = format!("{VPRINTF} {}", string("text", "%d %s"));
        let body = format!(
            "mov.u64 %rd32, text; cvta.global.u64 %rd33, %rd32; mov.u64 %rd31, {address};
            {{ .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd33; st.param.b64 [b], %rd31;
            call.uni (c), vprintf, (a, b); }} ret;"
        );
        kernel(0, &declarations, &body, 1, 1).expect_failure(&[], |error| matches!(error, ExecError::Fault { .. }));
    }
}

#[test]
fn an_assertion_fails_with_its_words() {
    let declarations = format!(
        ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
        {} {} {}",
        string("message", "x > 0"),
        string("file", "k.cu"),
        string("name", "test")
    );
    let body = "
        setp.ne.u32 %p1, %r3, 33; @%p1 bra DONE;
        mov.u64 %rd1, message; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, file; cvta.global.u64 %rd2, %rd2;
        mov.u64 %rd3, name; cvta.global.u64 %rd3, %rd3;
        { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
        st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 12; st.param.b64 [d], %rd3;
        st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
        DONE: ret;";
    let error = kernel(0, &declarations, body, 2, 32).run(&mut [], &options()).expect_err("an assertion");
    let ExecError::Assert { message, place } = &error else { panic!("{error}") };
    assert_eq!(message, "k.cu:12: test: block: [1,0,0], thread: [1,0,0] Assertion `x > 0` failed.");
    assert_eq!(place.lanes, [1]);
}

#[test]
fn kernels_allocate() {
    let declarations = ".extern .func (.param .b64 r) malloc(.param .b64 bytes); .extern .func free(.param .b64 p);";
    let body = "
        { .param .b64 a; .param .b64 b; st.param.b64 [a], 64; call.uni (b), malloc, (a); ld.param.b64 %rd12, [b]; }
        st.u32 [%rd12+60], %r3; ld.u32 %r10, [%rd12+60];
        { .param .b64 a; st.param.b64 [a], %rd12; call.uni free, (a); }
        add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";
    kernel(1, declarations, body, 2, 64).expect(&[vec![0; 128]], &(0..128).collect::<Vec<_>>());
    let body = body.replace("add.u64 %rd20", "ld.u32 %r10, [%rd12+60]; add.u64 %rd20");
    kernel(1, declarations, &body, 2, 64).expect_failure(
        &[vec![0; 128]],
        |error| matches!(error, ExecError::Fault { fault, .. } if fault.kind.word() == "use-after-free"),
    );
}

/// A function that makes callers wait until enough have called: lanes, warps and blocks all get there.
#[test]
fn the_host_lets_callers_wait() {
    let declarations = ".extern .func (.param .b32 r) meet(.param .b32 thread, .param .b32 first);";
    let body = "
        mov.u32 %r12, 1;
        { .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r3; st.param.b32 [b], %r12;
        call.uni (c), meet, (a, b); ld.param.b32 %r10, [c]; }
        add.u64 %rd20, %rd1, %rd11; st.global.u32 [%rd20], %r10; ret;";
    for divergence in [Options::default().divergence, warpweft_ptxvm::exec::Divergence::Independent] {
        let came: Arc<[AtomicU32]> = (0..128).map(|_| AtomicU32::new(0)).collect();
        let mut machine = kernel(1, declarations, body, 2, 64);
        let seen = Arc::clone(&came);
        machine.host.insert("meet", move |call: &mut HostCall<'_>| {
            let thread = call.argument_u32(0)?;
            seen[thread as usize].store(1, Ordering::Relaxed);
            let count: u32 = seen.iter().map(|flag| flag.load(Ordering::Relaxed)).sum();
            if count < 128 {
                return Ok(Flow::Again);
            }
            call.set_result(&(thread * 2).to_le_bytes());
            Ok(Flow::Done)
        });
        let mut buffers = [vec![0; 128]];
        machine.run(&mut buffers, &Options { divergence, ..options() }).expect("it runs");
        assert_eq!(buffers[0], (0..128).map(|n| n * 2).collect::<Vec<_>>());
    }
}
