//! Kernels broken on purpose, one instruction at a time, from their PTX in memory: the proof of a kernel must fail for them.

use std::collections::HashSet;

use warpweft_kernels::Program;

use super::On;
use super::trial::{Trial, Verdict};

/// A changed line of a program.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// The kernel it is in.
    pub(crate) kernel: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// What stood there.
    pub(crate) was: String,
    /// What stands there now; empty where it was taken out.
    pub(crate) now: String,
    /// Whether the proof comes to that line.
    pub(crate) reached: bool,
}

impl Mutant {
    pub(crate) fn text(&self, ptx: &str) -> String {
        let lines = ptx.lines().enumerate();
        let changed = lines.map(|(at, line)| if at + 1 == self.line { self.now.as_str() } else { line });
        changed.collect::<Vec<_>>().join("\n")
    }
}

/// Every mutant of the kernels whose names begin with `kernel`: barriers, waits and fences taken out; branches taken out and
/// always taken; comparisons of whole numbers moved by one; whole numbers in additions one off; maxima for minima.
pub(crate) fn mutants(ptx: &str, kernel: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    let mut within: Option<String> = None;
    // How many lines ago the compiler asked whether a division needs 64 bits: both ways give the same.
    let mut since_division = usize::MAX;
    for (at, line) in ptx.lines().enumerate() {
        let asks = line.trim().starts_with("and.b64") && line.ends_with(", -4294967296;");
        since_division = if asks { 0 } else { since_division.saturating_add(1) };
        if let Some((_, rest)) = line.split_once(".entry ") {
            let name = rest.trim_end_matches('(').trim().to_owned();
            within = name.starts_with(kernel).then_some(name);
        }
        let Some(name) = &within else { continue };
        if since_division <= 2 {
            continue;
        }
        for now in changes(line) {
            found.push(Mutant { kernel: name.clone(), line: at + 1, was: line.trim().to_owned(), now, reached: true });
        }
    }
    found
}

/// The kernels whose names begin so of which no mutant can be made: they have nothing but loads, stores and arithmetic.
pub(crate) fn without_mutants(ptx: &str, kernel: &str) -> Vec<String> {
    let named =
        ptx.lines().filter_map(|line| line.split_once(".entry ")).map(|(_, rest)| rest.trim_end_matches('(').trim());
    let broken: HashSet<String> = mutants(ptx, kernel).into_iter().map(|mutant| mutant.kernel).collect();
    named.filter(|name| name.starts_with(kernel) && !broken.contains(*name)).map(str::to_owned).collect()
}

fn changes(line: &str) -> Vec<String> {
    let text = line.trim();
    let (guard, plain) = match text.strip_prefix('@') {
        Some(rest) => {
            rest.split_once(char::is_whitespace).map_or((None, text), |(guard, plain)| (Some(guard), plain.trim()))
        }
        None => (None, text),
    };
    let opcode = plain.split([' ', '\t', ';']).next().unwrap_or("");
    let takes_out = ["bar.", "barrier.", "cp.async.wait", "cp.async.commit", "membar", "fence."];
    let mut found = Vec::new();
    if takes_out.iter().any(|prefix| opcode.starts_with(prefix)) {
        found.push(String::new());
    }
    if guard.is_some() && opcode.starts_with("bra") {
        found.push(String::new());
    }
    if guard.is_some() {
        found.push(plain.to_owned());
    }
    for (from, to) in [
        ("setp.lt", "setp.le"),
        ("setp.le", "setp.lt"),
        ("setp.gt", "setp.ge"),
        ("setp.ge", "setp.gt"),
        ("setp.eq", "setp.ne"),
        ("setp.ne", "setp.eq"),
        ("max.", "min."),
        ("min.", "max."),
    ] {
        // Equal floats are rare, and mostly no matter.
        if opcode.starts_with(from) && !(from.starts_with("setp") && opcode.ends_with(".f32")) {
            found.push(line.replacen(from, to, 1));
        }
    }
    let adds = ["add.s32", "add.s64", "add.u32", "sub.s32", "sub.s64", "mad.lo"]
        .iter()
        .any(|prefix| opcode.starts_with(prefix));
    if let (true, Some((before, last))) = (adds, plain.trim_end_matches(';').rsplit_once(", "))
        && let Ok(number) = last.parse::<i64>()
    {
        found.push(format!("{before}, {};", number + 1));
    }
    found
}

/// A program with those kernels alone whose names begin as said: it loads sooner.
pub(crate) fn only(ptx: &str, kernels: &[&str]) -> String {
    let (mut text, mut kept) = (String::new(), true);
    for line in ptx.lines() {
        if let Some((_, name)) = line.split_once(".entry ") {
            kept = kernels.iter().any(|kernel| name.starts_with(kernel));
        }
        // Lines keep their numbers.
        text.push_str(if kept { line } else { "" });
        text.push('\n');
    }
    text
}

/// Tries every `step`-th of the mutants against `proof`, which runs the op on a device and panics, or gives false, where it
/// sees that something is wrong.
pub(crate) fn try_mutants(
    program: &'static Program,
    kernel: &str,
    step: usize,
    proof: impl Fn(&On) -> bool + Sync,
) -> Verdict {
    Trial { step, ..Trial::new(program, kernel) }.verdict(|on, judge| judge.holds(proof(on)))
}
