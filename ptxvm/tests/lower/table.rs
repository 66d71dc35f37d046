//! The instruction table itself.

use std::collections::HashMap;

use warpweft_ptxvm::table::{Build, Form, TABLE, ValueShape};

#[test]
fn every_row_parses_and_takes_its_own_spellings() {
    for form in TABLE.rows() {
        for spelling in form.pattern.spellings().take(200) {
            let words: Vec<&str> = split(&spelling);
            assert!(form.pattern.matches(&words).is_some(), "{} does not take {spelling}", form.text);
        }
        assert!(form.text.starts_with(form.name), "{}", form.text);
    }
}

#[test]
fn no_spelling_belongs_to_two_rows() {
    let mut wrong = Vec::new();
    let mut rows: HashMap<&str, Vec<&Form>> = HashMap::new();
    for form in TABLE.rows() {
        rows.entry(form.name).or_default().push(form);
    }
    for form in TABLE.rows() {
        // All combinations of the long patterns would be millions: two hundred of them, evenly apart.
        let step = (form.pattern.combinations() / 200).max(1) | 1;
        for number in (0..form.pattern.combinations()).step_by(step as usize) {
            let spelling = form.pattern.spelling(number);
            let words = split(&spelling);
            let taken = rows[form.name].iter().filter(|other| other.pattern.matches(&words).is_some());
            let taken: Vec<&str> = taken.map(|other| other.text).collect();
            if taken.len() != 1 {
                wrong.push(format!("{}{spelling}: {taken:?}", form.name));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lane_functions_and_operands_fit_together() {
    for form in TABLE.rows() {
        let slots: usize = form
            .operands
            .iter()
            .map(|operand| match operand.value {
                ValueShape::Vector(_, count) => usize::from(count),
                ValueShape::PerVector(_) => 8,
                ValueShape::Value { pair, .. } => 1 + usize::from(pair),
                ValueShape::Carry | ValueShape::Immediate => 1,
                ValueShape::Address | ValueShape::Control | ValueShape::Rest => 0,
            })
            .sum();
        assert!(slots <= 16, "{} has {slots} slots", form.text);
        if let Build::Lanes(choose) | Build::Collective(choose) = form.build {
            for spelling in form.pattern.spellings().take(200) {
                if let Some(mods) = form.pattern.matches(&split(&spelling)) {
                    // Choosing never panics, whatever the modifiers.
                    let _ = choose(&mods);
                }
            }
        }
        if let Build::Refused(reason) = form.build {
            assert!(!reason.is_empty(), "{} says why it does not run", form.text);
        }
    }
}

/// `hopper.txt` lists the forms that kernels for sm_90a use and those for sm_80 do not.
#[test]
fn forms_of_hopper_are_known() {
    let known = |form: &&str| {
        let (name, modifiers) = form.split_once('.').unwrap_or((form, ""));
        TABLE.find(name, &split(modifiers)).is_some()
    };
    let unknown: Vec<&str> = include_str!("hopper.txt").lines().filter(|form| !known(form)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// `.a.b::c` is ["a", "b::c"].
fn split(spelling: &str) -> Vec<&str> {
    spelling.split('.').filter(|word| !word.is_empty()).collect()
}
