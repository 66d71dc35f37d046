//! That every test which the tables of degenerate inputs in docs/kernels.md name is there.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

/// Every name in the tests: of functions, and of those that a macro makes.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            names.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
        }
    }
    names
}

#[test]
fn every_degenerate_input_has_its_test() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kernels.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("\n## Degenerate inputs").nth(1).unwrap().split("\n## ").next().unwrap();
    let (names, mut inputs, mut found) = (names(), Vec::new(), 0);
    for row in section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "op" || cells[0] == "input" {
            inputs = cells;
            continue;
        }
        for (cell, input) in cells.iter().zip(&inputs).skip(1) {
            // `yes` is the test named after op and input; a name in backticks is the test itself.
            let tests = match *cell {
                "yes" => vec![format!("{}_{}", cells[0], input)],
                cell => cell.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
            };
            assert!(!tests.is_empty() || *cell == "-", "{}, {input}: {cell}", cells[0]);
            for test in tests {
                assert!(names.contains(&test), "there is no test `{test}`");
                found += 1;
            }
        }
    }
    assert!(found > 90, "the tables name {found} tests");
}
