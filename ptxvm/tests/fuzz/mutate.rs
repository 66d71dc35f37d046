//! Mutations of PTX, from bytes to whole tokens, by a generator of our own so that they never change.

use crate::near;

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, 0 where that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Tokens that stand at the borders of what a number, a name or a nesting can be.
const BORDERS: &[&str] = &[
    "0",
    "-1",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0x",
    "0xFFFFFFFFFFFFFFFFU",
    "0f7FC00000",
    "0f",
    "0d7FF8000000000000",
    "1e999",
    ".5",
    "5.",
    "08",
    "-",
    "~",
    "!",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "[]",
    "<",
    ">",
    "<0>",
    "<65536>",
    "<4294967295>",
    "|",
    "_",
    "%",
    "$",
    "@",
    "@!",
    "?",
    ":",
    "::",
    ";",
    ",",
    ".",
    "..",
    "+",
    "+-8",
    "/*",
    "*/",
    "//",
    "\"",
    "#",
    "# 1 \"a\"",
    "\0",
    "\u{e9}",
    "\u{1F600}",
    "WARP_SZ",
    "generic(grid)",
    "%tid.x",
    "%clock64",
    "%envreg31",
    ".pred",
    ".b128",
    ".f64",
    ".v4",
    ".sat",
    ".ftz",
    ".align 0",
    ".align 3",
    ".align 2147483648",
    "[1073741824]",
    "[4294967296]",
    ".reg .b32 %r<100000>;",
    ".entry k()",
    ".visible",
    ".extern",
    ".func",
    ".param .b8 p[4096];",
    ".maxntid 0, 0, 0",
    ".loc 9 9 9",
    "ret;",
    "exit;",
    "trap;",
    "bra $L__low;",
    "call f, ();",
    "bar.sync 17;",
    "brx.idx %r1, x;",
];

/// The texts that mutants are made of.
pub(crate) struct Corpus {
    texts: Vec<String>,
}

impl Corpus {
    pub(crate) fn new(texts: Vec<String>) -> Corpus {
        Corpus { texts }
    }

    /// A text with one to eight changes. Two of three mutants are changed with care, so that a good part still compiles.
    pub(crate) fn mutant(&self, random: &mut Random) -> String {
        let mut bytes = random.pick(&self.texts).clone().into_bytes();
        let careful = random.below(3) > 0;
        for _ in 0..1 + random.below(if careful { 3 } else { 8 }) {
            if careful {
                near::change(&mut bytes, random);
            } else {
                self.change(&mut bytes, random);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn change(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let at = random.below(bytes.len());
        match random.below(16) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => drop(bytes.remove(at)),
            2 => bytes.insert(at, random.next() as u8),
            3 if random.below(4) == 0 => bytes.truncate(at),
            4 => self.splice(bytes, random),
            5 | 6 => replace(bytes, token(bytes, at), b""),
            7 | 8 => {
                let (one, other) = (token(bytes, at), token(bytes, random.below(bytes.len())));
                let (first, second) = if one.0 <= other.0 { (one, other) } else { (other, one) };
                let (early, late) = (bytes[first.0..first.1].to_vec(), bytes[second.0..second.1].to_vec());
                if first.1 <= second.0 {
                    replace(bytes, second, &early);
                    replace(bytes, first, &late);
                }
            }
            9 | 10 => {
                let (start, end) = token(bytes, at);
                let copy = bytes[start..end].to_vec();
                replace(bytes, (end, end), &copy);
            }
            11 | 12 => {
                let new = *random.pick(BORDERS);
                replace(bytes, token(bytes, at), new.as_bytes());
            }
            13 => {
                let new = random.pick(BORDERS).repeat(1 + random.below(300));
                replace(bytes, (at, at), new.as_bytes());
            }
            // A token of the same text: the mutant that most often still parses.
            _ => {
                let (start, end) = token(bytes, random.below(bytes.len()));
                let copy = bytes[start..end].to_vec();
                replace(bytes, token(bytes, at), &copy);
            }
        }
    }

    /// Puts a stretch of another text into this one.
    fn splice(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let other = random.pick(&self.texts).as_bytes();
        let start = random.below(other.len());
        let end = (start + random.below(400)).min(other.len());
        let at = random.below(bytes.len());
        let until = (at + random.below(400)).min(bytes.len());
        replace(bytes, (at, until), &other[start..end]);
    }
}

pub(crate) fn replace(bytes: &mut Vec<u8>, (start, end): (usize, usize), new: &[u8]) {
    bytes.splice(start..end, new.iter().copied());
}

/// The token around byte `at`: a run of name characters, or one other character.
pub(crate) fn token(bytes: &[u8], at: usize) -> (usize, usize) {
    let follows = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$%.:".contains(byte);
    if !bytes.get(at).is_some_and(follows) {
        return (at, (at + 1).min(bytes.len()));
    }
    let start = bytes[..at].iter().rposition(|byte| !follows(byte)).map_or(0, |before| before + 1);
    let end = at + bytes[at..].iter().position(|byte| !follows(byte)).unwrap_or(bytes.len() - at);
    (start, end)
}

/// Pieces of a foreign module that are small enough to mutate often: its head, with the first kilobytes of each function,
/// and the labels that these lack.
pub(crate) fn pieces(text: &str) -> Vec<String> {
    const PIECE: usize = 6000;
    let starts: Vec<usize> = text.match_indices(".entry").map(|(at, _)| at).collect();
    let Some(&first) = starts.first() else {
        return vec![text.chars().take(PIECE).collect()];
    };
    let first = text[..first].rfind('\n').map_or(0, |at| at + 1);
    if text.len() < PIECE {
        return vec![text.to_owned()];
    }
    let head = text.get(..first.min(PIECE)).unwrap_or_default();
    let piece = |&start: &usize| {
        let start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let body = text.get(start..(start + PIECE).min(text.len())).unwrap_or_default();
        // Its own end, or an end after an instruction.
        if let Some(end) = body.find("\n}\n") {
            return format!("{head}{}\n}}\n", &body[..end]);
        }
        let cut = body.rfind(";\n").map_or(body.len(), |at| at + 2);
        let body = &body[..cut];
        let mut missing: Vec<&str> = body.split(|byte: char| byte.is_whitespace() || byte == ';').collect();
        missing.retain(|name| name.starts_with("$L") && !name.ends_with(':') && !body.contains(&format!("{name}:")));
        missing.sort_unstable();
        missing.dedup();
        let labels: String = missing.iter().map(|name| format!("{name}:\n")).collect();
        format!("{head}{body}{labels}ret;\n}}\n")
    };
    starts.iter().take(4).map(piece).collect()
}
