//! Runs cases and compares.

use crate::case::{Case, Expectation};
use crate::direct;

/// Runs all, and fails with every wrong result's first example.
pub(crate) fn check(cases: Vec<Case>) {
    let wrong: Vec<String> = cases.iter().filter_map(|case| one(case).err()).collect();
    assert!(wrong.is_empty(), "{} of {} forms:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn one(case: &Case) -> Result<(), String> {
    match direct::results(case) {
        Some(results) => compare(case, &results),
        None => Ok(()),
    }
}

/// The first result that is not as expected.
fn compare(case: &Case, results: &[Vec<u64>]) -> Result<(), String> {
    let form = &case.form;
    for (at, (sources, got)) in case.sources.iter().zip(results).enumerate() {
        match &case.expected {
            Expectation::Bits(expected) if expected[at] != *got => {
                return Err(format!("{form} {sources:x?}: {got:x?}, expected {:x?}", expected[at]));
            }
            Expectation::Accepted(accept) if !accept(sources, got) => {
                return Err(format!("{form} {sources:x?}: {got:x?} is not acceptable"));
            }
            _ => {}
        }
    }
    Ok(())
}
