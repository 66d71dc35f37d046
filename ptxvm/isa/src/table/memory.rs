//! Rows of memory: loads, stores, atomics, matrix loads, asynchronous copies, address conversion, cache hints.
//!
//! One row stands for one type, so most texts are put together here; they live as long as the table, which is forever.

use super::{Build, Flow, Form, lanes, row};
use crate::registers::LANES;

/// Types that `ld` and `st` move.
const MOVED: [&str; 14] =
    ["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"];

/// Hints about the caches that loads and stores take.
const EVICTION: &str = "{.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate}\
    {.L2::evict_normal|.L2::evict_first|.L2::evict_last}{.L2::cache_hint}";
const PREFETCH: &str = "{.L2::64B|.L2::128B|.L2::256B}";
const SCOPE: &str = "{.cta|.cluster|.gpu|.sys}";

/// A text that the table keeps.
fn kept(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

pub(super) fn rows(out: &mut Vec<Form>) {
    loads_and_stores(out);
    atomics(out);
    matrices(out);
    copies(out);
    addresses(out);
    hints(out);
}

fn loads_and_stores(out: &mut Vec<Form>) {
    for ty in MOVED {
        let load = format!(
            "ld{{.weak|.volatile|.relaxed|.acquire}}{{.mmio}}{SCOPE}\
             {{.global|.shared|.shared::cta|.shared::cluster|.local|.const|.param|.param::entry|.param::func}}\
             {{.ca|.cg|.cs|.lu|.cv}}{{.nc}}{EVICTION}{PREFETCH}{{.v2|.v4|.v8}}{{.unified}}.{ty}"
        );
        out.push(row(kept(load), &format!("d:{ty}*v [a] policy:b64?"), Build::Load).flow(Flow::Bytes));
        let store = format!(
            "st{{.weak|.volatile|.relaxed|.release}}{{.mmio}}{SCOPE}\
             {{.global|.shared|.shared::cta|.shared::cluster|.local|.param|.param::func}}\
             {{.wb|.cg|.cs|.wt}}{EVICTION}{{.v2|.v4|.v8}}.{ty}"
        );
        out.push(row(kept(store), &format!("[a] b:{ty}*v policy:b64?"), Build::Store).flow(Flow::Bytes));
        let uniform = format!("ldu{{.global}}{{.v2|.v4}}.{ty}");
        out.push(row(kept(uniform), &format!("d:{ty}*v [a]"), Build::Load).since(2, 0, 20).flow(Flow::Bytes));
    }
    let reason = "128-bit loads and stores do not run";
    out.push(
        row("ld{.weak|.volatile|.relaxed|.acquire}{.cta|.gpu|.sys|.cluster}{.global}{.nc}.b128", "...", {
            Build::Refused(reason)
        })
        .since(8, 3, 70),
    );
    out.push(
        row("st{.weak|.volatile|.relaxed|.release}{.cta|.gpu|.sys|.cluster}{.global}.b128", "...", {
            Build::Refused(reason)
        })
        .since(8, 3, 70),
    );
}

/// What an atomic does, for which types, and the first version and target of each.
const ATOMICS: &[(&str, &str, (u8, u8, u16))] = &[
    ("and", "b32", (1, 1, 11)),
    ("and", "b64", (3, 1, 32)),
    ("or", "b32", (1, 1, 11)),
    ("or", "b64", (3, 1, 32)),
    ("xor", "b32", (1, 1, 11)),
    ("xor", "b64", (3, 1, 32)),
    ("exch", "b32", (1, 1, 11)),
    ("exch", "b64", (1, 2, 12)),
    ("cas", "b16", (6, 3, 70)),
    ("cas", "b32", (1, 1, 11)),
    ("cas", "b64", (1, 2, 12)),
    ("add", "u32", (1, 1, 11)),
    ("add", "s32", (1, 1, 11)),
    ("add", "u64", (1, 2, 12)),
    ("add", "f32", (2, 0, 20)),
    ("add", "f64", (5, 0, 60)),
    ("add.noftz", "f16", (6, 3, 70)),
    ("add.noftz", "f16x2", (6, 2, 60)),
    ("add.noftz", "bf16", (7, 8, 90)),
    ("add.noftz", "bf16x2", (7, 8, 90)),
    ("inc", "u32", (1, 1, 11)),
    ("dec", "u32", (1, 1, 11)),
    ("min", "u32", (1, 1, 11)),
    ("min", "s32", (1, 1, 11)),
    ("min", "u64", (3, 1, 32)),
    ("min", "s64", (3, 1, 32)),
    ("max", "u32", (1, 1, 11)),
    ("max", "s32", (1, 1, 11)),
    ("max", "u64", (3, 1, 32)),
    ("max", "s64", (3, 1, 32)),
];

fn atomics(out: &mut Vec<Form>) {
    let space = "{.global|.shared|.shared::cta|.shared::cluster}";
    for &(op, ty, (major, minor, sm)) in ATOMICS {
        let rest = format!("{SCOPE}{space}.{op}{{.L2::cache_hint}}.{ty}");
        let operands = if op == "cas" { format!("d:{ty} [a] b:{ty} c:{ty}") } else { format!("d:{ty} [a] b:{ty}") };
        let atom = kept(format!("atom{{.relaxed|.acquire|.release|.acq_rel}}{rest}"));
        out.push(row(atom, &format!("{operands} policy:b64?"), Build::Atomic).since(major, minor, sm));
        if op != "cas" && op != "exch" {
            let red = kept(format!("red{{.relaxed|.release}}{rest}"));
            out.push(row(red, &format!("[a] b:{ty} policy:b64?"), Build::Reduce).since(major, minor, sm));
        }
    }
}

fn matrices(out: &mut Vec<Form>) {
    for count in [1, 2, 4] {
        let text = kept(format!("ldmatrix.sync.aligned.m8n8.x{count}{{.trans}}{{.shared|.shared::cta}}.b16"));
        out.push(row(text, &format!("d:b32*{count} [p]"), Build::LoadMatrix).since(6, 5, 75).flow(Flow::Bytes));
    }
}

fn copies(out: &mut Vec<Form>) {
    for cache in ["ca", "cg"] {
        let text = kept(format!("cp.async.{cache}(.shared|.shared::cta).global{{.L2::cache_hint}}{PREFETCH}"));
        out.push(row(text, "[dst] [src] ...", Build::CopyAsync).since(7, 0, 80));
    }
    out.extend([
        row("cp.async.commit_group", "", Build::CommitGroup).since(7, 0, 80),
        row("cp.async.wait_group", "#n", Build::WaitGroup).since(7, 0, 80),
        row("cp.async.wait_all", "", Build::WaitAll).since(7, 0, 80),
    ]);
}

fn addresses(out: &mut Vec<Form>) {
    let spaces = "(.const|.global|.local|.param|.param::entry|.shared|.shared::cta|.shared::cluster)";
    for direction in ["", ".to"] {
        let text = kept(format!("cvta{direction}{spaces}.u64"));
        out.push(row(text, "d:b64 a:b64", Build::ConvertAddress).since(2, 0, 20));
    }
    out.push(row(kept(format!("isspacep{spaces}")), "d:pred a:b64", Build::IsSpace).since(2, 0, 20));
}

fn hints(out: &mut Vec<Form>) {
    // A cache policy is opaque: programs only hand it on.
    let policy = |text, operands| {
        lanes(text, operands, |_| |registers, operands, mask, _| registers.set_wide(operands[0], mask, &[0; LANES]))
            .since(7, 4, 80)
    };
    let primary = "(.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged)";
    out.extend([
        row("prefetch{.global|.local}(.L1|.L2)", "[a]", Build::Nothing).since(2, 0, 20),
        row("prefetch.global(.L2::evict_last|.L2::evict_normal)", "[a]", Build::Nothing).since(7, 4, 80),
        row("prefetchu.L1", "[a]", Build::Nothing).since(2, 0, 20),
        row("applypriority{.global}.L2::evict_normal", "[a] #size", Build::Nothing).since(7, 4, 80),
        row("discard{.global}.L2", "[a] #size", Build::Refused("discarded memory is not modelled")).since(7, 4, 80),
    ]);
    for secondary in ["", "(.L2::evict_unchanged|.L2::evict_first)"] {
        let text = kept(format!("createpolicy.fractional{primary}{secondary}.b64"));
        out.push(policy(text, "d:b64 fraction:f32?"));
    }
    out.push(policy("createpolicy.cvt.L2.b64", "d:b64 a:b64"));
    out.push(
        row(
            kept(format!("createpolicy.range{{.global}}{primary}{{.L2::evict_first|.L2::evict_unchanged}}.b64")),
            "d:b64 [a] primary:u32 total:u32",
            Build::Refused("cache policies over an address range do not run"),
        )
        .since(7, 4, 80),
    );
}
