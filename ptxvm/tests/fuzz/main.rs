//! Mutated PTX never makes the parser or the checker panic, and every error says where it is.
//!
//! Each execution has a number and depends on nothing else, so a failure is replayed by its number alone:
//! `WARPWEFT_FUZZ=17,1` runs execution 17 only. Without it 20,000 run, and a million with the feature `long-tests`.
//! The texts that are mutated lie beside this file; the files of `WARPWEFT_FOREIGN_KERNELS`, where it is set, are cut into more.
#![forbid(unsafe_code)]

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mutate::{Corpus, Random};
use warpweft_ptxvm::lower::compile;
use warpweft_ptxvm::text::{Position, parse};

const SEEDS: &[(&str, &str)] = &[
    ("declarations", include_str!("declarations.ptx")),
    ("arithmetic", include_str!("arithmetic.ptx")),
    ("memory", include_str!("memory.ptx")),
    ("hopper", include_str!("hopper.ptx")),
];

/// What a text of a few kilobytes may take, however it was mutated: far from what it does, near to no quadratic time.
const MOST: Duration = Duration::from_secs(10);

#[test]
fn the_seeds_are_good() {
    for (name, text) in SEEDS {
        parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn mutated_text_never_panics() {
    let (first, count) = executions();
    let corpus = corpus();
    let mut good = 0;
    for number in first..first + count {
        let text = corpus.mutant(&mut Random::new(number));
        let start = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| execute(&text))) {
            Ok(parsed) => good += u64::from(parsed),
            Err(_) => panic!("execution {number} panicked (WARPWEFT_FUZZ={number},1); its text:\n{text}"),
        }
        assert!(start.elapsed() < MOST, "execution {number} took {:?}; its text:\n{text}", start.elapsed());
    }
    // Mutants that are all refused at their first token would test nothing.
    assert!(count < 1000 || (good > count / 50 && good < count), "{good} of {count} mutants parse");
}

/// The whole way of a text; whether it parses.
fn execute(text: &str) -> bool {
    match parse(text) {
        Ok(_) => {
            checked(text);
            true
        }
        Err(error) => {
            inside(text, &error.position);
            assert!(error.to_string().contains(&format!("line {}", error.position.line)));
            false
        }
    }
}

/// Checks and lowers a text that parses: no panic, and every finding has its place.
fn checked(text: &str) {
    let Err(error) = compile(text) else { return };
    for problem in &error.problems {
        let line = text.split('\n').nth(problem.line as usize - 1).expect("the line exists");
        assert!(problem.column >= 1 && problem.column as usize <= line.len() + 1, "{problem}");
    }
}

/// Asserts that a position is in the text: an error without a place is of no use.
fn inside(text: &str, position: &Position) {
    let line = text.split('\n').nth(position.line as usize - 1).expect("the line exists");
    assert!(position.column >= 1 && position.column as usize <= line.chars().count() + 1, "{position:?}");
    assert!(position.caret as usize <= position.excerpt.chars().count() + 1, "{position:?}");
}

/// The executions asked for: the first one's number, and how many.
fn executions() -> (u64, u64) {
    if let Ok(asked) = std::env::var("WARPWEFT_FUZZ") {
        let (first, count) = asked.split_once(',').expect("WARPWEFT_FUZZ is FIRST,COUNT");
        let number = |text: &str| text.trim().parse().expect("WARPWEFT_FUZZ is FIRST,COUNT");
        return (number(first), number(count));
    }
    (0, if cfg!(feature = "long-tests") { 1_000_000 } else { 20_000 })
}

fn corpus() -> Corpus {
    let mut texts: Vec<String> = SEEDS.iter().map(|(_, text)| (*text).to_owned()).collect();
    if let Some(folder) = std::env::var_os("WARPWEFT_FOREIGN_KERNELS") {
        let files = std::fs::read_dir(&folder).expect("WARPWEFT_FOREIGN_KERNELS names a folder");
        let mut paths: Vec<_> = files.filter_map(|file| file.ok().map(|file| file.path())).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "ptx")) {
            texts.extend(mutate::pieces(&std::fs::read_to_string(path).expect("the file can be read")));
        }
    }
    Corpus::new(texts)
}
