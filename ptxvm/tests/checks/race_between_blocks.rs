//! Races between blocks in global memory, and what is none: messages, locks, counters, look-back.

use warpweft_ptxvm::report::Check;

use crate::ways::{ALL, Kernel, kernel};

/// Block 0 writes data, `release` and `[%rd2]`; block 1 waits by `acquire` and reads. One thread each.
fn message(release: &str, acquire: &str) -> Kernel {
    kernel(&format!(
        "setp.eq.u32 %p1, %r2, 1;
         @%p1 bra READER;
         st.global.u32 [%rd1], 42; // @write
         {release}
         bra DONE;
         READER:
         {acquire}
         setp.eq.u32 %p2, %r10, 0;
         @%p2 bra READER;
         {{}}
         ld.global.u32 %r11, [%rd1]; // @read
         st.global.u32 [%rd1+64], %r11;
         DONE:"
    ))
    .threads(1)
    .blocks(2)
}

/// The same, with a fence once the flag has been seen.
fn fenced(release: &str, acquire: &str, fence: &str) -> Kernel {
    message(release, acquire).with("{}", fence)
}

fn plain(release: &str, acquire: &str) -> Kernel {
    fenced(release, acquire, "")
}

const RACE: ((&str, u32), (&str, u32)) = (("@write", 1), ("@read", 1));

#[test]
fn messages_that_arrive() {
    plain("st.release.gpu.global.u32 [%rd2], 1;", "ld.acquire.gpu.global.u32 %r10, [%rd2];").passes();
    fenced("membar.gl; st.volatile.global.u32 [%rd2], 1;", "ld.volatile.global.u32 %r10, [%rd2];", "membar.gl;")
        .passes();
    fenced(
        "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd2], 1;",
        "ld.relaxed.gpu.global.u32 %r10, [%rd2];",
        "fence.acq_rel.sys;",
    )
    .passes();
    plain(
        "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd2], 1;",
        "atom.acquire.gpu.global.or.b32 %r10, [%rd2], 0;",
    )
    .passes();
    plain("atom.release.gpu.global.exch.b32 %r12, [%rd2], 1;", "ld.acquire.sys.u32 %r10, [%rd2];").passes();
    // The value comes with the flag: nothing else is read.
    kernel(
        "setp.eq.u32 %p1, %r2, 1;
         @%p1 bra READER;
         mov.b64 %rd10, {42, 1};
         st.relaxed.gpu.global.u64 [%rd2], %rd10;
         bra DONE;
         READER:
         ld.relaxed.gpu.global.u64 %rd11, [%rd2];
         mov.b64 {%r10, %r11}, %rd11;
         setp.eq.u32 %p2, %r11, 0;
         @%p2 bra READER;
         st.global.u32 [%rd1], %r10;
         DONE:"
            .replace("{42, 1}", "{%r20, %r21}")
            .replace("READER;\n         mov.b64 %rd10", "READER;\nmov.u32 %r20, 42;\nmov.u32 %r21, 1;\nmov.b64 %rd10")
            .as_str(),
    )
    .threads(1)
    .blocks(2)
    .passes();
}

#[test]
fn no_release() {
    plain("st.relaxed.gpu.global.u32 [%rd2], 1;", "ld.acquire.gpu.global.u32 %r10, [%rd2];").races(RACE.0, RACE.1);
}

#[test]
fn no_acquire() {
    plain("st.release.gpu.global.u32 [%rd2], 1;", "ld.relaxed.gpu.global.u32 %r10, [%rd2];").races(RACE.0, RACE.1);
    plain("st.release.gpu.global.u32 [%rd2], 1;", "ld.volatile.global.u32 %r10, [%rd2];").races(RACE.0, RACE.1);
}

#[test]
fn a_fence_of_the_block_only() {
    let (store, load) = ("membar.cta; st.volatile.global.u32 [%rd2], 1;", "ld.volatile.global.u32 %r10, [%rd2];");
    fenced(store, load, "membar.gl;").races(RACE.0, RACE.1);
    fenced(&store.replace("cta", "gl"), load, "membar.cta;").races(RACE.0, RACE.1);
}

#[test]
fn a_fence_before_the_data() {
    kernel(
        "setp.eq.u32 %p1, %r2, 1;
         @%p1 bra READER;
         membar.gl;
         st.global.u32 [%rd1], 42; // @write
         st.volatile.global.u32 [%rd2], 1;
         bra DONE;
         READER:
         ld.volatile.global.u32 %r10, [%rd2];
         setp.eq.u32 %p2, %r10, 0;
         @%p2 bra READER;
         membar.gl;
         ld.global.u32 %r11, [%rd1]; // @read
         st.global.u32 [%rd1+64], %r11;
         DONE:",
    )
    .threads(1)
    .blocks(2)
    .races(RACE.0, RACE.1);
}

#[test]
fn an_ordinary_flag() {
    // The flag itself races, and so does the data.
    kernel(
        "setp.eq.u32 %p1, %r2, 1;
         @%p1 bra READER;
         membar.gl;
         st.global.u32 [%rd2], 1; // @write
         bra DONE;
         READER:
         ld.global.u32 %r10, [%rd2]; // @read
         setp.eq.u32 %p2, %r10, 0;
         @%p2 bra READER;
         DONE:",
    )
    .threads(1)
    .blocks(2)
    .races(RACE.0, RACE.1);
}

#[test]
fn a_reduction_is_no_acquire() {
    plain(
        "st.release.gpu.global.u32 [%rd2], 1;",
        "red.relaxed.gpu.global.add.u32 [%rd2+64], 1;
         ld.relaxed.gpu.global.u32 %r10, [%rd2];
         red.relaxed.gpu.global.add.u32 [%rd2], 1;",
    )
    .races(RACE.0, RACE.1);
}

#[test]
fn atomics_of_one_block_s_scope() {
    kernel("atom.relaxed.cta.global.add.u32 %r10, [%rd1], 1; // @write\nst.relaxed.gpu.global.u32 [%rd1+64], 1;")
        .threads(1)
        .blocks(2)
        .fails(Check::Racecheck, "write-after-write", "@write", 1);
}

#[test]
fn blocks_write_one_place() {
    kernel("setp.eq.u32 %p1, %r1, 3;\n@%p1 st.global.u32 [%rd1], %r2; // @write").blocks(2).fails(
        Check::Racecheck,
        "write-after-write",
        "@write",
        1 << 3,
    );
    kernel("setp.eq.u32 %p1, %r1, 3;\n@%p1 st.global.u32 [%rd1], 5;")
        .blocks(2)
        .passes_with_notes(&["same-value-write"]);
    kernel("red.global.add.u32 [%rd1], 1;").blocks(4).passes();
}

#[test]
fn launches_are_in_order() {
    kernel("ld.global.u32 %r10, [%rd1+4];\nst.global.u32 [%rd1+8], %r10;\nst.global.u32 [%rd1+4], 3;")
        .threads(1)
        .launches(2)
        .passes();
}

/// Each block's thread 0 adds its part, the last block sums. `{writer}` and `{reader}` are fences.
fn last_block(writer: &str, reader: &str) -> Kernel {
    kernel(&format!(
        ".shared .u32 last;
         mul.wide.u32 %rd10, %r2, 4;
         add.u64 %rd10, %rd10, %rd1;
         setp.ne.u32 %p1, %r1, 0;
         @%p1 bra COUNTED;
         st.global.u32 [%rd10], %r2; // @write
         {writer}
         mov.u32 %r11, %nctaid.x;
         sub.u32 %r11, %r11, 1;
         atom.global.inc.u32 %r10, [%rd2], %r11;
         setp.eq.u32 %p2, %r10, %r11;
         selp.u32 %r12, 1, 0, %p2;
         st.shared.u32 [last], %r12;
         COUNTED:
         bar.sync 0;
         ld.shared.u32 %r13, [last];
         setp.eq.u32 %p3, %r13, 0;
         @%p3 bra DONE;
         {reader}
         mov.u32 %r14, %nctaid.x;
         setp.ge.u32 %p4, %r1, %r14;
         @%p4 bra DONE;
         ld.global.u32 %r15, [%rd3]; // @read
         red.global.add.u32 [%rd2+64], %r15;
         DONE:"
    ))
    .blocks(4)
}

#[test]
fn the_last_block_sums() {
    last_block("membar.gl;", "membar.gl;").passes();
}

#[test]
fn the_last_block_sums_what_was_not_released() {
    let lacking = last_block("", "membar.gl;");
    for report in lacking.run(crate::ways::Way::PLAIN) {
        assert_eq!((report.kind, report.place.line), ("read-after-write", lacking.line("@read")));
        // Its own part it may read.
        assert_eq!(report.place.lanes.len(), 1);
    }
    lacking.only(Check::Racecheck).finds("read-after-write", "@read", 0b1111);
}

#[test]
fn the_last_block_sums_without_acquiring() {
    last_block("membar.gl;", "").finds("read-after-write", "@read", 0b1111);
}

#[test]
fn fences_of_all_threads_before_the_barrier() {
    // As PyTorch's reductions do it: `membar` is `fence.sc`, and fences in an order that all agree on synchronise.
    let body = "mad.lo.u32 %r10, %r2, 64, %r1;
         mul.wide.u32 %rd10, %r10, 4;
         add.u64 %rd10, %rd10, %rd1;
         st.global.u32 [%rd10], %r10; // @write
         membar.gl;
         bar.sync 0;
         setp.ne.u32 %p1, %r1, 0;
         @%p1 bra COUNTED;
         atom.global.add.u32 %r11, [%rd2], 1;
         st.shared.u32 [%r5], %r11;
         COUNTED:
         bar.sync 0;
         ld.shared.u32 %r12, [%r5];
         setp.ne.u32 %p2, %r12, 1;
         @%p2 bra DONE;
         membar.gl;
         ld.global.u32 %r13, [%rd3];
         ld.global.u32 %r14, [%rd3+256]; // @read
         add.u32 %r13, %r13, %r14;
         st.global.u32 [%rd4+256], %r13;
         DONE:";
    kernel(body).blocks(2).passes();
    let weaker = kernel(&body.replace("membar.gl;\n         bar", "fence.acq_rel.gpu;\n         bar"));
    weaker.blocks(2).finds_somewhere("read-after-write");
}

/// A counter guarded by a lock that `take` and `give` work, as Triton writes it: one thread between barriers.
fn lock(take: &str, give: &str) -> Kernel {
    kernel(&format!(
        "bar.sync 0;
         setp.ne.u32 %p1, %r1, 0;
         @%p1 bra TAKEN;
         SPIN:
         {take}
         setp.ne.u32 %p2, %r10, 0;
         @%p2 bra SPIN;
         TAKEN:
         bar.sync 0;
         ld.global.u32 %r11, [%rd3]; // @read
         add.u32 %r11, %r11, 1;
         st.global.u32 [%rd3], %r11; // @write
         bar.sync 0;
         setp.ne.u32 %p3, %r1, 0;
         @%p3 bra GIVEN;
         {give}
         GIVEN:"
    ))
    .blocks(3)
}

#[test]
fn locks() {
    let cas = "atom.global.acq_rel.gpu.cas.b32 %r10, [%rd2], 0, 1;";
    lock(cas, "atom.global.acq_rel.gpu.exch.b32 %r12, [%rd2], 0;").passes();
    lock(cas, "st.release.gpu.global.u32 [%rd2], 0;").passes();
    lock("atom.global.cas.b32 %r10, [%rd2], 0, 1;\nmembar.gl;", "membar.gl;\natom.global.exch.b32 %r12, [%rd2], 0;")
        .passes();
    lock(cas, "st.relaxed.gpu.global.u32 [%rd2], 0;").finds_somewhere("read-after-write");
    lock("atom.relaxed.gpu.global.cas.b32 %r10, [%rd2], 0, 1;", "st.release.gpu.global.u32 [%rd2], 0;")
        .finds_somewhere("read-after-write");
}

#[test]
fn split_k_semaphores() {
    // Blocks add their parts in order: each waits for its turn.
    let turns = |wait: &str, pass: &str| {
        kernel(&format!(
            "setp.ne.u32 %p1, %r1, 0;
             @%p1 bra TURN;
             SPIN:
             {wait}
             setp.ne.u32 %p2, %r10, %r2;
             @%p2 bra SPIN;
             TURN:
             bar.sync 0;
             ld.global.u32 %r11, [%rd3];
             add.u32 %r11, %r11, %r1;
             st.global.u32 [%rd3], %r11;
             bar.sync 0;
             @%p1 bra PASSED;
             add.u32 %r12, %r2, 1;
             {pass}
             PASSED:"
        ))
        .blocks(4)
    };
    turns("ld.acquire.gpu.global.u32 %r10, [%rd2];", "st.release.gpu.global.u32 [%rd2], %r12;").passes();
    turns("ld.acquire.gpu.global.u32 %r10, [%rd2];", "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd2], 1;")
        .passes();
    turns("ld.acquire.gpu.global.u32 %r10, [%rd2];", "st.relaxed.gpu.global.u32 [%rd2], %r12;")
        .finds_somewhere("read-after-write");
}

/// A scan over blocks: state 1 is a block's sum, 2 its prefix; sum and state lie apart.
fn look_back(publish: &str, see: &str) -> Kernel {
    kernel(&format!(
        "mul.wide.u32 %rd10, %r2, 4;
         add.u64 %rd11, %rd10, %rd1;
         add.u64 %rd12, %rd10, %rd2;
         st.global.u32 [%rd11], %r2; // @sum
         {publish}
         st.relaxed.gpu.global.u32 [%rd12], 1;
         mov.u32 %r10, %r2;
         mov.u32 %r11, %r2;
         setp.eq.u32 %p1, %r2, 0;
         @%p1 bra FOUND;
         BACK:
         sub.u64 %rd12, %rd12, 4;
         sub.u64 %rd11, %rd11, 4;
         SPIN:
         ld.relaxed.gpu.global.u32 %r12, [%rd12];
         setp.eq.u32 %p2, %r12, 0;
         @%p2 bra SPIN;
         {see}
         setp.eq.u32 %p3, %r12, 2;
         @%p3 bra PREFIX;
         ld.global.u32 %r13, [%rd11]; // @look
         add.u32 %r11, %r11, %r13;
         bra BACK;
         PREFIX:
         ld.global.u32 %r13, [%rd11+1024]; // @prefix
         add.u32 %r11, %r11, %r13;
         FOUND:
         add.u64 %rd13, %rd10, %rd1;
         st.global.u32 [%rd13+1024], %r11; // @store
         {publish}
         add.u64 %rd14, %rd10, %rd2;
         st.relaxed.gpu.global.u32 [%rd14], 2;"
    ))
    .threads(1)
    .blocks(6)
}

#[test]
fn decoupled_look_back() {
    look_back("membar.gl;", "membar.gl;").passes();
    look_back("fence.acq_rel.gpu;", "fence.acq_rel.gpu;").passes();
    look_back("", "fence.acq_rel.gpu;").finds_somewhere("read-after-write");
    look_back("fence.acq_rel.gpu;", "").finds_somewhere("read-after-write");
    look_back("membar.cta;", "membar.gl;").finds_somewhere("read-after-write");
}

#[test]
fn a_grid_barrier() {
    let grid = |fence: &str| {
        kernel(&format!(
            "mad.lo.u32 %r10, %r2, 64, %r1;
             mul.wide.u32 %rd10, %r10, 4;
             add.u64 %rd11, %rd10, %rd1;
             st.global.u32 [%rd11], %r10;
             bar.sync 0;
             setp.ne.u32 %p1, %r1, 0;
             @%p1 bra MET;
             {fence}
             atom.global.add.u32 %r11, [%rd2], 1;
             SPIN:
             ld.volatile.global.u32 %r12, [%rd2];
             setp.lt.u32 %p2, %r12, 3;
             @%p2 bra SPIN;
             {fence}
             MET:
             bar.sync 0;
             xor.b32 %r13, %r10, 64;
             mul.wide.u32 %rd12, %r13, 4;
             add.u64 %rd12, %rd12, %rd1;
             ld.global.u32 %r14, [%rd12];
             mul.wide.u32 %rd13, %r10, 4;
             add.u64 %rd13, %rd13, %rd2;
             st.global.u32 [%rd13+1024], %r14;"
        ))
        .blocks(3)
    };
    grid("membar.gl;").passes();
    grid("membar.cta;").finds_somewhere("read-after-write");
}

#[test]
fn the_read_only_path_and_a_write() {
    kernel(
        "st.global.u32 [%rd3], %r1;\nbar.sync 0;\nld.global.nc.u32 %r10, [%rd3]; // @read\nst.global.u32 [%rd4], %r10;",
    )
    .fails(Check::Racecheck, "non-coherent-read", "@read", ALL);
    kernel("ld.global.nc.u32 %r10, [%rd3];\nst.global.u32 [%rd4], %r10;").passes();
}
