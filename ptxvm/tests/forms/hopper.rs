//! Forms of sm_90a that kernels use: each is parsed and typed, and a launch refuses it by name until it runs. One that
//! runs has its case elsewhere.

use warpweft_ptxvm::table::Build;

use crate::case::{Case, Expectation, module, program};
use crate::coverage::row_of;

/// Operands of each form that does not run, in the registers that [`kernel`] declares.
const OPERANDS: &[(&str, &str)] = &[
    ("atom.global.gpu.acq_rel.add.v4.f32", "{%f0, %f1, %f2, %f3}, [%p0], {%f4, %f5, %f6, %f7}"),
    ("barrier.cluster.arrive.relaxed.aligned", ""),
    ("barrier.cluster.wait.aligned", ""),
    ("cp.async.bulk.commit_group", ""),
    ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", "[%map, {%r0, %r1}], [%s0]"),
    ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes", "[%s0], [%map, {%r0, %r1}], [%s1]"),
    (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
        "[%s0], [%map, {%r0, %r1}], [%s1]",
    ),
    ("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes", "[%s0], [%map, {%r0, %r1}], [%s1]"),
    ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "[%map, {%r0, %r1, %r2}], [%s0]"),
    (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint",
        "[%s0], [%map, {%r0, %r1, %r2}], [%s1], %desc",
    ),
    (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint",
        "[%s0], [%map, {%r0, %r1, %r2}], [%s1], %h0, %desc",
    ),
    ("cp.async.bulk.wait_group", "0"),
    ("cp.async.bulk.wait_group.read", "0"),
    ("fence.mbarrier_init.release.cluster", ""),
    ("fence.proxy.async.shared::cta", ""),
    ("fence.proxy.tensormap::generic.acquire.gpu", "[%map], 128"),
    ("mapa.shared::cluster.u32", "%r0, %s0, %r1"),
    ("mbarrier.arrive.expect_tx.shared.b64", "_, [%s0], 4096"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64", "%desc, [%s0], %r0"),
    ("mbarrier.arrive.release.cta.shared::cta.b64", "%desc, [%s0]"),
    ("mbarrier.arrive.shared::cluster.b64", "_, [%s0]"),
    ("mbarrier.arrive.shared::cta.b64", "%desc, [%s0]"),
    ("mbarrier.expect_tx.shared::cta.b64", "[%s0], 4096"),
    ("mbarrier.init.shared::cta.b64", "[%s0], 1"),
    ("mbarrier.inval.shared::cta.b64", "[%s0]"),
    ("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64", "%q, [%s0], %r0"),
    ("mbarrier.try_wait.parity.shared.b64", "%q, [%s0], %r0"),
    ("mbarrier.try_wait.parity.shared::cta.b64", "%q, [%s0], 0, 1000"),
    ("prefetch.tensormap", "[%map]"),
    ("setmaxnreg.dec.sync.aligned.u32", "40"),
    ("setmaxnreg.inc.sync.aligned.u32", "232"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16", "[%s0], {%r0}"),
    ("stmatrix.sync.aligned.m8n8.x4.shared.b16", "[%s0], {%r0, %r1, %r2, %r3}"),
    ("stmatrix.sync.aligned.x4.m8n8.shared.b16", "[%s0], {%r0, %r1, %r2, %r3}"),
    ("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned", "[%p0], [%s0], 128"),
    ("tensormap.replace.tile.box_dim.shared::cta.b1024.b32", "[%s0], 1, %r0"),
    ("tensormap.replace.tile.element_stride.shared::cta.b1024.b32", "[%s0], 1, %r0"),
    ("tensormap.replace.tile.elemtype.shared::cta.b1024.b32", "[%s0], 6"),
    ("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32", "[%s0], 0"),
    ("tensormap.replace.tile.global_address.shared::cta.b1024.b64", "[%s0], %p0"),
    ("tensormap.replace.tile.global_dim.shared::cta.b1024.b32", "[%s0], 1, %r0"),
    ("tensormap.replace.tile.global_stride.shared::cta.b1024.b64", "[%s0], 0, %p0"),
    ("tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32", "[%s0], 0"),
    ("tensormap.replace.tile.rank.shared::cta.b1024.b32", "[%s0], %r0"),
    ("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32", "[%s0], 3"),
    ("wgmma.commit_group.sync.aligned", ""),
    ("wgmma.fence.sync.aligned", ""),
    ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", "{D64}, %desc, %desc, %q, 1, 1, 0, 1"),
    ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", "{D64}, %desc, %desc, %q, 1, 1, 0, 0"),
    ("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "{D64}, %desc, %desc, %q, 1, 1"),
    ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "{D128}, %desc, %desc, %q, 1, 1, 0, 0"),
    ("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16", "{D16}, %desc, %desc, %q, 1, -1, 0, 0"),
    ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "{D32}, {%r0, %r1, %r2, %r3}, %desc, %q, 1, 1, 0"),
    ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "{D32}, %desc, %desc, %q, 1, 1, 0, 0"),
    ("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32", "{D32}, %desc, %desc, %q, 1, 1"),
    ("wgmma.wait_group.sync.aligned", "0"),
];

pub(crate) fn cases() -> Vec<Case> {
    let refused = |form: &&(&str, &str)| row_of(form.0).is_some_and(|row| matches!(row.build, Build::Refused(_)));
    OPERANDS.iter().filter(refused).map(|(form, operands)| case(form, operands)).collect()
}

/// A module that holds the form, and that a launch refuses.
fn case(form: &str, operands: &str) -> Case {
    let mut operands = operands.to_owned();
    for count in [16, 32, 64, 128] {
        let registers: Vec<String> = (0..count).map(|at| format!("%f{at}")).collect();
        operands = operands.replace(&format!("{{D{count}}}"), &format!("{{{}}}", registers.join(", ")));
    }
    let body = format!(
        "    .reg .pred %q;
    .reg .b16 %h0;
    .reg .b32 %r<4>, %s<2>;
    .reg .b64 %p0, %map, %desc;
    .reg .f32 %f<128>;

    ld.param.u64 %p0, [input];
    cvta.to.global.u64 %p0, %p0;
    mov.b64 %map, given;
    cvta.param.u64 %map, %map;
    mov.u32 %s0, tile;
    add.u32 %s1, %s0, 1024;
    mov.u32 %r0, 0;
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
    mov.b16 %h0, 3;
    mov.b64 %desc, 0;
    setp.eq.u32 %q, %r0, 0;
    {form} {operands};
    ret;
"
    );
    let before = ".shared .align 1024 .b8 tile[2048];\n";
    let parameters = ".param .u64 input, .param .align 64 .b8 given[128]";
    let mut case = program(form, &module(form, before, parameters, &body), (1, 128), vec![vec![0; 64]], Vec::new());
    case.by_value = vec![0; 128];
    Case { expected: Expectation::Refused, ..case }
}
