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

/// For each row that runs: its forms under test, and how many results are compared.
pub(crate) fn report(cases: &[Case]) -> String {
    let mut rows: BTreeMap<&str, (BTreeSet<&str>, usize)> = BTreeMap::new();
    for case in cases {
        if let Some(row) = row_of(&case.form) {
            let (forms, results) = rows.entry(row.text).or_default();
            forms.insert(&case.form);
            *results += case.results();
        }
    }
    let mut lines = String::new();
    for row in TABLE.rows().iter().filter(|row| runs(row)) {
        let (forms, results) = rows.get(row.text).map_or((0, 0), |(forms, results)| (forms.len(), *results));
        let text = row.text.replace('|', "\\|");
        lines += &format!("| `{text}` | {} | {} | {forms} | {results} |\n", row.version, row.target);
    }
    lines
}
