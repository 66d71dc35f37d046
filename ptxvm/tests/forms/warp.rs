//! Exchanges within a warp, by the ISA's formulas: `shfl`, `vote`, `match`, `redux`, `activemask`, `ldmatrix`.

use crate::case::{Case, module, program};
use crate::inputs::Random;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    shuffles(&mut all);
    votes(&mut all);
    matches(&mut all);
    reductions(&mut all);
    matrices(&mut all);
    all.push(active());
    all.push(elected());
    all
}

/// A kernel of one warp: `%lane`, `%a` and `%wide` (32 and 64 bits of the lane's 8 bytes of input), `%p` (bit 0 of it),
/// and `%out`, the lane's place of `words` words.
fn warp(form: &str, before: &str, words: usize, instructions: &str) -> String {
    let body = format!(
        "    .reg .pred %p, %q;
    .reg .b32 %lane, %a, %bit, %d, %e, %mask, %r<8>;
    .reg .b64 %in, %out, %wide;

    mov.u32 %lane, %laneid;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %lane, 8, %in;
    mad.wide.u32 %out, %lane, {}, %out;
    ld.global.b64 %wide, [%in];
    cvt.u32.u64 %a, %wide;
    and.b32 %bit, %a, 1;
    setp.ne.u32 %p, %bit, 0;
{instructions}    ret;
",
        4 * words
    );
    module(form, before, ".param .u64 input, .param .u64 output", &body)
}

/// A case of one warp: the lanes' values, and the words that each lane must store.
fn case(form: &str, ptx: &str, values: &[u64], expected: &[Vec<u32>]) -> Case {
    let input = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let expected: Vec<u8> = expected.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let output = vec![0; expected.len()];
    program(form, ptx, (1, 32), vec![input, output], vec![(1, expected)])
}

/// Values of the lanes, few of them different.
fn values(seed: &str, different: u64) -> Vec<u64> {
    let mut random = Random::of(seed);
    let choices: Vec<u64> = (0..different).map(|_| random.bits()).collect();
    (0..32).map(|_| choices[random.below(choices.len())]).collect()
}

/// `d = f(lane, b, c)`: the source lane and whether it is in range, from the ISA's text.
fn shuffled(mode: &str, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (bval, cval, mask) = (b & 31, c & 31, c >> 8 & 31);
    let max = (lane & mask) | (cval & !mask);
    let min = lane & mask;
    let (source, inside) = match mode {
        "up" => (lane as i32 - bval as i32, lane as i32 - bval as i32 >= max as i32),
        "down" => ((lane + bval) as i32, lane + bval <= max),
        "bfly" => ((lane ^ bval) as i32, lane ^ bval <= max),
        _ => ((min | (bval & !mask)) as i32, min | (bval & !mask) <= max),
    };
    (if inside { source as u32 } else { lane }, inside)
}

fn shuffles(all: &mut Vec<Case>) {
    for mode in ["up", "down", "bfly", "idx"] {
        let form = format!("shfl.sync.{mode}.b32");
        // Offsets and clamps: the whole warp, segments of 16, 8 and 4, and a clamp inside.
        let clamps: &[u32] =
            if mode == "up" { &[0, 0x1000, 0x1800, 0x1c00] } else { &[31, 0x101f, 0x181f, 0x1c1f, 20] };
        let pairs: Vec<(u32, u32)> = clamps.iter().flat_map(|&c| [0, 1, 2, 3, 5, 8, 16, 31].map(|b| (b, c))).collect();
        let mut text = String::new();
        for (at, (b, c)) in pairs.iter().enumerate() {
            text += &format!("    {form} %d|%q, %a, {b}, {c}, 0xffffffff;\n    selp.u32 %e, 1, 0, %q;\n");
            text +=
                &format!("    st.global.u32 [%out+{}], %d;\n    st.global.u32 [%out+{}], %e;\n", 8 * at, 8 * at + 4);
        }
        let input = values(&form, 32);
        let expected: Vec<Vec<u32>> = (0..32)
            .map(|lane| {
                let one = |&(b, c): &(u32, u32)| {
                    let (source, inside) = shuffled(mode, lane, b, c);
                    [input[source as usize] as u32, u32::from(inside)]
                };
                pairs.iter().flat_map(one).collect()
            })
            .collect();
        all.push(case(&form, &warp(&form, "", 2 * pairs.len(), &text), &input, &expected));
    }
}

/// What a vote makes of the lanes' ballot.
type Vote = (&'static str, fn(u32) -> u32);

fn votes(all: &mut Vec<Case>) {
    let mixed = values("vote", 8);
    let inputs = [
        ("mixed", mixed),
        ("all", vec![1; 32]),
        ("none", vec![0; 32]),
        ("one", (0..32).map(|lane| u64::from(lane == 7)).collect()),
    ];
    let forms: [Vote; 5] = [
        ("vote.sync.all.pred", |ballot| u32::from(ballot == u32::MAX)),
        ("vote.sync.any.pred", |ballot| u32::from(ballot != 0)),
        ("vote.sync.uni.pred", |ballot| u32::from(ballot == 0 || ballot == u32::MAX)),
        ("vote.sync.ballot.b32", |ballot| ballot),
        ("vote.ballot.sync.b32", |ballot| ballot),
    ];
    for (form, result) in forms {
        for (name, input) in &inputs {
            let vote = |source: &str, at: usize| {
                if form.contains("ballot") {
                    format!("    {form} %d, {source}, 0xffffffff;\n    st.global.u32 [%out+{at}], %d;\n")
                } else {
                    format!(
                        "    {form} %q, {source}, 0xffffffff;\n    selp.u32 %d, 1, 0, %q;\n    st.global.u32 [%out+{at}], %d;\n"
                    )
                }
            };
            let text = vote("%p", 0) + &vote("!%p", 4);
            let ballot = (0..32).map(|lane| (input[lane] as u32 & 1) << lane).sum();
            let expected = vec![vec![result(ballot), result(!ballot)]; 32];
            all.push(case(form, &warp(form, "", 2, &text), input, &expected).named(name));
        }
    }
}

fn matches(all: &mut Vec<Case>) {
    for (t, register, width) in [("b32", "%a", 32), ("b64", "%wide", 64)] {
        for different in [1, 4, 32] {
            let mut input = values(t, different);
            if width == 64 && different == 4 {
                // Equal in the low halves only.
                input.iter_mut().for_each(|value| *value = *value & !0xffff_ffff | 7);
            }
            let of = |lane: usize| if width == 32 { input[lane] & 0xffff_ffff } else { input[lane] };
            let equal =
                |lane: usize| (0..32).filter(|&other| of(other) == of(lane)).map(|other| 1 << other).sum::<u32>();
            let form = format!("match.any.sync.{t}");
            let text = format!("    {form} %d, {register}, 0xffffffff;\n    st.global.u32 [%out], %d;\n");
            let expected: Vec<Vec<u32>> = (0..32).map(|lane| vec![equal(lane)]).collect();
            let name = format!("{different}-values");
            all.push(case(&form, &warp(&form, "", 1, &text), &input, &expected).named(&name));
            let form = format!("match.all.sync.{t}");
            let text = format!(
                "    {form} %d|%q, {register}, 0xffffffff;\n    selp.u32 %e, 1, 0, %q;\n    st.global.u32 [%out], %d;\n    st.global.u32 [%out+4], %e;\n"
            );
            let same = equal(0) == u32::MAX;
            let expected = vec![vec![if same { u32::MAX } else { 0 }, u32::from(same)]; 32];
            all.push(case(&form, &warp(&form, "", 2, &text), &input, &expected).named(&name));
        }
    }
}

/// A reduction of all lanes' values.
type Reduction = (&'static str, fn(&[u32]) -> u32);

fn reductions(all: &mut Vec<Case>) {
    let forms: [Reduction; 9] = [
        ("add.u32", |all| all.iter().fold(0, |sum, value| sum.wrapping_add(*value))),
        ("add.s32", |all| all.iter().fold(0, |sum, value| sum.wrapping_add(*value))),
        ("min.u32", |all| *all.iter().min().expect("32")),
        ("max.u32", |all| *all.iter().max().expect("32")),
        ("min.s32", |all| all.iter().map(|&value| value as i32).min().expect("32") as u32),
        ("max.s32", |all| all.iter().map(|&value| value as i32).max().expect("32") as u32),
        ("and.b32", |all| all.iter().fold(u32::MAX, |result, value| result & value)),
        ("or.b32", |all| all.iter().fold(0, |result, value| result | value)),
        ("xor.b32", |all| all.iter().fold(0, |result, value| result ^ value)),
    ];
    for (words, reduce) in forms {
        let form = format!("redux.sync.{words}");
        for (name, clear, set) in [("any", 0, 0), ("few-bits", 0xffff_fff0u64, 0), ("most-bits", 0, 0xffff_f0f0u64)] {
            let input: Vec<u64> = values(&form, 32).iter().map(|value| value & !clear | set).collect();
            let text = format!("    {form} %d, %a, 0xffffffff;\n    st.global.u32 [%out], %d;\n");
            let low: Vec<u32> = input.iter().map(|&value| value as u32).collect();
            let expected = vec![vec![reduce(&low)]; 32];
            all.push(case(&form, &warp(&form, "", 1, &text), &input, &expected).named(name));
        }
    }
}

/// One lane is elected, and all are told which.
fn elected() -> Case {
    let form = "elect.sync";
    let text = format!(
        "    {form} %d|%p, 0xffffffff;
    setp.eq.and.u32 %q, %d, %lane, %p;
    vote.sync.ballot.b32 %e, %p, 0xffffffff;
    popc.b32 %e, %e;
    st.global.u32 [%out], %e;
    setp.ne.u32 %p, %d, %lane;
    or.pred %q, %q, %p;
    selp.u32 %e, 1, 0, %q;
    st.global.u32 [%out+4], %e;
"
    );
    // One lane has the predicate, and it is the one that everybody was told of.
    case(form, &warp(form, "", 2, &text), &[0; 32], &vec![vec![1, 1]; 32])
}

/// The lanes that run: all of the warp, and those on each side of a branch.
fn active() -> Case {
    let form = "activemask.b32";
    let text = format!(
        "    {form} %d;
    st.global.u32 [%out], %d;
    setp.lt.u32 %q, %lane, 11;
    @%q bra $low;
    {form} %d;
    bra $end;
$low:
    {form} %d;
    not.b32 %d, %d;
$end:
    st.global.u32 [%out+4], %d;
"
    );
    // Compilers may split a side further, so only what cannot be is told: a lane of the other side.
    let expected = vec![vec![u32::MAX, !0x7ff]; 32];
    case(form, &warp(form, "", 2, &text), &[0; 32], &expected)
}

/// `ldmatrix`: lane i gives the address of row i; of each 8x8 matrix a lane receives row lane/4, columns 2(lane%4) and
/// the next, and of the transposed matrix column lane/4, rows 2(lane%4) and the next.
fn matrices(all: &mut Vec<Case>) {
    for count in [1usize, 2, 4] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let mut forms = vec![format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16")];
            if count == 4 {
                let other = if transposed { "x4.trans.m8n8" } else { "x4.m8n8" };
                forms.push(format!("ldmatrix.sync.aligned.{other}.shared.b16"));
            }
            for form in forms {
                let registers: Vec<String> = (0..count).map(|at| format!("%r{at}")).collect();
                // Each lane writes its row: 16 bytes, of which the element in column c is 256 lane + c.
                let mut text = "    mov.u32 %d, tile;\n    shl.b32 %e, %lane, 4;\n    add.u32 %d, %d, %e;\n".to_owned();
                text += "    shl.b32 %e, %lane, 8;\n    shl.b32 %mask, %e, 16;\n    or.b32 %e, %e, %mask;\n    or.b32 %e, %e, 0x10000;\n";
                for pair in 0..4 {
                    text += &format!("    st.shared.u32 [%d+{}], %e;\n    add.u32 %e, %e, 0x20002;\n", 4 * pair);
                }
                text += &format!("    bar.warp.sync 0xffffffff;\n    {form} {{{}}}, [%d];\n", registers.join(", "));
                for (at, register) in registers.iter().enumerate() {
                    text += &format!("    st.global.u32 [%out+{}], {register};\n", 4 * at);
                }
                let element = |matrix: usize, row: u32, column: u32| 256 * (8 * matrix as u32 + row) + column;
                let one = |lane: u32, matrix: usize| {
                    let (major, minor) = (lane / 4, 2 * (lane % 4));
                    let [low, high] = match transposed {
                        false => [element(matrix, major, minor), element(matrix, major, minor + 1)],
                        true => [element(matrix, minor, major), element(matrix, minor + 1, major)],
                    };
                    low | high << 16
                };
                let expected: Vec<Vec<u32>> =
                    (0..32).map(|lane| (0..count).map(|matrix| one(lane, matrix)).collect()).collect();
                let ptx = warp(&form, ".shared .align 16 .b8 tile[512];\n", count, &text);
                all.push(case(&form, &ptx, &[0; 32], &expected));
            }
        }
    }
}
