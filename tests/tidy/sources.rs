//! What a Rust file looks like, and where `unsafe` may stand.

use super::{File, files, none};

/// A file over this has two themes.
const MOST_LINES: usize = 500;
/// Room for a file that is being split; never more.
const HARD_LIMIT: usize = 600;

/// Folders that may hold `unsafe`: the boundaries with C, the CUDA driver, and memory shared with other processes.
const UNSAFE_FOLDERS: [&str; 5] =
    ["ffi/", "device/src/cuda/", "ptxvm/libcuda/src/", "comm/src/transport/shm/", "comm/src/transport/verbs/"];
/// Crate roots that cannot forbid it because a folder below them needs it; they deny it instead.
const UNSAFE_ROOTS: [(&str, &str); 4] = [
    ("comm/src/lib.rs", "#![deny(unsafe_code)]"),
    ("device/src/lib.rs", "#![deny(unsafe_code)]"),
    ("ffi/", ""),
    ("ptxvm/libcuda/src/", ""),
];

fn rust_files() -> Vec<File> {
    files().into_iter().filter(|file| file.path.ends_with(".rs")).collect()
}

/// The text that carries no rule: frozen training text is whatever it is.
fn is_frozen(path: &str) -> bool {
    path.starts_with("trainer/text/")
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = rust_files().into_iter().filter(|file| !file.text.starts_with("//! "));
    none("a Rust file begins with a `//!` line that says what it is for", silent.map(|file| file.path).collect());
}

#[test]
fn no_file_is_long() {
    let long = rust_files().into_iter().filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > MOST_LINES).then(|| format!("{}: {lines} lines", file.path))
    });
    none(&format!("a file has at most {MOST_LINES} lines ({HARD_LIMIT} while it is being split)"), long.collect());
}

#[test]
fn white_space_is_clean() {
    let checked = [".rs", ".toml", ".md", ".h", ".c", ".sh", ".py", ".cu", ".cuh"];
    let mut dirty = Vec::new();
    for file in files() {
        if is_frozen(&file.path) || !(checked.iter().any(|end| file.path.ends_with(end)) || file.path == ".ci/run") {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) || (line.contains('\t') && !file.path.ends_with(".py")) {
                dirty.push(format!("{}:{}", file.path, index + 1));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            dirty.push(format!("{}: no newline at its end", file.path));
        }
    }
    none("no tab, no blank at the end of a line, a newline at the end of a file", dirty);
}

/// The files that rustc starts from: libraries, programs, tests, examples, benches and build scripts.
fn is_crate_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    // A module of a library may be named `build`; a build script stands beside the manifest.
    if parts.last() == Some(&"build.rs") && parts.contains(&"src") {
        return false;
    }
    let ["lib.rs" | "main.rs" | "build.rs", ..] = parts.iter().rev().copied().collect::<Vec<_>>()[..] else {
        let folder = parts.len().checked_sub(2).map_or("", |index| parts[index]);
        return matches!(folder, "tests" | "examples" | "benches" | "bin") && !path.contains("/src/tests/");
    };
    true
}

#[test]
fn unsafe_code_is_forbidden_wherever_it_can_be() {
    let lax = rust_files().into_iter().filter(|file| {
        let exception = UNSAFE_ROOTS.iter().find(|(path, _)| file.path.starts_with(path));
        let wanted = exception.map_or("#![forbid(unsafe_code)]", |(_, instead)| instead);
        is_crate_root(&file.path) && !file.text.contains(wanted)
    });
    none("a crate root carries `#![forbid(unsafe_code)]`", lax.map(|file| file.path).collect());
}

#[test]
fn unsafe_code_stands_in_its_folders_only() {
    let mut outside = Vec::new();
    for file in rust_files() {
        if UNSAFE_FOLDERS.iter().any(|folder| file.path.starts_with(folder)) || file.path.starts_with("tests/tidy/") {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.into_iter().any(|word| word == "unsafe") {
                outside.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    none(&format!("`unsafe` stands only in {UNSAFE_FOLDERS:?}"), outside);
}

#[test]
fn no_file_is_a_drawer() {
    let drawers = rust_files().into_iter().filter(|file| {
        let mut parts = file.path.split('/');
        parts.any(|part| matches!(part.trim_end_matches(".rs"), "utils" | "util" | "helpers" | "misc"))
    });
    none("a module is named after what it holds", drawers.map(|file| file.path).collect());
}

#[test]
fn libraries_print_nothing() {
    let printing = ["println!(", "eprintln!(", "print!(", "eprint!(", "dbg!("];
    let mut loud = Vec::new();
    for file in rust_files() {
        let library = file.path.contains("/src/") || file.path == "src/lib.rs";
        let command = file.path.starts_with("src/") && file.path != "src/lib.rs";
        if !library || command {
            continue;
        }
        for (index, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if printing.iter().any(|call| code.contains(call)) {
                loud.push(format!("{}:{}", file.path, index + 1));
            }
        }
    }
    none("a library reports through values, never on the terminal", loud);
}

#[test]
fn nothing_is_left_open() {
    // Put together here so that this file does not find itself.
    let marks = [["todo", "!("], ["unimplemented", "!("], ["#[ign", "ore"], ["FIX", "ME"]].map(|parts| parts.concat());
    let mut open = Vec::new();
    for file in rust_files() {
        for (index, line) in file.text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                open.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    none("no stub and no test that is switched off", open);
}
