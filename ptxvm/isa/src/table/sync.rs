//! Rows of barriers and fences (PTX ISA 9.7.13.1 to 9.7.13.4).

use super::{Build, Form, row};

pub(super) fn rows(out: &mut Vec<Form>) {
    barriers(out);
    out.extend([
        row("bar.warp.sync", "membermask:b32", Build::WarpBarrier).since(6, 0, 30),
        row("membar(.cta|.gl)", "", Build::Fence).since(1, 4, 10),
        row("membar.sys", "", Build::Fence).since(2, 0, 20),
        row("fence{.sc|.acq_rel}(.cta|.gpu|.sys)", "", Build::Fence).since(6, 0, 70),
        row("fence{.sc|.acq_rel}.cluster", "", Build::Fence).since(7, 8, 90),
        row("fence(.acquire|.release)(.cta|.gpu|.sys|.cluster)", "", Build::Fence).since(8, 6, 90),
        // Here every way to memory is the same way.
        row("fence.proxy.alias", "", Build::Nothing).since(7, 5, 70),
        row("membar.proxy.alias", "", Build::Nothing).since(7, 5, 60),
    ]);
}

/// `bar` is `barrier.aligned`.
fn barriers(out: &mut Vec<Form>) {
    let rows = [
        ("bar{.cta}.sync", "barrier{.cta}.sync{.aligned}", "a:u32 b:u32?", (1, 0, 10)),
        ("bar{.cta}.arrive", "barrier{.cta}.arrive{.aligned}", "a:u32 b:u32", (2, 0, 20)),
        ("bar{.cta}.red.popc.u32", "barrier{.cta}.red.popc{.aligned}.u32", "d:u32 a:u32 b:u32? c:pred", (2, 0, 20)),
        (
            "bar{.cta}.red(.and|.or).pred",
            "barrier{.cta}.red(.and|.or){.aligned}.pred",
            "d:pred a:u32 b:u32? c:pred",
            (2, 0, 20),
        ),
    ];
    for (bar, barrier, operands, (major, minor, sm)) in rows {
        out.push(row(bar, operands, Build::Barrier).since(major, minor, sm));
        out.push(row(barrier, operands, Build::Barrier).since(6, 0, 30));
    }
}
