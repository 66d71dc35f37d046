//! Kernels that do not end well, and launches that do not begin.

use crate::machine::{Machine, kernel, module, options};
use warpweft_ptxvm::exec::{ExecError, Options};
use warpweft_ptxvm::observe::Nobody;

#[test]
fn a_trap_says_who() {
    let body = "setp.eq.u32 %p1, %r3, 70; @%p1 trap; ret;";
    let error = kernel(0, "", body, 3, 32).run(&mut [], &options()).expect_err("a trap");
    let ExecError::Trap { place } = &error else { panic!("{error}") };
    assert_eq!((place.block, place.warp, &place.lanes[..]), ([2, 0, 0], 0, &[6][..]), "{error}");
    assert!(place.instruction.contains("trap"), "{error}");
}

#[test]
fn a_loop_without_end_stops_at_the_limit() {
    let options = Options { limit: 5000, ..options() };
    for workers in [1, 2] {
        let machine = kernel(0, "", "LOOP: bra LOOP;", 4, 64);
        let error = machine.run(&mut [], &Options { workers, ..options }).expect_err("no end");
        assert!(error.to_string().contains("limit of 5000"), "{error}");
    }
}

#[test]
fn the_limit_holds_for_blocks_that_end_at_once_and_for_many_warps() {
    // Each block ends in its first turn; there are more of them than anybody would wait for.
    for workers in [1, 2] {
        let options = Options { limit: 5000, workers, ..options() };
        let error = kernel(0, "", "ret;", i32::MAX as u32, 32).run(&mut [], &options).expect_err("no end in sight");
        assert!(error.to_string().contains("limit of 5000"), "{error}");
    }
    let machine = kernel(0, "", "LOOP: bra LOOP;", 3, 1024);
    for limit in [1, 31, 5000] {
        let ended = machine.attempt(&mut [], &Options { limit, ..options() }, &mut Nobody).expect("a launch");
        assert!(matches!(ended.failure, Some(ExecError::Limit { .. })), "{ended:?}");
        assert_eq!(ended.warp_instructions, limit);
    }
}

#[test]
fn the_limit_is_not_in_the_way_of_who_ends_before() {
    let machine = kernel(0, "", "ret;", 1, 32);
    let count = machine.run(&mut [], &options()).expect("it runs").warp_instructions;
    assert!(machine.run(&mut [], &Options { limit: count, ..options() }).is_ok(), "{count} instructions");
}

#[test]
fn accesses_outside_are_faults_that_say_where() {
    let fault = |body: &str, word: &'static str| {
        kernel(1, ".shared .align 16 .b8 buffer[64];", body, 1, 32).expect_failure(
            &[vec![0; 8]],
            |error| matches!(error, ExecError::Fault { fault, .. } if fault.kind.word() == word),
        );
    };
    fault("add.u64 %rd12, %rd1, %rd10; st.global.u32 [%rd12], %r1; ret;", "out-of-bounds");
    fault("ld.global.u32 %r6, [%rd1+2]; ret;", "misaligned");
    fault("ld.global.v4.u32 {%r6,%r7,%r8,%r9}, [%rd1+8]; ret;", "misaligned");
    fault("mov.u64 %rd12, 0; ld.global.u32 %r6, [%rd12]; ret;", "out-of-bounds");
    fault("ld.shared.u32 %r6, [buffer+64]; ret;", "out-of-bounds");
    fault("mov.u64 %rd12, buffer; cvta.shared.u64 %rd13, %rd12; ld.shared.u32 %r6, [%rd13]; ret;", "wrong-space");
    fault("mov.u64 %rd12, buffer; cvta.shared.u64 %rd13, %rd12; st.global.u32 [%rd13], %r6; ret;", "wrong-space");
    fault("mov.u64 %rd12, buffer; cvta.shared.u64 %rd13, %rd12; st.u32 [%rd13+64], %r6; ret;", "out-of-bounds");
    fault("atom.global.add.u32 %r6, [%rd1+32], 1; ret;", "out-of-bounds");
}

#[test]
fn what_a_launch_may_not_ask_for() {
    let refused = |machine: Machine, kind: &str| {
        let error = machine.attempt(&mut [], &options(), &mut Nobody).expect_err("it does not begin");
        assert!(format!("{error:?}").starts_with(kind), "{error}");
    };
    refused(kernel(0, "", "ret;", 1, 1025), "Block");
    refused(kernel(0, "", "ret;", 0, 32), "Grid");
    refused(module(".visible .entry test() .reqntid 64 { ret; }", 1, 32), "RequiredBlock");
    refused(module(".visible .entry test() .maxntid 64 { ret; }", 1, 96), "MaxBlock");
    let mut machine = kernel(0, ".extern .shared .align 16 .b8 more[];", "st.shared.u32 [more], %r1; ret;", 1, 32);
    machine.dynamic_shared = (163 << 10) + 1;
    refused(machine, "Shared");
    let declared = ".extern .func unknown();";
    refused(kernel(0, declared, "call unknown, (); ret;", 1, 32), "Extern");
}
