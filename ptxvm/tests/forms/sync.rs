//! Barriers, fences and asynchronous copies: what one thread wrote, another reads.

use crate::case::{Case, module, program};
use crate::inputs::Random;

/// Threads of a launch: four warps.
const THREADS: usize = 128;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    exchanges(&mut all);
    producers(&mut all);
    reductions(&mut all);
    messages(&mut all);
    copies(&mut all);
    all
}

/// A kernel of one block: `%t` is the thread, `%v` its word of input, `%mine` the address of its word in `words`, a
/// shared array of as many, `%place` the array's, `%out` the thread's word of output.
fn block(form: &str, instructions: &str) -> String {
    let body = format!(
        "    .reg .pred %p, %q;
    .reg .b32 %t, %v, %w, %mine, %place, %other, %count, %flag, %number;
    .reg .b64 %in, %out, %first;

    mov.u32 %t, %tid.x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %first, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %t, 4, %first;
    mad.wide.u32 %out, %t, 4, %out;
    ld.global.u32 %v, [%in];
    mov.u32 %place, words;
    mad.lo.u32 %mine, %t, 4, %place;
{instructions}    ret;
"
    );
    let shared = format!(".shared .align 16 .b32 words[{THREADS}];\n");
    module(form, &shared, ".param .u64 input, .param .u64 output", &body)
}

/// A case of one block: random words in, and what each thread must store.
fn case(form: &str, instructions: &str, expected: impl Fn(&[u32], usize) -> u32) -> Case {
    let mut random = Random::of(form);
    let values: Vec<u32> = (0..THREADS).map(|_| random.bits() as u32).collect();
    let input = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let expected = (0..THREADS).flat_map(|thread| expected(&values, thread).to_le_bytes()).collect();
    let output = vec![0; 4 * THREADS];
    program(form, &block(form, instructions), (1, THREADS as u32), vec![input, output], vec![(1, expected)])
}

/// Stores, synchronises, and loads the word of the thread whose number differs by the bits of `with`.
fn exchange(synchronise: &str, with: usize) -> String {
    format!(
        "    st.shared.u32 [%mine], %v;
    {synchronise};
    xor.b32 %other, %t, {with};
    mad.lo.u32 %other, %other, 4, %place;
    ld.shared.u32 %w, [%other];
    st.global.u32 [%out], %w;
"
    )
}

fn exchanges(all: &mut Vec<Case>) {
    let last = THREADS - 1;
    for form in ["bar.sync", "barrier.sync", "barrier.sync.aligned", "bar.cta.sync", "barrier.cta.sync"] {
        all.push(case(form, &exchange(&format!("{form} 0"), last), move |values, t| values[last ^ t]));
        // Two barriers at once, by number, each for half of the block.
        let halves =
            exchange(&format!("shr.u32 %number, %t, 6;\n    add.u32 %number, %number, 3;\n    {form} %number, 64"), 33);
        all.push(case(form, &halves, |values, t| values[33 ^ t]).named("halves"));
    }
    let form = "bar.warp.sync";
    all.push(case(form, &exchange("bar.warp.sync 0xffffffff", 21), |values, t| values[21 ^ t]));
    // Half a warp on its own.
    let half = exchange("and.b32 %w, %t, 16;\n    shl.b32 %w, 0xffff, %w;\n    bar.warp.sync %w", 11);
    all.push(case(form, &half, |values, t| values[11 ^ t]).named("halves"));
}

/// The first two warps write and go on; the other two wait for them and read.
fn producers(all: &mut Vec<Case>) {
    for (form, sync) in [
        ("bar.arrive", "bar.sync"),
        ("barrier.arrive", "barrier.sync"),
        ("barrier.arrive.aligned", "barrier.sync.aligned"),
        ("bar.cta.arrive", "bar.cta.sync"),
    ] {
        let text = format!(
            "    setp.lt.u32 %p, %t, 64;
    @!%p bra $read;
    st.shared.u32 [%mine], %v;
    {form} 5, 128;
    st.global.u32 [%out], %v;
    bra $end;
$read:
    {sync} 5, 128;
    ld.shared.u32 %w, [%mine+-256];
    st.global.u32 [%out], %w;
$end:
"
        );
        all.push(case(form, &text, |values, t| values[t % 64]));
    }
}

fn reductions(all: &mut Vec<Case>) {
    let count = |values: &[u32], bit: u32| values.iter().filter(|&value| value >> bit & 1 == 1).count() as u32;
    let forms = ["bar.red.popc.u32", "barrier.red.popc.u32", "barrier.red.popc.aligned.u32", "bar.cta.red.popc.u32"];
    for form in forms {
        let text = format!(
            "    and.b32 %w, %v, 1;
    setp.eq.u32 %p, %w, 1;
    {form} %w, 0, %p;
    {form} %other, 1, {THREADS}, !%p;
    shl.b32 %other, %other, 16;
    or.b32 %w, %w, %other;
    st.global.u32 [%out], %w;
"
        );
        let threads = THREADS as u32;
        all.push(case(form, &text, move |values, _| count(values, 0) | (threads - count(values, 0)) << 16));
    }
    let predicates = ["bar.red", "barrier.red", "bar.cta.red"].map(|name| (name, ""));
    for (name, aligned) in predicates.into_iter().chain([("barrier.red", ".aligned")]) {
        for (op, all_of_them) in [("and", true), ("or", false)] {
            let form = format!("{name}.{op}{aligned}.pred");
            // Of nobody, of some, of everybody; then the opposite of some.
            let text = format!(
                "    setp.ge.u32 %p, %t, {THREADS};
    {form} %q, 0, %p;
    selp.u32 %w, 1, 0, %q;
    and.b32 %other, %v, 1;
    setp.eq.u32 %p, %other, 1;
    {form} %q, 0, %p;
    selp.u32 %other, 2, 0, %q;
    or.b32 %w, %w, %other;
    {form} %q, 0, !%p;
    selp.u32 %other, 4, 0, %q;
    or.b32 %w, %w, %other;
    setp.lt.u32 %p, %t, {THREADS};
    {form} %q, 0, {THREADS}, %p;
    selp.u32 %other, 8, 0, %q;
    or.b32 %w, %w, %other;
    st.global.u32 [%out], %w;
"
            );
            all.push(case(&form, &text, move |_, _| if all_of_them { 8 } else { 14 }));
        }
    }
}

/// The last warp writes a word and then a flag; the others wait for the flag and read the word.
fn messages(all: &mut Vec<Case>) {
    let mut forms: Vec<String> = ["cta", "gl", "sys"].map(|scope| format!("membar.{scope}")).to_vec();
    for order in ["", ".sc", ".acq_rel"] {
        forms.extend(["cta", "gpu", "sys", "cluster"].map(|scope| format!("fence{order}.{scope}")));
    }
    for form in &forms {
        all.push(message(form, form, form));
    }
    for scope in ["cta", "gpu", "sys", "cluster"] {
        let (acquire, release) = (format!("fence.acquire.{scope}"), format!("fence.release.{scope}"));
        all.push(message(&acquire, &release, &acquire));
        all.push(message(&release, &release, &acquire));
    }
    for form in ["fence.proxy.alias", "membar.proxy.alias", "fence.proxy.async", "fence.proxy.async.shared::cta"] {
        let fence = format!("membar.gl;\n    {form}");
        all.push(message(form, &fence, &fence));
    }
    let waiting = message("nanosleep.u32", "membar.gl", "membar.gl");
    all.push(Case { ptx: waiting.ptx.replace("$wait:\n", "$wait:\n    nanosleep.u32 %count;\n"), ..waiting });
}

fn message(form: &str, release: &str, acquire: &str) -> Case {
    let text = format!(
        "    mov.u32 %count, 20;
    setp.eq.u32 %p, %t, 0;
    @%p st.shared.u32 [words], 0;
    bar.sync 0;
    setp.lt.u32 %p, %t, 96;
    @%p bra $wait;
    setp.ne.u32 %p, %t, 127;
    @%p bra $done;
    st.shared.u32 [words+8], %v;
    {release};
    st.volatile.shared.u32 [words], 1;
    bra $done;
$wait:
    ld.volatile.shared.u32 %flag, [words];
    setp.eq.u32 %q, %flag, 0;
    @%q bra $wait;
    {acquire};
    ld.shared.u32 %v, [words+8];
$done:
    st.global.u32 [%out], %v;
"
    );
    let mut case = case(
        "st.volatile.shared.u32",
        &text
            .replace(
                "st.volatile.shared.u32 [words], 1",
                "mov.u32 %flag, 1;\n    st.volatile.shared.u32 [words], %flag",
            )
            .replace("st.shared.u32 [words], 0", "st.shared.u32 [words], %t"),
        |values, t| {
            if t < 96 { values[127] } else { values[t] }
        },
    );
    let (version, target) = crate::case::required(form);
    let header = case.ptx.find(".address_size").expect("a header");
    case.ptx.replace_range(..header, &format!(".version {version}\n.target {target}\n"));
    Case { form: form.to_owned(), ..case }
}

/// `cp.async`: every thread copies 16 bytes or fewer of its own from global to shared memory, and reads what another
/// copied.
fn copies(all: &mut Vec<Case>) {
    let sizes = |form: &str| if form.contains(".cg.") { vec![16] } else { vec![4, 8, 16] };
    let mut forms = Vec::new();
    for cache in ["ca", "cg"] {
        for hint in ["", ".L2::64B", ".L2::128B", ".L2::256B"] {
            forms.push(format!("cp.async.{cache}.shared.global{hint}"));
        }
    }
    for form in &forms {
        for bytes in sizes(form) {
            all.push(copy(form, form, bytes, None, "cp.async.wait_all"));
            // Fewer source bytes than the copy's: the rest is zero.
            for source in [0, 1, 3, bytes - 1] {
                all.push(copy(form, form, bytes, Some(source), "cp.async.wait_all"));
            }
        }
    }
    let plain = "cp.async.ca.shared.global";
    for form in ["cp.async.wait_all", "cp.async.commit_group", "cp.async.wait_group"] {
        let wait = if form == "cp.async.wait_all" { form } else { "cp.async.commit_group;\n    cp.async.wait_group 0" };
        all.push(copy(form, plain, 8, None, wait));
    }
    // A later group may stay pending; the earlier one is there.
    let wait = "cp.async.commit_group;\n    cp.async.ca.shared.global [spare], [%first], 4;\n    cp.async.commit_group;\n    cp.async.wait_group 1";
    all.push(copy("cp.async.wait_group", plain, 16, None, wait).named("one-pending"));
}

fn copy(form: &str, instruction: &str, bytes: usize, source: Option<usize>, wait: &str) -> Case {
    let mut random = Random::of(instruction);
    let data: Vec<u8> = (0..THREADS * bytes).map(|_| random.bits() as u8).collect();
    let size = source.map_or(String::new(), |size| format!(", {size}"));
    let mut body = format!(
        "    .reg .b32 %t, %v, %place, %mine;
    .reg .b64 %in, %out, %first;

    mov.u32 %t, %tid.x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %first, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %t, {bytes}, %first;
    mad.wide.u32 %out, %t, {bytes}, %out;
    mov.u32 %place, tile;
    mad.lo.u32 %mine, %t, {bytes}, %place;
    {instruction} [%mine], [%in], {bytes}{size};
    {wait};
    bar.sync 0;
    xor.b32 %mine, %t, {};
    mad.lo.u32 %mine, %mine, {bytes}, %place;
",
        THREADS - 1
    );
    for at in (0..bytes).step_by(4) {
        body += &format!("    ld.shared.u32 %v, [%mine+{at}];\n    st.global.u32 [%out+{at}], %v;\n");
    }
    body += "    ret;\n";
    let before = format!(".shared .align 16 .b8 tile[{}];\n.shared .align 16 .b8 spare[16];\n", data.len());
    let kept = source.unwrap_or(bytes);
    let one = |t: usize, at: usize| if at < kept { data[(THREADS - 1 - t) * bytes + at] } else { 0 };
    let expected = (0..THREADS).flat_map(|t| (0..bytes).map(move |at| (t, at))).map(|(t, at)| one(t, at)).collect();
    let written = if instruction.len() > form.len() { instruction } else { form };
    let ptx = module(written, &before, ".param .u64 input, .param .u64 output", &body);
    let output = vec![0; data.len()];
    let name = format!("{bytes}{}", source.map_or(String::new(), |source| format!("-of-{source}")));
    program(form, &ptx, (1, THREADS as u32), vec![data, output], vec![(1, expected)]).named(&name)
}
