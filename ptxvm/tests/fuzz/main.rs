//! Mutated PTX never makes the parser, the checker or the launcher panic, and every error says where it is.
//!
//! Each execution has a number and depends on nothing else but the texts, so a failure is replayed by its number alone:
//! `WARPWEFT_FUZZ=17,1` runs execution 17 only. Without it as many run as [`SLICE`] seconds allow, from 0 on, at most
//! 20,000; and a million with the feature `long-tests`.
//! The texts that are mutated lie beside this file; the files of the folders in `WARPWEFT_PTX_CORPUS` (with colons
//! between them), where it is set, are cut into more.
#![forbid(unsafe_code)]

mod launch;
mod mutate;
mod near;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mutate::{Corpus, Random};
use warpweft_ptxvm::lower::compile;
use warpweft_ptxvm::text::{Position, parse};

const SEEDS: &[(&str, &str)] = &[
    ("declarations", include_str!("declarations.ptx")),
    ("arithmetic", include_str!("arithmetic.ptx")),
    ("memory", include_str!("memory.ptx")),
    ("forms", include_str!("forms.ptx")),
    ("hopper", include_str!("hopper.ptx")),
];

/// What a text of a few kilobytes may take, however it was mutated: far from what it does, near to no quadratic time.
const MOST: Duration = Duration::from_secs(10);
/// What the executions may take where nobody has asked for a number of them.
const SLICE: Duration = Duration::from_secs(20);

#[test]
fn the_seeds_are_good() {
    for (name, text) in SEEDS {
        parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        compile(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn no_mutant_makes_parser_checker_or_launcher_panic() {
    let (first, count, slice) = executions();
    let corpus = corpus();
    let begin = Instant::now();
    let mut all = Reached::default();
    for number in first..first + count {
        let mut random = Random::new(number);
        let text = corpus.mutant(&mut random);
        let start = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| execute(&text, &mut random))) {
            Ok(reached) => all.add(&reached),
            Err(_) => panic!("execution {number} panicked (WARPWEFT_FUZZ={number},1); its text:\n{text}"),
        }
        assert!(start.elapsed() < MOST, "execution {number} took {:?}; its text:\n{text}", start.elapsed());
        if all.executed.is_multiple_of(100_000) {
            // Of a long run; a closed output is no failure.
            let _ = writeln!(std::io::stderr(), "after {:?}: {all:?}", begin.elapsed());
        }
        if slice.is_some_and(|slice| begin.elapsed() > slice) {
            break;
        }
    }
    // Mutants that are all refused at their first token would test nothing.
    let Reached { executed, parsed, compiled, launched, instructions } = all;
    let far = parsed > executed / 10 && compiled > executed / 20 && launched > executed / 20 && parsed < executed;
    let far = far && instructions > 20 * launched;
    assert!(executed < 1000 || far, "{all:?}");
}

/// How far texts came.
#[derive(Debug, Default)]
struct Reached {
    executed: u64,
    parsed: u64,
    compiled: u64,
    /// Kernels that began.
    launched: u64,
    /// Warp instructions that these ran.
    instructions: u64,
}

impl Reached {
    fn add(&mut self, other: &Reached) {
        self.executed += other.executed;
        self.parsed += other.parsed;
        self.compiled += other.compiled;
        self.launched += other.launched;
        self.instructions += other.instructions;
    }
}

/// The whole way of a text.
fn execute(text: &str, random: &mut Random) -> Reached {
    let mut reached = Reached { executed: 1, ..Reached::default() };
    if let Err(error) = parse(text) {
        inside(text, &error.position);
        assert!(error.to_string().contains(&format!("line {}", error.position.line)));
        return reached;
    }
    reached.parsed = 1;
    match compile(text) {
        Ok(program) => {
            reached.compiled = 1;
            (reached.launched, reached.instructions) = launch::all(&program, random);
        }
        Err(error) => {
            assert!(!error.problems.is_empty() && !error.to_string().is_empty());
            for problem in &error.problems {
                let line = text.split('\n').nth(problem.line as usize - 1).expect("the line exists");
                assert!(problem.column >= 1 && problem.column as usize <= line.len() + 1, "{problem}");
            }
        }
    }
    reached
}

/// Asserts that a position is in the text: an error without a place is of no use.
fn inside(text: &str, position: &Position) {
    let line = text.split('\n').nth(position.line as usize - 1).expect("the line exists");
    assert!(position.column >= 1 && position.column as usize <= line.chars().count() + 1, "{position:?}");
    assert!(position.caret as usize <= position.excerpt.chars().count() + 1, "{position:?}");
}

/// The executions asked for: the first one's number, how many, and after how long to stop.
fn executions() -> (u64, u64, Option<Duration>) {
    if let Ok(asked) = std::env::var("WARPWEFT_FUZZ") {
        let (first, count) = asked.split_once(',').expect("WARPWEFT_FUZZ is FIRST,COUNT");
        let number = |text: &str| text.trim().parse().expect("WARPWEFT_FUZZ is FIRST,COUNT");
        return (number(first), number(count), None);
    }
    if cfg!(feature = "long-tests") { (0, 1_000_000, None) } else { (0, 20_000, Some(SLICE)) }
}

fn corpus() -> Corpus {
    let mut texts: Vec<String> = SEEDS.iter().map(|(_, text)| (*text).to_owned()).collect();
    let folders = std::env::var("WARPWEFT_PTX_CORPUS").unwrap_or_default();
    for folder in folders.split(':').filter(|folder| !folder.is_empty()) {
        let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("WARPWEFT_PTX_CORPUS: {folder}: {error}"));
        let mut paths: Vec<_> = files.filter_map(|file| file.ok().map(|file| file.path())).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "ptx")) {
            texts.extend(mutate::pieces(&std::fs::read_to_string(path).expect("the file can be read")));
        }
    }
    Corpus::new(texts)
}
