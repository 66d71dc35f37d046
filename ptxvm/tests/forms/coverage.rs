//! What is tested: every form of the lists and every row of the table that runs must have a case.

use std::collections::{BTreeMap, BTreeSet};

use warpweft_ptxvm::table::{Build, Form, TABLE};

use crate::case::Case;

/// Forms that current kernels compiled for sm_80 use, and the ISA's types of their operations.
pub(crate) const FORMS_80: &str = include_str!("forms-80.txt");

/// Forms that only kernels compiled for sm_90a use.
const FORMS_90: &str = include_str!("forms-90.txt");

/// The forms of a list.
pub(crate) fn listed(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The row of the table that a form is of.
pub(crate) fn row_of(form: &str) -> Option<&'static Form> {
    let mut words = form.split('.');
    let name = words.next()?;
    TABLE.find(name, &words.collect::<Vec<_>>()).map(|(row, _)| row)
}

/// Whether a form that matches the row runs.
fn runs(row: &Form) -> bool {
    !matches!(row.build, Build::Refused(_))
}

/// What the cases leave untested, a line each.
pub(crate) fn gaps(cases: &[Case]) -> Vec<String> {
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.form.as_str()).collect();
    let rows: BTreeSet<&str> = tested.iter().filter_map(|form| row_of(form)).map(|row| row.text).collect();
    let mut gaps: Vec<String> = Vec::new();
    for form in listed(FORMS_80) {
        match row_of(form) {
            None => gaps.push(format!("{form}: listed for sm_80, and in no row of the table")),
            Some(row) if !runs(row) => gaps.push(format!("{form}: listed for sm_80, and does not run")),
            Some(_) if !tested.contains(form) => gaps.push(format!("{form}: listed for sm_80, and without a case")),
            Some(_) => {}
        }
    }
    for form in listed(FORMS_90) {
        match row_of(form) {
            None => gaps.push(format!("{form}: listed for sm_90a, and in no row of the table")),
            Some(_) if !tested.contains(form) => gaps.push(format!("{form}: listed for sm_90a, and without a case")),
            Some(_) => {}
        }
    }
    let untested = TABLE.rows().iter().filter(|row| runs(row) && !rows.contains(row.text));
    gaps.extend(untested.map(|row| format!("{}: a row that runs, and without a case", row.text)));
    gaps
}

/// What is tested of one row or operation.
#[derive(Default)]
struct Tested<'a> {
    rows: BTreeSet<&'a str>,
    forms: BTreeSet<&'a str>,
    results: usize,
}

/// For each row that runs: its forms under test, and how many results are compared.
pub(crate) fn report(cases: &[Case]) -> String {
    let mut rows: BTreeMap<&str, Tested<'_>> = BTreeMap::new();
    for case in cases {
        if let Some(row) = row_of(&case.form).filter(|row| runs(row)) {
            let tested = rows.entry(row.text).or_default();
            tested.forms.insert(&case.form);
            tested.results += case.results();
        }
    }
    let line = |(row, tested): (&&str, &Tested<'_>)| {
        let forms: Vec<&str> = tested.forms.iter().copied().collect();
        format!("{row}: {} results of {}\n", tested.results, forms.join(" "))
    };
    rows.iter().map(line).collect()
}

/// The page about the instruction set: for each operation what runs and how much of it is tested, and what does not run.
pub(crate) fn page(cases: &[Case]) -> String {
    let mut operations: BTreeMap<&str, Tested<'_>> = BTreeMap::new();
    let mut refused: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in TABLE.rows() {
        match row.build {
            Build::Refused(reason) => {
                refused.entry(reason).or_default().insert(row.name);
            }
            _ => {
                operations.entry(row.name).or_default().rows.insert(row.text);
            }
        }
    }
    for case in cases {
        if let Some(row) = row_of(&case.form).filter(|row| runs(row)) {
            let tested = operations.entry(row.name).or_default();
            tested.forms.insert(&case.form);
            tested.results += case.results();
        }
    }
    let mut page = PAGE_START.to_owned();
    for (name, tested) in &operations {
        page += &format!("| `{name}` | {} | {} | {} |\n", tested.rows.len(), tested.forms.len(), tested.results);
    }
    page += PAGE_REFUSED;
    for (reason, names) in &refused {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        page += &format!("| {reason} | {} |\n", names.join(" "));
    }
    page
}

const PAGE_START: &str = "# Instruction forms of the software device

Written by a test (`cargo test -p warpweft-ptxvm --test forms`), which fails where this page is not current, where a row of
the instruction table that runs has no test, or where a form that current kernels use (`ptxvm/tests/forms/forms-80.txt`,
`forms-90.txt`) has none. A row is an operation with its types and the modifiers it takes; a form is one spelling of it.
Every form under test is a module of its own, whose results are compared with a definition written from the PTX ISA's text,
and which the real ptxas assembles (`scripts/check-forms`).

## What runs

| operation | rows of the table | forms under test | results compared |
| --- | ---: | ---: | ---: |
";

const PAGE_REFUSED: &str = "
## What is parsed and typed, and refused by name at launch

| why | operations |
| --- | --- |
";
