//! Rows of the forms that parse and do not run: Hopper's asynchronous machinery, textures, older and integer matrix
//! operations. A kernel that holds one compiles; its launch is refused by the form's name.

use super::{Build, Form, row};

/// Since which `.version` and `.target`.
type Since = (u8, u8, u16);

/// A text that the table keeps.
fn kept(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Adds rows that do not run for one reason.
fn refuse(out: &mut Vec<Form>, reason: &'static str, (major, minor, sm): Since, texts: &[&str]) {
    for text in texts {
        out.push(row(kept((*text).to_owned()), "...", Build::Refused(reason)).since(major, minor, sm));
    }
}

pub(super) fn rows(out: &mut Vec<Form>) {
    barriers(out);
    clusters(out);
    bulk_copies(out);
    tensor_maps(out);
    warpgroups(out);
    matrices(out);
    memory(out);
    textures(out);
}

const CTA: &str = "{.shared|.shared::cta}";
const ANY_SHARED: &str = "{.shared|.shared::cta|.shared::cluster}";

fn barriers(out: &mut Vec<Form>) {
    let reason = "mbarrier objects do not run on this device";
    let order = "{.release|.acquire|.relaxed}{.cta|.cluster}";
    let text = |start: &str, space: &str| format!("mbarrier.{start}{space}.b64");
    let arrive = format!("arrive{order}");
    let drop = format!("arrive_drop{order}");
    let old = [
        text("init", CTA),
        text("inval", CTA),
        text(&arrive, CTA),
        text(&format!("{arrive}.noComplete"), CTA),
        text(&drop, CTA),
        text(&format!("{drop}.noComplete"), CTA),
        text(&format!("test_wait{{.parity}}{order}"), CTA),
        text("pending_count", ""),
        text("cp", CTA).replace("mbarrier.cp", "cp.async.mbarrier.arrive{.noinc}"),
    ];
    refuse(out, reason, (7, 0, 80), &old.each_ref().map(String::as_str));
    let new = [
        text("arrive{.release|.relaxed}{.cta|.cluster}", ".shared::cluster"),
        text("arrive_drop{.release|.relaxed}{.cta|.cluster}", ".shared::cluster"),
        text(&format!("{arrive}.expect_tx"), ANY_SHARED),
        text(&format!("{drop}.expect_tx"), ANY_SHARED),
        text("expect_tx{.relaxed}{.cta|.cluster}", ANY_SHARED),
        text("complete_tx{.relaxed}{.cta|.cluster}", ANY_SHARED),
        text(&format!("try_wait{{.parity}}{order}"), CTA),
    ];
    refuse(out, reason, (8, 0, 90), &new.each_ref().map(String::as_str));
    refuse(out, reason, (8, 0, 90), &["fence.mbarrier_init.release.cluster"]);
}

fn clusters(out: &mut Vec<Form>) {
    let reason = "thread block clusters do not run on this device";
    let texts = [
        "mapa{.shared::cluster}(.u32|.u64)",
        "getctarank{.shared::cluster}(.u32|.u64)",
        "barrier.cluster.arrive{.release|.relaxed}{.aligned}",
        "barrier.cluster.wait{.acquire}{.aligned}",
    ];
    refuse(out, reason, (7, 8, 90), &texts);
    refuse(
        out,
        "dependent launches do not run on this device",
        (7, 8, 90),
        &["griddepcontrol(.launch_dependents|.wait)"],
    );
}

fn bulk_copies(out: &mut Vec<Form>) {
    let reason = "bulk asynchronous copies do not run on this device";
    let since = (8, 0, 90);
    let complete = ".mbarrier::complete_tx::bytes";
    let reduce = "(.and|.or|.xor|.add|.inc|.dec|.min|.max)";
    let dims = "(.1d|.2d|.3d|.4d|.5d)";
    let mode = "{.tile|.tile::gather4|.tile::scatter4|.im2col|.im2col::w|.im2col::w::128|.im2col_no_offs}";
    let hint = "{.L2::cache_hint}";
    let many = "{.multicast::cluster}";
    let mut texts = vec![
        "cp.async.bulk.commit_group".to_owned(),
        "cp.async.bulk.wait_group{.read}".to_owned(),
        format!("cp.async.bulk(.shared::cluster|.shared::cta).global{complete}{many}{hint}"),
        format!("cp.async.bulk.shared::cluster.shared::cta{complete}"),
        format!("cp.async.bulk.global.shared::cta.bulk_group{hint}{{.cp_mask}}"),
        format!("cp.async.bulk.prefetch.L2.global{hint}"),
        format!("cp.async.bulk.prefetch.tensor{dims}.L2.global{mode}{hint}"),
        format!(
            "cp.async.bulk.tensor{dims}(.shared::cluster|.shared::cta).global{mode}{complete}{many}\
             {{.cta_group::1|.cta_group::2}}{hint}"
        ),
        format!("cp.async.bulk.tensor{dims}.global.shared::cta{mode}.bulk_group{hint}"),
        format!("cp.reduce.async.bulk.tensor{dims}.global.shared::cta{reduce}{mode}.bulk_group{hint}"),
    ];
    for ty in ["f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"] {
        texts.push(format!("cp.reduce.async.bulk.global.shared::cta.bulk_group{hint}{reduce}{{.noftz}}.{ty}"));
    }
    for ty in ["s32", "u32", "s64", "u64"] {
        texts.push(format!("cp.reduce.async.bulk.shared::cluster.shared::cta{complete}{reduce}.{ty}"));
    }
    for ty in ["b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"] {
        texts.push(format!("st.async{{.weak}}{{.shared::cluster}}{complete}{{.v2|.v4}}.{ty}"));
    }
    for ty in ["u32", "s32", "u64", "s64", "b32", "b64"] {
        texts.push(format!("red.async{{.relaxed}}{{.cluster}}{{.shared::cluster}}{complete}{reduce}.{ty}"));
    }
    refuse(out, reason, since, &texts.iter().map(String::as_str).collect::<Vec<_>>());
}

fn tensor_maps(out: &mut Vec<Form>) {
    let reason = "tensor maps do not run on this device";
    refuse(out, reason, (8, 0, 90), &["prefetch{.param|.const}.tensormap"]);
    let fence = "tensormap.cp_fenceproxy.global(.shared::cta|.shared).tensormap::generic.release\
                 (.cta|.cluster|.gpu|.sys).sync.aligned";
    refuse(out, reason, (8, 3, 90), &[fence]);
    let order = "fence.proxy.tensormap::generic(.acquire|.release)(.cta|.cluster|.gpu|.sys)";
    refuse(out, reason, (8, 3, 90), &[order]);
    // It orders what the generic proxy did before what the asynchronous one does: here no instruction uses the latter.
    let proxy = "fence.proxy.async{.global|.shared|.shared::cta|.shared::cluster}";
    out.push(row(proxy, "", Build::Nothing).since(8, 0, 90));
    let fields = "(.global_address|.rank|.box_dim|.global_dim|.global_stride|.element_stride|.elemtype\
                  |.interleave_layout|.swizzle_mode|.swizzle_atomicity|.fill_mode)";
    for ty in ["b32", "b64"] {
        let text = format!("tensormap.replace.tile{fields}{{.global|.shared::cta|.shared}}.b1024.{ty}");
        out.push(row(kept(text), "...", Build::Refused(reason)).since(8, 3, 90).specific());
    }
}

fn warpgroups(out: &mut Vec<Form>) {
    let reason = "warpgroup matrix operations do not run on this device";
    let mut texts: Vec<String> =
        ["fence", "commit_group", "wait_group"].map(|action| format!("wgmma.{action}.sync.aligned")).to_vec();
    // (k of a dense operation, result and source types)
    let kinds = [
        (16, "(.f32|.f16).f16.f16"),
        (16, ".f32.bf16.bf16"),
        (8, ".f32.tf32.tf32"),
        (32, "(.f32|.f16).e4m3.e4m3"),
        (32, "(.f32|.f16).e4m3.e5m2"),
        (32, "(.f32|.f16).e5m2.e4m3"),
        (32, "(.f32|.f16).e5m2.e5m2"),
        (32, "{.satfinite}.s32.s8.s8"),
        (32, "{.satfinite}.s32.s8.u8"),
        (32, "{.satfinite}.s32.u8.s8"),
        (32, "{.satfinite}.s32.u8.u8"),
    ];
    for (k, types) in kinds {
        for (sparse, factor) in [("", 1), (".sp", 2)] {
            let shapes: Vec<String> = (1..=32).map(|n| format!(".m64n{}k{}", 8 * n, k * factor)).collect();
            let shapes = shapes.join("|");
            texts.push(format!("wgmma.mma_async{sparse}.sync.aligned({shapes}){types}"));
        }
    }
    let shapes = (1..=32).map(|n| format!(".m64n{}k256", 8 * n)).collect::<Vec<_>>().join("|");
    texts.push(format!("wgmma.mma_async.sync.aligned({shapes}).s32(.b1)(.and).popc"));
    for text in texts {
        out.push(row(kept(text), "...", Build::Refused(reason)).since(8, 0, 90).specific());
    }
    for way in ["inc", "dec"] {
        let text = kept(format!("setmaxnreg.{way}.sync.aligned.u32"));
        out.push(row(text, "...", Build::Refused(reason)).since(8, 0, 90).specific());
    }
}

fn matrices(out: &mut Vec<Form>) {
    let store = "stmatrix.sync.aligned.m8n8(.x1|.x2|.x4){.trans}{.shared|.shared::cta}.b16";
    refuse(out, "stmatrix does not run on this device", (7, 8, 90), &[store]);
    let reason = "4-bit, single-bit, sparse and larger double matrix operations do not run on this device";
    let mut texts = Vec::new();
    for (a, b) in [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")] {
        let shapes = "(.m16n8k32|.m16n8k64)";
        texts
            .push(format!("mma(.sp|.sp::ordered_metadata).sync.aligned{shapes}.row.col{{.satfinite}}.s32.{a}.{b}.s32"));
    }
    let short = "(.s4|.u4)(.s4|.u4)";
    let short_shapes = "(.m8n8k32|.m16n8k32|.m16n8k64)";
    let alike = "(.m8n8k32|.m16n8k32|.m16n8k64)";
    for ty in ["s4", "u4"] {
        // Both operands alike: one word given twice.
        texts.push(format!("mma.sync.aligned{alike}.row.col{{.satfinite}}.s32(.{ty})(.{ty}).s32"));
    }
    texts.push(format!("mma.sync.aligned{short_shapes}.row.col{{.satfinite}}.s32(.s4)(.u4).s32"));
    texts.push(format!(
        "mma(.sp|.sp::ordered_metadata).sync.aligned(.m16n8k64|.m16n8k128).row.col{{.satfinite}}.s32{short}.s32"
    ));
    texts
        .push("mma.sync.aligned(.m8n8k128|.m16n8k128|.m16n8k256).row.col.s32(.b1)(.b1).s32(.xor|.and).popc".to_owned());
    texts.push("mma.sync.aligned(.m16n8k4|.m16n8k8|.m16n8k16).row.col{.rn|.rz|.rm|.rp}.f64.f64.f64.f64".to_owned());
    texts.push("mma.sync.aligned.m8n8k4.row.col(.rz|.rm|.rp).f64.f64.f64.f64".to_owned());
    texts.push("mma.sync.aligned.m8n8k4(.row|.col)(.row|.col)(.f16|.f32).f16.f16(.f16|.f32)".to_owned());
    let sparse = "mma(.sp|.sp::ordered_metadata).sync.aligned";
    texts.push(format!("{sparse}(.m16n8k16|.m16n8k32).row.col(.f16|.f32).f16.f16(.f16|.f32)"));
    texts.push(format!("{sparse}(.m16n8k16|.m16n8k32).row.col.f32.bf16.bf16.f32"));
    texts.push(format!("{sparse}(.m16n8k8|.m16n8k16).row.col.f32.tf32.tf32.f32"));
    refuse(out, reason, (7, 1, 75), &texts.iter().map(String::as_str).collect::<Vec<_>>());

    let reason = "wmma does not run on this device: use mma.sync";
    let shapes = "(.m16n16k16|.m8n32k16|.m32n8k16|.m16n16k8|.m8n8k4|.m8n8k32|.m8n8k128)";
    let layouts = "(.row|.col)";
    let space = "{.global|.shared|.shared::cta}";
    let mut texts = Vec::new();
    for ty in ["f16", "bf16", "tf32", "s8", "u8", "f64", "f32", "s32"] {
        texts.push(format!("wmma.load(.a|.b|.c).sync.aligned{layouts}{shapes}{space}.{ty}"));
    }
    texts.push(format!("wmma.load(.a|.b|.c).sync.aligned{layouts}{shapes}{space}(.s4|.u4|.b1)"));
    for ty in ["f16", "f32", "s32", "f64"] {
        texts.push(format!("wmma.store.d.sync.aligned{layouts}{shapes}{space}.{ty}"));
    }
    let operation = format!("wmma.mma.sync.aligned(.row|.col)(.row|.col){shapes}{{.satfinite}}");
    for types in [
        "(.f16|.f32)(.f16|.f32)",
        ".f32.bf16.bf16.f32",
        ".f32.tf32.tf32.f32",
        ".s32.s8.s8.s32",
        ".s32.u8.u8.s32",
        ".s32(.s4)(.s4).s32",
        ".s32(.u4)(.u4).s32",
        ".f64.f64.f64.f64",
    ] {
        texts.push(format!("{operation}{types}"));
    }
    texts.push(format!("wmma.mma(.xor|.and).popc.sync.aligned.row.col{shapes}.s32(.b1)(.b1).s32"));
    refuse(out, reason, (6, 0, 70), &texts.iter().map(String::as_str).collect::<Vec<_>>());
}

fn memory(out: &mut Vec<Form>) {
    let order = "{.relaxed|.acquire|.release|.acq_rel}{.cta|.cluster|.gpu|.sys}";
    let wide = "128-bit atomics do not run on this device";
    let texts = [
        format!("atom{order}{{.global|.shared|.shared::cta|.shared::cluster}}(.exch|.cas){{.L2::cache_hint}}.b128"),
        "mov.b128".to_owned(),
    ];
    refuse(out, wide, (8, 3, 70), &texts.each_ref().map(String::as_str));
    let vectors = "vector atomics do not run on this device";
    for (counts, ty) in [
        ("(.v2|.v4)", "f32"),
        ("(.v2|.v4|.v8)", "f16"),
        ("(.v2|.v4|.v8)", "bf16"),
        ("(.v2|.v4)", "f16x2"),
        ("(.v2|.v4)", "bf16x2"),
    ] {
        let operation = "(.add|.min|.max){.noftz}{.L2::cache_hint}";
        let texts = [
            format!("atom{order}.global{operation}{counts}.{ty}"),
            format!("red{order}.global{operation}{counts}.{ty}"),
        ];
        refuse(out, vectors, (8, 1, 90), &texts.each_ref().map(String::as_str));
    }
    let multi = "multicast memory does not run on this device";
    let operation = "(.add|.min|.max|.and|.or|.xor){.acc::f32}{.v2|.v4|.v8}";
    let mut texts = Vec::new();
    for ty in ["b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"] {
        texts.push(format!(
            "multimem.ld_reduce{{.weak|.relaxed|.acquire}}{{.cta|.cluster|.gpu|.sys}}{{.global}}{operation}.{ty}"
        ));
        texts.push(format!("multimem.red{{.relaxed|.release}}{{.cta|.cluster|.gpu|.sys}}{{.global}}{operation}.{ty}"));
        texts.push(format!(
            "multimem.st{{.weak|.relaxed|.release}}{{.cta|.cluster|.gpu|.sys}}{{.global}}{{.v2|.v4|.v8}}.{ty}"
        ));
    }
    refuse(out, multi, (8, 1, 90), &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let stack = "stack allocation does not run on this device";
    refuse(out, stack, (7, 3, 52), &["alloca(.u32|.u64)", "stacksave(.u32|.u64)", "stackrestore(.u32|.u64)"]);
}

fn textures(out: &mut Vec<Form>) {
    let reason = "textures and surfaces do not run on this device";
    let mut texts = Vec::new();
    let shapes = "(.1d|.2d|.3d|.a1d|.a2d|.cube|.acube|.2dms|.a2dms)";
    for result in ["u32", "s32", "f16", "f32", "f16x2"] {
        for coordinate in ["s32", "f32"] {
            texts.push(format!("tex{{.level|.grad|.base}}{shapes}{{.v4|.v2}}.{result}.{coordinate}"));
        }
        texts.push(format!("tld4(.r|.g|.b|.a){shapes}.v4.{result}.f32"));
    }
    texts.push("txq{.level}(.width|.height|.depth|.channel_data_type|.channel_order|.normalized_coords|.force_unnormalized_coords|.filter_mode|.addr_mode_0|.addr_mode_1|.addr_mode_2|.array_size|.num_mipmap_levels|.num_samples).b32".to_owned());
    texts
        .push("suq(.width|.height|.depth|.channel_data_type|.channel_order|.array_size|.memory_layout).b32".to_owned());
    for ty in ["b8", "b16", "b32", "b64"] {
        texts.push(format!("suld.b{shapes}{{.ca|.cg|.cs|.cv}}{{.v2|.v4}}.{ty}{{.trap|.clamp|.zero}}"));
        texts.push(format!("sust(.b|.p){shapes}{{.wb|.cg|.cs|.wt}}{{.v2|.v4}}.{ty}{{.trap|.clamp|.zero}}"));
    }
    for ty in ["u32", "s32", "b32", "u64", "s64", "b64"] {
        texts.push(format!("sured(.b|.p)(.add|.min|.max|.and|.or){shapes}.{ty}{{.trap|.clamp|.zero}}"));
    }
    texts.push("istypep(.texref|.samplerref|.surfref)".to_owned());
    refuse(out, reason, (2, 0, 20), &texts.iter().map(String::as_str).collect::<Vec<_>>());
}
