//! Control flow, calls, addresses of the state spaces, and hints.

use crate::case::{Case, Expectation, module, program};
use crate::inputs::Random;

/// Threads of a launch: two warps.
const THREADS: usize = 64;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    branches(&mut all);
    calls(&mut all);
    ends(&mut all);
    addresses(&mut all);
    parameter_addresses(&mut all);
    hints(&mut all);
    all
}

/// A kernel: `%t` is the thread, `%v` and `%wide` the low 32 bits and all 64 of its 8 bytes of input; `%out` its 8 bytes
/// of output.
fn kernel(form: &str, before: &str, instructions: &str) -> String {
    let body = format!(
        "    .reg .pred %p, %q;
    .reg .b16 %h;
    .reg .b32 %t, %v, %w, %i, %n;
    .reg .b64 %in, %out, %wide, %place, %policy;
    .local .align 8 .b8 own[16];

    mov.u32 %t, %tid.x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %t, 8, %in;
    mad.wide.u32 %out, %t, 8, %out;
    ld.global.b64 %wide, [%in];
    cvt.u32.u64 %v, %wide;
{instructions}    ret;
"
    );
    module(form, before, ".param .u64 input, .param .u64 output", &body)
}

/// Inputs of the threads.
fn values(form: &str) -> Vec<u64> {
    let mut random = Random::of(form);
    (0..THREADS).map(|_| random.bits()).collect()
}

/// A case: each thread stores what `expected` gives for its number and its input.
fn case(form: &str, before: &str, instructions: &str, expected: impl Fn(u32, u64) -> u64) -> Case {
    let values = values(form);
    let input = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let expected = (0..).zip(&values).flat_map(|(t, &value)| expected(t, value).to_le_bytes()).collect();
    let ptx = kernel(form, before, instructions);
    program(form, &ptx, (1, THREADS as u32), vec![input, vec![0; 8 * THREADS]], vec![(1, expected)])
}

fn branches(all: &mut Vec<Case>) {
    // As many turns as the thread says, and then one of two ways.
    let loops = "    and.b32 %n, %v, 31;
    mov.u32 %i, 0;
    mov.u32 %w, 0;
$again:
    setp.ge.u32 %p, %i, %n;
    @%p bra $after;
    add.u32 %w, %w, %i;
    add.u32 %i, %i, 1;
    bra $again;
$after:
    setp.lt.u32 %q, %n, 16;
    @!%q bra $other;
    add.u32 %w, %w, 1000;
    bra $end;
$other:
    add.u32 %w, %w, 2000;
$end:
    st.global.u32 [%out], %w;
";
    let result = |n: u64| n * n.saturating_sub(1) / 2 + if n < 16 { 1000 } else { 2000 };
    all.push(case("bra", "", loops, move |_, value| result(value & 31)));
    let uniform = loops.replace("and.b32 %n, %v, 31", "mov.u32 %n, 20").replace("bra $", "bra.uni $");
    all.push(case("bra.uni", "", &uniform, move |_, _| result(20)));
    for (form, index, chosen) in [("brx.idx", "and.b32 %i, %v, 3", false), ("brx.idx.uni", "mov.u32 %i, 2", true)] {
        let mut text = format!("    {index};\n$targets: .branchtargets $a, $b, $c, $d;\n    {form} %i, $targets;\n");
        for (label, value) in [("$a", 11), ("$b", 22), ("$c", 33), ("$d", 44)] {
            text += &format!("{label}:\n    mov.u32 %w, {value};\n    bra $store;\n");
        }
        text += "$store:\n    st.global.u32 [%out], %w;\n";
        all.push(case(form, "", &text, move |_, value| 11 * (1 + if chosen { 2 } else { value & 3 })));
    }
}

/// A function of one parameter and its result, of a type.
fn function(bits: u32, body: &str) -> String {
    format!(
        ".func (.param .b{bits} result) f(.param .b{bits} given)
{{
    .reg .pred %p;
    .reg .b{bits} %a;

    ld.param.b{bits} %a, [given];
{body}    st.param.b{bits} [result], %a;
    ret;
}}

"
    )
}

fn calls(all: &mut Vec<Case>) {
    for (bits, register) in [(32, "%v"), (64, "%wide")] {
        let call = |form: &str| {
            format!(
                "    {{
        .param .b{bits} argument;
        .param .b{bits} returned;
        st.param.b{bits} [argument], {register};
        {form} (returned), f, (argument);
        ld.param.b{bits} {register}, [returned];
    }}
    st.global.b{bits} [%out], {register};
"
            )
        };
        let add = format!("    add.u{bits} %a, %a, 77;\n");
        let expected = move |_: u32, value: u64| value.wrapping_add(77) & (u64::MAX >> (64 - bits));
        for form in ["call", "call.uni"] {
            let name = format!("b{bits}");
            all.push(case(form, &function(bits, &add), &call(form), expected).named(&name));
        }
        let stored = format!("st.param.b{bits}");
        all.push(case(&stored, &function(bits, &add), &call("call.uni"), expected));
        // Some threads return early, with what they were given.
        for form in ["ret", "ret.uni"] {
            let guard =
                if form == "ret" { format!("    setp.lt.u{bits} %p, %a, 0x40000000;\n") } else { String::new() };
            let early = format!(
                "{guard}    st.param.b{bits} [result], %a;\n    {}{form};\n    add.u{bits} %a, %a, 5;\n",
                if form == "ret" { "@%p " } else { "" }
            );
            let mask = u64::MAX >> (64 - bits);
            let expected = move |_: u32, value: u64| {
                let value = value & mask;
                let stays = form == "ret.uni" || value < 0x4000_0000;
                if stays { value } else { value.wrapping_add(5) & mask }
            };
            all.push(case(form, &function(bits, &early), &call("call"), expected).named(&format!("b{bits}")));
        }
    }
}

/// How threads end.
fn ends(all: &mut Vec<Case>) {
    let some = "    setp.lt.u32 %p, %v, 0x80000000;
    st.global.u32 [%out], %t;
    @%p exit;
    st.global.u32 [%out], %v;
";
    let last = |t: u32, value: u64| {
        let v = value & 0xffff_ffff;
        if v < 0x8000_0000 { u64::from(t) } else { v }
    };
    all.push(case("exit", "", some, last));
    for form in ["trap", "brkpt"] {
        let text = format!("    setp.eq.u32 %p, %t, 40;\n    st.global.u32 [%out], %t;\n    @%p {form};\n");
        let stopped = case(form, "", &text, |t, _| u64::from(t));
        all.push(Case { expected: Expectation::Stops, ..stopped });
        let passed = format!("    setp.eq.u32 %p, %t, 4000;\n    st.global.u32 [%out], %t;\n    @%p {form};\n");
        all.push(case(form, "", &passed, |t, _| u64::from(t)).named("guarded-off"));
    }
}

/// The spaces whose addresses can be converted: a variable of each with the first bytes of the thread's input in it.
const SPACES: [(&str, &str, &str); 4] = [
    ("global", ".global .align 8 .b8 there[16];\n", "there"),
    ("shared", ".shared .align 8 .b8 block[16];\n", "block"),
    ("local", "", "own"),
    ("const", ".const .align 8 .b64 table[2] = {0x1122334455667788, 5};\n", "table"),
];

fn addresses(all: &mut Vec<Case>) {
    for (space, before, name) in SPACES {
        let store = if space == "const" {
            String::new()
        } else {
            format!("    st.{space}.b64 [%place], 0x1122334455667788;\n")
        };
        let start = format!("    mov.u64 %place, {name};\n{}", store.replace(", 0x1122334455667788", ", %policy"));
        let start = format!("    mov.b64 %policy, 0x1122334455667788;\n{start}");
        // The generic address reads what was stored by the space's own, and leads back to it.
        let generic = format!(
            "{start}    cvta.{space}.u64 %wide, %place;\n    ld.b64 %policy, [%wide];\n    st.global.b64 [%out], %policy;\n"
        );
        all.push(case(&format!("cvta.{space}.u64"), before, &generic, |_, _| 0x1122_3344_5566_7788));
        let back = format!(
            "{start}    cvta.{space}.u64 %wide, %place;\n    cvta.to.{space}.u64 %wide, %wide;\n    ld.{space}.b64 %policy, [%wide];\n    setp.eq.u64 %p, %wide, %place;\n    selp.b64 %policy, %policy, 0, %p;\n    st.global.b64 [%out], %policy;\n"
        );
        all.push(case(&format!("cvta.to.{space}.u64"), before, &back, |_, _| 0x1122_3344_5566_7788));
        // Of the generic addresses of all spaces, its own alone.
        let declared: String = SPACES.iter().map(|(_, before, _)| *before).collect();
        let mut text = "    mov.u32 %w, 0;\n".to_owned();
        for (bit, (other, _, name)) in SPACES.iter().enumerate() {
            text += &format!(
                "    mov.u64 %place, {name};\n    cvta.{other}.u64 %wide, %place;\n    isspacep.{space} %p, %wide;\n    selp.u32 %i, {}, 0, %p;\n    or.b32 %w, %w, %i;\n",
                1 << bit
            );
        }
        text += "    st.global.u32 [%out], %w;\n";
        let own = SPACES.iter().position(|(other, ..)| *other == space).expect("a space");
        let form = format!("isspacep.{space}");
        all.push(case(&form, &declared, &text, move |_, _| 1 << own));
    }
}

/// The parameters of a kernel: the generic address of one reads what it holds, and is of that space alone.
fn parameter_addresses(all: &mut Vec<Case>) {
    let start = "    mov.b64 %place, input;\n    cvta.param.u64 %wide, %place;\n    ld.param.u64 %in, [input];\n";
    let read = format!(
        "{start}    ld.b64 %policy, [%wide];
    setp.eq.u64 %p, %policy, %in;
    cvta.to.param.u64 %wide, %wide;
    setp.eq.and.u64 %p, %wide, %place, %p;
    selp.u32 %w, 1, 0, %p;
    st.global.u32 [%out], %w;
"
    );
    for form in ["cvta.param.u64", "cvta.to.param.u64"] {
        all.push(case(form, "", &read, |_, _| 1));
    }
}

/// What has no effect on values.
fn hints(all: &mut Vec<Case>) {
    let stored = "    st.global.b64 [%out], %wide;\n";
    let mut hint = |form: &str, operands: &str| {
        all.push(case(form, "", &format!("    {form} {operands};\n{stored}"), |_, value| value));
    };
    hint("pmevent", "3");
    hint("pmevent.mask", "0xff");
    for form in
        ["prefetch.L1", "prefetch.L2", "prefetch.global.L1", "prefetch.global.L2", "prefetch.global.L2::evict_last"]
    {
        hint(form, "[%in]");
    }
    hint("prefetch.global.L2::evict_normal", "[%in]");
    hint("prefetchu.L1", "[%in]");
    hint("applypriority.global.L2::evict_normal", "[%in], 128");
    let policies = [
        ("createpolicy.fractional.L2::evict_last.b64", "%policy"),
        ("createpolicy.fractional.L2::evict_first.b64", "%policy, 0.5"),
        ("createpolicy.fractional.L2::evict_normal.b64", "%policy, 1.0"),
        ("createpolicy.fractional.L2::evict_unchanged.b64", "%policy, 0.25"),
        ("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64", "%policy, 0.5"),
        ("createpolicy.fractional.L2::evict_last.L2::evict_first.b64", "%policy, 0.5"),
    ];
    for (form, operands) in policies {
        let text = format!("    {form} {operands};\n    ld.global.L2::cache_hint.b64 %wide, [%in], %policy;\n{stored}");
        all.push(case(form, "", &text, |_, value| value));
    }
    let form = "createpolicy.cvt.L2.b64";
    all.push(case(
        form,
        "",
        &format!("    mov.b64 %wide, 1;\n    {form} %policy, %wide;\n    st.global.b64 [%out], %wide;\n"),
        |_, _| 1,
    ));
}
