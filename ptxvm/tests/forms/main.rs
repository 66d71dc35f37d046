//! Every instruction form has a test: a module of its own, run on the device, compared with what the ISA's text says.
//!
//! `WARPWEFT_DUMP_FORMS=DIR cargo test -p warpweft-ptxvm --test forms` writes the modules into a folder, where
//! `scripts/check-forms` has the real ptxas assemble each of them.
#![forbid(unsafe_code)]

mod atomics;
mod bits;
mod case;
mod compare;
mod control;
mod coverage;
mod exact;
mod floats;
mod hopper;
mod inputs;
mod integer;
mod memory;
mod moves;
mod run;
mod sync;
mod warp;

use case::Case;

/// Every case, file by file.
fn all_cases() -> Vec<Case> {
    let files = [
        atomics::cases,
        bits::cases,
        compare::cases,
        control::cases,
        floats::cases,
        hopper::cases,
        integer::cases,
        memory::cases,
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
    tests!(atomics, bits, compare, control, floats, hopper, integer, memory, moves, sync, warp);
}

#[test]
fn covered() {
    let cases = all_cases();
    if let Some(file) = std::env::var_os("WARPWEFT_FORMS_REPORT") {
        std::fs::write(file, coverage::gaps(&cases).join("\n") + "\n\n" + &coverage::report(&cases))
            .expect("the report");
    }
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
