//! Every instruction form has a test: a module of its own, run on the device, compared with what the ISA's text says.
//!
//! `WARPWEFT_DUMP_FORMS=DIR cargo test -p warpweft-ptxvm --test forms` writes the modules into a folder, where
//! `scripts/check-forms` has the real ptxas assemble each of them. `WARPWEFT_FORMS_REPORT=FILE` lists rows with their
//! forms; `WARPWEFT_WRITE_FORMS=1` brings docs/ptx-forms.md up to date.
#![forbid(unsafe_code)]

mod approx;
mod atomics;
mod bits;
mod case;
mod compare;
mod control;
mod convert;
mod coverage;
mod exact;
mod float_compare;
mod floats;
mod hopper;
mod inputs;
mod integer;
mod memory;
mod mma;
mod moves;
mod run;
mod sync;
mod warp;

use case::Case;

/// Every case, file by file.
fn all_cases() -> Vec<Case> {
    let files = [
        approx::cases,
        atomics::cases,
        bits::cases,
        compare::cases,
        control::cases,
        convert::cases,
        float_compare::cases,
        floats::cases,
        hopper::cases,
        integer::cases,
        memory::cases,
        mma::cases,
        moves::cases,
        sync::cases,
        warp::cases,
    ];
    files.iter().flat_map(|cases| cases()).collect()
}

/// A test for each file of cases.
macro_rules! tests {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            run::check($name::cases());
        }
    )* };
}
mod each {
    use super::*;
    tests!(
        approx,
        atomics,
        bits,
        compare,
        control,
        convert,
        float_compare,
        floats,
        hopper,
        integer,
        memory,
        mma,
        moves,
        sync,
        warp
    );
}

#[test]
fn covered() {
    let cases = all_cases();
    if let Some(file) = std::env::var_os("WARPWEFT_FORMS_REPORT") {
        std::fs::write(file, coverage::report(&cases)).expect("the report");
    }
    let gaps = coverage::gaps(&cases);
    assert!(gaps.is_empty(), "{} gaps:\n{}", gaps.len(), gaps.join("\n"));
}

#[test]
fn the_page_is_current() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ptx-forms.md");
    let page = coverage::page(&all_cases());
    if std::env::var_os("WARPWEFT_WRITE_FORMS").is_some() {
        std::fs::write(file, &page).expect("the page");
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(written == page, "docs/ptx-forms.md is not current: run this test with WARPWEFT_WRITE_FORMS=1");
}

#[test]
fn dumped() {
    if let Some(folder) = std::env::var_os("WARPWEFT_DUMP_FORMS") {
        let folder = std::path::Path::new(&folder);
        std::fs::create_dir_all(folder).expect("the folder for the modules");
        for case in all_cases() {
            std::fs::write(folder.join(case.file_name()), &case.ptx).expect("a module");
        }
    }
}
