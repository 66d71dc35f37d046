//! Kernels broken on purpose, one instruction at a time, from their PTX in memory: the proof of a kernel must fail for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use warpweft_kernels::Program;

use super::On;

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
}

impl Mutant {
    fn text(&self, ptx: &str) -> String {
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
    for (at, line) in ptx.lines().enumerate() {
        if let Some((_, rest)) = line.split_once(".entry ") {
            let name = rest.trim_end_matches('(').trim().to_owned();
            within = name.starts_with(kernel).then_some(name);
        }
        let Some(name) = &within else { continue };
        for now in changes(line) {
            found.push(Mutant { kernel: name.clone(), line: at + 1, was: line.trim().to_owned(), now });
        }
    }
    found
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

/// What became of the mutants of a program.
pub(crate) struct Verdict {
    pub(crate) tried: usize,
    pub(crate) survivors: Vec<Mutant>,
}

impl Verdict {
    /// Both together: small kernels of one op.
    pub(crate) fn and(mut self, other: Verdict) -> Verdict {
        self.tried += other.tried;
        self.survivors.extend(other.survivors);
        self
    }

    /// Asserts that at least 95 of 100 were killed; prints the others.
    #[track_caller]
    #[allow(clippy::print_stdout, reason = "the survivors are read by people, with --nocapture")]
    pub(crate) fn assert_killed(&self) {
        let survivors = &self.survivors;
        let killed = self.tried - survivors.len();
        for Mutant { kernel, line, was, now } in survivors {
            println!("{kernel}, line {line} survives: `{was}` -> `{}`", now.trim());
        }
        println!("{killed} of {} killed", self.tried);
        assert!(self.tried > 0 && killed * 100 >= self.tried * 95, "{killed} of {} mutants killed", self.tried);
    }
}

/// Tries every `step`-th of the mutants against `proof`, which runs the op on a device and panics, or gives false, where it
/// sees that something is wrong.
pub(crate) fn try_mutants(
    program: &'static Program,
    kernel: &str,
    step: usize,
    proof: impl Fn(&On) -> bool + Sync,
) -> Verdict {
    try_mutants_beside(program, kernel, &[""], step, proof)
}

/// The same where the proof needs only the kernels `beside` of the program.
pub(crate) fn try_mutants_beside(
    program: &'static Program,
    kernel: &str,
    beside: &[&str],
    step: usize,
    proof: impl Fn(&On) -> bool + Sync,
) -> Verdict {
    try_mutants_on("", program, kernel, beside, step, proof)
}

/// The same on a device with more `settings` than the usual ones: `&multiprocessors=1`.
pub(crate) fn try_mutants_on(
    settings: &str,
    program: &'static Program,
    kernel: &str,
    beside: &[&str],
    step: usize,
    proof: impl Fn(&On) -> bool + Sync,
) -> Verdict {
    let ptx = only(program.ptx, beside);
    let on = |ptx: &str| {
        // The limit ends a mutant that would run for ever.
        let way = "software?check=all&limit=3000000&divergence=independent&async=latest&schedule=random&seed=3";
        let on = On::open(&format!("{way}{settings}"));
        // A mutant that does not load is a dead one.
        on.device.replace_program(program.ptx, ptx).is_ok().then_some(on)
    };
    let holds = |on: &On| catch_unwind(AssertUnwindSafe(|| proof(on))).unwrap_or(false);
    assert!(on(&ptx).is_some_and(|on| holds(&on)), "the kernel itself does not pass the proof");
    let all: Vec<Mutant> = mutants(&ptx, kernel).into_iter().step_by(step).collect();
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(mutant) = all.get(next.fetch_add(1, Relaxed)) {
                    if on(&mutant.text(&ptx)).is_some_and(|on| holds(&on)) {
                        survivors.lock().unwrap().push(mutant.clone());
                    }
                }
            });
        }
    });
    std::panic::set_hook(quiet);
    let mut survivors = survivors.into_inner().unwrap();
    survivors.sort_by_key(|mutant| mutant.line);
    Verdict { tried: all.len(), survivors }
}
