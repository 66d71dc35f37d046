//! Mutations that keep most of a text's grammar, so that what comes out often compiles: one name for another of its
//! kind, edge values, another modifier, lines that go, come twice or move, predicates.

use crate::mutate::{Random, replace, token};

/// Parts of an opcode that stand for one another.
const MODIFIERS: &[&[&str]] = &[
    &["u8", "s8", "b8"],
    &["u16", "s16", "b16", "f16", "bf16"],
    &["u32", "s32", "b32", "f32", "f16x2", "bf16x2", "tf32"],
    &["u64", "s64", "b64", "f64"],
    &["b128", "v2", "v4", "x1", "x2", "x4"],
    &["global", "shared", "local", "const", "param", "generic"],
    &["relaxed", "acquire", "release", "acq_rel", "volatile", "weak"],
    &["cta", "gpu", "sys", "cluster"],
    &["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "approx", "full"],
    &["ftz", "sat", "relu", "satfinite"],
    &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "num", "nan"],
    &["add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "div", "rem"],
    &["inc", "dec", "exch", "cas", "add", "min", "max"],
    &["wide", "hi", "lo"],
    &["up", "down", "bfly", "idx", "all", "any", "uni", "ballot"],
    &["ca", "cg", "cs", "cv", "wb", "wt", "lu"],
    &["trans", "row", "col", "aligned", "sync"],
    &["m16n8k16", "m16n8k8", "m16n8k32", "m8n8", "m8n8k4"],
];

/// Numbers at the borders of widths, shifts, masks, offsets and counts.
const EDGES: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "15",
    "16",
    "17",
    "31",
    "32",
    "33",
    "63",
    "64",
    "65",
    "127",
    "128",
    "255",
    "256",
    "1023",
    "1024",
    "4095",
    "4096",
    "65535",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "-4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "0x80000000",
    "0xfffffff0",
    "0f00000000",
    "0f7F800000",
    "0fFF800000",
    "0f7FC00000",
    "0f00000001",
    "0f7F7FFFFF",
    "0d7FF0000000000000",
    "0d0000000000000001",
];

/// Changes a text once.
pub(crate) fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(12) {
        0 => {
            let line = line(bytes, at);
            replace(bytes, line, b"");
        }
        1 => {
            let line = line(bytes, at);
            let copy = bytes[line.0..line.1].to_vec();
            let to = self::line(bytes, random.below(bytes.len())).0;
            replace(bytes, (to, to), &copy);
        }
        2 => {
            let line = line(bytes, at);
            let moved: Vec<u8> = bytes.drain(line.0..line.1).collect();
            let to = self::line(bytes, random.below(bytes.len())).0;
            replace(bytes, (to, to), &moved);
        }
        3 => guard(bytes, at, random),
        4..6 => modifier(bytes, at, random),
        6..8 => number(bytes, at, random),
        _ => sibling(bytes, at, random),
    }
}

/// The line around a byte, with its end.
fn line(bytes: &[u8], at: usize) -> (usize, usize) {
    let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |before| before + 1);
    let end = bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| at + end + 1);
    (start, end)
}

/// Puts a predicate of the text before a line's instruction.
fn guard(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(found) = find(bytes, random, |name| name.starts_with(b"%p") || name == b"p" || name == b"q") else {
        return;
    };
    let mut guard = if random.below(2) == 0 { b"@".to_vec() } else { b"@!".to_vec() };
    guard.extend_from_slice(&bytes[found.0..found.1]);
    guard.push(b' ');
    let start = line(bytes, at).0;
    replace(bytes, (start, start), &guard);
}

/// Another modifier of the same kind, or any.
fn modifier(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let known = |part: &[u8]| MODIFIERS.iter().position(|kind| kind.iter().any(|name| name.as_bytes() == part));
    let near = |bytes: &[u8], at: usize| {
        let (start, end) = token(bytes, at);
        let parts = bytes[start..end].split(|&byte| byte == b'.').filter(|part| known(part).is_some()).count();
        (parts > 0).then_some((start, end, parts))
    };
    // The next opcode that has one.
    let Some((start, end, parts)) = (at..bytes.len().min(at + 200)).find_map(|at| near(bytes, at)) else { return };
    let mut chosen = random.below(parts);
    let mut from = start;
    for part in bytes[start..end].split(|&byte| byte == b'.') {
        let to = from + part.len();
        if let Some(kind) = known(part) {
            if chosen == 0 {
                let kind = if random.below(8) == 0 { random.below(MODIFIERS.len()) } else { kind };
                let new = *random.pick(MODIFIERS[kind]);
                return replace(bytes, (from, to), new.as_bytes());
            }
            chosen -= 1;
        }
        from = to + 1;
    }
}

/// An edge value for the next number.
fn number(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let is_number = |at: &usize| bytes[*at].is_ascii_digit() && token(bytes, *at).0 == *at;
    let Some(start) = (at..bytes.len()).find(is_number) else { return };
    let edge = *random.pick(EDGES);
    replace(bytes, token(bytes, start), edge.as_bytes());
}

/// A name in the place of another that differs in its number alone: registers, labels, predicates.
fn sibling(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let numbered = |at: usize| {
        let (start, end) = token(bytes, at);
        let stem = stem(&bytes[start..end]);
        (!stem.is_empty() && stem.len() < end - start).then_some((start, end))
    };
    let Some(place) = (at..bytes.len().min(at + 200)).find_map(numbered) else { return };
    let wanted = stem(&bytes[place.0..place.1]).to_vec();
    let Some(found) = find(bytes, random, |name| stem(name) == wanted.as_slice()) else { return };
    let new = bytes[found.0..found.1].to_vec();
    replace(bytes, place, &new);
}

/// A name without the number at its end.
fn stem(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let stem = &name[..name.len() - digits];
    if stem.first().is_some_and(|&byte| byte.is_ascii_alphabetic() || b"%$_".contains(&byte)) { stem } else { b"" }
}

/// The first token from somewhere on, around the end, that is wanted.
fn find(bytes: &[u8], random: &mut Random, wanted: impl Fn(&[u8]) -> bool) -> Option<(usize, usize)> {
    let from = random.below(bytes.len());
    let mut at = token(bytes, from).1;
    let mut around = false;
    loop {
        if at >= bytes.len() {
            if around {
                return None;
            }
            (at, around) = (0, true);
        }
        let (start, end) = token(bytes, at);
        if start < end && wanted(&bytes[start..end]) {
            return Some((start, end));
        }
        if around && at > from {
            return None;
        }
        at = end.max(at + 1);
    }
}
